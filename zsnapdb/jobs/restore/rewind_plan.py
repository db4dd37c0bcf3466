"""Plans a rewind: the restore that it makes, and how the server is stopped, started and named. Nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zsnapdb.base.errors import ForeignInsideError, PreflightError, UsageError, ZsnapdbError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.random_values import fresh_server_id
from zsnapdb.jobs.restore import plan as restore_plan
from zsnapdb.jobs.restore import preflight
from zsnapdb.jobs.restore.handover_plan import Handover
from zsnapdb.jobs.restore.old_server import serving_process
from zsnapdb.jobs.restore.plan import RestoreRequest
from zsnapdb.jobs.restore.without_store import host_alone, open_for_restore, reopen
from zsnapdb.mysql.process.service import ServerService, service_of
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.planning.family import family
from zsnapdb.planning.restore.handover_steps import Promote
from zsnapdb.planning.restore.origin import RestoreOrigin
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.targets import ago


@dataclass(frozen=True)
class RewindRequest:
    """The point, where its volumes come from, and the server_id that MariaDB gets (None: a random one)."""

    to: str
    origin: RestoreOrigin = RestoreOrigin.AUTO
    server_id: int | None = None
    history: str | None = None


@dataclass(frozen=True)
class RewindPlan:
    """The plan of the restore, and how the server is stopped and started."""

    restore: RestorePlan
    service: ServerService
    server_id_file: Path | None

    @property
    def handover(self) -> Promote:
        """The last step: the restored datasets take the place of the server's own."""
        return handover_in(self.restore)


def handover_in(plan: RestorePlan) -> Promote:
    """Return the last step of a rewind's restore: its datasets take the place of the server's own."""
    last = plan.steps[-1]
    assert isinstance(last, Promote), "a rewind hands over in place"
    return last


def point_of(instance: Instance, text: str) -> str:
    """Return the point that the user named, in the form of a restore: `10m` is the time ten minutes ago."""
    return ago(text, instance.host.now())


def plan(settings: Settings, instance: Instance, request: RewindRequest) -> RewindPlan:
    """Return what a rewind would do. Changes nothing.

    The errors are those of a restore's plan. PreflightError too if nothing says how the server is stopped and started,
    or if MariaDB could not get its new server_id.
    """
    planned = _restore_plan(settings, instance, request)
    process = serving_process(planned)
    service = service_of(instance.settings.control, process)
    handover = handover_in(planned)
    file = instance.settings.control.server_id_file if handover.server_id is not None else None
    if handover.server_id is not None and file is None:
        raise PreflightError(
            f"{family(planned.flavour).title} must get a new server_id, or it would reuse GTIDs of transactions that"
            " are left out; nothing says where",
            hint="set control.server_id_file of the instance to a new file in a folder that the server's option files"
            f" include, such as {family(planned.flavour).option_folder}/zz-zsnapdb.cnf",
        )
    # Whoever resumes it while the server is down cannot ask which unit it was.
    last = replace(handover, unit=service.unit)
    return RewindPlan(replace(planned, steps=(*planned.steps[:-1], last)), service, file)


def examine(settings: Settings, instance: Instance, planned: RewindPlan) -> list[FitnessFinding]:
    """Return the findings of the preflight of the restore; nothing is changed."""
    return preflight.examine(settings, instance, reopen(instance, planned.restore), planned.restore)


def expected_error(findings: Sequence[FitnessFinding]) -> type[ZsnapdbError] | None:
    """Return the error that a rewind with these findings is expected to end with; None if no error is."""
    return preflight.expected_error(findings)


def _restore_plan(settings: Settings, instance: Instance, request: RewindRequest) -> RestorePlan:
    """Return the plan of the restore: from this host alone if that is enough."""
    on_host: ZsnapdbError | None = None
    here = host_alone(instance) if request.origin is not RestoreOrigin.REPOSITORY else None
    if here is not None and request.history is None:
        try:
            return restore_plan.make(settings, instance, here, _wanted(instance, request, RestoreOrigin.LOCAL))
        except (UsageError, ForeignInsideError):
            # No other origin of the volumes would change it.
            raise
        except ZsnapdbError as error:
            # The point may lie before the sets on this host, or after a binlog that is gone.
            on_host = error
    if request.origin is RestoreOrigin.LOCAL and on_host is not None:
        raise on_host
    try:
        repository = open_for_restore(instance, request.origin)
        return restore_plan.make(settings, instance, repository, _wanted(instance, request, request.origin))
    except ZsnapdbError as error:
        if on_host is not None:
            error.add_note(f"with what is on this host alone: {on_host.message}")
        raise


def _wanted(instance: Instance, request: RewindRequest, origin: RestoreOrigin) -> RestoreRequest:
    server_id = request.server_id or fresh_server_id()
    return RestoreRequest(
        to=request.to,
        name=f"{instance.name}-rewind",
        handover=Handover("promote", server_id=server_id),
        history=request.history,
        origin=origin,
    )
