"""Builds what the lab boots: a kernel, OpenZFS modules, a guest root, an S3 server, prepared servers.

Each step makes one product in the cache, keyed by the step's own inputs and the keys of the
products it uses. A product appears under its name only when it is whole.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import host, recipe, virtual
from .cache import Cache, digest

SMP_KERNEL, SMP_ZFS = "kernel-smp", "zfs-smp"
SIZES = {
    "base": 400,
    "toolroot": 3000,
    "kernel": 2200,
    SMP_KERNEL: 2200,
    "zfs": 400,
    SMP_ZFS: 400,
    "mysql": 700,
    "s3": 900,
    "guest": 2000,
    "guest-vm": 2200,
}
"""How many MiB a step needs while it works; others need 100."""
INSIDE = Path(__file__).parent / "inside"


@dataclass(frozen=True)
class Product:
    """One thing that is built: its name, what its key depends on, how it is made."""

    name: str
    inputs: tuple[str, ...]
    needs: tuple[str, ...]
    make: Callable[[Builder, Path], None]


class _Progress:
    """Shows that a step goes on: on a terminal the seconds and the log's last line, rewritten; else only its end."""

    def __init__(self, name: str, log: Path) -> None:
        self._name, self._log, self._started = name, log, time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()

    def _show(self) -> None:
        if not sys.stderr.isatty():
            self._tell()
            return
        while not self._over.wait(1.0):
            with self._log.open("rb") as file:
                file.seek(max(0, self._log.stat().st_size - 400))
                last = file.read().decode(errors="replace").rstrip().rpartition("\n")[2].strip()
            print(
                f"\r\033[K  {self._name:<14} {time.monotonic() - self._started:6.0f} s  {last[:90]}",
                end="",
                flush=True,
                file=sys.stderr,
            )

    def _tell(self) -> None:
        """Print a line now and every half minute."""
        print(f"  {self._name:<14} begins", flush=True, file=sys.stderr)
        while not self._over.wait(30.0):
            seconds = time.monotonic() - self._started
            print(f"  {self._name:<14} goes on, {seconds:.0f} s so far", flush=True, file=sys.stderr)

    def end(self, words: str) -> None:
        """Replace the line by the step's end."""
        self._over.set()
        self._thread.join()
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)
        print(f"  {self._name:<14} {words}", flush=True, file=sys.stderr)


