"""The plan of a handover: stopped, read-only, next to the old server, in its place, or as a replica."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zsnapdb.base.domain_types import pool_of
from zsnapdb.base.errors import PreflightError, UsageError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import fresh_server_id
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.health.recovery_coverage import repeated_after
from zsnapdb.jobs.host.server_copy import port_is_free
from zsnapdb.jobs.restore import dataset_exchange
from zsnapdb.jobs.restore.offline_repository import is_stand_in
from zsnapdb.mysql.tls import TlsMode
from zsnapdb.planning.clone.kept_ports import choose_port
from zsnapdb.planning.restore.plan import RestoreLayout, RestorePlan
from zsnapdb.planning.restore.steps import (
    HandoverKind,
    HandoverStep,
    LeaveStopped,
    MakeReplica,
    ParallelRun,
    Promote,
    PromotePart,
    ReadOnlyStart,
    replaced_suffix,
)
from zsnapdb.planning.server_family import family
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import datasets


@dataclass(frozen=True)
class SourceAddress:
    """The address of a replica's source, and the account for replication."""

    host: str
    port: int
    user: str
    password_file: Path | None = None


@dataclass(frozen=True)
class Handover:
    """The requested handover. If `port` or `server_id` is None, zsnapdb chooses a value."""

    kind: HandoverKind = "stopped"
    port: int | None = None
    server_id: int | None = None
    source: SourceAddress | None = None


def handover_step(
    settings: Settings, instance: Instance, repository: Repository, planned: RestorePlan, handover: Handover
) -> HandoverStep:
    """Return the handover step. If the request names no server_id, a server that is started gets a random server_id.

    Raises:
        PreflightError: the handover is impossible, because the target is in another pool, no port is free, or a server
            that replaces the old server would reuse GTIDs.
        UsageError: a replica has no source.
    """
    if handover.kind == "stopped":
        return LeaveStopped(planned.server_id)
    if handover.kind == "look":
        return ReadOnlyStart(planned.server_id)
    if handover.kind == "promote":
        return _planned_promote(planned, _promoted_server_id(instance, repository, planned, handover.server_id))
    port = handover.port or choose_port(settings.clones.first_port, settings.clones.last_port, set(), port_is_free)
    chosen = handover.server_id or fresh_server_id()
    _refuse_old_server_id(planned, chosen)
    if handover.kind == "run":
        return ParallelRun(chosen, port)
    if handover.source is None:
        raise UsageError("a replica needs a source", hint="name the source with --source host:port and --source-user")
    source = handover.source
    if source.password_file is not None and not source.password_file.is_file():
        raise PreflightError(
            f"the password file {source.password_file} of the source does not exist",
            hint="create it; it must contain only the password",
        )
    if instance.tls.mode_to(source.host) is TlsMode.REQUIRED and instance.tls.ca is None:
        raise PreflightError(
            f"the connection to the source {source.host} requires TLS, and the replica has no certificate authority"
            f" to verify it with",
            hint=f"set tls_ca of instance {instance.name} to a file that the server's account may read",
        )
    return MakeReplica(
        chosen, port, source.host, source.port, source.user, str(source.password_file) if source.password_file else None
    )


def _refuse_old_server_id(planned: RestorePlan, server_id: int) -> None:
    if server_id == planned.server_id:
        raise PreflightError(
            f"server_id {server_id} is the server_id of the backup's server", hint="choose another server_id"
        )


def _promoted_server_id(
    instance: Instance, repository: Repository, planned: RestorePlan, requested: int | None
) -> int | None:
    """Return the server_id requested for the server that replaces the old server; None if none was requested.

    Raises:
        PreflightError: the server would reuse GTIDs with the requested server_id or, if none is requested, with the old
            one.
    """
    if not family(planned.flavour).gtids_carry_server_id:
        return None
    if requested is not None:
        _refuse_old_server_id(planned, requested)
    if requested is None and is_stand_in(repository):
        raise PreflightError(
            "the store is unreachable, so the GTIDs of the old server are unknown, and the restored server must not"
            " reuse its server_id",
            hint="choose a server_id that no server had before, name it with --server-id, and set it in the option file"
            " of the server before its first start",
        )
    used = planned.server_id if requested is None else requested
    repeated = repeated_after(instance, repository, planned, used)
    if repeated:
        raise PreflightError(
            f"with server_id {used}, the restored server would reuse GTIDs of the old server: {repeated} stand for"
            f" transactions that this restore leaves out",
            hint="choose a server_id that no server had before, name it with --server-id, and set it in the option file"
            " of the server before its first start",
        )
    return requested


def _planned_promote(planned: RestorePlan, server_id: int | None) -> Promote:
    layout = planned.layout
    places = _places_here(layout)
    outer = layout.top in layout.datasets.values()
    pairs = [(layout.datasets[role], place) for role, (place, _) in places.items()]
    tops = [pair for pair in pairs if pair[0] == layout.top] if outer else sorted(pairs)
    for _, place in tops:
        if place == layout.top or layout.top.startswith(place + "/"):
            raise PreflightError(
                f"the target {layout.top} lies below {place}, which it would replace",
                hint=f"name a target that is not below {place}",
            )
        if not datasets.exists(place.rpartition("/")[0]):
            raise PreflightError(
                f"{place.rpartition('/')[0]}, the parent of {place}, does not exist",
                hint=f"run `zfs create {place.rpartition('/')[0]}`",
            )
    suffix = replaced_suffix(planned.restore_id)
    olds = {place: f"{place}{suffix}" for _, place in tops if datasets.exists(place)}
    renames = (*olds.items(), *tops)
    parts = []
    for role, (place, point) in sorted(places.items(), key=lambda item: len(item[1][0])):
        part = PromotePart(role, layout.datasets[role], place, None, point)
        old = next((olds[top] + place[len(top) :] for top in olds if place == top or place.startswith(top + "/")), None)
        if old is not None and datasets.exists(place):
            seen = datasets.properties(place, ["guid", "canmount", "mountpoint"])
            canmount = seen["canmount"]
            part = replace(
                part,
                old=old,
                old_guid=int(seen["guid"].value),
                old_canmount=canmount.value,
                old_canmount_is_set=canmount.source in ("local", "received"),
                mounted_by=None if seen["mountpoint"].value.startswith("/") else seen["mountpoint"].value,
            )
        parts.append(part)
    step = Promote(tuple(parts), tuple(renames), planned.restore_id, server_id)
    dataset_exchange.refuse_what_would_be_lost(step)
    return step


def _places_here(layout: RestoreLayout) -> Mapping[str, tuple[str, str]]:
    """Return, by role, the dataset and mount point of the old server's volumes, in the target's pool.

    If no dataset of the old server exists on this host, the server has never run here, and its pool may have had
    another name.

    Raises:
        PreflightError: the old server is in another pool of this host, or its dataset is the root of a pool.
    """
    pool = pool_of(layout.top)
    elsewhere = sorted({dataset for dataset, _ in layout.places.values() if pool_of(dataset) != pool})
    existing = any(datasets.exists(dataset) for dataset, _ in layout.places.values())
    if not elsewhere:
        return layout.places
    if existing or not all("/" in dataset for dataset, _ in layout.places.values()):
        raise PreflightError(
            f"{elsewhere[0]} is in another pool than the target {layout.top}",
            hint="restore into the same pool to use --handover promote",
        )
    return {role: (f"{pool}/{dataset.partition('/')[2]}", point) for role, (dataset, point) in layout.places.items()}
