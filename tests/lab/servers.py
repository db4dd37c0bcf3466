"""Other releases of MySQL and MariaDB, from distributions that have them.

A server is downloaded when it is named (`--server NAME`), with the libraries that the guest lacks. A guest sees its
tree as /opt/server, in place of the lab's server of that flavour. It uses the guest's own C library. Newer C libraries
run older programs, but the older ones divide by zero in User Mode Linux, whose processor has no caches.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import host, steps
from .build import Builder, Product, build, products
from .cache import Cache

UBUNTU = "http://archive.ubuntu.com/ubuntu"
UBUNTU_KEYS = "usr/share/keyrings/ubuntu-archive-keyring.gpg"
DEBIAN_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
PROGRAMS = {
    "mysql": ("mysqld", "mysql", "mysqladmin", "mysqlbinlog", "mysqldump", "mysql_upgrade", "innochecksum"),
    "mariadb": (
        "mariadbd",
        "mariadb-install-db",
        "mariadb",
        "mariadb-admin",
        "mariadb-binlog",
        "mariadb-check",
        "mariadb-dump",
        "mariadb-upgrade",
        "innochecksum",
        "my_print_defaults",
        "resolveip",
    ),
}
"""Programs that are taken from a server's packages."""
POLICY = "[hash_algorithms]\nsha1.second_preimage_resistance = 2040-01-01\n"
"""apt's crypto policy for the keys of old releases, which use SHA-1."""


@dataclass(frozen=True)
class OtherServer:
    """A release: its flavour, the suites of a distribution that have it (newest last), and its packages.

    The packages in `whole` are extracted without their dependencies.
    """

    name: str
    flavour: str
    suites: tuple[str, ...]
    packages: tuple[str, ...]
    whole: tuple[str, ...] = ()

    @property
    def is_ubuntu(self) -> bool:
        return self.suites[0] != "bullseye" and self.suites[0] != "bookworm"

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.flavour, *self.suites, *self.packages, *self.whole, "7")


def _mysql(name: str, *suites: str, version: str = "") -> OtherServer:
    suffix = f"-{version}" if version else ""
    packages = (f"mysql-server-core{suffix}", f"mysql-client-core{suffix}")
    # In 5.7 mysqlbinlog is in the package that starts the server, not in the core package.
    whole = ("mysql-server-5.7", "mysql-client-5.7") if version == "5.7" else ()
    return OtherServer(name, "mysql", suites, packages, whole)


def _mariadb(name: str, *suites: str, version: str = "") -> OtherServer:
    suffix = f"-{version}" if version else ""
    packages = (f"mariadb-server-core{suffix}", f"mariadb-client-core{suffix}")
    return OtherServer(name, "mariadb", suites, packages, (f"mariadb-server{suffix}", f"mariadb-client{suffix}"))


SERVERS = {
    server.name: server
    for server in (
        _mysql("mysql-5.7", "bionic", "bionic-updates", version="5.7"),
        _mysql("mysql-8.0.19", "focal", version="8.0"),
        _mysql("mysql-8.0", "jammy", "jammy-updates", version="8.0"),
        _mysql("mysql-8.4", "resolute", "resolute-updates"),
        _mariadb("mariadb-10.5", "bullseye", version="10.5"),
        _mariadb("mariadb-10.6", "jammy", "jammy-updates", version="10.6"),
        _mariadb("mariadb-10.11", "bookworm"),
        _mariadb("mariadb-11.4", "plucky", "plucky-updates"),
    )
}


def apt_sources(b: Builder, out: Path, inside: str, suites: tuple[str, ...], *, is_ubuntu: bool) -> str:
    """Create a folder `apt` in `out` with only these suites, and return the apt options for it.

    `out` is `inside` in the chroot. Debian has the keys of Ubuntu as a package, which Debian signs.
    """
    options = steps.apt_options(out / "apt", f"{inside}/apt", suites[0])
    keys, mirror, parts = DEBIAN_KEYS, host.mirror(), "main contrib"
    if is_ubuntu:
        keys, mirror, parts = f"{inside}/{UBUNTU_KEYS}", UBUNTU, "main universe"
        script = (
            f"cd {inside}/apt; apt-get -q update; apt-get -q download ubuntu-keyring;"
            f" dpkg-deb --fsys-tarfile ubuntu-*.deb | tar x -C {inside}; rm ubuntu-*.deb"
        )
        b.chroot(b.paths["toolroot"], script, [host.Bind(out, inside)])
    (out / "apt/policy").write_text(POLICY)
    lines = (f"deb [signed-by={keys}] {mirror} {suite} {parts}\n" for suite in suites)
    (out / "apt/sources.list").write_text("".join(lines))
    return options


