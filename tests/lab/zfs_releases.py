"""OpenZFS beside the lab's: other releases, built for the lab's kernel, with the programs and libraries that fit.

A guest has their modules in the place of the lab's, and its programs are replaced when it boots. Its pool is the one
that the lab's release made, as on a host that was upgraded.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from . import host, steps
from .build import Builder, Product

CHOSEN = "ZSNAPDB_LAB_ZFS"
"""The environment variable that says which release guests have; fault tests start guests themselves."""
SUITES: Mapping[str, str] = {"2.4": "trixie-backports"}
"""Which suite of Debian has a release."""
LIBRARIES = "libzfs|libzpool|libnvpair|libuutil|libzfsbootenv"


def product(name: str) -> Product:
    """Return the product that is a release: its two modules, and `usr` with its programs and libraries."""
    if name not in SUITES:
        raise host.LabError(f"no OpenZFS {name!r}; there are: {', '.join(SUITES)}")
    return Product(f"zfs-{name}", (SUITES[name], "1"), ("toolroot", "kernel"), _make(SUITES[name]))


def _make(suite: str) -> Callable[[Builder, Path], None]:
    def make(b: Builder, out: Path) -> None:
        build = out / "build"
        build.mkdir()
        options = steps.apt_options(build / "apt", "/build/apt", suite, "contrib")
        jobs = (os.cpu_count() or 2) + 1
        script = (
            f"cd /build; apt-get {options} update; apt-get {options} download zfs-dkms zfsutils-linux;"
            " needs=$(dpkg-deb -f zfsutils-linux_*.deb Depends | tr , '\\n' |"
            f" grep -oE '^ *({LIBRARIES})[0-9a-z]*' | tr -d ' ');"
            f" apt-get {options} download $needs; mkdir tree; rm -rf apt;"
            " for deb in zfsutils-linux_*.deb lib*.deb; do dpkg-deb --fsys-tarfile $deb | tar x -C tree; done;"
            " dpkg -x zfs-dkms_*.deb .; cd usr/src/zfs-*;"
            " ARCH=um ./configure --with-config=kernel --with-linux=/src --with-linux-obj=/src ARCH=um;"
            f" make ARCH=um -j{jobs}; strip -g module/spl.ko module/zfs.ko; cp module/spl.ko module/zfs.ko META /out/"
        )
        binds = [host.Bind(out, "/out"), host.Bind(build, "/build"), host.Bind(b.paths["kernel"] / "src", "/src")]
        b.chroot(b.paths["toolroot"], script, binds)
        for folder in ("sbin", "bin", "lib"):
            if (build / "tree" / folder).is_dir():
                shutil.copytree(build / "tree" / folder, build / "tree/usr" / folder, symlinks=True, dirs_exist_ok=True)
        (build / "tree/usr").rename(out / "usr")
        shutil.rmtree(build)

    return make
