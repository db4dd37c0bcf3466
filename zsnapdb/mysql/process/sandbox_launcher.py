"""Launcher that builds the sandbox of one server and executes that server.

Root runs the launcher with the arguments `PLAN PROGRAM ARGUMENT…`.

The launcher uses only the standard library. The plan (JSON) contains:

- `account`: uid, gid and groups of the server.
- `base`: the folder above the copy, in which only root can create links.
- `writable`: folders of the copy. The path from `base` to such a folder may not contain a link.
- `readable`: files and folders that the server may read. Missing files and folders are skipped.
- `hidden`: folders that appear empty to the server, even if they are below a readable folder.
- `connects`: whether the server may connect to other servers.

The server gets a mount namespace whose root is an in-memory file system with only these folders. The server sees no
other files or sockets of the host. Its /proc shows no processes, because `/proc/PID/cwd` of a process with the same
account would lead out of the sandbox (proc(5)). The server has no capabilities and cannot get any (no_new_privs). Its
connect(2) fails unless `connects` is set. If a step fails, the launcher ends before the server starts.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import struct
import sys

FAILED = "zsnapdb sandbox: "
"""Prefix of the line with the reason why the sandbox could not be built."""

_CLONE_NEWNS, _CLONE_NEWIPC = 0x00020000, 0x08000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_PR_CAPBSET_DROP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 24, 22, 38, 47
_CLEAR_ALL, _SECCOMP_FILTER = 4, 2

_STAGE = "/tmp"  # noqa: S108 - nothing is made in the folder of the host
"""The path at which the new root is built. Only this process sees the new root. All files that are needed from the
host's folder at this path are already open.
"""
_DEVICES = ("null", "zero", "full", "random", "urandom")
_KERNEL = ("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version", "/proc/sys", "/sys/devices/system")
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108 - paths in the sandbox

_CONNECT = {
    "x86_64": (0xC000003E, 42),
    "aarch64": (0xC00000B7, 203),
    "riscv64": (0xC00000F3, 203),
    "ppc64le": (0xC0000015, 328),
}
"""For each machine type, the AUDIT_ARCH (linux/audit.h) and the system call number of connect(2)."""

_libc = ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> None:
    """Build the sandbox of the plan and execute the program in it. On failure, print a line and exit with status 1."""
    try:
        plan = json.loads(arguments[0])
        _enter(plan, arguments[1])
        _give_up(plan["account"], is_open=plan["connects"])
        os.execv(arguments[1], arguments[1:])  # noqa: S606 - no shell
    except OSError as error:
        # File descriptors 1 and 2 are the server's log.
        os.write(2, f"{FAILED}{error.strerror}: {error.filename or 'the server program'}\n".encode())
        os._exit(1)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    values = None if data is None else data.encode()
    _check(_libc.mount(*words, ctypes.c_ulong(flags), values), f"mount {target}")


def _enter(plan: dict[str, object], program: str) -> None:
    """Create a mount namespace with the plan's folders, and make its root the root of this process."""
    base, hidden, origin = str(plan["base"]), _texts(plan["hidden"]), os.path.realpath(program)
    _check(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWIPC), "unshare")
    _mount(None, "/", None, _REC | _PRIVATE)
    requested = _texts(plan["readable"])
    links = [path for path in requested if os.path.islink(path) and _leads_into(path, requested)]
    targets = [(path, os.readlink(path)) for path in links]
    readable = [path for path in (*requested, *_KERNEL) if path not in links]
    readable = _with_inner_mounts([path for path in readable if os.path.exists(path)], hidden)
    shown = [
        (path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in (*readable, *(f"/dev/{name}" for name in _DEVICES))
    ]
    writable = [(path, _opened_without_link(path, base)) for path in _texts(plan["writable"])]
    covered = [path for path in hidden if os.path.isdir(path)]
    _mount("zsnapdb", _STAGE, "tmpfs", _NOSUID | _NODEV, "mode=755,size=1m")
    for path, target in targets:
        os.symlink(target, _STAGE + path)
    for path, source in shown:
        is_device = path.startswith("/dev/")
        _bind(path, source, _RDONLY | _NOSUID | (_NOEXEC if is_device else _NODEV))
    for path in (path for path in covered if os.path.isdir(_STAGE + path)):
        _mount("zsnapdb", _STAGE + path, "tmpfs", _NOSUID | _NODEV | _NOEXEC, "mode=755,size=64k")
    for path, source in writable:
        _bind(path, source, _NOSUID | _NODEV | _NOEXEC)
    for path in (path for path in covered if os.path.isdir(_STAGE + path)):
        if not any(path == other or path.startswith(other + "/") for other, _ in writable):
            _mount(None, _STAGE + path, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV | _NOEXEC)
    for path in _TEMPORARY:
        if not any(other == path or other.startswith(path + "/") for other in (*readable, *_texts(plan["writable"]))):
            os.makedirs(_STAGE + path, exist_ok=True)
            _mount("zsnapdb", _STAGE + path, "tmpfs", _NOSUID | _NODEV | _NOEXEC, "mode=1777,size=64m")
    for _, source in (*shown, *writable):
        os.close(source)
    # The loader derives $ORIGIN from this path (ld.so(8)). Servers from an archive use $ORIGIN to find their libraries.
    os.makedirs(_STAGE + "/proc/self", exist_ok=True)
    os.symlink(origin, _STAGE + "/proc/self/exe")
    _mount(None, _STAGE, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    os.chdir(_STAGE)
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _MNT_DETACH), "umount of the old root")
    os.chdir("/")


