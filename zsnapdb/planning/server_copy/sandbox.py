"""Defines which host paths a server on a copy can see, and checks the sandbox of a running server. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from posixpath import dirname, normpath

_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")
_SETTINGS = (
    *("/etc/alternatives", "/etc/group", "/etc/host.conf", "/etc/hosts", "/etc/ld.so.cache", "/etc/ld.so.conf"),
    *("/etc/ld.so.conf.d", "/etc/ld.so.preload", "/etc/localtime", "/etc/mecabrc", "/etc/nsswitch.conf"),
    *("/etc/passwd", "/etc/pki", "/etc/protocols", "/etc/services", "/etc/ssl/certs", "/etc/ssl/openssl.cnf"),
    *("/etc/timezone", "/var/cache/cracklib", "/var/lib/mecab"),
)
"""Paths that the C library, OpenSSL, and plugins with dictionaries read. These paths contain no secrets of the host."""

PRIVATE = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108 - paths in the sandbox
"""In-memory file systems that belong to one sandbox."""


@dataclass(frozen=True)
class Sandbox:
    """The host paths that a server can see. All other paths are invisible to the server.

    The field `base` is the folder above the copy. The field `writable` contains the copy's folders, `readable` the
    folders with programs and settings, and `hidden` the source's folders. If `connects` is set, the server may connect
    to other servers. If `answers_beyond` is set, the server listens on an address that other hosts can reach.
    """

    base: str
    writable: tuple[str, ...]
    readable: tuple[str, ...]
    hidden: tuple[str, ...]
    connects: bool = False
    answers_beyond: bool = False


def sandbox_of(
    private: str,
    volumes: Sequence[str],
    source: Sequence[str],
    programs: Sequence[str],
    options: Sequence[str],
    reads: Sequence[str],
) -> Sandbox:
    """Return the sandbox of a server on a copy.

    The argument `private` is the private folder at the top of the copy. The arguments `volumes` and `source` contain
    the mount points of the copy and of its source. The argument `programs` contains the paths of the server program (a
    link and its target). The server may also read the files and folders whose paths are in `options` or `reads`.
    """
    inside = [normpath(path) for path in volumes]
    writable = sorted({*inside, *([] if _is_in(private, inside) else [private])}, key=len)
    homes = [home for home in (dirname(dirname(program)) for program in programs) if home not in ("", "/")]
    readable = [*_PROGRAMS, *_SETTINGS, *programs, *homes, *_absolute_paths(options), *reads]
    hidden = {normpath(path) for path in source} - set(writable)
    return Sandbox(
        dirname(dirname(private)),
        tuple(writable),
        tuple(dict.fromkeys(normpath(path) for path in readable if not _is_in(normpath(path), writable))),
        tuple(sorted(hidden)),
    )


def is_shown(path: str, options: Sequence[str], reads: Sequence[str]) -> bool:
    """Return whether a server in a sandbox can see a file of the host.

    The server may also read the files and folders whose paths are in `options` or `reads`.
    """
    return _is_in(
        normpath(path), [normpath(shown) for shown in (*_PROGRAMS, *_SETTINGS, *_absolute_paths(options), *reads)]
    )


def _absolute_paths(options: Sequence[str]) -> list[str]:
    return [value.strip() for _, _, value in (line.partition("=") for line in options) if value.strip()[:1] == "/"]


def _is_in(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


@dataclass(frozen=True)
class MountSeen:
    """A mount that exists in a server's mount namespace."""

    path: str
    fstype: str
    is_writable: bool


@dataclass(frozen=True)
class ProcessSeen:
    """The namespace and rights of a running server, as reported by the kernel.

    The field `rights` contains lines of /proc/PID/status by name. If `shares_mounts` is set, the server has the same
    mount namespace as zsnapdb.
    """

    shares_mounts: bool
    mounts: tuple[MountSeen, ...]
    rights: dict[str, str]


def breaches(seen: ProcessSeen, sandbox: Sandbox) -> tuple[str, ...]:
    """Return each way in which a running server can access more than its sandbox allows; empty if there is none.

    Sources: proc(5) for CapEff, NoNewPrivs and Seccomp (2: a filter), and mount_namespaces(7).
    """
    wrong = ["it has the mount namespace of zsnapdb"] if seen.shares_mounts else []
    tops = [mount for mount in seen.mounts if mount.path == "/"]
    if not tops or tops[-1].fstype != "tmpfs" or tops[-1].is_writable:
        wrong.append("its root is not an empty file system")
    for mount in seen.mounts:
        is_private = mount.fstype == "tmpfs" and mount.path in (*PRIVATE, *sandbox.hidden)
        if mount.is_writable and not is_private and mount.path not in sandbox.writable:
            wrong.append(f"it can write to {mount.path}")
        elif _is_in(mount.path, sandbox.hidden) and not is_private and not _is_in(mount.path, sandbox.writable):
            wrong.append(f"it sees {mount.path} of the source")
    capabilities = {name: seen.rights.get(name, "1") for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")}
    wrong += [f"{name} is {value}" for name, value in capabilities.items() if int(value, 16) != 0]
    if seen.rights.get("NoNewPrivs") != "1":
        wrong.append("it may get more rights (NoNewPrivs)")
    if not sandbox.connects and seen.rights.get("Seccomp") != "2":
        wrong.append("it may connect to other servers (Seccomp)")
    if seen.rights.get("Uid", "0").split()[0] == "0":
        wrong.append("it is root")
    return tuple(wrong)
