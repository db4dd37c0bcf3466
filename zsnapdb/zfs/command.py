"""Execution of `zfs` commands. Other modules of this package start no short-lived processes."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base import program_start
from zsnapdb.base.errors import CommandError, CommandTimeout, ExistsError, NotFound, PreflightError, ZsnapdbError
from zsnapdb.zfs import mounts
from zsnapdb.zfs.mounts import users_of

ZFS = "zfs"
_NAMESPACE_PATIENCE = 2.0
"""Maximum number of seconds until an unmount takes effect in other mount namespaces."""


_SOURCE = re.compile(r"local|default|received|temporary|none|-|inherited from [^\t\n]+")
"""The source of a property, as `zfs get` prints it (zfs-get(8))."""

_NUMBER = re.compile(r"[0-9]{1,20}")


class PoolFullError(PreflightError):
    """The pool has no space left. If a quota is exceeded, a different error is raised."""


class NotMountedByZfsError(CommandError):
    """`zfs unmount` refused a filesystem that another program mounts (mountpoint=legacy)."""


class StreamRefusedError(CommandError):
    """`zfs receive` refused the stream, because it is invalid or does not match the dataset."""


_STATE_HINT = "see `zpool status` and `zfs list` for the dataset's state"


@dataclass(frozen=True)
class _KnownMessage:
    """A message that `zfs` writes to stderr (OpenZFS 2.1-2.3, lib/libzfs), and the error to raise for it."""

    text: str
    error: type[ZsnapdbError]
    hint: str


_TABLE = (
    _KnownMessage("dataset already exists", ExistsError, "choose another name; nothing is overwritten"),
    _KnownMessage("destination '", ExistsError, "choose another name; nothing is overwritten"),
    _KnownMessage("dataset does not exist", NotFound, "check the name with `zfs list`"),
    _KnownMessage("could not find any snapshots to destroy", NotFound, "check the name with `zfs list -t snapshot`"),
    _KnownMessage("no such pool", NotFound, "check the name with `zpool list`"),
    _KnownMessage(
        "permission denied",
        PreflightError,
        "run as root or grant the permission with `zfs allow` (see `zsnapdb example zfs-allow.md`)",
    ),
    _KnownMessage(
        "dataset is busy",
        CommandError,
        "a process uses the dataset, or a hold protects it: see `zfs holds` and `fuser -m`",
    ),
    _KnownMessage("legacy mountpoint", NotMountedByZfsError, "unmount it with umount(8)"),
    _KnownMessage("has dependent clones", CommandError, "destroy the clones first: `zsnapdb clone list`"),
    _KnownMessage(
        "has children", CommandError, "the dataset has children that zsnapdb does not know; see `zfs list -r`"
    ),
    _KnownMessage("out of space", PoolFullError, "free space in the pool: `zfs list -o space`"),
    _KnownMessage("/dev/zfs", PreflightError, "load the ZFS module: `modprobe zfs`"),
    _KnownMessage("The ZFS modules", PreflightError, "load the ZFS module: `modprobe zfs`"),
    # Observed with OpenZFS 2.3.9. First message: the stream resumes at another record. Third message: the stream is of
    # another snapshot.
    _KnownMessage("kernel modules must be upgraded", StreamRefusedError, _STATE_HINT),
    _KnownMessage("invalid backup stream", StreamRefusedError, _STATE_HINT),
    _KnownMessage("checksum mismatch", StreamRefusedError, _STATE_HINT),
)


def failure(argv: Sequence[str], status: int, stderr: str) -> ZsnapdbError:
    """Return the error for a failed command, classified by its messages on stderr."""
    # The rest of stderr explains how `zfs send` could resume. This advice does not apply to a stored stream.
    told = stderr.partition("Partially received snapshot is saved.")[0]
    output = " ".join(told.split()) or "(it wrote nothing)"
    message = f"`{' '.join(argv)}` ended with exit status {status}: {output[:2000]}"
    for known in _TABLE:
        if known.text in stderr:
            return known.error(message, hint=known.hint)
    return CommandError(message, hint=_STATE_HINT)


def not_started(program: str, error: OSError) -> PreflightError:
    """Return the error for a program that cannot be started, for example because of an unreadable folder."""
    return PreflightError(
        f"the command {program} cannot be started: {error.strerror}",
        hint="check that the user that runs zsnapdb may read every folder in PATH",
    )


def run(
    argv: Sequence[str],
    *,
    timeout: float = 60.0,
    errors: str = "replace",
    most_bytes: int = program_start.MOST_BYTES,
) -> str:
    """Run one command to its end and return its stdout. If the command fails, raise the error from `failure`.

    `errors` decides how bytes that are not UTF-8 are decoded. With `replace`, a user property with these bytes differs
    from every value that zsnapdb writes. With `surrogateescape`, the bytes are preserved, so that the caller can use
    them as arguments.

    Raises PreflightError if the command is not installed, and CommandTimeout if it does not end within `timeout`
    seconds. The command has its own process group. So Ctrl-C reaches only this process, which then decides whether to
    interrupt the command.
    """
    try:
        done = program_start.run(argv, timeout=timeout, own_group=True, most_bytes=most_bytes)
    except FileNotFoundError as error:
        raise PreflightError(
            f"the command {argv[0]} was not found", hint="install the ZFS user tools (zfsutils-linux)"
        ) from error
    except OSError as error:
        raise not_started(argv[0], error) from error
    except subprocess.TimeoutExpired as error:
        raise CommandTimeout(
            f"`{' '.join(argv)}` did not end within {timeout:.0f} s",
            hint="see `zpool status` and the kernel log: the pool may be suspended",
        ) from error
    if done.returncode != 0:
        raise failure(argv, done.returncode, done.stderr.decode(errors="replace"))
    return done.stdout.decode(errors=errors)


def run_when_free(argv: Sequence[str], *, patience: float = 20.0, dataset: str | None = None) -> str:
    """Run a command on a dataset that may be busy. Repeat it every half second while the dataset is busy.

    After a killed `zfs send` or server, the dataset stays busy for a moment. Raises CommandError with the processes
    that use the dataset if the dataset stays busy for `patience` seconds. The wait is short if the dataset is mounted
    in another mount namespace. That mount lasts as long as the processes in the namespace, so a longer wait is useless.
    `dataset` is the name of the dataset. `dataset` is needed only if the command's arguments do not contain the name.
    """
    names = _datasets_of(argv) if dataset is None else frozenset((dataset,))
    began = time.monotonic()
    while True:
        try:
            return run(argv)
        except CommandError as error:
            if "is busy" not in error.message:
                raise
            elsewhere = mounts.mounted_elsewhere(names)
            waited = time.monotonic() - began
            if waited > patience or (elsewhere and waited > _NAMESPACE_PATIENCE):
                raise _with_users(error, names, elsewhere) from error
        time.sleep(0.5)


def _datasets_of(argv: Sequence[str]) -> frozenset[str]:
    """Return the datasets in the arguments of a command: `zfs VERB [-OPTION…] NAME…`."""
    return frozenset(word.partition("@")[0] for word in argv[2:] if not word.startswith("-"))


def _with_users(error: CommandError, names: frozenset[str], elsewhere: Sequence[mounts.ForeignMount]) -> CommandError:
    """Return the error with the processes or mounts that keep the datasets busy, if the kernel shows them."""
    if elsewhere:
        return CommandError(f"{error.message}; {elsewhere[0].describe()}", hint=elsewhere[0].remedy)
    users = users_of(mounts.devices_of(names))
    if not users:
        return error
    listed = ", ".join(user.describe() for user in users[:5])
    return CommandError(f"{error.message}; {listed}", hint=f"end that program (`ps {users[0].pid}`), then run it again")


def rows(argv: Sequence[str], *, timeout: float = 60.0) -> list[list[str]]:
    """Run a command with -H output and return its lines, split at tabs."""
    return [line.split("\t") for line in run(argv, timeout=timeout).split("\n") if line]


def table(argv: Sequence[str], columns: int) -> list[list[str]]:
    """Run a command with -H output and return its lines, split at tabs.

    Raises CommandError if a line does not have `columns` columns. No column may be a user property, because user
    properties can contain tabs.
    """
    listed = rows(argv)
    for row in listed:
        if len(row) != columns:
            raise unexpected(argv, "\t".join(row))
    return listed


def number_in(text: str, argv: Sequence[str]) -> int:
    """Return the whole number that the command printed. Raises CommandError if the text is not a number."""
    if not _NUMBER.fullmatch(text):
        raise unexpected(argv, text)
    return int(text)


def is_number(text: str) -> bool:
    """Whether the text is a whole number as `zfs` prints it."""
    return _NUMBER.fullmatch(text) is not None


def unexpected(argv: Sequence[str], text: str) -> CommandError:
    """Return the error for output in an unexpected format."""
    return CommandError(
        f"`{' '.join(argv)}` printed {text[:80]!r}, which is not expected",
        hint="check that `zfs` and `zpool` in PATH are those of OpenZFS",
    )


def property_rows(argv: Sequence[str], columns: int) -> list[list[str]]:
    """Run `zfs get -H -o …,value,source` and return its rows, each with `columns` fields."""
    return parse_property_rows(run(argv), columns)


def parse_property_rows(output: str, columns: int) -> list[list[str]]:
    """Return the rows of `zfs get -H -o …,value,source`.

    `zfs` does not escape values. A user property that contains tabs or line feeds is still returned as one value. An
    incomplete last row is ignored.
    """
    complete, pending = [], ""
    for line in output.split("\n"):
        pending = f"{pending}\n{line}" if pending else line
        words = pending.split("\t")
        if len(words) >= columns and _SOURCE.fullmatch(words[-1]):
            complete.append([*words[: columns - 2], "\t".join(words[columns - 2 : -1]), words[-1]])
            pending = ""
    return complete


def set_options(properties: Mapping[str, str]) -> list[str]:
    """Return the properties as `-o key=value` arguments."""
    return [word for key, value in properties.items() for word in ("-o", f"{key}={value}")]