def _leads_into(link: str, readable: list[str]) -> bool:
    """Return whether a top-level link, such as /bin, leads into a readable folder.

    The sandbox keeps such a link as a link.
    """
    return link.count("/") == 1 and any(os.path.realpath(link).startswith(path + "/") for path in readable)


def _texts(value: object) -> list[str]:
    assert isinstance(value, list)
    return [str(item) for item in value]


def _opened_without_link(path: str, base: str) -> int:
    """Open a folder of the copy.

    Raises OSError if the folder's path contains a link, which the server's account may have created.
    """
    opened = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    expected = os.path.realpath(base) + path[len(base) :] if path.startswith(base + "/") else os.path.realpath(path)
    if os.readlink(f"/proc/self/fd/{opened}") != expected:
        raise OSError(errno.ELOOP, "the path of the folder contains a symbolic link", path)
    return opened


def _with_inner_mounts(readable: list[str], hidden: list[str]) -> list[str]:
    """Return each readable path, followed by the mounts below it, except mounts below a hidden folder.

    A mount is also skipped if its top folder does not belong to root, because mounts of databases belong to other
    accounts.
    """
    with open("/proc/self/mountinfo", "rb") as file:
        lines = file.read().split(b"\n")
    points = [_plain(os.fsdecode(line.split(b" ")[4])) for line in lines if line]
    paths = []
    for path in readable:
        if any(path.startswith(other + "/") for other in readable):
            continue
        inner = {point for point in points if point.startswith(path + "/") and os.path.exists(point)}
        paths += [path, *sorted(point for point in inner if os.stat(point).st_uid == 0)]
    unhidden = [path for path in paths if not any(path == other or path.startswith(other + "/") for other in hidden)]
    return list(dict.fromkeys(unhidden))


def _plain(word: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(code, char)
    return word


def _bind(path: str, source: int, flags: int) -> None:
    """Bind the open file or folder `source` to `path` in the new root."""
    at, target = f"/proc/self/fd/{source}", _STAGE + path
    if os.path.isdir(at):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    _mount(at, target, None, _BIND)
    _mount(None, target, None, _REMOUNT | _BIND | flags)


def _give_up(account: dict[str, object], *, is_open: bool) -> None:
    """Switch to the account and drop all capabilities permanently. Block connect(2), unless `is_open` is set."""
    number = 0
    while _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1
    if ctypes.get_errno() != errno.EINVAL:
        # EINVAL: the kernel has no capability with this number (PR_CAPBSET_DROP(2const)).
        _check(1, "drop of capabilities")
    _libc.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    uid, gid, groups = account["uid"], account["gid"], account["groups"]
    assert isinstance(uid, int)
    assert isinstance(gid, int)
    assert isinstance(groups, list)
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if not is_open:
        _refuse_connect()


def _refuse_connect() -> None:
    """Make connect(2) fail with EACCES in this process and all its children (seccomp(2))."""
    machine = os.uname().machine
    if machine not in _CONNECT:
        raise OSError(errno.ENOSYS, f"the number of connect(2) on {machine} is not known", "seccomp")
    architecture, connect = _CONNECT[machine]
    allowed, refused, unknown = 0x7FFF0000, 0x00050000 | errno.EACCES, 0x00050000 | errno.ENOSYS
    load, equal, at_least, result = 0x20, 0x15, 0x35, 0x06
    code = [
        (load, 0, 0, 4),
        (equal, 0, 3, architecture),
        (load, 0, 0, 0),
        (at_least, 1, 0, 0x40000000),
        (equal, 1, 2, connect),
        (result, 0, 0, unknown),
        (result, 0, 0, refused),
        (result, 0, 0, allowed),
    ]
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    program = Program(len(code), ctypes.cast(text, ctypes.c_void_p))
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, ctypes.byref(program), 0, 0), "seccomp")


if __name__ == "__main__":
    main(sys.argv[1:])
