"""Plans a rewind: the restore that it makes, and how the server is stopped, started and named. Nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zsnapdb.base.errors import ForeignInsideError, PreflightError, ServerError, UsageError, ZsnapdbError
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
from zsnapdb.mysql.schema.schema_catalogue import special_tables
from zsnapdb.mysql.variables import global_variables
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.planning.family import family
from zsnapdb.planning.restore.handover_steps import Promote
from zsnapdb.planning.restore.origin import RestoreOrigin
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.targets import ago
from zsnapdb.zfs import datasets, version

_HONOURS_DIRECT = (2, 3)
"""OpenZFS from which O_DIRECT goes past the ARC."""


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
    if process is not None:
        _refuse_endless(instance, planned)
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


def _refuse_endless(instance: Instance, planned: RestorePlan) -> None:
    """Raise PreflightError if the server would not end when it is stopped.

    InnoDB writes compressed pages in parts of 512 bytes. With O_DIRECT, OpenZFS from 2.3 on answers EINVAL to them, and
    the server tries again for ever; seen with MariaDB 11.8 on OpenZFS 2.3.9, where direct=disabled let it end at once.
    """
    if version.kernel_release() < _HONOURS_DIRECT:
        return
    try:
        with instance.session() as session:
            method = global_variables(session, ("innodb_flush_method",)).get("innodb_flush_method", "")
            is_direct = method.startswith("O_DIRECT")
            compressed = special_tables(session).page_compressed if is_direct else 0
    except ServerError:
        # What does not answer cannot be asked, and has to be put back all the same.
        return
    places = [place for place, _ in planned.layout.places.values()]
    direct = [place for place in places if datasets.properties(place, ["direct"])["direct"].value != "disabled"]
    if compressed and direct:
        raise PreflightError(
            f"the server would not end: {compressed} table(s) have compressed pages, and OpenZFS refuses to write them"
            " past the ARC",
            hint=f"zfs set direct=disabled {' '.join(direct)}",
        )


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
