"""The product `guest-vm`: the guest root with libvirt and QEMU, and a tiny virtual machine.

Its key depends on `inputs` and the guest root. No other product except `vm-cache` depends on it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from . import host, recipe

if TYPE_CHECKING:
    from .build import Builder
    from .guest import Guest, Lab

INSIDE = Path(__file__).parent / "inside" / "vm"
FOLDER = "opt/vm"
"""Folder in the root with the kernel, the initial file system and the disk of the tiny machine."""
CAPABILITIES = "var/cache/libvirt"
"""libvirt's cache of QEMU capabilities. libvirt fills it at its first start in a guest, which takes 90 seconds."""

_KERNEL = """
cd /build
apt-get -q update
package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \\(linux-image-[^ ]*\\)/\\1/p' | head -n 1)
apt-get -q download $package
dpkg -x linux-image-*.deb .
cp boot/vmlinuz-* /out/vmlinuz
mkdir -p root/bin root/dev root/proc root/sys root/mnt root/modules
cp /bin/busybox root/bin/busybox
n=10
for name in {modules}; do
  for file in $(find usr/lib/modules lib/modules -name "$name.ko*" 2>/dev/null); do
    case $file in *.xz) xz -dc $file > root/modules/$n-$name.ko ;; *) cp $file root/modules/$n-$name.ko ;; esac
  done
  n=$((n + 1))
done
cp /inside/init root/init
chmod 755 root/init
(cd root && find . | cpio -o -H newc) | gzip -1 > /out/initrd
truncate -s {disk} /out/disk.raw
mkfs.ext4 -q -F /out/disk.raw
"""


def root(b: Builder, out: Path) -> None:
    """Make the root: a copy of the guest root, the packages of the recipe, and the tiny machine in /opt/vm."""
    b.run(["cp", "-a", "--reflink=auto", f"{b.paths['guest']}/.", str(out)])
    b.chroot(out, f"apt-get -q update; apt-get -q -y install {' '.join(recipe.VM_PACKAGES)}; apt-get clean")
    # zsnapdb runs with the interpreter of the virtual environment.
    b.chroot(out, "ln -s /usr/lib/python3/dist-packages/libvirt* /opt/venv/lib/python3*/site-packages/")
    for name in ("qemu.conf", "libvirtd.conf"):
        shutil.copy(INSIDE / name, out / "etc/libvirt" / name)
    build, machine = out / "build", out / FOLDER
    build.mkdir()
    machine.mkdir(parents=True)
    script = _KERNEL.format(modules=" ".join(recipe.VM_MODULES), disk=recipe.VM_DISK_BYTES)
    binds = [host.Bind(build, "/build"), host.Bind(machine, "/out"), host.Bind(INSIDE, "/inside")]
    b.chroot(out, script, binds)
    shutil.rmtree(build)
    shutil.rmtree(out / "var/lib/apt/lists", ignore_errors=True)


def capabilities(b: Builder, out: Path) -> None:
    """Start libvirt once in a guest, and keep its cache of QEMU capabilities."""
    from .guest import Guest, Lab

    lab = Lab(
        kernel=b.paths["kernel"] / "linux",
        base=b.paths["base"],
        root=b.paths["guest-vm"],
        images={"mariadb": b.paths["image-mariadb"]},
        cache=b.cache,
    )
    with Guest.boot(lab, "none", log=b.log) as guest:
        done = guest.run(["sh", "-ec", f"{START}; virsh domcapabilities --virttype qemu; {KEEP}"], timeout=900)
        with b.log.open("a") as log:
            log.write(done.stdout + done.stderr)
        if done.code != 0:
            raise host.LabError(f"libvirt did not start: exit status {done.code}")
        shutil.copytree(guest.out / "libvirt", out / "libvirt")


def guest_agent(b: Builder, out: Path) -> None:
    """Extract QEMU's guest agent with all dependencies, and a program `qemu-ga` that starts it from /out/agent."""
    from .build import apt_options

    options = apt_options(out / "apt", "/out/apt", recipe.SUITE)
    script = (
        f"apt-get {options} update; apt-get {options} --download-only install qemu-guest-agent; "
        "for deb in /out/apt/archives/*.deb; do dpkg-deb --fsys-tarfile $deb | tar x -C /out; done; "
        "rm -rf /out/apt /out/usr/share"
    )
    b.chroot(b.paths["toolroot"], script, [host.Bind(out, "/out")])
    loader = "/out/agent/usr/lib64/ld-linux-x86-64.so.2 --library-path /out/agent/usr/lib/x86_64-linux-gnu"
    program = out / "qemu-ga"
    program.write_text(f'#!/bin/sh\nexec {loader} /out/agent/usr/sbin/qemu-ga "$@"\n')
    program.chmod(0o755)


START = "/checkout/tests/lab/inside/vm/libvirt-start"
KEEP = f"cp -a /{CAPABILITIES} /out/libvirt"


def inputs() -> tuple[str, ...]:
    """Return the inputs of the root's key, without the guest root."""
    files = tuple((INSIDE / name).read_text() for name in ("init", "qemu.conf", "libvirtd.conf"))
    return (*recipe.VM_PACKAGES, *recipe.VM_MODULES, str(recipe.VM_DISK_BYTES), _KERNEL, *files, "1")


COMMAND_LINE = (
    "console=ttyS0 rdinit=/agent quiet tsc=reliable no_timer_check mitigations=off nokaslr nosmp random.trust_cpu=on"
)
"""The command line of the tiny machine's kernel, as in tiny.xml."""
BRIDGE = "labbr"
"""A guest's bridge that connects only its machines and the guest itself."""
_PREPARE = f"""
cp -a /out/libvirt/. /{CAPABILITIES}/
cd /checkout/tests/lab/inside/vm
printf 'agent\\nserver\\n' | cpio -o -H newc | gzip -1 | cat /{FOLDER}/initrd - > /{FOLDER}/initrd-agent
cd /
for name in iptables ip6tables; do ln -sf /bin/true /usr/sbin/$name; done
ip link add {BRIDGE} type bridge
ip addr add 10.0.0.1/8 dev {BRIDGE}
ip link set {BRIDGE} up
mkdir -p /etc/zsnapdb
cp /checkout/tests/lab/inside/zsnapdb.mariadb.toml /etc/zsnapdb/zsnapdb.toml
cp /checkout/tests/lab/inside/credentials /etc/zsnapdb/
echo lab-zsnapdb > /etc/zsnapdb/main.password
chmod 600 /etc/zsnapdb/*
printf '[vms]\\ndevice_timeout = "20s"\\nstart_timeout = "900s"\\nstop_timeout = "0s"\\n' >> /etc/zsnapdb/zsnapdb.toml
{START}
"""


@contextlib.contextmanager
def with_libvirt(lab: Lab) -> Iterator[Guest]:
    """Boot a guest without a server, in which libvirt answers. The tiny machine is in /opt/vm."""
    from .build import build
    from .guest import Guest

    paths = build(lab.cache)
    with Guest.boot(replace(lab, root=paths["guest-vm"]), "none") as guest:
        shutil.copytree(paths["vm-cache"] / "libvirt", guest.out / "libvirt")
        prepare(guest)
        yield guest


def prepare(guest: Guest) -> None:
    """Start libvirt in the guest, after its first boot or a reboot."""
    guest.run(["sh", "-ec", _PREPARE]).check()
