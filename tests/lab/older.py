"""Servers of an older Debian, for rehearsals of upgrades.

A server is fetched when a test needs it; a guest sees the folder only if the test mounts it.
"""

from __future__ import annotations

from pathlib import Path

from . import host
from .build import Builder, Product, apt_options, products
from .cache import Cache

SUITE = "bookworm"
PACKAGES = ("mariadb-server-core", "mariadb-client-core", "mariadb-server", "libaio1")


def _make(b: Builder, out: Path) -> None:
    options = apt_options(out / "apt", "/out/apt", SUITE)
    # The guest's own, newer libraries serve, but for one whose name has changed: only the packages themselves are
    # wanted.
    script = (
        f"apt-get {options} update; cd /out/apt; apt-get {options} download {' '.join(PACKAGES)}; "
        "for deb in *.deb; do dpkg-deb --fsys-tarfile $deb | tar x -C /out; done; rm -rf /out/apt"
    )
    b.chroot(b.paths["toolroot"], script, [host.Bind(out, "/out")])


def mariadb(cache: Cache) -> Path:
    """Return the folder with MariaDB 10.11 of Debian 12 (usr/sbin, usr/bin, usr/share); fetch it if missing."""
    builder = Builder(cache)
    needed = [product for product in products() if product.name in ("base", "toolroot")]
    with cache.lock():
        for product in (*needed, Product("mariadb-older", (SUITE, *PACKAGES), ("toolroot",), _make)):
            builder.build(product)
    return builder.paths["mariadb-older"]
