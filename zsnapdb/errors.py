"""The exception tree. Each class has a stable code, an exit code and says what to do.

    ZsnapdbError            1   something is wrong and nobody foresaw it
    ├── ConfigError         3   the configuration cannot be used
    ├── PreflightError      4   the server, its files or the pool are not fit for what was asked; nothing was touched
    │   └── NotOursError    4   a dataset, snapshot or bookmark does not carry our mark; it was not destroyed
    ├── ServerError         5   the database server cannot be reached, or refused
    │   └── LockError       10  the lock was not to be had in time, or was lost
    │       └── LockNotGranted  nothing was held; another attempt may succeed
    ├── RepositoryError     6   the repository cannot be reached, or refused
    │   ├── NotThere        6   an object, bucket or backup does not exist
    │   ├── ChangedError    6   an object is not the version any more that was to be replaced
    │   ├── UnreachableError    6   it did not answer, or is busy; another attempt may succeed
    │   └── LeaseError      6   another run has the lease, or has taken it over
    ├── DamagedError        7   what is stored is not what was written
    ├── ExistsError         8   the target is already there
    ├── CommandError        9   an external command failed
    │   └── HookError       12  a hook of the site failed, or took too long
    └── ConsistencyError    11  what came out is not what was promised; it was not called good

Exit code 2 is the command line's own (usage); 130 an interrupt.
"""

from __future__ import annotations


class ZsnapdbError(Exception):
    """Something went wrong: what was attempted, on what, what was found; `hint` says what to do."""

    code = "internal"
    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ConfigError(ZsnapdbError):
    """The configuration cannot be used."""

    code = "config"
    exit_code = 3


class PreflightError(ZsnapdbError):
    """The server, its files or the pool are not fit for what was asked; nothing was touched."""

    code = "preflight"
    exit_code = 4


class NotOursError(PreflightError):
    """A dataset, snapshot or bookmark does not carry our mark, and so it was not destroyed.

    `name` is its full name, `property_name` the ZFS property that was looked at; `value` and `source` are what `zfs
    get` printed of it.
    """

    code = "not-ours"

    def __init__(self, message: str, *, name: str, property_name: str, value: str, source: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.name = name
        self.property_name = property_name
        self.value = value
        self.source = source


class ServerError(ZsnapdbError):
    """The database server cannot be reached, or refused."""

    code = "server"
    exit_code = 5


class LockError(ServerError):
    """The lock was not to be had before the deadline, or was lost before the snapshot was made."""

    code = "lock"
    exit_code = 10


class LockNotGranted(LockError):
    """The lock was not granted; nothing is held, and another attempt may succeed."""

    code = "lock-not-granted"


class RepositoryError(ZsnapdbError):
    """The repository cannot be reached, or refused."""

    code = "repository"
    exit_code = 6


class NotThere(RepositoryError):
    """An object, a bucket or a backup does not exist."""

    code = "not-there"


class ChangedError(RepositoryError):
    """An object is not the version any more that was to be replaced; it was left as it is."""

    code = "changed"


class UnreachableError(RepositoryError):
    """The repository did not answer, broke off or is busy; another attempt may succeed."""

    code = "unreachable"


class LeaseError(RepositoryError):
    """Another run has the lease on the repository, or has taken it over; nothing was called good."""

    code = "lease"


class DamagedError(ZsnapdbError):
    """What is stored is not what was written."""

    code = "damaged"
    exit_code = 7


class ExistsError(ZsnapdbError):
    """The target is already there and will not be overwritten."""

    code = "exists"
    exit_code = 8


class CommandError(ZsnapdbError):
    """An external command failed; the message carries its words."""

    code = "command"
    exit_code = 9


class HookError(CommandError):
    """A hook of the site failed, or took too long."""

    code = "hook"
    exit_code = 12


class ConsistencyError(ZsnapdbError):
    """What came out is not what was promised; it was not called good."""

    code = "consistency"
    exit_code = 11
