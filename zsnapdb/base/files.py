"""Files of this host: atomic replacement, files and secrets from users, and locks that only this account can open."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import TextIO

from pydantic import SecretStr

from zsnapdb.base.errors import ConfigError, PreflightError

_UNFINISHED = ".new-"


def replace(file: Path, content: bytes, mode: int = 0o600) -> None:
    """Create the file with this content in an existing folder, or replace an existing file.

    When this function returns, the file is durable.

    A link at this path is replaced, not followed. Raises OSError if the write fails; the old file then remains.
    """
    _replace(file, (content,), mode, is_durable=True)
    sync_folder(file.parent)


def remove_unfinished(folder: Path) -> None:
    """Remove unfinished files of killed processes from the folder.

    During the call, no other process may write to the folder.
    """
    for left in folder.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(OSError):
            left.unlink()


def replace_disposable(file: Path, body: bytes | bytearray | Iterator[bytes]) -> None:
    """Replace the file like `replace`, but do not wait for the disk.

    The body may be an iterator over parts, so that the whole content need not be in memory.

    After a power failure the file may have any content. Use this only for files that may be lost and whose readers
    detect a partial file.
    """
    _replace(file, body if isinstance(body, Iterator) else (body,), 0o600, is_durable=False)


def _replace(file: Path, parts: Iterable[bytes | bytearray], mode: int, *, is_durable: bool) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=_UNFINISHED)
    try:
        with open(descriptor, "wb") as out:
            out.writelines(parts)
            out.flush()
            os.fchmod(out.fileno(), mode)
            if is_durable:
                os.fsync(out.fileno())
        os.replace(temporary, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def sync_folder(folder: Path) -> None:
    """Make created, renamed and removed entries of the folder durable. Raises OSError if the disk reports an error."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_POLL_SECONDS = 0.01
_OTHERS = 0o077
_LOCK_LINE = re.compile(
    r"[0-9]+: FLOCK +\S+ +(?:READ|WRITE) +(?P<pid>[0-9]+) "
    r"(?P<major>[0-9a-f]+):(?P<minor>[0-9a-f]+):(?P<inode>[0-9]+) "
)
"""The pattern of a granted lock in /proc/locks (proc_locks(5))."""


def open_private(path: Path) -> int:
    """Open the lock file for reading and appending; create it if it is missing. No other account can open it.

    Raises OSError if the file cannot be opened, with ELOOP if it is a link. On a file system with one fixed mode for
    all files, the mode is not changed.
    """
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if os.fstat(opened).st_mode & _OTHERS:
        with contextlib.suppress(OSError):
            os.fchmod(opened, 0o600)
    return opened


@contextlib.contextmanager
def locked_file(path: Path, seconds: float) -> Iterator[None]:
    """Lock the file exclusively during the block, for all hosts that mount it (flock works over NFS).

    Raises TimeoutError, with the file and the holder, if another process still holds the lock after `seconds`. Raises
    OSError in the same cases as `open_private`.
    """
    deadline = time.monotonic() + seconds
    opened = open_private(path)
    try:
        while not _is_taken(opened):
            if time.monotonic() >= deadline:
                raise TimeoutError(errno.ETIMEDOUT, f"{holder(opened)} held the lock {path} for {seconds:g} s")
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(opened)


