"""Records the systemd unit that ran the server of an instance at its last backup, in one file per instance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from zsnapdb.base import files
from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.base.files import make_private
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record.record_file import read
from zsnapdb.mysql.process import process_managers
from zsnapdb.mysql.process.discovery import SERVICE_NAME
from zsnapdb.mysql.process.service import ServerService, ServingProcess, service_of, serving, unit_of
from zsnapdb.planning.health.facts import StoppedServer
from zsnapdb.planning.repository.host_backup_record import RecordPart


class ServiceRecord(RecordPart):
    """The unit whose main process was the server, and the server's data directory."""

    unit: Annotated[str, Field(pattern=f"^{SERVICE_NAME}$")]
    datadir: Annotated[str, Field(pattern=r"^/[^\x00-\x1f]*$", max_length=4095)]


def note(instance: Instance, datadir: Path) -> None:
    """Record the unit that runs the server on the data directory. A rewind needs this record if the server is stopped.

    If no unit runs the server, nothing is changed. Warn if the unit cannot be found or recorded.
    """
    file = _file(instance)
    try:
        process = serving(datadir)
        unit = unit_of(process.pid) if process is not None else None
        made = ServiceRecord(unit=unit, datadir=str(datadir)) if unit is not None else None
        if made is not None and _recorded(instance) != made:
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
    return StoppedServer.from_states(known.unit, shown)


def recorded_datadir(instance: Instance) -> str | None:
    """Return the data directory of the server at its last backup; None if it is unknown or may not be read."""
    try:
        known = _recorded(instance)
    except (OSError, ZsnapdbError):
        return None
    return known.datadir if known is not None else None


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
