"""Records the systemd unit that ran the server of an instance at its last backup, in one file per instance."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from zsnapdb.base import files
from zsnapdb.base.domain_types import pool_of
from zsnapdb.base.errors import NotFound, ZsnapdbError
from zsnapdb.base.files import make_private
from zsnapdb.base.patterns import DatasetName
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record.record_file import read
from zsnapdb.mysql.process import process_managers
from zsnapdb.mysql.process.discovery import SERVICE_NAME
from zsnapdb.mysql.process.service import (
    ServerService,
    ServingProcess,
    check_options,
    next_start,
    service_of,
    serving,
    unit_of,
)
from zsnapdb.planning.health.facts import MissingReason, MissingVolume, StoppedServer
from zsnapdb.planning.repository.host_backup_record import RecordPart
from zsnapdb.zfs import datasets, mounts


class ServiceRecord(RecordPart):
    """The unit whose main process was the server, the server's data directory, and the datasets of its files."""

    unit: Annotated[str, Field(pattern=f"^{SERVICE_NAME}$")]
    datadir: Annotated[str, Field(pattern=r"^/[^\x00-\x1f]*$", max_length=4095)]
    volumes: tuple[DatasetName, ...] = ()


def note(instance: Instance, datadir: Path, volumes: Collection[str]) -> None:
    """Record the unit that runs the server on the data directory. A rewind needs this record if the server is stopped.

    If no unit runs the server, nothing is changed. Warn if the unit cannot be found or recorded.
    """
    file = _file(instance)
    try:
        process = serving(datadir)
        unit = unit_of(process.pid) if process is not None else None
        if unit is None:
            return
        made = ServiceRecord(unit=unit, datadir=str(datadir), volumes=tuple(sorted(volumes)))
        if _recorded(instance) != made:
            make_private(file.parent)
            files.replace(file, made.model_dump_json().encode(), 0o600)
    except (OSError, ZsnapdbError) as error:
        instance.events.warn(f"recording in {file} how the server is started failed ({error}); set control.unit")


def stopped_server(instance: Instance) -> StoppedServer | None:
    """Return the recorded server of the last backup, if its unit is stopped and no process serves its data directory.

    The result is also None if nothing was recorded, if the current account may not read the record, or if systemd does
    not know the unit.
    """
    try:
        known = _recorded(instance)
        if known is None or serving(Path(known.datadir)) is not None:
            return None
        asked = ["systemctl", "show", "--property=LoadState,ActiveState,SubState", known.unit]
        shown = process_managers.run(asked, timeout=30.0).split()
    except (OSError, ZsnapdbError):
        return None
    stopped = StoppedServer.from_states(known.unit, shown)
    if stopped is None or stopped.is_starting:
        return stopped
    missing = find_missing_volume(known.volumes or (instance.settings.volumes or {}).values())
    refused = _refused_options(instance, known.unit) if stopped.has_failed and missing is None else ()
    return replace(stopped, missing=missing, refused=refused)


def find_missing_volume(volumes: Iterable[str]) -> MissingVolume | None:
    """Return the first of the datasets that is not mounted, with the reason; None if all are mounted."""
    mounted = mounts.mounted_datasets()
    dataset = next((name for name in sorted(volumes) if name not in mounted), None)
    return MissingVolume(dataset, _reason(dataset)) if dataset is not None else None


def _reason(dataset: str) -> MissingReason:
    try:
        if pool_of(dataset) not in datasets.pools():
            return MissingReason.POOL
        key = datasets.properties(dataset, ["keystatus"])["keystatus"].value
    except NotFound:
        return MissingReason.ABSENT
    except ZsnapdbError:
        return MissingReason.UNMOUNTED
    return MissingReason.KEY if key == "unavailable" else MissingReason.UNMOUNTED


def _refused_options(instance: Instance, unit: str) -> tuple[str, ...]:
    try:
        start = next_start(unit)
        return check_options(start, instance.settings.server.user) if start is not None else ()
    except ZsnapdbError:
        return ()


def recorded_datadir(instance: Instance) -> str | None:
    """Return the data directory of the server at its last backup; None if it is unknown or may not be read."""
    try:
        known = _recorded(instance)
    except (OSError, ZsnapdbError):
        return None
    return known.datadir if known is not None else None


def recorded_volumes(instance: Instance) -> tuple[str, ...]:
    """Return the datasets of the server at its last backup; empty if they are unknown.

    Raises an OSError or ZsnapdbError if the record cannot be read.
    """
    known = _recorded(instance)
    return known.volumes if known is not None else ()


def _recorded(instance: Instance) -> ServiceRecord | None:
    return read(_file(instance), ServiceRecord)


def service_now_or_before(
    instance: Instance, process: ServingProcess | None, known: str | None = None
) -> ServerService:
    """Return the commands that stop and start the server.

    These are the configured commands. If none are configured, the commands use the server's present unit, or else its
    recorded unit.

    `known` is the unit in the journal of an interrupted run.

    Raises:
        PreflightError: the unit is unknown.
    """
    recorded = _recorded(instance) if process is None and known is None else None
    return service_of(instance.settings.control, process, recorded.unit if recorded is not None else known)


def _file(instance: Instance) -> Path:
    return instance.host.services / f"{instance.name}.json"
