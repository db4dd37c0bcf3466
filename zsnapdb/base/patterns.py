"""Patterns for untrusted names, which come from repositories, data directories, clones, process lists and callers."""

from __future__ import annotations

import functools
import ipaddress
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import PurePath, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from zsnapdb.base import run_context
from zsnapdb.base.errors import DamagedError
from zsnapdb.base.untrusted_text import CONTROL

ROLE = r"[a-z0-9][a-z0-9_-]{0,31}"
INSTANCE = r"[a-z0-9][a-z0-9_-]{0,47}"
BACKUP_ID = r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}"
BINLOG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}\.[0-9]{1,18}"
REPOSITORY_ID = r"[0-9a-z][0-9a-z-]{0,63}"

_COMPONENT = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9_.:% -]+"
_DATASET = re.compile(rf"[A-Za-z][A-Za-z0-9_.: -]*(/{_COMPONENT})*")
_SNAPSHOT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")
_CONTROL = re.compile(f"[{CONTROL}]")
_LONGEST_PATH = 4095


def is_line(text: str) -> bool:
    """Return whether the text is one line, without control characters, line or paragraph separators, or surrogates."""
    return _CONTROL.search(text) is None


def is_dataset(text: str) -> bool:
    """Return whether the text is a valid ZFS dataset name (zfs(8), "ZFS File System Hierarchy").

    ZFS allows at most 255 bytes, and no component `.` or `..`. A pool name starts with a letter, so programs never
    treat the text as an option.
    """
    return len(text) <= 255 and _is_dataset_form(text)


@functools.lru_cache(1024)
def _is_dataset_form(text: str) -> bool:
    # The documents of ten thousand backups contain the same few dataset names.
    return _DATASET.fullmatch(text) is not None


def is_dataset_or_snapshot(text: str) -> bool:
    """Return whether the text is a valid name of a dataset, or of a snapshot that a user can create."""
    dataset, separator, short = text.partition("@")
    is_named = not separator or _SNAPSHOT.fullmatch(short) is not None
    return len(text) <= 255 and "%" not in text and is_dataset(dataset) and is_named


def is_loopback(host: str) -> bool:
    """Return whether the host is a loopback address. Other hosts can neither see nor answer packets to it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_mount_point(text: str) -> bool:
    """Return whether the text is one line with an absolute, normalized path (no empty part, no `.`, no `..`)."""
    if not text.startswith("/") or len(text.encode("utf-8", "replace")) > _LONGEST_PATH or not is_line(text):
        return False
    return text == "/" or all(part not in ("", ".", "..") for part in text[1:].split("/"))


def _line(text: str) -> str:
    if not is_line(text):
        raise ValueError("contains a control character or a line break")
    return text


def printable(text: str) -> str:
    """Return the text as one printable line: each control character and line break becomes a `?`."""
    return _CONTROL.sub("?", text)


def without_surrogates(text: str) -> str:
    """Return the text with each surrogate replaced by U+FFFD.

    Python uses surrogates for non-UTF-8 bytes of a command line. Only a text without surrogates can be stored as JSON
    (RFC 8259, section 8.2).
    """
    return text.encode(errors="surrogateescape").decode(errors="replace")


def _printable_text(text: str) -> str:
    return "\n".join(printable(line) for line in text.replace("\t", " ").split("\n"))


def _named(is_valid: Callable[[str], bool], what: str) -> AfterValidator:
    def validated(text: str) -> str:
        if not is_valid(text):
            raise ValueError(f"{text[:80]!r} is not {what}")
        return text

    return AfterValidator(validated)


def _is_full_snapshot(text: str) -> bool:
    dataset, _, name = text.partition("@")
    return is_dataset(dataset) and _SNAPSHOT.fullmatch(name) is not None


def _file_name(text: str) -> str:
    if text in (".", ".."):
        raise ValueError(f"{text!r} is not the name of a file")
    return text


Line = Annotated[str, StringConstraints(max_length=65536), AfterValidator(_line)]
"""One line that programs read, such as the value of a variable."""

ShortLine = Annotated[str, StringConstraints(max_length=1024), AfterValidator(_line)]
"""One short line that programs read, such as a version."""

Words = Annotated[str, StringConstraints(max_length=1 << 20), AfterValidator(printable)]
"""One line for people: a reason, a finding, a host name. Control characters are replaced."""

Text = Annotated[str, StringConstraints(max_length=1 << 20), AfterValidator(_printable_text)]
"""Several lines for people. Control characters are replaced."""

GREATEST_SEQUENCE = 2**53 - 1
"""The largest sequence number that every JSON parser represents exactly."""

SequenceNumber = Annotated[int, Field(ge=1, le=GREATEST_SEQUENCE)]
"""The number of a document in the order of its kind's documents in a repository (`planning/creation_order.py`)."""

RoleName = Annotated[str, Field(pattern=rf"^{ROLE}$")]
InstanceName = Annotated[str, Field(pattern=rf"^{INSTANCE}$")]
BackupId = Annotated[str, Field(pattern=rf"^{BACKUP_ID}$")]
RunId = Annotated[str, Field(pattern=rf"^{run_context.PATTERN}$")]
RepositoryId = Annotated[str, Field(pattern=rf"^{REPOSITORY_ID}$")]
BinlogName = Annotated[str, Field(pattern=rf"^{BINLOG}$")]
SnapshotName = Annotated[str, Field(pattern=rf"^{_SNAPSHOT.pattern}$")]
FullSnapshotName = Annotated[str, _named(_is_full_snapshot, "the name of a snapshot")]
"""A snapshot with its dataset: `tank/data@name`."""

