"""Records the tail of each instance's newest binlog: the position up to which the binlog was read and verified.

There is a file for each instance. The verification of the next set and the check of a clone read only the bytes after
the tail. The record may be removed at any time. If the record is missing or does not match the binlog, the whole binlog
is read, with the same result.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints, ValidationError

from zsnapdb.base import files
from zsnapdb.base.domain_types import Flavour, parse_gtids
from zsnapdb.base.errors import PreflightError
from zsnapdb.base.files import make_private
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.mysql.binlog.tail import KnownTail
from zsnapdb.planning.repository.host_backup_record import RecordPart

_MOST_BYTES = 4 << 20


class TailPart(RecordPart):
    """The stored form of a tail."""

    flavour: Flavour
    file: str
    offset: Annotated[int, Field(ge=4)]
    gtids: str
    last_gtid: str | None
    digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


def _file(instance: Instance) -> Path:
    return instance.host.tails / f"{instance.name}.json"


def read(instance: Instance, flavour: Flavour) -> KnownTail | None:
    """Return the last verified tail; None if no tail is recorded or the record cannot be read."""
    try:
        opened = os.open(_file(instance), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(opened, "rb") as file:
            part = TailPart.model_validate_json(file.read(_MOST_BYTES))
        if part.flavour is not flavour:
            return None
        return KnownTail(part.file, part.offset, parse_gtids(flavour, part.gtids), part.last_gtid, part.digest)
    except (OSError, ValidationError, ValueError):
        return None


def write(instance: Instance, flavour: Flavour, tail: KnownTail) -> None:
    """Record the tail. If the file cannot be written, the next verification reads the whole binlog."""
    part = TailPart(
        flavour=flavour,
        file=tail.file,
        offset=tail.offset,
        gtids=str(tail.gtids),
        last_gtid=tail.last_gtid,
        digest=tail.digest,
    )
    file = _file(instance)
    with contextlib.suppress(OSError, PreflightError):
        make_private(file.parent)
        # Do not sync, because a sync of the disk would delay commits. An incomplete file is detected, because it is not
        # JSON or contains another digest.
        files.replace_disposable(file, part.model_dump_json().encode())
