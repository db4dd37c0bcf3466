"""The exception tree. Each class has a stable code and an exit code. Each error has a hint that says what to do.

    ZsnapdbError                1   an unexpected error
    ├── UsageError              2   the command line is not valid
    ├── ConfigError             3   the configuration cannot be used
    ├── PreflightError          4   the server, its files or the pool do not allow the operation; nothing was changed
    │   ├── NotOursError        4   a dataset, snapshot or bookmark does not carry our mark; it was not destroyed
    │   ├── NotAllowedError     4   this account may not do it
    │   ├── ClockDoubtError     4   what would be removed depends on a clock that is in doubt
    │   └── ForeignInsideError  4   inside a server's datasets lies what is no volume of it
    ├── ServerError             5   the database server cannot be reached, or refused
    │   └── LockError           10  the lock could not be acquired in time, or was lost
    │       └── LockNotGranted  10  no lock is held; another attempt may succeed
    ├── RepositoryError         6   the repository cannot be reached, or refused
    │   ├── NotThere            6   an object, bucket or backup does not exist
    │   │   └── UnknownNameError  2   a clone, machine, table or restore of that name does not exist on this host
    │   ├── ChangedError        6   an object was replaced by another version
    │   ├── UnreachableError    6   the repository did not answer, or is busy; another attempt may succeed
    │   └── LeaseError          6   another run took the lease over
    ├── DamagedError            7   stored bytes are not the bytes that were written
    │   ├── DamagedBackupError  7   the same, of a known backup
    │   └── HistoryError        7   the repository holds something newer than the point
    │       └── AmbiguousPointError  2   several histories have the point, each with another state: name one
    ├── ExistsError             8   the target already exists
    ├── CommandError            9   an external command failed
    │   ├── CommandTimeout      9   it did not end in time
    │   └── HookError           12  a hook of the site failed, or took too long
    ├── BusyError               75  another run is at work (EX_TEMPFAIL of sysexits.h)
    └── ConsistencyError        11  a check of the result failed; the result is not valid

`EXIT_CODES` says what each exit code of the command line means.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from enum import StrEnum

from zsnapdb.base.foreign_text import printed

INTERNAL = 1
"""The exit code after an error that nobody expected."""
INTERRUPTED = 130
"""The exit code after Ctrl-C, SIGTERM or SIGHUP."""
CLOSED_PIPE = 141
"""The exit code if the reader of stdout went away, as of a program that SIGPIPE ends (128 + 13)."""


class ZsnapdbError(Exception):
    """An error. The message says what was attempted, on what, and what is wrong. `hint` says what to do.

    Control characters in both, which a server or store may have sent, are escaped. `about` are the owners of the clones
    and commits that the text names: none if it repeats what was asked for, and nothing else of this host. None: the
    text may name anything, and is for administrators (`base/audience.py`).
    """

    code = "internal"
    exit_code = INTERNAL
    about: tuple[str, ...] | None = None
    message: str
    hint: str

    def __init__(self, message: str, *, hint: str = "", about: tuple[str, ...] | None = None) -> None:
        if about is not None:
            self.about = about
        self.message = printed(message)
        self.hint = printed(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ConfigError(ZsnapdbError):
    """The configuration cannot be used."""

    code = "config"
    exit_code = 3


class UsageError(ZsnapdbError):
    """The command line is not valid: the form of an option's value, or options that do not fit together.

    Its text repeats what was asked for, so whoever asked may read it.
    """

    code = "usage"
    exit_code = 2
    about = ()


class PreflightError(ZsnapdbError):
    """The server, its files or the pool do not allow the operation; nothing was changed."""

    code = "preflight"
    exit_code = 4


class NotOursError(PreflightError):
    """A dataset, snapshot or bookmark does not carry our mark, so it was not destroyed.

    `name` is its full name, `property_name` the ZFS property that was checked. `value` and `source` are the property's
    value and source as `zfs get` prints them.
    """

    code = "not-ours"

    def __init__(self, message: str, *, name: str, property_name: str, value: str, source: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.name = name
        self.property_name = property_name
        self.value = value
        self.source = source


class NotAllowedError(PreflightError):
    """This account may not do it. Nothing was changed."""

    code = "not-allowed"


class ClockDoubtError(PreflightError):
    """What would be removed depends on the clock of this host, which is in doubt. Nothing was removed."""

    code = "clock-doubt"


class ForeignInsideError(PreflightError):
    """Inside a server's datasets lies what is no volume of it, or another mount namespace uses them.

    An exchange of the datasets would take it away. Nothing was changed.
    """

    code = "foreign-inside"


class ServerError(ZsnapdbError):
    """The database server cannot be reached, or refused."""

    code = "server"
    exit_code = 5


class LockError(ServerError):
    """The lock could not be acquired before the deadline, or was lost before the snapshot was made."""

    code = "lock"
    exit_code = 10


class LockNotGranted(LockError):
    """The lock was not granted. No lock is held; another attempt may succeed."""

    code = "lock-not-granted"


class RepositoryError(ZsnapdbError):
    """The repository cannot be reached, or refused."""

    code = "repository"
    exit_code = 6


class NotThere(RepositoryError):
    """An object, a bucket or a backup does not exist."""

    code = "not-there"


class UnknownNameError(NotThere):
    """A clone, machine, base, table, or a restore under way of that name does not exist here. Nothing was changed."""

    code = "unknown-name"
    exit_code = UsageError.exit_code


class ChangedError(RepositoryError):
    """An object that should be replaced has another version now. The object was not changed."""

    code = "changed"


class UnreachableError(RepositoryError):
    """The repository did not answer, broke off or is busy. Another attempt may succeed."""

    code = "unreachable"


class LeaseError(RepositoryError):
    """Another run took the lease on the repository over from this run. No backup was completed."""

    code = "lease"


class BusyError(ZsnapdbError):
    """Another run is at work on the same thing, on this host or another. Nothing was changed. Try again later."""

    code = "busy"
    exit_code = 75


class DamagedError(ZsnapdbError):
    """Stored bytes are not the bytes that were written."""

    code = "damaged"
    exit_code = 7


class DamagedBackupError(DamagedError):
    """Stored bytes of one backup are not the bytes that were written. `backup_id` is that backup."""

    code = "damaged-backup"

    def __init__(self, message: str, *, backup_id: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.backup_id = backup_id


class HistoryError(DamagedError):
    """The repository holds something newer than the point that would be reached, or several histories with that point.

    Nothing was changed.
    """

    code = "history"
    about = ()


class AmbiguousPointError(HistoryError):
    """Several states fit the point: those of several histories, or those between two commits whose times are known.

    Nothing was changed.
    """

    code = "ambiguous-point"
    exit_code = UsageError.exit_code


class ExistsError(ZsnapdbError):
    """The target already exists and is not overwritten."""

    code = "exists"
    exit_code = 8


class CommandError(ZsnapdbError):
    """An external command failed. The message has the output of the command."""

    code = "command"
    exit_code = 9


class CommandTimeout(CommandError):
    """An external command did not end in time. Nothing is known of what it was asked or told to do."""

    code = "command-timeout"


class HookError(CommandError):
    """A hook of the site failed, or took too long."""

    code = "hook"
    exit_code = 12


class ConsistencyError(ZsnapdbError):
    """A check of the result failed. The result is not valid."""

    code = "consistency"
    exit_code = 11


def exit_code(error: BaseException) -> int:
    """Return the exit code of a command that ends by this error."""
    if isinstance(error, ZsnapdbError):
        return error.exit_code
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else INTERNAL


def error_class(error: BaseException) -> str:
    """Return the stable code of an error: that of its class, `interrupted`, or `internal`."""
    if isinstance(error, ZsnapdbError):
        return error.code
    return "interrupted" if isinstance(error, KeyboardInterrupt) else ZsnapdbError.code


EXIT_CODES = {
    0: "done",
    INTERNAL: "unexpected error; please report it, with the traceback if there is one",
    UsageError.exit_code: (
        "the command line is not valid, names something that does not exist on this host, or fits several things"
    ),
    ConfigError.exit_code: "the configuration cannot be used",
    PreflightError.exit_code: "the server, its files or the pool do not allow the operation; nothing was changed",
    ServerError.exit_code: "the database server cannot be reached, or refused",
    RepositoryError.exit_code: (
        "the repository cannot be reached, or refused, or has no such backup; `status`, `verify`: it has no backup"
    ),
    DamagedError.exit_code: "stored data is damaged: it is not what was written; or the latest state cannot be reached",
    ExistsError.exit_code: "the target exists already",
    CommandError.exit_code: "an external command failed",
    LockError.exit_code: "the lock could not be acquired in time, or was lost",
    ConsistencyError.exit_code: "a check of the result failed, and the result was not called good",
    HookError.exit_code: "a hook of the site failed, or took too long",
    BusyError.exit_code: "another run is at work on the same thing; try again later, or wait with `--wait`",
    INTERRUPTED: "interrupted by Ctrl-C, SIGTERM or the end of the session (SIGHUP)",
    CLOSED_PIPE: "the reader of stdout went away before everything was printed",
}
"""What each exit code means. `zsnapdb doctor` alone has a scale of its own: 0 fit, 1 warnings, 2 unfit."""


def missing_library(extra: str, error: ImportError) -> ConfigError:
    """Return the error for a library of the extra that cannot be imported."""
    return ConfigError(f"the library {error.name} is missing", hint=how_to_install(*libraries_of(extra, error)))


def libraries_of(extra: str, error: ImportError) -> list[str]:
    """Return the requirements of an extra as the installed package declares them; else the library of the error.

    zsnapdb itself is not named: it is in no index, where somebody else could register its name.
    """
    from importlib import metadata  # every command imports this module, and few of them need this one

    try:
        declared = metadata.requires("zsnapdb") or []
    except metadata.PackageNotFoundError:
        declared = []
    needed = [need.partition(";") for need in declared]
    found = [what.strip() for what, _, when in needed if re.fullmatch(rf"\s*extra\s*==\s*['\"]{extra}['\"]", when)]
    return found or [str(error.name)]


def how_to_install(
    *what: str, python: str = sys.executable, has_pip: bool = importlib.util.find_spec("pip") is not None
) -> str:
    """Return the hint that installs packages for this Python, which is seldom that of the command `pip`.

    The package for Debian has a Python without pip. That of the system then works on it (pip 22.3 and later).
    """
    packages = " ".join(f"'{package}'" for package in what)
    if has_pip:
        return f"install it: `{python} -m pip install {packages}`"
    command = f"python3 -m pip --python {python} install {packages}"
    return f"install it with the pip of the system (Debian's package python3-pip): `{command}`"


class RetryClass(StrEnum):
    """How often a command that failed is worth repeating."""

    AGAIN = "again"
    """The cause passes: again, after a while, for as long as the result is wanted."""
    NEVER = "never"
    """The same command ends the same way until a person has changed something."""
    TWICE = "twice"
    """Nobody knows whether the cause passes: two attempts in all, then a person."""


_CLASSES: dict[int, RetryClass] = {
    0: RetryClass.NEVER,
    INTERNAL: RetryClass.TWICE,
    UsageError.exit_code: RetryClass.NEVER,
    ConfigError.exit_code: RetryClass.NEVER,
    PreflightError.exit_code: RetryClass.NEVER,
    ServerError.exit_code: RetryClass.AGAIN,
    RepositoryError.exit_code: RetryClass.AGAIN,
    DamagedError.exit_code: RetryClass.NEVER,
    ExistsError.exit_code: RetryClass.NEVER,
    CommandError.exit_code: RetryClass.TWICE,
    LockError.exit_code: RetryClass.AGAIN,
    ConsistencyError.exit_code: RetryClass.NEVER,
    HookError.exit_code: RetryClass.TWICE,
    BusyError.exit_code: RetryClass.AGAIN,
    INTERRUPTED: RetryClass.AGAIN,
    CLOSED_PIPE: RetryClass.AGAIN,
}
assert _CLASSES.keys() == EXIT_CODES.keys()

_PASSING = {CommandTimeout.code}
"""Codes of errors that pass, of an exit code that others share: a pool or a guest that did not answer in time."""


def retry_class(exit_code: int, error_code: str | None = None) -> RetryClass:
    """Return whether a command that ended with `exit_code` is worth repeating.

    `error_code` is `error.code` of its document, if it printed one; it says more than the exit code alone. A code that
    is not known, such as that of a signal (-9, 137) or of a newer release, is worth two attempts. 0 is no failure:
    never.
    """
    if exit_code == CommandError.exit_code and error_code in _PASSING:
        return RetryClass.AGAIN
    return _CLASSES.get(exit_code, RetryClass.TWICE)
