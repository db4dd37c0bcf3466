"""The systemd unit that ran the server of an instance when it was last backed up: a file per instance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from zsnapdb.base import whole_file
from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.private_folder import make_private
from zsnapdb.jobs.record.record_file import read
from zsnapdb.mysql.process.discovery import SERVICE_NAME
from zsnapdb.mysql.process.service import ServerService, ServingProcess, service_of, serving, unit_of
from zsnapdb.planning.repository.host_record import RecordPart


class ServiceRecord(RecordPart):
    """The unit whose main process the server was."""

    unit: Annotated[str, Field(pattern=f"^{SERVICE_NAME}$")]


def note(instance: Instance, datadir: Path) -> None:
    """Record the unit that runs the server of the data directory. A rewind of a dead server needs it.

    Nothing changes if no unit runs the server. Warns if the unit cannot be found or recorded.
    """
    file = _file(instance)
    try:
        process = serving(datadir)
        unit = unit_of(process.pid) if process is not None else None
        if unit is not None and recorded_unit(instance) != unit:
            make_private(file.parent)
            whole_file.replace(file, ServiceRecord(unit=unit).model_dump_json().encode(), 0o600)
    except (OSError, ZsnapdbError) as error:
        instance.events.warn(f"recording in {file} how the server is started failed ({error}); set control.unit")


def recorded_unit(instance: Instance) -> str | None:
    """Return the recorded unit, None if none was recorded. DamagedError if the record cannot be read."""
    known = read(_file(instance), ServiceRecord)
    return known.unit if known is not None else None


def service_now_or_before(
    instance: Instance, process: ServingProcess | None, known: str | None = None
) -> ServerService:
    """Return how the server is stopped and started: as configured, as it runs now, or as it ran at the last backup.

    `known` is the unit that the journal of an interrupted run has. PreflightError if nothing says it.
    """
    before = known or (recorded_unit(instance) if process is None else None)
    return service_of(instance.settings.control, process, before)


def _file(instance: Instance) -> Path:
    return instance.host.services / f"{instance.name}.json"
