"""The configuration file of setup, which replaces only its own tables, and only if nobody changed them since."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zsnapdb.base import atomic_file, text_files
from zsnapdb.base.patterns import InstanceName
from zsnapdb.planning.setup.configuration import TablePath, digest, document_of
from zsnapdb.planning.setup.facts import WrittenTables


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tables: tuple[tuple[str, ...], ...]
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    def is_in(self, document: Mapping[str, Any]) -> bool:
        return digest(document, self.tables) == self.digest


class _Record(BaseModel):
    """The tables of setup for each instance. During a replacement there are two entries; the file decides."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instances: dict[InstanceName, tuple[_Entry, ...]] = {}

    def of(self, instance: str, document: Mapping[str, Any]) -> tuple[_Entry, ...]:
        return tuple(entry for entry in self.instances.get(instance, ()) if entry.is_in(document))

    def saying(self, instance: str, entries: tuple[_Entry, ...]) -> _Record:
        return _Record(instances={**self.instances, instance: entries})


def written_tables(file: Path, instance: str) -> WrittenTables | None:
    """Return the instance's tables from the file of an earlier setup; None if they are missing or were changed."""
    document = document_of(_text(file)) or {}
    entries = _record(file).of(instance, document)
    return WrittenTables(entries[-1].tables) if entries else None


def write(file: Path, text: str, instance: str, tables: Sequence[TablePath]) -> None:
    """Write the configuration, unless the file already has this text.

    A new file is readable only by its owner. A replaced file keeps owner and mode, and its old text is kept next to it.
    `tables` are those that setup wrote for the instance.
    """
    file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    before = _text(file)
    if before == text:
        return
    if before:
        atomic_file.replace(kept_path(file), before.encode())
    record = _record(file)
    entry = _Entry(tables=tuple(tables), digest=digest(document_of(text) or {}, tables))
    # After an interruption either file may be in place; the record identifies setup's tables in both.
    _note(file, record.saying(instance, (*record.of(instance, document_of(before) or {}), entry)))
    known = file.stat() if file.is_file() else None
    atomic_file.replace(file, text.encode(), stat.S_IMODE(known.st_mode) if known is not None else 0o600)
    if known is not None:
        os.chown(file, known.st_uid, known.st_gid, follow_symlinks=False)
    _note(file, record.saying(instance, (entry,)))


def remove(file: Path, rest: str, instance: str) -> None:
    """Write the rest of the configuration without the instance; remove the file if nothing is left.

    The old file is kept next to it.
    """
    if not file.is_file() or _text(file) == rest:
        return
    atomic_file.replace(kept_path(file), _text(file).encode())
    if rest:
        known = file.stat()
        atomic_file.replace(file, rest.encode(), stat.S_IMODE(known.st_mode))
        os.chown(file, known.st_uid, known.st_gid, follow_symlinks=False)
        _note(file, _record(file).saying(instance, ()))
    else:
        file.unlink()
        _record_file(file).unlink(missing_ok=True)


def kept_path(file: Path) -> Path:
    """Return the path for the replaced configuration: each text has its own name."""
    return file.with_name(f"{file.name}.before-{hashlib.sha256(_text(file).encode()).hexdigest()[:8]}")


def _text(file: Path) -> str:
    return text_files.read_text(file, "the configuration", "run setup as root") if file.is_file() else ""


def _record_file(file: Path) -> Path:
    return file.with_name(f".{file.name}.setup")


def _record(file: Path) -> _Record:
    """Return the record; an empty one if it is missing or invalid: then no table counts as written by setup."""
    record = _record_file(file)
    if not record.is_file():
        return _Record()
    try:
        return _Record.model_validate_json(text_files.read_text(record, "the record of setup", "run setup as root"))
    except ValidationError:
        return _Record()


def _note(file: Path, record: _Record) -> None:
    atomic_file.replace(_record_file(file), record.model_dump_json().encode() + b"\n")
