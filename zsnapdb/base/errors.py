"""The exception tree. Each class has a stable code and an exit code. Each error has a hint that says what to do.

    ZsnapdbError                1   an unexpected error
    ├── UsageError              2   the command line is not valid
    ├── ConfigError             3   the configuration cannot be used
    ├── PreflightError          4   the server, its files or the pool do not allow the operation; nothing was changed
    │   ├── NotOursError        4   a dataset, snapshot or bookmark lacks zsnapdb's mark; it was not destroyed
    │   ├── NotAllowedError     4   this account lacks the permission
    │   ├── ClockDoubtError     4   a removal depends on a clock that is in doubt
    │   └── ForeignInsideError  4   a server's datasets contain something that is not one of its volumes
    ├── ServerError             5   the database server cannot be reached, or refused a request
    │   └── LockError           10  the lock could not be acquired in time, or was lost
    │       └── LockNotGranted  10  no lock is held; another attempt may succeed
    ├── RepositoryError         6   the repository cannot be reached, or refused a request
    │   ├── NotFound            6   an object, bucket or backup does not exist
    │   │   └── UnknownNameError  2   a clone, machine, table or restore of that name does not exist on this host
    │   ├── ChangedError        6   an object was replaced by another version
    │   ├── UnreachableError    6   the repository did not answer, or is busy; another attempt may succeed
    │   ├── ArchivedError       6   an object is in an archive class, and cannot be read before its retrieval
    │   └── LeaseError          6   another run took over the lease
    ├── DamagedError            7   stored bytes are not the bytes that were written
    │   ├── DamagedBackupError  7   the damaged bytes belong to a known backup
    │   └── HistoryError        7   the repository has something newer than the requested point
    │       ├── AbandonedHistoryError  7   every usable backup is of a state that production no longer has
    │       └── AmbiguousPointError  2   several histories have the point, each with a different state: choose one
    ├── ExistsError             8   the target already exists
    ├── CommandError            9   an external command failed
    │   ├── CommandTimeout      9   an external command did not end in time
    │   └── HookError           12  a configured hook failed, or took too long
    ├── BusyError               75  another run is in progress (EX_TEMPFAIL of sysexits.h)
    └── ConsistencyError        11  a check of the result failed; the result is not valid

`EXIT_CODES` explains each exit code of the command line.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from enum import StrEnum

from zsnapdb.base.untrusted_text import printed

INTERNAL = 1
"""Exit code after an unexpected error."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, SIGTERM or SIGHUP."""
CLOSED_PIPE = 141
"""Exit code if the reader closed stdout, as for a program killed by SIGPIPE (128 + 13)."""