@dataclass
class Builder:
    """Builds products in order and remembers where they are."""

    cache: Cache
    paths: dict[str, Path] = field(default_factory=dict)
    log: Path = Path(os.devnull)

    def run(self, argv: Sequence[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
        """Run one command of a step, its output into the step's log."""
        with self.log.open("a") as out:
            out.write(f"+ {argv[0]} … {argv[-1]}\n")
            out.flush()
            status = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd, env=env).returncode
        if status != 0:
            raise host.LabError(f"command failed with exit status {status}: {argv[0]} …{argv[-1][-200:]}")

    def chroot(self, root: Path, script: str, binds: Sequence[host.Bind] = ()) -> None:
        """Run a shell script inside a root tree."""
        self.run(host.in_root(root, ["sh", "-ec", script], binds))

    def key(self, product: Product) -> str:
        """Return the product's key: its inputs and the keys of what it needs."""
        return digest(product.name, *product.inputs, *(self.key(_named(n)) for n in product.needs))

    def build(self, product: Product) -> Path:
        """Make the product unless it is there; return its folder."""
        key = self.key(product)
        path = self.cache.product(product.name, key)
        self.paths[product.name] = path
        if path.exists():
            return path
        host.require_space(self.cache.top, SIZES.get(product.name, 100), f"step {product.name}")
        self.log = self.cache.log(product.name)
        self.log.write_text("")
        started = time.monotonic()
        progress = _Progress(product.name, self.log)
        part = path.with_name(path.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            product.make(self, part)
        except Exception as error:
            progress.end(f"failed after {time.monotonic() - started:.0f} s")
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
            raise host.LabError(f"step {product.name}: {error}\n{tail}\nlog: {self.log}") from error
        except BaseException:
            progress.end(f"interrupted after {time.monotonic() - started:.0f} s")
            shutil.rmtree(part, ignore_errors=True)
            raise
        part.rename(path)
        self.cache.forget_older(product.name, key)
        progress.end(f"{time.monotonic() - started:6.1f} s")
        return path


def _debootstrap(b: Builder, out: Path) -> None:
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


def _toolroot(b: Builder, out: Path) -> None:
    _copy_tree(b, b.paths["base"], out)
    b.chroot(out, "apt-get -q update; apt-get -q -y install " + " ".join(recipe.BUILD_PACKAGES) + "; apt-get clean")
    sources = out / "usr/src/apt"
    sources.mkdir()
    for suite, package in recipe.KERNEL_SOURCES:
        options = apt_options(sources, "/usr/src/apt", suite)
        # A mirror need not have every suite, and a suite not always the same kernel.
        script = (
            f"cd /usr/src; apt-get {options} update && apt-get {options} download {package} || exit 0; dpkg-deb"
            f" --fsys-tarfile {package}_*.deb | tar x -O ./usr/src/{package}.tar.xz | tar xJ; mv {package} linux; rm"
            f" {package}_*.deb"
        )
        b.chroot(out, script)
        if (out / "usr/src/linux").exists():
            break
    else:
        raise host.LabError(
            "the mirror has none of " + ", ".join(f"{package} of {suite}" for suite, package in recipe.KERNEL_SOURCES)
        )
    shutil.rmtree(sources)


def apt_options(folder: Path, inside: str, suite: str) -> str:
    """Make a folder in which apt knows one other suite, and return the options that make it use that.

    `inside` is its path in the chroot.

    A mirror may be a frozen copy of the suite: its date then lies back, its signature still counts.
    """
    for name in ("lists/partial", "archives/partial", "parts"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").write_text("")
    (folder / "sources.list").write_text(
        f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {host.mirror()} {suite} main\n"
    )
    return (
        f"-q -y -o Acquire::Check-Valid-Until=false -o Dir::Etc::SourceList={inside}/sources.list -o"
        f" Dir::Etc::SourceParts={inside}/parts -o Dir::State::Lists={inside}/lists -o"
        f" Dir::Cache::Archives={inside}/archives -o Dir::State::Status={inside}/status"
    )


def _kernel(options: Sequence[str], check: str = "true") -> Callable[[Builder, Path], None]:
    """Return what builds a kernel with these options; the shell command `check` looks at its configuration first."""

    def make(b: Builder, out: Path) -> None:
        enable = " ".join(f"-e {o}" for o in options)
        disable = " ".join(f"-d {o}" for o in recipe.KERNEL_WITHOUT)
        jobs = (os.cpu_count() or 2) + 1
        script = (
            f"cp -a /usr/src/linux /out/src; cd /out/src; sed -i '{recipe.KERNEL_EDITS[0]}' {recipe.KERNEL_EDITS[1]};"
            f" make -s ARCH=um defconfig; scripts/config {enable} {disable} --set-val KERNEL_STACK_ORDER"
            f" {recipe.KERNEL_STACK_ORDER}; make -s ARCH=um olddefconfig; {check}; make ARCH=um -j{jobs} linux"
            " modules; cp linux .config /out/"
        )
        b.chroot(b.paths["toolroot"], script, [host.Bind(out, "/out")])

    return make


def _zfs(kernel: str) -> Callable[[Builder, Path], None]:
    """Return what builds OpenZFS's modules for the kernel of that name."""

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


def _mysql(b: Builder, out: Path) -> None:
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


def _guest(b: Builder, out: Path) -> None:
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


def _s3(b: Builder, out: Path) -> None:
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
        # Not every machine's Go can fetch it; moto's server is in the guest root anyway.
        (out / "which").write_text("moto\n")
    shutil.rmtree(work, ignore_errors=True)


def _promtool(b: Builder, out: Path) -> None:
    options = apt_options(out / "apt", "/out/apt", recipe.SUITE)
    script = (
        f"cd /out; apt-get {options} update; apt-get {options} download promtool; dpkg-deb --fsys-tarfile"
        " promtool_*.deb | tar x -O ./usr/bin/promtool > promtool; chmod 755 promtool; rm -r apt *.deb"
    )
    b.chroot(b.paths["toolroot"], script, [host.Bind(out, "/out")])


def _mkdocs(b: Builder, out: Path) -> None:
    """Install what builds the site beside the venv of the guests: its libraries are not for the tests."""
    binds = [host.Bind(out, "/out")]
    binds += [host.Bind(host.CERTIFICATES.parent, "/etc/ssl/certs")] if host.CERTIFICATES.exists() else []
    packages = " ".join(f"'{package}'" for package in recipe.SITE_PACKAGES)
    b.chroot(b.paths["guest"], f"/opt/venv/bin/pip install -q --no-cache-dir --target /out/packages {packages}", binds)
    command = out / "mkdocs"
    command.write_text('#!/bin/sh\nPYTHONPATH="${0%/*}/packages" exec /opt/venv/bin/python -m mkdocs "$@"\n')
    command.chmod(0o755)


def _image(flavour: str) -> Callable[[Builder, Path], None]:
    def make(b: Builder, out: Path) -> None:
        from .guest import Guest, Lab

        lab = Lab(
            kernel=b.paths["kernel"] / "linux", base=b.paths["base"], root=b.paths["guest"], images={}, cache=b.cache
        )
        with Guest.boot(lab, flavour="none", blank_pool=True, log=b.log) as guest:
            status = guest.run(["/checkout/tests/lab/inside/prepare", flavour], timeout=300)
            with b.log.open("a") as log:
                log.write(status.stdout + status.stderr)
            if status.code != 0:
                raise host.LabError(f"preparing {flavour} ended with exit status {status.code}")
            guest.power_off()
            shutil.move(guest.pool, out / guest.pool.name)

    return make


def _text(name: str) -> str:
    return (INSIDE / name).read_text()


def _vm_text(name: str) -> str:
    return (virtual.INSIDE / name).read_text()


def products() -> list[Product]:
    """Return all products, each after what it needs."""
    return [
        Product("base", (recipe.SUITE, "2"), (), _debootstrap),
        Product(
            "toolroot",
            (*recipe.BUILD_PACKAGES, *(word for source in recipe.KERNEL_SOURCES for word in source)),
            ("base",),
            _toolroot,
        ),
        Product(
            "kernel",
            (
                *recipe.KERNEL_OPTIONS,
                "without",
                *recipe.KERNEL_WITHOUT,
                *recipe.KERNEL_EDITS,
                recipe.KERNEL_STACK_ORDER,
            ),
            ("toolroot",),
            _kernel(recipe.KERNEL_OPTIONS),
        ),
        Product("zfs", ("1",), ("kernel",), _zfs("kernel")),
        Product("mysql", (recipe.MYSQL_SUITE, *recipe.MYSQL_PACKAGES), ("toolroot",), _mysql),
        Product("s3", (recipe.VERSITYGW,), (), _s3),
        Product(
            "guest",
            (*recipe.GUEST_PACKAGES, *recipe.PYTHON_PACKAGES, _text("lab-init"), "1"),
            ("base", "zfs", "mysql", "s3"),
            _guest,
        ),
        *(
            Product(
                f"image-{flavour}",
                tuple(map(_text, ("prepare", "server", "accounts.sql", f"{flavour}.cnf"))),
                ("guest",),
                _image(flavour),
            )
            for flavour in ("mysql", "mariadb")
        ),
        Product("promtool", (recipe.SUITE, "1"), ("toolroot",), _promtool),
        Product("mkdocs", (*recipe.SITE_PACKAGES, "1"), ("guest",), _mkdocs),
        Product("guest-agent", (recipe.SUITE, "1"), ("toolroot",), virtual.guest_agent),
        Product("guest-vm", virtual.inputs(), ("guest",), virtual.root),
        Product(
            "vm-cache", (_vm_text("libvirt-start"), "1"), ("guest-vm", "kernel", "image-mariadb"), virtual.capabilities
        ),
    ]


def several_processors() -> list[Product]:
    """Return what a guest with several processors boots instead. Benchmarks alone ask for it."""
    options = (*recipe.KERNEL_OPTIONS, *recipe.SEVERAL_PROCESSORS)
    inputs = (*options, *recipe.KERNEL_WITHOUT, *recipe.KERNEL_EDITS, recipe.KERNEL_STACK_ORDER)
    # An older kernel of the mirror drops the option without a word.
    make = _kernel(options, check="grep -q ^CONFIG_SMP=y .config")
    return [
        Product(SMP_KERNEL, inputs, ("toolroot",), make),
        Product(SMP_ZFS, ("1",), (SMP_KERNEL,), _zfs(SMP_KERNEL)),
    ]


def _named(name: str) -> Product:
    return next(p for p in (*products(), *several_processors()) if p.name == name)


def build(cache: Cache, more: Sequence[Product] = ()) -> dict[str, Path]:
    """Build what is missing, `more` too; return the folder of each product. A second call is instant."""
    builder = Builder(cache)
    todo = [*products(), *more]
    if not all(cache.product(p.name, builder.key(p)).exists() for p in todo):
        host.require()
        with cache.lock():
            print(f"building the lab in {cache.top}: {host.needs(cache.top)}", file=sys.stderr)
            for product in todo:
                builder.build(product)
    return {p.name: cache.product(p.name, builder.key(p)) for p in todo}
