"""Build of the lab's products: a kernel, OpenZFS modules, a guest root, an S3 server, prepared servers.

Each step makes one product in the cache. Its key depends on the inputs of the step and the keys of the products that it
uses. A product gets its name only when it is complete.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import host, recipe, steps, virtual
from .cache import Cache, digest
from .steps import INSIDE
from .steps import apt_options as apt_options

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
"""Disk space in MiB that a step needs while it runs; other steps need 100."""


@dataclass(frozen=True)
class Product:
    """A build product: its name, the inputs of its key, the products that it needs, and its build function."""

    name: str
    inputs: tuple[str, ...]
    needs: tuple[str, ...]
    make: Callable[[Builder, Path], None]


class _Progress:
    """The progress of a step. A terminal shows seconds and the last log line, other outputs start and end."""

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
        """Print a line now and every 30 seconds."""
        print(f"  {self._name:<14} begins", flush=True, file=sys.stderr)
        while not self._over.wait(30.0):
            seconds = time.monotonic() - self._started
            print(f"  {self._name:<14} goes on, {seconds:.0f} s so far", flush=True, file=sys.stderr)

    def end(self, words: str) -> None:
        """Replace the line with the step's result."""
        self._over.set()
        self._thread.join()
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)
        print(f"  {self._name:<14} {words}", flush=True, file=sys.stderr)


@dataclass
class Builder:
    """Builds products in order and records their folders."""

    cache: Cache
    paths: dict[str, Path] = field(default_factory=dict)
    log: Path = Path(os.devnull)

    def run(self, argv: Sequence[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
        """Run one command of a step, with its output in the step's log."""
        with self.log.open("a") as out:
            out.write(f"+ {argv[0]} … {argv[-1]}\n")
            out.flush()
            status = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd, env=env).returncode
        if status != 0:
            raise host.LabError(f"command failed with exit status {status}: {argv[0]} …{argv[-1][-200:]}")

    def chroot(self, root: Path, script: str, binds: Sequence[host.Bind] = ()) -> None:
        self.run(host.in_root(root, ["sh", "-ec", script], binds))

    def key(self, product: Product) -> str:
        """Return the product's key: a hash of its inputs and the keys of the products that it needs."""
        return digest(product.name, *product.inputs, *(self.key(_named(n)) for n in product.needs))

    def build(self, product: Product) -> Path:
        """Build the product unless it exists; return its folder."""
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


def _text(name: str) -> str:
    return (INSIDE / name).read_text()


def _vm_text(name: str) -> str:
    return (virtual.INSIDE / name).read_text()


def products() -> list[Product]:
    """Return all products, each after its dependencies."""
    return [
        Product("base", (recipe.SUITE, "2"), (), steps.debootstrapped_root),
        Product(
            "toolroot",
            (*recipe.BUILD_PACKAGES, *(word for source in recipe.KERNEL_SOURCES for word in source)),
            ("base",),
            steps.root_with_tools,
        ),
        Product(
            "kernel",
            (
                *recipe.KERNEL_OPTIONS,
                "without",
                *recipe.KERNEL_WITHOUT,
                *recipe.KERNEL_EDITS,
                recipe.KERNEL_PATCH.read_text(),
                recipe.KERNEL_STACK_ORDER,
            ),
            ("toolroot",),
            steps.kernel(recipe.KERNEL_OPTIONS),
        ),
        Product("zfs", ("1",), ("kernel",), steps.zfs_modules("kernel")),
        Product("mysql", (recipe.MYSQL_SUITE, *recipe.MYSQL_PACKAGES), ("toolroot",), steps.mysql_server),
        Product("s3", (recipe.VERSITYGW,), (), steps.s3_server),
        Product(
            "guest",
            (*recipe.GUEST_PACKAGES, *recipe.PYTHON_PACKAGES, _text("lab-init"), "1"),
            ("base", "zfs", "mysql", "s3"),
            steps.guest_root,
        ),
        *(
            Product(
                f"image-{flavour}",
                tuple(map(_text, ("prepare", "server", "accounts.sql", f"{flavour}.cnf"))),
                ("guest",),
                steps.pool_image(flavour),
            )
            for flavour in ("mysql", "mariadb")
        ),
        Product("promtool", (recipe.SUITE, "1"), ("toolroot",), steps.promtool),
        Product("mkdocs", (*recipe.SITE_PACKAGES, "1"), ("guest",), steps.mkdocs),
        Product("guest-agent", (recipe.SUITE, "1"), ("toolroot",), virtual.guest_agent),
        Product("guest-vm", virtual.inputs(), ("guest",), virtual.root),
        Product(
            "vm-cache", (_vm_text("libvirt-start"), "1"), ("guest-vm", "kernel", "image-mariadb"), virtual.capabilities
        ),
    ]


def several_processors() -> list[Product]:
    """Return the products for a guest with several processors. Only benchmarks use them."""
    options = (*recipe.KERNEL_OPTIONS, *recipe.SEVERAL_PROCESSORS)
    edits = (*recipe.KERNEL_EDITS, recipe.KERNEL_PATCH.read_text())
    inputs = (*options, *recipe.KERNEL_WITHOUT, *edits, recipe.KERNEL_STACK_ORDER)
    # An older kernel of the mirror ignores the option silently.
    make = steps.kernel(options, check="grep -q ^CONFIG_SMP=y .config")
    return [
        Product(SMP_KERNEL, inputs, ("toolroot",), make),
        Product(SMP_ZFS, ("1",), (SMP_KERNEL,), steps.zfs_modules(SMP_KERNEL)),
    ]


def cloud_library() -> Product:
    """Return the product with the client library of Azure and Google, which only the campaign `clouds` needs."""
    return Product("cloud-library", (*recipe.CLOUD_PACKAGES, "1"), ("guest",), steps.cloud_library)


def _named(name: str) -> Product:
    from . import servers, zfs_releases

    others = (*map(servers.product, servers.SERVERS), *zfs_releases.all_products())
    every = (*products(), *several_processors(), *others)
    return next(p for p in every if p.name == name)


SERVERS_ONLY = ("image-mysql", "image-mariadb")
"""The products that a guest with a server needs, such as that of the demo. Their own needs follow."""


def with_needs(names: Iterable[str], known: Sequence[Product]) -> list[Product]:
    """Return the named products and all that they need, each after its dependencies."""
    wanted, waiting = set[str](), list(names)
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting += next(product for product in known if product.name == name).needs
    return [product for product in known if product.name in wanted]


def build(cache: Cache, more: Sequence[Product] = (), *, is_whole: bool = True) -> dict[str, Path]:
    """Build the missing products, including `more`, and return the folder of each. A second call is instant.

    Unless `is_whole`, parts for virtual machines, the site and alert rules are left out.
    """
    builder = Builder(cache)
    todo = [*(products() if is_whole else with_needs(SERVERS_ONLY, products())), *more]
    if not all(cache.product(p.name, builder.key(p)).exists() for p in todo):
        host.require()
        with cache.lock():
            print(f"building the lab in {cache.top}: {host.needs(cache.top)}", file=sys.stderr)
            for product in todo:
                builder.build(product)
    return {p.name: cache.product(p.name, builder.key(p)) for p in todo}
