"""Copies files with owners, permissions and times, and compares each copy with its original.

The folders belong to the account of a database server, which can replace files with links at any moment. So every name
is opened relative to the open descriptor of its folder, and no link is followed (openat(2), O_NOFOLLOW).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base import safe_open
from zsnapdb.base.errors import ConsistencyError, PreflightError

_BLOCK = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class CopiedFile:
    """A file with its path below the source, its size in bytes, and the digest of the bytes read."""

    path: str
    size: int
    digest: bytes


def copy_entries(source: Path, names: Collection[str], target: Path) -> tuple[CopiedFile, ...]:
    """Copy the entries of the folder `source` into the folder `target`.

    Entries of the target with the same name are replaced. Sockets and pipes are left out. Raises PreflightError if an
    entry is a link or a device, or is on another filesystem. Raises OSError if reading or writing fails.
    """
    with _open_folder(source) as inside, _open_folder(target) as outside:
        return tuple(file for name in sorted(names) for file in _copy(name, name, inside, outside))


def fingerprint(folder: Path) -> str:
    """Return a digest of all names, sizes and times below the folder.

    Every change below the folder changes the digest. A rename of the folder itself does not change the digest. No link
    is followed. Sockets and pipes are included.
    """
    digest = hashlib.blake2b(digest_size=32)
    with _open_folder(folder) as at:
        for _, names, files, inside in os.fwalk(".", dir_fd=at, follow_symlinks=False):
            names.sort()
            for name in sorted((*names, *files)):
                status = os.stat(name, dir_fd=inside, follow_symlinks=False)
                about = (name, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                digest.update(repr(about).encode())
    return digest.hexdigest()


def compare(source: Path, copied: Collection[CopiedFile], target: Path) -> None:
    """Raise ConsistencyError if a copy differs from its original in size or digest, or an original changed its size."""
    for one in copied:
        if os.lstat(source / one.path).st_size != one.size:
            raise ConsistencyError(f"{source / one.path} changed while it was copied", hint="does a server still run?")
        digest = hashlib.blake2b()
        with safe_open.open_to_read(target / one.path) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        if digest.digest() != one.digest:
            raise ConsistencyError(
                f"{target / one.path} is not equal to {source / one.path}", hint="check the pool: `zpool status -v`"
            )


def keep_only(folder: Path, names: Collection[str]) -> None:
    """Remove all entries of the folder except the named ones. The folder must belong to zsnapdb."""
    with _open_folder(folder) as at:
        for name in set(os.listdir(at)) - {*names, ".zfs"}:
            _remove(name, at)


@contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    with safe_open.folder(folder) as at:
        opened = os.open(".", _FOLDER, dir_fd=at)
    try:
        yield opened
    finally:
        os.close(opened)


def _remove(name: str, at: int) -> None:
    if stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
        shutil.rmtree(name, dir_fd=at)
    else:
        os.unlink(name, dir_fd=at)


def _copy(name: str, path: str, source: int, target: int) -> Iterator[CopiedFile]:
    status = os.stat(name, dir_fd=source, follow_symlinks=False)
    if stat.S_ISSOCK(status.st_mode) or stat.S_ISFIFO(status.st_mode):
        return
    if name in os.listdir(target):
        _remove(name, target)
    if stat.S_ISDIR(status.st_mode):
        yield from _copy_folder(name, path, source, target)
    elif stat.S_ISREG(status.st_mode):
        yield _copy_file(name, path, source, target)
    else:
        raise PreflightError(f"{path} is not a regular file", hint="move it out of the data directory, or remove it")


def _copy_folder(name: str, path: str, source: int, target: int) -> Iterator[CopiedFile]:
    inside = os.open(name, _FOLDER, dir_fd=source)
    try:
        status = os.fstat(inside)
        if status.st_dev != os.fstat(source).st_dev:
            raise PreflightError(f"{path} is on another filesystem", hint="copy its files into the data directory")
        os.mkdir(name, 0o700, dir_fd=target)
        outside = os.open(name, _FOLDER, dir_fd=target)
        try:
            for entry in sorted(os.listdir(inside)):
                yield from _copy(entry, f"{path}/{entry}", inside, outside)
            _give(outside, status)
        finally:
            os.close(outside)
    finally:
        os.close(inside)


def _copy_file(name: str, path: str, source: int, target: int) -> CopiedFile:
    digest, size = hashlib.blake2b(), 0
    with (
        open(safe_open.open_at(name, source), "rb", buffering=0) as inside,
        open(os.open(name, _NEW, 0o600, dir_fd=target), "wb", buffering=0) as outside,
    ):
        while block := inside.read(_BLOCK):
            digest.update(block)
            size += len(block)
            rest = memoryview(block)
            while rest:
                rest = rest[outside.write(rest) or 0 :]
        _give(outside.fileno(), os.fstat(inside.fileno()))
    return CopiedFile(path, size, digest.digest())


def _give(opened: int, status: os.stat_result) -> None:
    os.fchown(opened, status.st_uid, status.st_gid)
    os.fchmod(opened, stat.S_IMODE(status.st_mode))
    os.utime(opened, ns=(status.st_atime_ns, status.st_mtime_ns))
