"""Reading of the site's files: the configuration, and secrets that no other account may read or change."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from pydantic import SecretStr

from zsnapdb.base.errors import ConfigError


def read_text(file: Path, what: str, hint: str) -> str:
    """Return the text of a file of the site. ConfigError with `hint` if it cannot be read or is not UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"reading {what} {file}: {error.strerror}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"reading {what} {file}: it is not UTF-8 (byte {error.start + 1})", hint="save the file as UTF-8"
        ) from error


def open_regular(file: Path) -> BufferedReader:
    """Open the file and follow links. OSError immediately if it is a folder, a pipe, a socket or a device."""
    opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is not a regular file", str(file))
    return open(opened, "rb")


def secret_in(file: Path, what: str, hint: str) -> bytes:
    """Return the content of a file with a secret. ConfigError with `hint` if the file cannot be read.

    ConfigError also if another account may read or change the file. Only root and this account may own it, and only the
    owner may access it. If root is the owner, a group may read it. A link of another account is not followed.
    """
    try:
        if file.is_symlink() and not _is_trusted(os.lstat(file).st_uid):
            raise ConfigError(
                f"reading {what} {file}: it is a link of uid {os.lstat(file).st_uid}", hint="name the file itself"
            )
        with open(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as opened:
            _refuse_public(os.fstat(opened.fileno()), file, what)
            # Wait for a pipe of this account, for example of `--password-file <(command)`.
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
            f"reading {what} {file}: it belongs to uid {status.st_uid}, who may read and change it",
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
    """Return the password in a file that contains nothing else.

    ConfigError if the file cannot be read, or if another account may read or change it.
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
