"""Build functions of the lab's products. A step gets the builder, with earlier products, and a new folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import host, recipe

if TYPE_CHECKING:
    from .build import Builder

INSIDE = Path(__file__).parent / "inside"


def debootstrapped_root(b: Builder, out: Path) -> None:
    if shutil.which("debootstrap") is None:
        b.run(["apt-get", "-q", "update"])
        b.run(["apt-get", "-q", "-y", "install", "debootstrap"])
    private = ["unshare", "--mount", "--propagation", "private"]
    b.run(
        [
            *private,
            "debootstrap",
            "--variant=minbase",
            "--components=main,contrib",
            recipe.SUITE,
            str(out),
            host.mirror(),
        ]
    )
    (out / "etc/apt/apt.conf.d/90lab").write_text(
        'APT::Install-Recommends "false";\nAcquire::Languages "none";\nAcquire::Retries "3";\nDpkg::Use-Pty "false";\n'
        'Dpkg::Options { "--force-unsafe-io"; };\n' + host.apt_proxy_lines()
    )
    (out / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
    (out / "usr/sbin/policy-rc.d").chmod(0o755)
    shutil.copy("/etc/resolv.conf", out / "etc/resolv.conf")
    hosts = Path("/etc/hosts")
    (out / "etc/hosts").write_text(hosts.read_text() if hosts.exists() else "127.0.0.1 localhost\n")


def _copy_tree(b: Builder, source: Path, target: Path) -> None:
    b.run(["cp", "-a", "--reflink=auto", f"{source}/.", str(target)])


def root_with_tools(b: Builder, out: Path) -> None:
    _copy_tree(b, b.paths["base"], out)
    b.chroot(out, "apt-get -q update; apt-get -q -y install " + " ".join(recipe.BUILD_PACKAGES) + "; apt-get clean")
    sources = out / "usr/src/apt"
    sources.mkdir()
    for suite, package in recipe.KERNEL_SOURCES:
        options = apt_options(sources, "/usr/src/apt", suite)
        # A mirror may lack a suite, and a suite may have another kernel.
        script = (
            f"cd /usr/src; apt-get {options} update && apt-get {options} download {package} || exit 0;"
            f" {_unpacked(package)}; mv {package} linux"
        )
        b.chroot(out, script)
        if (out / "usr/src/linux").exists():
            break
    else:
        raise host.LabError(
            "the mirror has none of " + ", ".join(f"{package} of {suite}" for suite, package in recipe.KERNEL_SOURCES)
        )
    shutil.rmtree(sources)


def _unpacked(package: str) -> str:
    """Return the shell commands that extract a kernel's source from its package into a folder of that name."""
    return f"dpkg-deb --fsys-tarfile {package}_*.deb | tar x -O ./usr/src/{package}.tar.xz | tar xJ; rm {package}_*.deb"


