"""What the lab needs from its machine: root, apt, a package mirror, chroot in private namespaces."""

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
"""Where commands in a root are looked for."""


class LabError(Exception):
    """The lab cannot continue; the text says what is missing and what to do."""


@dataclass(frozen=True)
class Bind:
    """A host path shown at a path of the chroot for the length of one command."""

    source: Path
    target: str


def missing() -> list[str]:
    """Return what this machine lacks to build the lab, one sentence each (empty: nothing)."""
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
    """Raise LabError naming everything the machine lacks."""
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


def mirror() -> str:
    """Return the base address of the Debian mirror this machine's own apt uses."""
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for file in files:
        if not file.is_file() or file.suffix not in (".list", ".sources"):
            continue
        text = file.read_text(errors="replace")
        for uri, suite in _deb822(text) if file.suffix == ".sources" else _one_line(text):
            if suite in recipe.SYSTEM_SUITES and "security" not in uri:
                return uri.rstrip("/")
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
    """Return an argv that runs `argv` chrooted in `root`, with mounts no one else sees and that end with it.

    With `own_processes` it is process 1 of a PID namespace: when it or the returned command dies, so does
    every process it left.
    """
    # The tree is mounted on itself first: then its root is a mount point, and a guest can be started from inside it
    # too.
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
    """Return apt.conf lines with the proxy settings of this machine, for a chroot's apt."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    return "".join(line + "\n" for line in dump.splitlines() if re.match(r'^Acquire::https?::.*Proxy\S* "', line))
