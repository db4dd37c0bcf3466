"""Writes the configuration file of a setup, and removes an instance from this file and from the schedule."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from zsnapdb.base import files
from zsnapdb.base.errors import ChangedError, PreflightError, ZsnapdbError
from zsnapdb.base.files import read_text
from zsnapdb.base.patterns import InstanceName
from zsnapdb.config.settings import DEFAULT_PATH, load
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import exclusive
from zsnapdb.jobs.clone import catalogue
from zsnapdb.jobs.clone.sources import with_volumes
from zsnapdb.planning.setup.facts import WrittenTables
from zsnapdb.planning.setup.layout import PACKAGED_UNITS, UNIT, UNIT_FILE, configuration_in, cron_file
from zsnapdb.planning.setup.removal import RemovalAction, RemovalFacts, RemovalPlan, plan_removal, without
from zsnapdb.zfs import command


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tables: tuple[tuple[str, ...], ...]
    keys: tuple[tuple[str, ...], ...]


class _Record(BaseModel):
    """The record of the tables that setup created for each instance, and of the keys that it wrote or found."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instances: dict[InstanceName, _Entry] = {}


def written_tables(file: Path, instance: str) -> WrittenTables | None:
    """Return the record of earlier setups of the instance; None if there is none."""
    entry = _record(file).instances.get(instance)
    return WrittenTables(entry.tables, frozenset(entry.keys)) if entry is not None else None


def write_tables(file: Path, planned: str, text: str, instance: str, written: WrittenTables) -> None:
    """Write the configuration, unless the file already has this text, and then record what setup wrote.

    A new file is readable only by its owner. If the file exists, its owner and mode stay the same, and a copy of its
    old text is kept in the same folder.

    Raises ChangedError if the settings in the file are no longer `planned`. The file then stays as it is.
    """
    if (settings_in(file) or "") != planned:
        raise ChangedError(f"{file} was changed since the plan", hint="run the same setup again")
    file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    before = _text(file)
    if before != text:
        if before:
            files.replace(kept_path(file), before.encode())
        known = file.stat() if file.is_file() else None
        files.replace(file, text.encode(), stat.S_IMODE(known.st_mode) if known is not None else 0o600)
        if known is not None:
            os.chown(file, known.st_uid, known.st_gid, follow_symlinks=False)
    note_written(file, instance, written)


def settings_in(configuration: Path) -> str | None:
    """Return the text of the file; None if it has only comments, like the configuration file in the package."""
    text = _text(configuration)
    has_settings = any(line.strip() and not line.lstrip().startswith("#") for line in text.split("\n"))
    return text if has_settings else None


def note_written(file: Path, instance: str, written: WrittenTables) -> None:
    """Record what setup wrote. This is done after the write, so that a recorded key was in the file."""
    entry = _Entry(tables=written.tables, keys=tuple(sorted(written.keys)))
    record = _record(file)
    if record.instances.get(instance) != entry:
        _note(file, _Record(instances={**record.instances, instance: entry}))


def remove_tables(file: Path, rest: str, instance: str) -> None:
    """Write `rest`, the configuration without the instance. If `rest` contains nothing, remove the file.

    A copy of the old text is kept in the same folder.
    """
    if not file.is_file() or _text(file) == rest:
        return
    files.replace(kept_path(file), _text(file).encode())
    if rest:
        known = file.stat()
        files.replace(file, rest.encode(), stat.S_IMODE(known.st_mode))
        os.chown(file, known.st_uid, known.st_gid, follow_symlinks=False)
        left = {name: entry for name, entry in _record(file).instances.items() if name != instance}
        _note(file, _Record(instances=left))
    else:
        file.unlink()
        _record_file(file).unlink(missing_ok=True)


def kept_path(file: Path) -> Path:
    """Return the path for a copy of the replaced configuration. Copies with different texts get different paths."""
    return file.with_name(f"{file.name}.before-{hashlib.sha256(_text(file).encode()).hexdigest()[:8]}")


def _text(file: Path) -> str:
    return files.read_text(file, "the configuration", "run setup as root") if file.is_file() else ""


def _record_file(file: Path) -> Path:
    return file.with_name(f".{file.name}.setup")


def _record(file: Path) -> _Record:
    """Return the record of the tables that setup wrote. An invalid record is treated as empty."""
    record = _record_file(file)
    if not record.is_file():
        return _Record()
    try:
        return _Record.model_validate_json(files.read_text(record, "the record of setup", "run setup as root"))
    except ValidationError:
        return _Record()


def _note(file: Path, record: _Record) -> None:
    files.replace(_record_file(file), record.model_dump_json().encode() + b"\n")


def find_removal(instance: str | None, configuration: Path | None) -> RemovalPlan:
    """Return the plan to remove an instance; change nothing.

    Raises PreflightError if the caller is not root, and UsageError if the instance is not configured.
    """
    if os.geteuid() != 0:
        raise PreflightError("only root can remove a setup", hint="run it as root")
    path = (configuration or DEFAULT_PATH).absolute()
    settings = load(path)
    chosen = Instance.of(settings, instance)
    name, own = chosen.name, chosen.settings
    text = read_text(path, "the configuration", "run setup as root")
    written = written_tables(path, name)
    rest = without(text, name, written)
    others = len(settings.instance) - 1
    unit = Path(UNIT_FILE)
    is_own = unit.exists() and _read_by(unit) == str(path)
    cron = Path(cron_file(name))
    identity = chosen.repository.encryption.identity_file
    return plan_removal(
        RemovalFacts(
            instance=name,
            configuration=str(path),
            rest="" if not others else rest,
            has_agent=Path("/run/systemd/system").is_dir() and (is_own or _is_packaged(path)),
            own_unit=str(unit) if is_own else "",
            cron=str(cron) if cron.exists() else "",
            account="" if own.user == "root" or own.socket is None else own.user,
            socket=str(own.socket or ""),
            datasets=_datasets(chosen),
            repository=chosen.repository.url,
            identity=str(identity) if identity is not None else "",
            clones=sum(clone.instance == name for clone in catalogue.listing(settings, chosen.host)),
        )
    )


def execute_removal(planned: RemovalPlan, tell: Callable[[str], None] = lambda _: None) -> RemovalPlan:
    """Execute the steps of the plan that zsnapdb itself performs. Each step can be repeated."""
    facts = planned.facts
    with exclusive("setup", doing="removing a setup from this host"):
        for step in planned.steps:
            if step.action is None:
                continue
            tell(step.title)
            for line in step.lines:
                command.run(line.split())
            if step.action is RemovalAction.CONFIGURATION:
                remove_tables(Path(facts.configuration), facts.rest or "", facts.instance)
                continue
            for file in step.files:
                # Keep the file, because the user may have changed it. systemd and cron ignore files with this suffix.
                with contextlib.suppress(FileNotFoundError):
                    os.replace(file, f"{file}.before")
            if facts.own_unit in step.files:
                command.run(["systemctl", "daemon-reload"])
    return planned


def _read_by(unit: Path) -> str:
    return configuration_in(read_text(unit, "the unit", "run setup as root")) or str(DEFAULT_PATH)


def _is_packaged(configuration: Path) -> bool:
    return configuration == DEFAULT_PATH and any(Path(folder, UNIT).exists() for folder in PACKAGED_UNITS)


def _datasets(instance: Instance) -> tuple[str, ...]:
    try:
        return tuple(sorted(with_volumes(instance).volumes.values()))
    except ZsnapdbError:
        return ()