def _fetch(server: OtherServer) -> Callable[[Builder, Path], None]:
    """Return the build function of a server's tree: the files of its packages and of all dependencies."""

    def make(b: Builder, out: Path) -> None:
        options = apt_sources(b, out, "/out", server.suites, is_ubuntu=server.is_ubuntu)
        whole = f"cd /out/apt/archives; apt-get {options} download {' '.join(server.whole)}; " if server.whole else ""
        script = (
            f"export APT_SEQUOIA_CRYPTO_POLICY=/out/apt/policy; apt-get {options} update;"
            f" apt-get {options} --download-only install {' '.join(server.packages)}; {whole}"
            "rm -f /out/apt/archives/libc6_*.deb; for deb in /out/apt/archives/*.deb;"
            " do dpkg-deb --fsys-tarfile $deb | tar x --keep-directory-symlink -C /out; done; rm -rf /out/apt"
        )
        b.chroot(b.paths["toolroot"], script, [host.Bind(out, "/out")])
        _take(server, out, b.paths["guest"])

    return make


def _take(server: OtherServer, out: Path, guest: Path) -> None:
    """Collect the programs of a server in `bin-lab`, and the libraries that the guest lacks in `lib-lab`."""
    (out / "lib-lab").mkdir()
    has = set(os.listdir(guest / LIBRARIES))
    for folder in (out / LIBRARIES, out / "lib/x86_64-linux-gnu", out / "usr/lib/mysql/private"):
        libraries = sorted(folder.glob("*.so.*")) if folder.is_dir() else []
        behind = {library.resolve() for library in libraries if library.is_symlink()}
        for library in libraries:
            is_soname = library.is_symlink() or library not in behind
            if is_soname and library.exists() and library.name not in has:
                shutil.copy(library, out / "lib-lab")
    (out / "bin-lab").mkdir()
    (out / "bin").mkdir(exist_ok=True)
    home, bin_lab = "/opt/mysql/usr", out / "bin-lab"
    for name in PROGRAMS[server.flavour]:
        places = (out / "usr" / folder / name for folder in ("sbin", "bin"))
        program = next((place for place in places if place.is_file()), None)
        if program is not None and name == "mysqld":
            extra = f"--lc-messages-dir={home}/share/mysql --plugin-dir={home}/lib/mysql/plugin"
            (bin_lab / name).write_text(f'#!/bin/sh\nexec {home}/sbin/mysqld "$@" --basedir={home} {extra}\n')
            (bin_lab / name).chmod(0o755)
        elif program is not None:
            shutil.copy(program, bin_lab / name)


def _named(name: str) -> OtherServer:
    if name not in SERVERS:
        raise host.LabError(f"no server {name!r}; there are: {', '.join(SERVERS)}")
    return SERVERS[name]


def product(name: str) -> Product:
    """Return the product with the tree of a server. LabError for an unknown name."""
    server = _named(name)
    return Product(f"server-{name}", server.inputs, ("toolroot", "guest"), _fetch(server))


def image(name: str) -> Product:
    """Return the product with a pool that this release initialised."""
    like = next(one for one in products() if one.name == f"image-{_named(name).flavour}")
    make = steps.pool_image(SERVERS[name].flavour, f"server-{name}")
    return Product(f"image-{name}", like.inputs, (*like.needs, f"server-{name}"), make)


def tree(cache: Cache, name: str) -> Path:
    """Return the folder of a server (usr, bin-lab). Download it if it is missing."""
    return build(cache, [product(name)])[f"server-{name}"]
