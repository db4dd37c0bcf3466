"""Safe access for root to files in folders that the database server's account owns. No other module opens them.

The server's account can replace any file in its folders with a link, a pipe or a hard link at any moment. A path is
therefore opened folder by folder, each folder relative to its parent (openat(2)). A link is followed only in a folder
where no other account can create links. A link as the last component is never followed. Only regular files are read or
written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from zsnapdb.base.errors import PreflightError

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""With O_DIRECTORY, open(2) also mounts a snapshot below .zfs. With only O_PATH, it does not."""
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""With O_NONBLOCK, the opening of a pipe does not wait for the other end of the pipe."""
_BELOW_OPENED = re.compile(r"(?P<opened>/proc/self/fd/[0-9]{1,9})(?P<rest>/.*|)", re.DOTALL)
"""A path below a folder that this process has opened. Such a path is opened from that folder on (proc(5),
/proc/PID/fd).
"""
_SPECIAL = "is not a regular file"
_MOST_LINKS = 40
_DEEPEST = 64
_MOST_TEXT = 64 << 20


class UnsafeFileError(PreflightError):
    """A path leads through a link that another account can create, or a file is not a regular file."""


@dataclass(frozen=True)
class Owner:
    """The uid and gid of a file's owner."""

    uid: int
    gid: int


@contextlib.contextmanager
def folder(path: Path, *, makes: bool = False) -> Iterator[int]:
    """Yield a descriptor of the folder for functions that take `dir_fd`, and close it after the block.

    With `makes`, create missing folders. Raises UnsafeFileError if the folder's path contains a link that another
    account can create.
    """
    start, names = _start(os.path.abspath(path))
    opened, links = os.open(start, _FOLDER), 0
    try:
        while names:
            name = names.popleft()
            if makes:
                _make(name, opened)
            try:
                inner = os.open(name, _FOLDER, dir_fd=opened)
            except NotADirectoryError:
                target = _link_target(name, opened, path)
                links += 1
                if links > _MOST_LINKS:
                    raise
                names.extendleft(reversed(_names(target)))
                if not target.startswith("/"):
                    continue
                inner = os.open("/", _FOLDER)
            os.close(opened)
            opened = inner
        yield opened
    finally:
        os.close(opened)


def _start(path: str) -> tuple[str, deque[str]]:
    """Return the folder from which the path is opened, and the remaining names."""
    below = _BELOW_OPENED.fullmatch(path)
    if below is None:
        return "/", deque(_names(path))
    return f"{below['opened']}/.", deque(_names(below["rest"]))


@contextlib.contextmanager
def folder_below(root: Path, names: Sequence[str], *, makes: bool = False) -> Iterator[int]:
    """Yield a descriptor of the folder `names` below `root`, like `folder`. With `makes`, create missing folders.

    The path of `root` may contain links. Raises UnsafeFileError for any link below `root`, even if the account root
    owns the link.
    """
    opened, at = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), root
    try:
        for name in names:
            at /= name
            if makes:
                _make(name, opened)
            try:
                inner = os.open(name, _FOLDER, dir_fd=opened)
            except NotADirectoryError:
                if _is_link(name, opened):
                    raise _unsafe(at, "is a symbolic link") from None
                raise
            os.close(opened)
            opened = inner
        yield opened
    finally:
        os.close(opened)


def open_at(name: str, at: int) -> int:
    """Open a regular file in the open folder `at` for reading.

    Raises OSError like open(2), with ELOOP if the file is a link.
    """
    opened = os.open(name, os.O_RDONLY | _FILE, dir_fd=at)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise IsADirectoryError(errno.EISDIR, _SPECIAL, name)
    return opened


def _make(name: str, at: int) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=at)


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _link_target(name: str, at: int, path: Path) -> str:
    """Return the target of a link in the folder `at`.

    Raises UnsafeFileError if another account can create links in the folder.
    """
    if not stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
        raise NotADirectoryError(f"{name} in {path} is not a folder")
    own = (0, os.geteuid())
    around, link = os.fstat(at), os.stat(name, dir_fd=at, follow_symlinks=False)
    is_shared = around.st_mode & 0o022 and not around.st_mode & stat.S_ISVTX
    if around.st_uid not in own or link.st_uid not in own or is_shared:
        raise UnsafeFileError(
            f"{path}: {name} is a symbolic link in a folder that uid {around.st_uid} can change",
            hint="zsnapdb runs as root and does not follow such a link; use the real path, or remove the link",
        )
    return os.readlink(name, dir_fd=at)