DatasetName = Annotated[str, _named(is_dataset, "the name of a dataset")]
MountPoint = Annotated[str, _named(is_mount_point, "an absolute path without . and ..")]
PropertyName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_:.-]{0,254}$")]
PropertyValue = Annotated[str, StringConstraints(max_length=8191), AfterValidator(_line)]
VariableName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}(\.[a-z0-9_]{1,64})?$")]
"""Name of a server variable, or of a component's variable: component.variable."""

ServerWord = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{1,64}$")]
"""Name of a storage engine or collation of a server."""

Guid = Annotated[int, Field(ge=0, lt=2**64)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
CommitTime = Annotated[int, Field(ge=0, lt=253_402_300_800_000_000)]
"""Microseconds UTC, up to the year 9999."""

CreationTime = Annotated[int, Field(ge=0, lt=253_402_300_800)]
"""Seconds UTC, up to the year 9999."""


def _moment(moment: datetime) -> datetime:
    if moment.tzinfo is None or not 1970 < moment.year < _LAST_YEAR:
        raise ValueError(f"is not a time with a zone between 1971 and {_LAST_YEAR - 1}")
    return moment.astimezone(UTC)


_LAST_YEAR = 9999
Moment = Annotated[datetime, AfterValidator(_moment)]
"""A time in UTC. A time without a zone is refused, because it cannot be compared. A time near the year 9999 is refused
too, because arithmetic with it fails.
"""

Seconds = Annotated[float, Field(ge=0, lt=1e12)]
"""A finite duration."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, Field(pattern=r"^[^/\x00-\x1f\x7f]+$", max_length=255), AfterValidator(_file_name)]
"""A file name without a folder."""

GtidText = Annotated[str, Field(pattern=r"^[0-9A-Za-z_:, \n-]*$")]
"""GTIDs as a server prints them."""

AgeFile = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/= \r\n-]*$"), StringConstraints(max_length=65536)]
"""A file that age encrypted, in ASCII armor."""

ServerUuid = Annotated[str, Field(pattern=r"^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$")]
MachineName = Annotated[str, Field(pattern=r"^[^/\x00-\x1f\x7f-\x9f\u2028\u2029]+$", max_length=200)]
"""The name of a libvirt domain."""

Attempt = Annotated[str, Field(pattern=r"^[0-9a-f]{1,32}$")]
SendFlag = Annotated[str, Field(pattern=r"^-[A-Za-z]$|^--[a-z][a-z-]{0,30}$")]
KeyId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$")]
Port = Annotated[int, Field(ge=0, le=65535)]


def below(root: PurePath | str, *names: str) -> str:
    """Return the path of `names` below the absolute folder `root`. Each name is one or more path components.

    Raises DamagedError if a name is absolute, empty, or has a component `.` or `..`, because such a path could lead out
    of the folder.
    """
    path = PurePosixPath(root)
    if not path.is_absolute():
        raise ValueError(f"{root} is not an absolute path")
    for name in names:
        if not is_line(name) or any(part in ("", ".", "..") for part in name.split("/")):
            raise DamagedError(
                f"{name[:200]!r} is not a path below {root}",
                hint="a document was altered, or a newer zsnapdb wrote it",
            )
        path = path.joinpath(*name.split("/"))
    return str(path)


def first_problem(error: ValidationError) -> str:
    """Return the location and message of a document's first validation problem."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])[:200] or "(document)"
    return f"{where}: {first['msg']}"


SUBJECT_VARIABLE = "ZSNAPDB_SUBJECT"
"""Environment variable with the subject for whom a service runs the command."""
ISSUER_VARIABLE = "ZSNAPDB_SUBJECT_ISSUER"
"""Environment variable with the issuer of the id token that authenticated the subject, if an id token did."""
FORMS = "unix:ACCOUNT, user:MAIL-ADDRESS or ci:PROJECT/PATH"
_PATTERN = re.compile(
    r"unix:[A-Za-z_][A-Za-z0-9_.-]{0,31}"
    r"|user:[A-Za-z0-9][A-Za-z0-9._%+-]{0,39}@[A-Za-z0-9][A-Za-z0-9.-]{0,49}"
    r"|ci:[A-Za-z0-9][A-Za-z0-9._-]{0,39}(/[A-Za-z0-9][A-Za-z0-9._-]{0,39}){0,7}"
)
_ISSUER = re.compile(r"https://[!-~]{1,1000}")
_MOST = 100
"""Maximum length of a clone's owner name (`jobs/dataset_copies/properties.py`)."""


def is_subject(text: str) -> bool:
    """Return whether the text is a valid name of a subject."""
    return len(text) <= _MOST and _PATTERN.fullmatch(text) is not None


def _subject(text: str) -> str:
    if not is_subject(text):
        raise ValueError(f"is not a subject: {FORMS}")
    return text


Subject = Annotated[str, AfterValidator(_subject)]


def is_same(one: str, other: str) -> bool:
    """Return whether both names mean the same subject.

    Case is ignored, because an issuer may change the case of a mail address or a project.
    """
    return one.casefold() == other.casefold()


def current_subject() -> str:
    """Return the subject of this process from its environment; "" if the process has no subject.

    Only root can set the variable for a command that root runs: `zsnapdb-clone` and the sudo rule remove it.
    """
    given = os.environ.get(SUBJECT_VARIABLE, "")
    return given if is_subject(given) else ""


def current_issuer() -> str:
    """Return the issuer of the id token that authenticated this process's subject; "" without an id token."""
    given = os.environ.get(ISSUER_VARIABLE, "")
    return given if current_subject() and _ISSUER.fullmatch(given) is not None else ""
