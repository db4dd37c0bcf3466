"""Requirements of the lab on its machine: root, apt, a package mirror, chroot in private namespaces."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import recipe

PATH = "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Search path for commands in a root."""
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
"""The certificate authorities of this machine, including that of a company's proxy."""


class LabError(Exception):
    """The lab cannot continue. The text states what is missing and what to do."""


@dataclass(frozen=True)
class Bind:
    """A host path that is mounted at a path of the chroot during one command."""

    source: Path
    target: str


SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
DISK_MIB, MEMORY_MIB, MINUTES = 9000, 5000, 12
"""Size of the finished cache, memory of two guests, and duration of a first build on two processors."""


def complete_path() -> None:
    """Add the program folders of root to PATH: `su` without a login omits them."""
    known = os.environ.get("PATH", "").split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join([*known, *(folder for folder in SYSTEM_FOLDERS if folder not in known)])


def free_mib(folder: Path) -> int:
    """Return the free MiB at the folder, or at the parent where it would be created."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free >> 20


def require_space(folder: Path, mib: int, what: str) -> None:
    """Raise LabError unless this many MiB are free for the folder."""
    free = free_mib(folder)
    if free < mib:
        raise LabError(
            f"{what} needs about {mib} MiB of disk, and {free} MiB are free for {folder}: free some, or name another"
            " folder with --cache"
        )


def needs(folder: Path) -> str:
    """Return the needs of a first build and the resources of this machine, as text."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    return (
        f"it takes about {DISK_MIB / 1000:.0f} GB of disk ({free_mib(folder)} MiB are free), {MEMORY_MIB / 1000:.0f} GB"
        f" of memory ({memory} MiB here) and {MINUTES} minutes on two processors ({os.cpu_count()} here)"
    )


def missing() -> list[str]:
    """Return the missing requirements of the lab, one sentence each (empty: none)."""
    absent = []
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        absent.append(f"an x86-64 Linux (this is {platform.system()} {platform.machine()})")
    if os.geteuid() != 0:
        absent.append("root (chroot, mknod and debootstrap need it)")
    tools = ("apt-get", "dpkg", "unshare", "chroot")
    return absent + [
        f"the command {tool} (a Debian 12 or 13 machine has it)" for tool in tools if shutil.which(tool) is None
    ]


def require() -> None:
    """Raise LabError with all missing requirements."""
    lacks = missing()
    if lacks:
        raise LabError("the lab needs " + "; ".join(lacks))


def _deb822(text: str) -> list[tuple[str, str]]:
    pairs = []
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        for line in stanza.splitlines():
            match = re.match(r"^([A-Za-z-]+):\s*(.*)$", line)
            if match:
                fields[match.group(1).lower()] = match.group(2)
        if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes").lower() != "no":
            pairs += [
                (uri, suite) for uri in fields.get("uris", "").split() for suite in fields.get("suites", "").split()
            ]
    return pairs


def _one_line(text: str) -> list[tuple[str, str]]:
    pairs = []
    for line in text.splitlines():
        match = re.match(r"^\s*deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)", line)
        if match:
            pairs.append((match.group(1), match.group(2)))
    return pairs


def _in_list(uri: str) -> str:
    """Return the first mirror of a list in a file (apt-transport-mirror(1)), or the address itself."""
    path = re.match(r"mirror(?:\+file)?:(?://)?(/.+)", uri)
    if path is None:
        return uri
    try:
        lines = Path(path[1]).read_text(errors="replace").split("\n")
    except OSError as error:
        raise LabError(f"{uri}, of apt's sources, cannot be read: {error.strerror}") from error
    listed = [line.split()[0] for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not listed:
        raise LabError(f"{uri}, of apt's sources, lists no mirror")
    return listed[0]


def mirror() -> str:
    """Return the base address of this machine's Debian mirror, from its apt sources."""
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for file in files:
        if not file.is_file() or file.suffix not in (".list", ".sources"):
            continue
        text = file.read_text(errors="replace")
        for uri, suite in _deb822(text) if file.suffix == ".sources" else _one_line(text):
            if suite in recipe.SYSTEM_SUITES and "security" not in uri:
                return _in_list(uri).rstrip("/")
    raise LabError(
        "no Debian mirror found in /etc/apt/sources.list or sources.list.d; add this machine's Debian suite there"
    )


def in_root(
    root: Path,
    argv: Sequence[str],
    binds: Sequence[Bind] = (),
    cwd: str = "/",
    env: Mapping[str, str] | None = None,
    *,
    own_processes: bool = False,
) -> list[str]:
    """Return an argv that runs `argv` chrooted in `root`, with private mounts that end with it.

    With `own_processes` it is process 1 of a PID namespace: if it or the returned command dies, all its child processes
    die too.
    """
    # The tree is mounted on itself first, so its root is a mount point and a guest can also be started inside it.
    lines = [
        "set -e",
        'mount --bind "$0" "$0"',
        'mount -t proc proc "$0/proc"',
        'mount --rbind /dev "$0/dev"',
        'mount -t tmpfs tmpfs "$0/tmp"',
    ]
    lines += [f'mkdir -p "$0{bind.target}" && mount --bind \'{bind.source}\' "$0{bind.target}"' for bind in binds]
    lines.append('exec chroot "$0" /usr/bin/env -i "$@"')
    environment = {
        "PATH": PATH,
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
        # pip has its own certificates; only the machine's may include those of a proxy.
        **({"PIP_CERT": str(CERTIFICATES)} if CERTIFICATES.exists() else {}),
        **{k: v for k, v in os.environ.items() if k.lower().endswith("_proxy") or k.startswith("PIP_") or k == "TERM"},
        **(env or {}),
    }
    assigned = [f"{key}={value}" for key, value in environment.items()]
    script = 'cd "$1"; shift; exec "$@"'
    processes = ["--pid", "--fork", "--kill-child=SIGKILL"] if own_processes else []
    return [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        *processes,
        "sh",
        "-c",
        "\n".join(lines),
        str(root),
        *assigned,
        "sh",
        "-c",
        script,
        "sh",
        cwd,
        *argv,
    ]


def apt_proxy_lines() -> str:
    """Return the proxy settings of this machine as apt.conf lines, for apt in a chroot."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    return "".join(line + "\n" for line in dump.splitlines() if re.match(r'^Acquire::https?::.*Proxy\S* "', line))