def refuse_links(path: Path, below: Path) -> None:
    """Raise UnsafeFileError if a component of `path` below the folder `below` is a link.

    Use this for received or cloned trees, because their links may come from another account even if root owns them. A
    path that does not exist yet is accepted.
    """
    at = below
    for name in path.relative_to(below).parts:
        at /= name
        try:
            status = os.lstat(at)
        except FileNotFoundError:
            return
        if stat.S_ISLNK(status.st_mode):
            raise _unsafe(at, "is a symbolic link")


def open_to_read(file: Path) -> BinaryIO:
    """Open the file for reading. Raises UnsafeFileError if it is a link, a pipe or another special file."""
    return _open_file(file, os.O_RDONLY, "rb")


def open_to_change(file: Path) -> BinaryIO:
    """Open the file for reading and writing in place.

    Raises UnsafeFileError for special files and for files with a second hard link.
    """
    return _open_file(file, os.O_RDWR, "r+b")


def open_to_append(file: Path, owner: Owner | None) -> BinaryIO:
    """Open the file for appending, and make `owner` its owner; a new file has mode 0600."""
    opened = _open_file(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, "ab")
    _give(opened.fileno(), owner)
    return opened


def create(file: Path) -> BinaryIO:
    """Create a file and open it for writing. Raises FileExistsError if the name is taken, even by a dangling link."""
    return _open_file(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, "wb")


def _open_file(file: Path, flags: int, mode: str) -> BinaryIO:
    with folder(file.parent) as at:
        try:
            opened = os.open(file.name, flags | _FILE, 0o600, dir_fd=at)
        except OSError as error:
            # With O_NOFOLLOW, open(2) fails with ELOOP for a link. With O_NONBLOCK, it fails with ENXIO for a pipe
            # without a reader.
            problem = {errno.ELOOP: "is a symbolic link", errno.ENXIO: _SPECIAL}.get(error.errno or 0)
            if problem is None:
                raise
            raise _unsafe(file, problem) from error
    status = os.fstat(opened)
    is_shared = status.st_nlink != 1 and flags & (os.O_WRONLY | os.O_RDWR)
    if is_shared or not stat.S_ISREG(status.st_mode):
        os.close(opened)
        raise _unsafe(file, "has a second name (a hard link)" if stat.S_ISREG(status.st_mode) else _SPECIAL)
    # With an opener, the file object's name is the path, which messages show.
    return open(file, mode, opener=lambda _path, _flags: opened)  # type: ignore[return-value]


def _unsafe(path: Path, problem: str) -> UnsafeFileError:
    return UnsafeFileError(
        f"{path} {problem}", hint="zsnapdb runs as root and does not use such a file; check it, then remove it"
    )


def _is_link(name: str, at: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def read_text(file: Path) -> str:
    """Return the file's text. Non-UTF-8 bytes are preserved (surrogateescape).

    Raises the same errors as `read_bytes`.
    """
    return read_bytes(file).decode(errors="surrogateescape")


def read_bytes(file: Path) -> bytes:
    """Return the content of the file.

    Raises UnsafeFileError in the same cases as `open_to_read`, and if the file is longer than 64 MiB. Servers do not
    write larger files of this kind.
    """
    with open_to_read(file) as opened:
        content = opened.read(_MOST_TEXT + 1)
    if len(content) > _MOST_TEXT:
        raise UnsafeFileError(f"{file} is longer than {_MOST_TEXT} bytes", hint="is it a file of the server?")
    return content


def write_text(file: Path, text: str, owner: Owner | None, mode: int = 0o600) -> None:
    """Replace the file with a new file that `owner` owns, or this account if `owner` is None.

    An existing file or link is replaced, not modified.
    """
    beside = f".{file.name}.{secrets.token_hex(4)}"
    with folder(file.parent) as at:
        opened = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=at)
        try:
            with open(opened, "wb") as out:
                out.write(text.encode(errors="surrogateescape"))
                _give(opened, owner)
                os.fchmod(opened, mode)
            os.rename(beside, file.name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside, dir_fd=at)
            raise


def rewrite_text(file: Path, text: str) -> None:
    """Replace the file's content, but not its owner and permissions.

    Raises UnsafeFileError in the same cases as `open_to_read`.
    """
    with open_to_read(file) as opened:
        status = os.fstat(opened.fileno())
    write_text(file, text, Owner(status.st_uid, status.st_gid), stat.S_IMODE(status.st_mode))


