"""Other OpenZFS releases, with matching programs and libraries.

A guest has their modules in place of the lab's, and its programs are replaced at boot. A release that supports the
lab's kernel is built for it. It uses the pool of the lab's release, like a host after an upgrade. An older release has
a kernel of its own suite and its own pools, because it cannot open the lab's.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from . import host, recipe, servers, steps
from .build import Builder, Product, products

CHOSEN = "ZSNAPDB_LAB_ZFS"
"""Environment variable with the release of the guests, for fault tests, which start guests themselves."""
_FOR_USER_MODE = (
    "for makefile in module/*/Makefile.in; do"
    " if [ -e $makefile ]; then sed -i 's/(CONFIG_X86)/(CONFIG_X86_64)/' $makefile; fi; done;"
    " if [ -e module/lua/Makefile.in ]; then echo 'ccflags-y += -Usetjmp -Ulongjmp' >> module/lua/Makefile.in; fi;"
)
"""Changes that OpenZFS 2.1 needs for User Mode Linux, which sets only CONFIG_X86_64 and renames setjmp in all C files.

Later releases have one makefile for all modules, and need no change.
"""
LIBRARIES = "libzfs|libzpool|libnvpair|libuutil|libzfsbootenv"


@dataclass(frozen=True)
class Release:
    """The Debian or Ubuntu suite of a release, and the kernel version that it needs (None: the lab's kernel).

    `inputs` are those of its product.
    """

    suite: str
    kernel: str | None = None
    is_ubuntu: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.suite, "1")


RELEASES: Mapping[str, Release] = {
    "2.4": Release("trixie-backports"),
    "2.2": Release("noble", "6.1", is_ubuntu=True),
    "2.1": Release("bookworm", "6.1"),
}
KERNELS: Mapping[str, str] = {"6.1": "bookworm"}
"""Older kernels, with the Debian suites of their sources."""


def product(name: str) -> Product:
    """Return the product of a release: its modules, and `usr` with its programs and libraries."""
    if name not in RELEASES:
        raise host.LabError(f"no OpenZFS {name!r}; there are: {', '.join(RELEASES)}")
    release, kernel = RELEASES[name], kernel_of(name)
    return Product(f"zfs-{name}", release.inputs, ("toolroot", kernel), _make(release, kernel))


def kernel_of(name: str | None) -> str:
    """Return the name of the kernel product for guests with this release (None: the lab's)."""
    own = None if name is None else RELEASES[name].kernel
    return "kernel" if own is None else f"kernel-{own}"


def image_of(name: str | None, database: str) -> str:
    """Return the name of the pool product for such guests, with a server of the lab or of servers.py."""
    own = None if name is None else RELEASES[name].kernel
    return f"image-{database}" if own is None else f"image-{database}-zfs-{name}"


def all_products() -> list[Product]:
    """Return all kernels and releases, each after its dependencies."""
    return [one for name in RELEASES for one in (*_kernels(name), product(name))]


def needed(name: str, server: str | None) -> list[Product]:
    """Return the additional products for guests with this release and this server (None: the lab's two).

    LabError for the lab's own servers on an older kernel: User Mode Linux had 512 GB of address space there, and
    MariaDB 10.11 and later reserve 8 TB (innodb_buffer_pool_size_max). MySQL and MariaDB 10.5 do not.
    """
    release = product(name)
    if RELEASES[name].kernel is None:
        return [release]
    if server is None:
        raise host.LabError(f"OpenZFS {name} goes with an older server: add --server mysql-8.0, or another")
    return [*_kernels(name), release, _image(name, server)]


def _kernels(name: str) -> Sequence[Product]:
    release = RELEASES[name]
    if release.kernel is None:
        return ()
    source = (KERNELS[release.kernel], f"linux-source-{release.kernel}")
    lab = next(one for one in products() if one.name == "kernel")
    make = steps.kernel(recipe.KERNEL_OPTIONS, source=source)
    return (Product(kernel_of(name), (*lab.inputs, *source), lab.needs, make),)


def _image(name: str, server: str) -> Product:
    """Return the product of the pool with the server's files, made by this release."""
    like, modules = servers.image(server), f"zfs-{name}"
    make = steps.pool_image(servers.SERVERS[server].flavour, f"server-{server}", kernel_of(name), modules)
    return replace(like, name=f"{like.name}-zfs-{name}", needs=(*like.needs, modules), make=make)


def _make(release: Release, kernel: str) -> Callable[[Builder, Path], None]:
    def make(b: Builder, out: Path) -> None:
        build = out / "build"
        build.mkdir()
        options = servers.apt_sources(b, build, "/build", (release.suite,), is_ubuntu=release.is_ubuntu)
        jobs = (os.cpu_count() or 2) + 1
        script = (
            f"cd /build; apt-get {options} update; apt-get {options} download zfs-dkms zfsutils-linux;"
            " needs=$(dpkg-deb -f zfsutils-linux_*.deb Depends | tr , '\\n' |"
            f" grep -oE '^ *({LIBRARIES})[0-9a-z]*' | tr -d ' ');"
            f" apt-get {options} download $needs; mkdir tree; rm -rf apt;"
            " for deb in zfsutils-linux_*.deb lib*.deb; do dpkg-deb --fsys-tarfile $deb | tar x -C tree; done;"
            f" dpkg -x zfs-dkms_*.deb .; cd usr/src/zfs-*; {_FOR_USER_MODE}"
            " ARCH=um ./configure --with-config=kernel --with-linux=/src --with-linux-obj=/src ARCH=um;"
            f" make ARCH=um -j{jobs}; find module -name '*.ko' -exec strip -g {{}} + -exec cp -t /out/ {{}} +;"
            " cp META /out/"
        )
        binds = [host.Bind(out, "/out"), host.Bind(build, "/build"), host.Bind(b.paths[kernel] / "src", "/src")]
        b.chroot(b.paths["toolroot"], script, binds)
        for folder in ("sbin", "bin", "lib"):
            if (build / "tree" / folder).is_dir():
                shutil.copytree(build / "tree" / folder, build / "tree/usr" / folder, symlinks=True, dirs_exist_ok=True)
        (build / "tree/usr").rename(out / "usr")
        shutil.rmtree(build)

    return make
