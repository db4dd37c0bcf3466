"""Inputs of the lab's build. A change changes the key of each product that depends on it."""

from __future__ import annotations

import tomllib
from pathlib import Path

SUITE = "trixie"
MYSQL_SUITE = "sid"
SYSTEM_SUITES = ("bookworm", "trixie", "forky", "sid", "stable", "testing", "unstable")

# The first one that the mirror has is used. From Linux 6.16 on, seccomp stops a guest's processes instead of ptrace,
# which makes system calls and page faults cheaper. OpenZFS of the suite must support the version: its META names the
# newest.
KERNEL_SOURCES = (("trixie-backports", "linux-source-7.2"), ("trixie", "linux-source-6.12"))

BUILD_PACKAGES = [
    "build-essential",
    "bc",
    "bison",
    "flex",
    "libelf-dev",
    "libssl-dev",
    "xz-utils",
    "kmod",
    "cpio",
    "python3-minimal",
    "ca-certificates",
]

GUEST_PACKAGES = [
    "zfsutils-linux",
    "mariadb-server",
    "mariadb-client",
    "udev",
    "e2fsprogs",
    "util-linux",
    "procps",
    "psmisc",
    "iproute2",
    "kmod",
    "busybox-static",
    "sysbench",
    "strace",
    "python3",
    "python3-venv",
    "ca-certificates",
    "git",
    "systemd",
    "age",
    "zstd",
    "haproxy",
]

VM_PACKAGES = (
    "qemu-system-x86",
    "qemu-utils",
    "libvirt-daemon",
    "libvirt-daemon-driver-qemu",
    "libvirt-daemon-driver-network",
    "libvirt-daemon-log",
    "libvirt-clients",
    "python3-libvirt",
    "dbus",
    "cpio",
    "xz-utils",
    "bridge-utils",
)
VM_MODULES = (
    "virtio",
    "virtio_ring",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
    "failover",
    "net_failover",
    "virtio_net",
    "crc16",
    "crc32c_generic",
    "mbcache",
    "jbd2",
    "ext4",
)
"""Kernel modules of the tiny machine, in load order. Built-in ones have no file."""
VM_DISK_BYTES = 32 << 20

MYSQL_PACKAGES = ("mysql-server-core", "mysql-client-core")

VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"

KERNEL_OPTIONS = [
    "MODULES",
    "MODULE_UNLOAD",
    "BLK_DEV_LOOP",
    "BLK_DEV_INITRD",
    "DEVTMPFS",
    "DEVTMPFS_MOUNT",
    "TMPFS",
    "TMPFS_XATTR",
    "EXT4_FS",
    "HOSTFS",
    "ZLIB_INFLATE",
    "ZLIB_DEFLATE",
    "CRYPTO",
    "CRYPTO_DEFLATE",
    "INET",
    "NET",
    "PACKET",
    "UNIX",
    "AIO",
    "IO_URING",
    "EPOLL",
    "SIGNALFD",
    "EVENTFD",
    "TIMERFD",
    "FUTEX",
    "SHMEM",
    "PROC_SYSCTL",
    "INOTIFY_USER",
    "KEYS",
    "HW_RANDOM",
    "UML_RANDOM",
    "FUSE_FS",
    "OVERLAY_FS",
    "CGROUPS",
    "CGROUP_PIDS",
    "CGROUP_SCHED",
    "CFS_BANDWIDTH",
    "MEMCG",
    "NAMESPACES",
    "USER_NS",
    "NET_NS",
    "PID_NS",
    "UTS_NS",
    "IPC_NS",
    "SYSVIPC",
    "POSIX_MQUEUE",
    "BLK_DEV_DM",
    "XATTR",
    "FS_POSIX_ACL",
    "TUN",
    "VETH",
    "BRIDGE",
    "UML_NET_VECTOR",
    "DEBUG_INFO_NONE",
]
SEVERAL_PROCESSORS = ("SMP",)
"""Additional options of a kernel for two processors (arch/um/Kconfig of Linux 7.2; NR_CPUS is 2 by default)."""
KERNEL_WITHOUT = ["SOUND", "WIRELESS", "DEBUG_KERNEL"]

# Linux 6.12 reserves 2696 bytes for the extended processor state of a guest process (arch/x86/um/user-offsets.c). A
# processor with AMX has 11008, and ptrace refuses a smaller size. The reserve is on the stack.
KERNEL_EDITS = ("s/HOST_FP_SIZE, 2696/HOST_FP_SIZE, 12288/", "arch/x86/um/user-offsets.c")
KERNEL_STACK_ORDER = "4"
KERNEL_PATCH = Path(__file__).with_name("page-faults.patch")
"""Patch that makes page faults of guests cheaper. If it does not fit, the kernel is built without it and is slower."""

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
# typer depends on rich.
PYTHON_PACKAGES = (
    *(package for package in PROJECT["dependencies"] if not package.startswith("rich")),
    *PROJECT["optional-dependencies"]["dev"],
    "hatchling>=1.24",
)
SITE_PACKAGES = tuple(PROJECT["optional-dependencies"]["docs"])
"""Packages that build the documentation site."""
CLOUD_PACKAGES = tuple(PROJECT["optional-dependencies"]["azure"])
"""The client library of Azure and Google."""
