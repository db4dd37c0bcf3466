# The wheel is built in one stage and installed in the other, beside the ZFS user tools and the database clients.
# The container needs the host's /dev/zfs, its mounts (shared propagation) and the server's socket:
#   docker run --privileged -v /dev/zfs:/dev/zfs -v /var/lib/mysql:/var/lib/mysql:rshared -v /run/mysqld:/run/mysqld \
#     -v /etc/zsnapdb:/etc/zsnapdb:ro zsnapdb backup main
FROM debian:trixie-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv ca-certificates && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY zsnapdb ./zsnapdb
COPY configs ./configs
COPY hooks ./hooks
COPY docs ./docs
RUN python3 -m venv /build && /build/bin/pip install --no-cache-dir build hatchling && /build/bin/python -m build --wheel --no-isolation --outdir /dist

FROM debian:trixie-slim
RUN sed -i 's/^Components: main$/Components: main contrib/' /etc/apt/sources.list.d/debian.sources \
    && apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv ca-certificates zfsutils-linux mariadb-client \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /dist/*.whl /tmp/
RUN python3 -m venv /opt/zsnapdb && /opt/zsnapdb/bin/pip install --no-cache-dir /tmp/*.whl && rm /tmp/*.whl \
    && ln -s /opt/zsnapdb/bin/zsnapdb /usr/local/bin/zsnapdb
ENTRYPOINT ["zsnapdb"]
CMD ["--help"]
