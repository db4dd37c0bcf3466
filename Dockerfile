# The wheel is built in one stage and installed in the other, beside the ZFS user tools and the database clients.
# `make image-trial` runs these steps in bare roots of Debian and tries the result, without any container engine.
#
# Backups, restores and clones need root, the host's /dev/zfs, processes, network and mounts (shared propagation), and the
# folders of zsnapdb on the host: without these a backup is refused, because records, journals and locks would be lost
# with the container. docs/containers.md has the whole command, and one for Kubernetes.
# Commands that only read or tidy the repository do not need --privileged (list, show, verify, prune, copy, report). They
# run as root in the container, because only root can read the credentials:
#   docker run --device /dev/zfs -v /etc/zsnapdb:/etc/zsnapdb:ro zsnapdb list main
# Restores, drills and clones start the server program of the image: MariaDB of this series, with innochecksum. MySQL and
# other series are not in it: mount their programs and name them in [instance.NAME.server] binary, or restore on a host.
FROM debian:trixie-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home build
USER build
WORKDIR /src
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY zsnapdb ./zsnapdb
COPY configs ./configs
COPY hooks ./hooks
COPY docs ./docs
RUN python3 -m venv /home/build/venv \
    && /home/build/venv/bin/pip install --no-cache-dir build hatchling \
    && /home/build/venv/bin/python -m build --wheel --no-isolation --outdir /home/build/dist

FROM debian:trixie-slim
RUN sed -i 's/^Components: main$/Components: main contrib/' /etc/apt/sources.list.d/debian.sources \
    && apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv ca-certificates zfsutils-linux mariadb-client \
        mariadb-server-core \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --home-dir /var/lib/zsnapdb --create-home zsnapdb
COPY --from=build /home/build/dist/*.whl /wheel/
RUN python3 -m venv /opt/zsnapdb && /opt/zsnapdb/bin/pip install --no-cache-dir "$(echo /wheel/*.whl)[serve,fleet]" && rm -r /wheel \
    && ln -s /opt/zsnapdb/bin/zsnapdb /usr/local/bin/zsnapdb
# systemd.io/CONTAINER_INTERFACE: zsnapdb refuses to keep records in the root of a container.
ENV container=oci
ENTRYPOINT ["zsnapdb"]
CMD ["--help"]