def give(file: Path, owner: Owner | None, mode: int) -> None:
    """Change the owner and permissions of a regular file. The file must have only one hard link."""
    with open_to_change(file) as opened:
        _give(opened.fileno(), owner)
        os.fchmod(opened.fileno(), mode)


def _give(opened: int, owner: Owner | None) -> None:
    if owner is not None and os.geteuid() == 0:
        os.fchown(opened, owner.uid, owner.gid)


def give_tree(root: Path, names: Sequence[str], owner: Owner, former: Owner, last: Path | None = None) -> int:
    """Change the owner of the folder `names` below `root` and of its content. Return the number of changed entries.

    Only a uid or gid that equals the uid or gid of `former` is changed; files owned by root stay unchanged. For a
    symbolic link, the owner of the link itself is changed, not the owner of its target. Other filesystems that are
    mounted in the folder are skipped. The folder `last` is skipped, but its content is changed. Raises UnsafeFileError
    if folders are nested deeper than any server nests them.
    """
    left_out = None
    if last is not None:
        with folder(last) as at:
            left_out = (os.fstat(at).st_dev, os.fstat(at).st_ino)
    giving = _Giving(owner, former, left_out)
    with folder_below(root, names) as at:
        opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    return giving.give(opened, root.joinpath(*names), 0)


def give_folder(path: Path, owner: Owner, former: Owner) -> int:
    """Change the owner of one folder, without its content, by the rules of `give_tree`."""
    with folder(path) as at:
        opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        wanted = _new_owner(os.fstat(opened), owner, former)
        if wanted is not None:
            os.fchown(opened, *wanted)
        return int(wanted is not None)
    finally:
        os.close(opened)


@dataclass(frozen=True)
class _Giving:
    """Settings for a change of owner. The field `last` holds the device and inode of the folder to skip."""

    owner: Owner
    former: Owner
    last: tuple[int, int] | None

    def give(self, opened: int, path: Path, depth: int) -> int:
        """Change the owner of an open folder's content, then of the folder itself, and close it."""
        given = 0
        try:
            if depth > _DEEPEST:
                raise _unsafe(path, f"has more than {_DEEPEST} folders above it")
            own = os.fstat(opened)
            with os.scandir(opened) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if status.st_dev != own.st_dev or entry.name == ".zfs":
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        inner = os.open(
                            entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=opened
                        )
                        given += self.give(inner, path / entry.name, depth + 1)
                    elif (wanted := _new_owner(status, self.owner, self.former)) is not None:
                        os.chown(entry.name, *wanted, dir_fd=opened, follow_symlinks=False)
                        given += 1
            wanted = _new_owner(own, self.owner, self.former)
            if wanted is not None and (own.st_dev, own.st_ino) != self.last:
                os.fchown(opened, *wanted)
                given += 1
            return given
        finally:
            os.close(opened)


def _new_owner(status: os.stat_result, owner: Owner, former: Owner) -> tuple[int, int] | None:
    """Return the new uid and gid of a file, or None if neither changes. Root's uid and gid never change."""
    uid = owner.uid if status.st_uid == former.uid != 0 else status.st_uid
    gid = owner.gid if status.st_gid == former.gid != 0 else status.st_gid
    return (uid, gid) if (uid, gid) != (status.st_uid, status.st_gid) else None


def make_folder(path: Path, owner: Owner | None) -> None:
    """Create a folder that only `owner` can enter, or change an existing folder's owner.

    Raises UnsafeFileError for a link.
    """
    with folder(path.parent) as at:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path.name, 0o700, dir_fd=at)
        if _is_link(path.name, at):
            raise _unsafe(path, "is a symbolic link")
        opened = os.open(path.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        _give(opened, owner)
    finally:
        os.close(opened)


def replace(file: Path, by: Path) -> None:
    """Give the name of a file to the file `by` in the same folder."""
    with folder(file.parent) as at:
        os.rename(by.name, file.name, src_dir_fd=at, dst_dir_fd=at)


def remove(file: Path) -> None:
    """Remove a file, or a link without its target. Do nothing if the file does not exist."""
    with contextlib.suppress(FileNotFoundError), folder(file.parent) as at:
        os.unlink(file.name, dir_fd=at)


def remove_tree(path: Path) -> None:
    """Remove a folder with its content, or a file or link. The target of a link is not removed."""
    with contextlib.suppress(FileNotFoundError), folder(path.parent) as at:
        if stat.S_ISDIR(os.stat(path.name, dir_fd=at, follow_symlinks=False).st_mode):
            shutil.rmtree(path.name, dir_fd=at)
        else:
            os.unlink(path.name, dir_fd=at)