def apt_options(folder: Path, inside: str, suite: str, parts: str = "main") -> str:
    """Create an apt configuration folder for one other suite, and return the options that select it.

    `inside` is its path in the chroot. A mirror may be a frozen copy of the suite: its date is then too old, but its
    signature is still checked.
    """
    for name in ("lists/partial", "archives/partial", "parts"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").write_text("")
    (folder / "sources.list").write_text(
        f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {host.mirror()} {suite} {parts}\n"
    )
    return (
        f"-q -y -o Acquire::Check-Valid-Until=false -o Dir::Etc::SourceList={inside}/sources.list -o"
        f" Dir::Etc::SourceParts={inside}/parts -o Dir::State::Lists={inside}/lists -o"
        f" Dir::Cache::Archives={inside}/archives -o Dir::State::Status={inside}/status"
    )


def kernel(
    options: Sequence[str], check: str = "true", source: tuple[str, str] | None = None
) -> Callable[[Builder, Path], None]:
    """Return the build function of a kernel with these options. The shell command `check` checks its configuration.

    `source` is the suite and the source package of a kernel other than the lab's.
    """

    def make(b: Builder, out: Path) -> None:
        fetch = "cp -a /usr/src/linux /out/src"
        if source is not None:
            suite, package = source
            apt = apt_options(out / "apt", "/out/apt", suite)
            fetch = (
                f"cd /out; apt-get {apt} update; apt-get {apt} download {package}; rm -rf apt;"
                f" {_unpacked(package)}; mv {package} src"
            )
        enable = " ".join(f"-e {o}" for o in options)
        disable = " ".join(f"-d {o}" for o in recipe.KERNEL_WITHOUT)
        jobs = (os.cpu_count() or 2) + 1
        script = (
            f"{fetch}; cd /out/src; sed -i '{recipe.KERNEL_EDITS[0]}' {recipe.KERNEL_EDITS[1]};"
            " if patch -s -p1 --dry-run < /out/patch; then patch -p1 < /out/patch; fi;"
            f" make -s ARCH=um defconfig; scripts/config {enable} {disable} --set-val KERNEL_STACK_ORDER"
            f" {recipe.KERNEL_STACK_ORDER}; make -s ARCH=um olddefconfig; {check}; make ARCH=um -j{jobs} linux"
            " modules; cp linux .config /out/"
        )
        shutil.copyfile(recipe.KERNEL_PATCH, out / "patch")
        b.chroot(b.paths["toolroot"], script, [host.Bind(out, "/out")])

    return make


def zfs_modules(kernel: str) -> Callable[[Builder, Path], None]:
    """Return the build function of the OpenZFS modules for the kernel of that name."""

    def make(b: Builder, out: Path) -> None:
        jobs = (os.cpu_count() or 2) + 1
        script = (
            "cd /build; apt-get -q download zfs-dkms; dpkg -x zfs-dkms_*.deb .; rm *.deb; cd usr/src/zfs-*; "
            "ARCH=um ./configure --with-config=kernel --with-linux=/src --with-linux-obj=/src ARCH=um; "
            f"make ARCH=um -j{jobs}; strip -g module/spl.ko module/zfs.ko; cp module/spl.ko module/zfs.ko META /out/"
        )
        build = out / "build"
        build.mkdir()
        binds = [host.Bind(out, "/out"), host.Bind(build, "/build"), host.Bind(b.paths[kernel] / "src", "/src")]
        b.chroot(b.paths["toolroot"], script, binds)
        shutil.rmtree(build)

    return make


def mysql_server(b: Builder, out: Path) -> None:
    options = apt_options(out / "apt", "/out/apt", recipe.MYSQL_SUITE)
    script = (
        f"apt-get {options} update; apt-get {options} --download-only install {' '.join(recipe.MYSQL_PACKAGES)}; "
        "for deb in /out/apt/archives/*.deb; do dpkg-deb --fsys-tarfile $deb | tar x -C /out; done; rm -rf /out/apt"
    )
    b.chroot(b.paths["toolroot"], script, [host.Bind(out, "/out")])
    loader = "/opt/mysql/usr/lib64/ld-linux-x86-64.so.2 --library-path /opt/mysql/usr/lib/x86_64-linux-gnu"
    home = (
        "--basedir=/opt/mysql/usr --lc-messages-dir=/opt/mysql/usr/share/mysql"
        " --plugin-dir=/opt/mysql/usr/lib/mysql/plugin"
    )
    wrappers = out / "bin-lab"
    wrappers.mkdir()
    for name, path, extra in (
        ("mysqld", "usr/sbin/mysqld", home),
        ("mysql", "usr/bin/mysql", ""),
        ("mysqladmin", "usr/bin/mysqladmin", ""),
        ("mysqlbinlog", "usr/bin/mysqlbinlog", ""),
        ("mysqldump", "usr/bin/mysqldump", ""),
    ):
        file = wrappers / name
        file.write_text(f'#!/bin/sh\nexec {loader} /opt/mysql/{path} "$@" {extra}\n')
        file.chmod(0o755)


def guest_root(b: Builder, out: Path) -> None:
    _copy_tree(b, b.paths["base"], out)
    b.chroot(
        out,
        "apt-get -q update; apt-get -q -y install "
        + " ".join(recipe.GUEST_PACKAGES)
        + "; apt-get clean; rm -rf /var/lib/mysql/*",
    )
    binds = [host.Bind(host.CERTIFICATES.parent, "/etc/ssl/certs")] if host.CERTIFICATES.exists() else []
    b.chroot(
        out,
        "python3 -m venv /opt/venv; /opt/venv/bin/pip install -q " + " ".join(f"'{p}'" for p in recipe.PYTHON_PACKAGES),
        binds,
    )
    b.chroot(
        out,
        "echo /checkout > $(echo /opt/venv/lib/python3*/site-packages)/zsnapdb-checkout.pth; mkdir -p /checkout /out"
        " /opt/mysql /opt/s3; install -d -o mysql -g mysql -m 750 /var/lib/mysql-files",
    )
    command = out / "usr/local/bin/zsnapdb"
    command.write_text('#!/bin/sh\nexec /opt/venv/bin/python -m zsnapdb "$@"\n')
    command.chmod(0o755)
    _copy_tree(b, b.paths["mysql"], out / "opt/mysql")
    (out / "opt/mysql/bin-lab").rename(out / "opt/mysql/bin")
    modules = out / "lib/modules/lab"
    modules.mkdir(parents=True)
    for name in ("spl.ko", "zfs.ko"):
        shutil.copy(b.paths["zfs"] / name, modules / name)
    for name in os.listdir(b.paths["s3"]):
        shutil.copy(b.paths["s3"] / name, out / "opt/s3" / name)
    shutil.copy(INSIDE / "lab-init", out / "usr/sbin/lab-init")
    (out / "usr/sbin/lab-init").chmod(0o755)
    shutil.rmtree(out / "var/lib/apt/lists", ignore_errors=True)


def s3_server(b: Builder, out: Path) -> None:
    go = shutil.which("go")
    if go is None:
        (out / "which").write_text("moto\n")
        return
    work = out / "go"
    env = {
        **os.environ,
        "GOPATH": str(work),
        "GOCACHE": str(work / "cache"),
        "CGO_ENABLED": "0",
        "GOFLAGS": "-modcacherw",
    }
    try:
        b.run([go, "install", recipe.VERSITYGW], env=env)
        shutil.move(work / "bin/versitygw", out / "versitygw")
        (out / "which").write_text("versitygw\n")
    except host.LabError:
        # Go cannot download it on every machine; moto's server is in the guest root anyway.
        (out / "which").write_text("moto\n")
    shutil.rmtree(work, ignore_errors=True)


def promtool(b: Builder, out: Path) -> None:
    options = apt_options(out / "apt", "/out/apt", recipe.SUITE)
    script = (
        f"cd /out; apt-get {options} update; apt-get {options} download promtool; dpkg-deb --fsys-tarfile"
        " promtool_*.deb | tar x -O ./usr/bin/promtool > promtool; chmod 755 promtool; rm -r apt *.deb"
    )
    b.chroot(b.paths["toolroot"], script, [host.Bind(out, "/out")])


def _install(b: Builder, out: Path, packages: Sequence[str]) -> None:
    """Install Python packages into the folder `packages` of a product, with the Python of the guests."""
    binds = [host.Bind(out, "/out")]
    binds += [host.Bind(host.CERTIFICATES.parent, "/etc/ssl/certs")] if host.CERTIFICATES.exists() else []
    names = " ".join(f"'{package}'" for package in packages)
    b.chroot(b.paths["guest"], f"/opt/venv/bin/pip install -q --no-cache-dir --target /out/packages {names}", binds)


def cloud_library(b: Builder, out: Path) -> None:
    """Install the client library of Azure and Google. The guests' venv lacks it, as a host without the extras does."""
    _install(b, out, recipe.CLOUD_PACKAGES)


def mkdocs(b: Builder, out: Path) -> None:
    """Install the packages for the documentation site outside the guests' venv: the tests must not see them."""
    _install(b, out, recipe.SITE_PACKAGES)
    command = out / "mkdocs"
    command.write_text('#!/bin/sh\nPYTHONPATH="${0%/*}/packages" exec /opt/venv/bin/python -m mkdocs "$@"\n')
    command.chmod(0o755)


def pool_image(
    flavour: str, server: str | None = None, kernel: str = "kernel", modules: str | None = None
) -> Callable[[Builder, Path], None]:
    """Return the build function of a flavour's pool. `server` names the tree of another release that initialises it.

    `kernel` and `modules` name products that replace the lab's in its guest.
    """

    def make(b: Builder, out: Path) -> None:
        from .guest import Guest, Lab

        lab = Lab(
            kernel=b.paths[kernel] / "linux",
            base=b.paths["base"],
            root=b.paths["guest"],
            images={},
            cache=b.cache,
            modules=None if modules is None else b.paths[modules],
            server=None if server is None else b.paths[server],
        )
        with Guest.boot(lab, flavour="none", blank_pool=True, log=b.log) as guest:
            words = [flavour] if server is None else [flavour, server.removeprefix("server-")]
            status = guest.run(["/checkout/tests/lab/inside/prepare", *words], timeout=300)
            with b.log.open("a") as log:
                log.write(status.stdout + status.stderr)
            if status.code != 0:
                raise host.LabError(f"preparing {flavour} ended with exit status {status.code}")
            guest.power_off()
            shutil.move(guest.pool, out / guest.pool.name)

    return make