def _is_taken(opened: int) -> bool:
    """Try to take the lock. Return whether it was free."""
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder(opened: int) -> str:
    """Return the process that holds a lock on the open file, if this host's kernel knows it."""
    status = os.fstat(opened)
    wanted = (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as lines:
        for line in lines:
            found = _LOCK_LINE.match(line)
            if found and (int(found["major"], 16), int(found["minor"], 16), int(found["inode"])) == wanted:
                return f"process {found['pid']}{_account(found['pid'])}"
    return "a process that this host does not know"


def _account(pid: str) -> str:
    with contextlib.suppress(OSError):
        return f" of uid {os.stat(f'/proc/{pid}').st_uid}"
    return ""


def read_text(file: Path, what: str, hint: str) -> str:
    """Return the text of a file that a user provides.

    Raises ConfigError with `hint` if the file cannot be read or is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"reading {what} {file}: {error.strerror}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"reading {what} {file}: it is not UTF-8 (byte {error.start + 1})", hint="save the file as UTF-8"
        ) from error


def open_regular(file: Path) -> BufferedReader:
    """Open a regular file. Links are followed. Raises OSError at once for a folder, a pipe, a socket or a device."""
    opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is not a regular file", str(file))
    return open(opened, "rb")


def secret_in(file: Path, what: str, hint: str) -> bytes:
    """Return the content of a file with a secret. Raises ConfigError with `hint` if the file cannot be read.

    ConfigError is also raised if another account may read or change the file. Only root or this account may own the
    file, and only the owner may access it. If root is the owner, a group may also read the file. A link that another
    account owns is not followed.
    """
    try:
        if file.is_symlink() and not _is_trusted(os.lstat(file).st_uid):
            raise ConfigError(
                f"reading {what} {file}: it is a link of uid {os.lstat(file).st_uid}", hint="name the file itself"
            )
        with open(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as opened:
            _refuse_public(os.fstat(opened.fileno()), file, what)
            # If the file is this account's pipe, wait for its content, as in `--password-file <(command)`.
            os.set_blocking(opened.fileno(), True)
            content = opened.read()
            if not content and stat.S_ISFIFO(os.fstat(opened.fileno()).st_mode):
                raise ConfigError(f"reading {what} {file}: the pipe is empty, or nothing writes to it", hint=hint)
            return content
    except OSError as error:
        raise ConfigError(f"reading {what} {file}: {error.strerror}", hint=hint) from error


def _is_trusted(uid: int) -> bool:
    return uid in (0, os.geteuid())


def _refuse_public(status: os.stat_result, file: Path, what: str) -> None:
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISFIFO(status.st_mode):
        raise ConfigError(f"reading {what} {file}: it is neither a file nor a pipe", hint="name a file")
    if not _is_trusted(status.st_uid):
        raise ConfigError(
            f"refusing {what} {file}: uid {status.st_uid} owns it and could read or change it",
            hint=f"run `chown root {file}`, or give it to the account that runs zsnapdb",
        )
    allowed = 0o740 if status.st_uid == 0 else 0o700
    if stat.S_IMODE(status.st_mode) & ~allowed & 0o777:
        raise ConfigError(
            f"reading {what} {file}: other accounts may read or change it (mode {stat.S_IMODE(status.st_mode):04o})",
            hint=f"run `chmod 600 {file}` (a secret of a container: mount it with mode 0400); if others could read it,"
            " replace the secret",
        )


def password_in(file: Path, what: str) -> SecretStr:
    """Return the password in a file that contains only the password.

    Raises ConfigError if the file cannot be read, or if another account can read or change it.
    """
    body = secret_in(
        file, what, "the file must contain only the password, and be readable by the user that runs zsnapdb"
    )
    try:
        return SecretStr(body.decode().rstrip("\n"))
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"reading {what} {file}: it is not UTF-8 (byte {error.start + 1})", hint="save the file as UTF-8"
        ) from None


_HINT = "run zsnapdb as root, or make the folder for its account"


def make_private(folder: Path) -> None:
    """Create the folder and missing parents. Only the current account, which owns the folder, can access it.

    Raises PreflightError if the folder is a link, belongs to another account, or cannot be created.
    """
    _make(folder, 0o700)


def make_passable(folder: Path) -> None:
    """Create a folder like `make_private`, but let other accounts pass through to their own files.

    They cannot list the folder.

    For example, QEMU opens its NVRAM file under its own account.
    """
    _make(folder, 0o711)


def _make(folder: Path, mode: int) -> None:
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise PreflightError(f"making the folder {folder}: {error.strerror}", hint=_HINT) from error
    try:
        status = os.fstat(opened)
        if status.st_uid != os.geteuid():
            raise PreflightError(
                f"the folder {folder} belongs to uid {status.st_uid}, and this is uid {os.geteuid()}", hint=_HINT
            )
        if status.st_mode & 0o077 != mode & 0o077:
            os.fchmod(opened, mode)
            if os.fstat(opened).st_mode & 0o077 & ~mode:
                raise PreflightError(
                    f"the file system of {folder} lets other accounts into a folder of mode {mode:04o}",
                    hint="use a file system with the permissions of files, or mount it with umask=077",
                )
    finally:
        os.close(opened)


def lock_file(folder: Path, name: str) -> Path:
    """Return the path of the lock file with that name."""
    return folder / f"{name}.lock"


def open_lock(folder: Path, name: str) -> TextIO:
    """Return the open lock file of that name in a private folder. Create the folder and the file if they are missing.

    Raises PreflightError in the same cases as `make_private`, or if the lock file is a link.
    """
    make_private(folder)
    path = lock_file(folder, name)
    try:
        opened = open_private(path)
    except OSError as error:
        raise PreflightError(f"making the lock file {path}: {error.strerror}", hint=_HINT) from error
    return os.fdopen(opened, "a+", encoding="utf-8", errors="backslashreplace")