class ZsnapdbError(Exception):
    """An error. The message states the operation, its object and the problem. The hint tells the user what to do.

    Control characters in the message and the hint, for example from a server or store, are escaped. The attribute
    `about` lists the owners of the clones and commits that the text mentions. It is empty if the text only repeats the
    request. If `about` is None, the text may mention any object, so only administrators may read it
    (`base/run_context.py`).
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
    """The command line is not valid: an option's value is malformed, or options exclude each other.

    The text only repeats the request, so every caller may read it.
    """

    code = "usage"
    exit_code = 2
    about = ()


class PreflightError(ZsnapdbError):
    """The server, its files or the pool do not allow the operation; nothing was changed."""

    code = "preflight"
    exit_code = 4


class NotOursError(PreflightError):
    """A dataset, snapshot or bookmark does not carry zsnapdb's mark, so it was not destroyed.

    The attribute `name` is the object's full name, and `property_name` is the checked ZFS property. Its value and
    source are stored as `zfs get` prints them.
    """

    code = "not-ours"

    def __init__(self, message: str, *, name: str, property_name: str, value: str, source: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.name = name
        self.property_name = property_name
        self.value = value
        self.source = source


class NotAllowedError(PreflightError):
    """This account lacks the permission. Nothing was changed."""

    code = "not-allowed"


class ClockDoubtError(PreflightError):
    """A removal depends on the clock of this host, which is in doubt. Nothing was removed."""

    code = "clock-doubt"


class ForeignInsideError(PreflightError):
    """A server's datasets contain something that is not one of its volumes, or another mount namespace uses them.

    The exchange of the datasets would remove this object. Nothing was changed.
    """

    code = "foreign-inside"


class ServerError(ZsnapdbError):
    """The database server cannot be reached, or refused a request."""

    code = "server"
    exit_code = 5


class LockError(ServerError):
    """The lock could not be acquired before the deadline, or was lost before the snapshot was created."""

    code = "lock"
    exit_code = 10


class LockNotGranted(LockError):
    """The lock was not granted. No lock is held; another attempt may succeed."""

    code = "lock-not-granted"


class RepositoryError(ZsnapdbError):
    """The repository cannot be reached, or refused a request."""

    code = "repository"
    exit_code = 6


class NotFound(RepositoryError):
    """An object, a bucket or a backup does not exist."""

    code = "not-there"


class UnknownNameError(NotFound):
    """No clone, machine, base, table or unfinished restore with that name exists on this host. Nothing was changed."""

    code = "unknown-name"
    exit_code = UsageError.exit_code


class ChangedError(RepositoryError):
    """The object to be replaced no longer has the expected version. It was not changed."""

    code = "changed"


class UnreachableError(RepositoryError):
    """The repository did not answer, closed the connection or is busy. Another attempt may succeed."""

    code = "unreachable"


class ArchivedError(RepositoryError):
    """An object is in an archive storage class. It cannot be read until the store has retrieved it, which takes hours.

    zsnapdb writes no such objects: a lifecycle rule of the bucket, or a person, moved the object.
    """

    code = "archived"


class LeaseError(RepositoryError):
    """Another run took over this run's lease on the repository. No backup was completed."""

    code = "lease"


class BusyError(ZsnapdbError):
    """Another run, on this or another host, works on the same object. Nothing was changed. Try again later."""

    code = "busy"
    exit_code = 75


class DamagedError(ZsnapdbError):
    """Stored bytes are not the bytes that were written."""

    code = "damaged"
    exit_code = 7


class DamagedBackupError(DamagedError):
    """Stored bytes of the backup `backup_id` are not the bytes that were written."""

    code = "damaged-backup"

    def __init__(self, message: str, *, backup_id: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.backup_id = backup_id


class HistoryError(DamagedError):
    """The repository contains something newer than the requested point, or several histories with that point.

    Nothing was changed.
    """

    code = "history"
    about = ()


class AbandonedHistoryError(HistoryError):
    """Every usable backup is from a history that production has abandoned. Nothing was changed."""

    code = "abandoned-history"


class AmbiguousPointError(HistoryError):
    """Several states match the point: states in several histories, or states between two commits with known times.

    Nothing was changed.
    """

    code = "ambiguous-point"
    exit_code = UsageError.exit_code


class ExistsError(ZsnapdbError):
    """The target already exists and is not overwritten."""

    code = "exists"
    exit_code = 8


class CommandError(ZsnapdbError):
    """An external command failed. The message contains its output."""

    code = "command"
    exit_code = 9


class CommandTimeout(CommandError):
    """An external command did not end in time. Its effect is unknown."""

    code = "command-timeout"


class HookError(CommandError):
    """A configured hook failed, or took too long."""

    code = "hook"
    exit_code = 12


class ConsistencyError(ZsnapdbError):
    """A check of the result failed. The result is not valid."""

    code = "consistency"
    exit_code = 11


def exit_code(error: BaseException) -> int:
    """Return the exit code of a command that ends with this error."""
    if isinstance(error, ZsnapdbError):
        return error.exit_code
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else INTERNAL


def error_class(error: BaseException) -> str:
    """Return the stable code of an error: the code of its class, `interrupted`, or `internal`."""
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
    DamagedError.exit_code: (
        "stored data is damaged (it differs from the written data), or the latest state cannot be reached"
    ),
    ExistsError.exit_code: "the target exists already",
    CommandError.exit_code: "an external command failed",
    LockError.exit_code: "the lock could not be acquired in time, or was lost",
    ConsistencyError.exit_code: "a check of the result failed, and the result was not called good",
    HookError.exit_code: "a hook of the site failed, or took too long",
    BusyError.exit_code: "another run uses the same object; try again later, or wait with `--wait`",
    INTERRUPTED: "interrupted by Ctrl-C, SIGTERM or the end of the session (SIGHUP)",
    CLOSED_PIPE: "the reader of stdout went away before everything was printed",
}
"""Meaning of each exit code. `zsnapdb doctor` has its own scale: 0 fit, 1 warnings, 2 unfit."""


