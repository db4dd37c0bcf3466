"""Start of a zsnapdb server in its sandbox, and inspection of a running one."""

from __future__ import annotations

import json
import os
import pwd
import sys
from dataclasses import asdict
from pathlib import Path

from zsnapdb.base.errors import PreflightError
from zsnapdb.planning.server_copy.sandbox import MountSeen, ProcessSeen, Sandbox

_LAUNCHER = Path(__file__).with_name("sandbox_launcher.py")
FAILED = "zsnapdb sandbox: "
"""Prefix of the line that the launcher writes to the server's log if it cannot build the sandbox."""
_HINT = (
    'start zsnapdb as root on a kernel with mount namespaces and seccomp; sandbox = "off" under server of the'
    " instance starts it without a sandbox"
)


def sandbox_prefix(sandbox: Sandbox, user: str) -> list[str]:
    """Return the command prefix that starts a program in the sandbox as the account `user`.

    Root must run the command. Raise PreflightError if the caller is not root.
    """
    if os.geteuid() != 0:
        raise PreflightError("only root can start the server of a copy in a sandbox", hint=_HINT)
    entry = pwd.getpwnam(user)
    groups = os.getgrouplist(user, entry.pw_gid)
    plan = {**asdict(sandbox), "account": {"uid": entry.pw_uid, "gid": entry.pw_gid, "groups": groups}}
    return [sys.executable, "-I", "-S", str(_LAUNCHER), json.dumps(plan)]


def refusal(log: str) -> PreflightError | None:
    """Return the error if the end of the server's log says that the sandbox could not be built."""
    last = log.splitlines()[-1] if log else ""
    if not last.startswith(FAILED):
        return None
    return PreflightError(f"the sandbox of the server cannot be made: {last.removeprefix(FAILED)}", hint=_HINT)


def look_at(pid: int) -> ProcessSeen:
    """Return the kernel's facts about the running server. Raise OSError if the process has ended."""
    process = Path(f"/proc/{pid}")
    lines = (process / "status").read_text(errors="replace").splitlines()
    return ProcessSeen(
        os.readlink(process / "ns/mnt") == os.readlink("/proc/self/ns/mnt"),
        mounts_in(os.fsdecode((process / "mountinfo").read_bytes())),
        {name: value.strip() for name, _, value in (line.partition(":") for line in lines)},
    )


def mounts_in(text: str) -> tuple[MountSeen, ...]:
    """Return the mounts of a mountinfo file (proc(5)) in mount order. Either `ro` makes one read-only."""
    mounts = []
    for line in text.split("\n"):
        left, separator, right = line.partition(" - ")
        if separator:
            path, options = left.split(" ")[4:6]
            fstype, _, of_system = right.split(" ")[:3]
            is_writable = "rw" in options.split(",") and "rw" in of_system.split(",")
            mounts.append(MountSeen(_plain(path), fstype, is_writable))
    return tuple(mounts)


def _plain(word: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(code, char)
    return word


def unit_properties(sandbox: Sandbox) -> dict[str, str]:
    """Return the properties of a unit that runs the launcher: systemd's restrictions around those of the launcher.

    The launcher needs root and its capabilities until the server runs; the server runs without them. IPAddressDeny and
    IPAddressAllow need a kernel with BPF for control groups (systemd.resource-control(5)); other kernels ignore them.
    They filter both directions, so a server that accepts or opens remote connections gets neither.
    """
    used = [*sandbox.writable, *sandbox.readable, sys.executable, str(_LAUNCHER)]
    is_temporary = any(path.startswith(("/tmp/", "/var/tmp/")) for path in used)  # noqa: S108 - not made here
    network = {"IPAddressDeny": "any", "IPAddressAllow": "localhost"}
    return {
        "ProtectSystem": "strict",
        "ReadWritePaths": " ".join(json.dumps(path.replace("%", "%%")) for path in sandbox.writable),
        **({} if is_temporary else {"PrivateTmp": "yes"}),
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "CAP_SYS_ADMIN CAP_SETUID CAP_SETGID CAP_SETPCAP CAP_DAC_READ_SEARCH",
        "RestrictSUIDSGID": "yes",
        "LockPersonality": "yes",
        "SystemCallArchitectures": "native",
        **({} if sandbox.answers_beyond or sandbox.connects else network),
    }