def missing_library(extra: str, error: ImportError) -> ConfigError:
    """Return the error for a library that cannot be imported. The library belongs to the given extra."""
    return ConfigError(f"the library {error.name} is missing", hint=how_to_install(*libraries_of(extra, error)))


def libraries_of(extra: str, error: ImportError) -> list[str]:
    """Return the extra's requirements that the installed package declares; if unknown, the library that `error` names.

    zsnapdb itself is omitted. It is in no package index, so anybody could register its name in an index.
    """
    from importlib import metadata  # every command imports this module, but few need this one

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
    """Return the hint that installs packages for this Python.

    The command `pip` usually belongs to a different Python.

    The Debian package contains a Python without pip. The system's pip can install into this Python (pip 22.3 and
    later).
    """
    packages = " ".join(f"'{package}'" for package in what)
    if has_pip:
        return f"install it: `{python} -m pip install {packages}`"
    command = f"python3 -m pip --python {python} install {packages}"
    return f"install it with the pip of the system (Debian's package python3-pip): `{command}`"


class RetryClass(StrEnum):
    """Whether and how often to repeat a failed command."""

    AGAIN = "again"
    """The cause is temporary. Repeat the command after a pause, as long as the result is wanted."""
    NEVER = "never"
    """The same command fails the same way until a person has changed something."""
    TWICE = "twice"
    """It is unknown whether the cause is temporary. Make two attempts in total, then ask a person."""


_CLASSES = {
    **dict.fromkeys((0, UsageError.exit_code, ConfigError.exit_code, PreflightError.exit_code), RetryClass.NEVER),
    **dict.fromkeys((DamagedError.exit_code, ExistsError.exit_code, ConsistencyError.exit_code), RetryClass.NEVER),
    **dict.fromkeys((INTERNAL, CommandError.exit_code, HookError.exit_code), RetryClass.TWICE),
    **dict.fromkeys((ServerError.exit_code, RepositoryError.exit_code, LockError.exit_code), RetryClass.AGAIN),
    **dict.fromkeys((BusyError.exit_code, INTERRUPTED, CLOSED_PIPE), RetryClass.AGAIN),
}
assert _CLASSES.keys() == EXIT_CODES.keys()

_PASSING = {CommandTimeout.code}
"""Codes of temporary errors (a pool or a guest did not answer in time) whose exit code is also used for other errors.
"""


_LASTING = {ArchivedError.code}
"""Codes of errors that stay until a person acts, although other errors with the same exit code are temporary."""


def retry_class(exit_code: int, error_code: str | None = None) -> RetryClass:
    """Return whether to repeat a command that ended with `exit_code`.

    The argument `error_code` is `error.code` in the command's JSON document, if the command printed one. It is more
    specific than the exit code. Two attempts are made if the code is unknown, for example because it comes from a
    signal (-9, 137) or a newer release. Code 0 is a success, which is never repeated.
    """
    if exit_code == CommandError.exit_code and error_code in _PASSING:
        return RetryClass.AGAIN
    if exit_code == RepositoryError.exit_code and error_code in _LASTING:
        return RetryClass.NEVER
    return _CLASSES.get(exit_code, RetryClass.TWICE)
