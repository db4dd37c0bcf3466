"""Creation of a clone: clone the datasets, start the server and check it."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pydantic import SecretStr

from zsnapdb.base.domain_types import Position
from zsnapdb.base.errors import BusyError, PreflightError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.backup.low_priority import at_low_priority
from zsnapdb.jobs.base.events import SILENT, told, undone_on_error
from zsnapdb.jobs.base.host import fresh_password
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import POSITION_PROPERTY
from zsnapdb.jobs.clone import (
    cached_sets,
    clone_info,
    credentials,
    destroy,
    kept_ports,
    locks,
    masking_requirement,
    space_limits,
)
from zsnapdb.jobs.clone.cached_sets import drop_unused_of_subjects
from zsnapdb.jobs.clone.catalogue import of_dataset
from zsnapdb.jobs.clone.clone_info import CLONE_PROPERTY, CloneInfo
from zsnapdb.jobs.clone.create_plan import ClonePlan, plan_for, plan_from, planned_source
from zsnapdb.jobs.clone.credentials import Login
from zsnapdb.jobs.clone.destroy import drop_live, remove_all
from zsnapdb.jobs.clone.isolated_start import CloneServer
from zsnapdb.jobs.clone.lifecycle import POSITION_BYTES, FirstStart, start_first
from zsnapdb.jobs.clone.masking import MaskingReport
from zsnapdb.jobs.clone.request import CloneRequest, Created, CreateDurations, random_name
from zsnapdb.jobs.clone.set_preparation import PreparedSet, prepare_source
from zsnapdb.jobs.clone.source_lookup import bring_here, home_for, take_live
from zsnapdb.jobs.clone.sources import CloneSource, RemoteBackup, production_history, with_volumes
from zsnapdb.jobs.clone.volumes import clone_volumes, mount_for_good
from zsnapdb.jobs.dataset_copies import properties as copy_properties
from zsnapdb.jobs.dataset_copies import property_fields
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.jobs.restore.offline_repository import reopen
from zsnapdb.mysql.process.server import ServerProcess
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.clone.isolation import INTERNAL_ACCOUNT
from zsnapdb.planning.clone.lease import SourceKind, stamp
from zsnapdb.planning.clone.masking import MaskingChoice, MaskingWay
from zsnapdb.planning.clone.pool import PoolMark
from zsnapdb.planning.foreign_snapshots import NO_SNAPSHOTS
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.server_copy.source_facts import SourceServer
from zsnapdb.zfs import datasets


def create(settings: Settings, instance: Instance, request: CloneRequest) -> Created:
    """Create a clone, start its server and check the server.

    Afterwards the server answers on its own port, and users log in with a new account. The server shares no identity,
    path, account or replication with its source, and its data has exactly the recorded position. If an error occurs,
    the datasets of the clone are removed. A set that was prepared for the clone is kept for later clones.
    """
    configured, instance = instance, with_volumes(instance)
    request = replace(request, name=request.name or random_name(instance))
    began = time.monotonic()
    # The clone records these rules. If they change meanwhile, the pool discards it, and a reset replaces its data.
    rules = masking_requirement.rules_of(instance.settings.masking, requested=request.masks)
    with contextlib.ExitStack() as locked:
        locked.enter_context(locks.lock_clone(str(request.name), patience=0))
        with at_low_priority():
            chosen = planned_source(settings, instance, request)
            if chosen.kind in (SourceKind.REPOSITORY, SourceKind.POINT):
                locked.enter_context(
                    undone_on_error(lambda: drop_unused_of_subjects(settings, instance.name, chosen.kind))
                )
                locked.enter_context(locks.using_received(instance.name))
                if isinstance(chosen.source, CloneSource):
                    # The set may have been destroyed meanwhile, together with its last clone.
                    chosen = planned_source(settings, instance, request)
            prepares = chosen.masking.way is MaskingWay.PREPARES
            if prepares or not isinstance(chosen.source, CloneSource):
                # Refuse an impossible clone before a set is created, received or prepared.
                plan_for(settings, instance, request, chosen)
        source = _obtain(settings, instance, chosen.source, locked)
        prepared = _prepare(settings, instance, source, rules) if prepares else None
        masking = chosen.masking
        if prepared is not None:
            source = prepared.source
        elif prepares:
            masking = MaskingChoice(MaskingWay.ALONE, "its set could not be masked once for all clones")
        obtained = time.monotonic()
        with undone_on_error(lambda: drop_live(source)), at_low_priority():
            planned = _make_datasets(settings, instance, request, source, masking)
            cloned = time.monotonic()
            with undone_on_error(lambda: remove_all(instance.host, planned.top, planned.name, planned.copy.root)):
                password = fresh_password() if planned.request.starts else None
                separated = _start(settings, instance, planned, rules, password)
                facts = _facts_of(configured, planned, separated.position, rules, source.origin)
                if planned.lease.heartbeat is not None:
                    # The first heartbeat interval starts now, because the holder could send no heartbeat before.
                    clone_info.beat(instance.host, planned.name)
                datasets.set_properties(planned.top, facts)
    used = instance.host.latest()
    cached_sets.mark_used(settings, planned.top.rpartition("/")[0], source, used)
    before = prepared.masking if prepared is not None else None
    seconds = CreateDurations(
        source=obtained - began - _seconds(before),
        clone=cloned - obtained,
        identity=separated.separate_at - cloned - _seconds(separated.masking),
        start=time.monotonic() - separated.separate_at,
    )
    info = of_dataset(settings, instance.host, planned.name)
    if password is not None:
        info = kept_ports.open_to(settings, info, instance.events)
    return Created(info, password, seconds, separated.masking or before, masking)


def _facts_of(
    configured: Instance, planned: ClonePlan, position: Position, rules: str, origin: SourceServer
) -> dict[str, str]:
    facts = {
        POSITION_PROPERTY: position.short(POSITION_BYTES),
        copy_properties.PHASE_PROPERTY: CopyPhase.READY if planned.request.starts else CopyPhase.NEW,
        clone_info.USED_PROPERTY: stamp(configured.host.latest()),
    }
    if planned.request.waits:
        facts[clone_info.POOL_PROPERTY] = PoolMark.WAITS
        facts[clone_info.HISTORY_PROPERTY] = production_history(configured, origin)
        if rules:
            facts[clone_info.RULES_PROPERTY] = rules
    return facts


def _start(
    settings: Settings, instance: Instance, planned: ClonePlan, rules: str, password: SecretStr | None
) -> FirstStart:
    # The anchor records the port of the replication source only after all replicas of the set have started to
    # replicate.
    record = replace(planned, follows=planned.request.follows)
    clone = CloneServer(planned.copy, record, settings.clones.accounts == "lock")
    # A clone that a command created for its own use is never reset.
    is_noted = not planned.request.is_ephemeral
    return start_first(instance, clone, rules, planned.layout.datasets.values(), password, is_noted=is_noted)


def _seconds(report: MaskingReport | None) -> float:
    return report.seconds if report is not None else 0.0


def _prepare(settings: Settings, instance: Instance, source: CloneSource, rules: str) -> PreparedSet | None:
    """Create a masked prepared set of the source, so that clones of it need no masking.

    If this is impossible now, warn and return None. Each clone is then masked separately.
    """
    try:
        with at_low_priority():
            return prepare_source(settings, instance, source, rules, unasked=True)
    except (BusyError, PreflightError) as error:
        reason = told(error)
        instance.events.warn(f"only this clone was masked, not its snapshot set for all clones: {reason}")
        return None


def _obtain(
    settings: Settings,
    instance: Instance,
    planned: CloneSource | RemoteBackup | RestorePlan | None,
    locked: contextlib.ExitStack,
) -> CloneSource:
    """Return the snapshots to clone. If they do not exist yet, create them, receive them, or replay to the point.

    A new live set stays locked until the context `locked` ends, so that no sweep removes the set as a leftover.
    """
    if planned is None:
        locked.enter_context(locks.lock_live_sets(instance.name))
        return take_live(instance)
    if isinstance(planned, RestorePlan):
        top = home_for(settings, list(instance.volumes.values()))
        from zsnapdb.jobs.clone import source_fetch

        return source_fetch.reach(settings, instance, reopen(instance, planned), top, planned)
    return bring_here(settings, instance, planned)


def _make_datasets(
    settings: Settings, instance: Instance, request: CloneRequest, source: CloneSource, masking: MaskingChoice
) -> ClonePlan:
    """Create the anchor, which reserves the name and the port, and clone every volume below the anchor.

    Return the plan. If an error occurs, no dataset of the clone is left.
    """
    with locks.names_and_ports():
        # This lock prevents two runs from taking the same name or port. Slow actions run after the lock is released.
        planned = plan_from(settings, instance, request, source, masking)
        datasets.ensure(planned.home.home)
        # Check again, because another run may have created a clone after the plan was made.
        space_limits.guard(settings, known=planned.home)
        datasets.create(
            planned.top, {**NO_SNAPSHOTS, CLONE_PROPERTY: planned.name, **property_fields.properties_of(planned)}
        )
    with (
        undone_on_error(lambda: remove_all(instance.host, planned.top, planned.name, planned.copy.root)),
        locks.wait_for_turn(),
    ):
        clone_volumes(source, planned.layout, {CLONE_PROPERTY: planned.name}, planned.quota)
        mount_for_good(planned.layout.datasets.values())
    return planned


OWNER = "zsnapdb"
"""The owner of ephemeral clones.

If the command that created an ephemeral clone is killed, the reaper removes the clone.
"""


@dataclass(frozen=True)
class RunningClone:
    """A clone whose server is running, with the login of its users and the password of the internal account."""

    info: CloneInfo
    login: Login
    internal: SecretStr

    @property
    def process(self) -> ServerProcess:
        return self.info.process

    @property
    def address(self) -> Address:
        """The address for the internal account: the socket in the clone's private folder."""
        return Address(INTERNAL_ACCOUNT, self.process.socket)

    def session(self, *, read_timeout: float = 60.0) -> Session:
        """Open a session with all privileges. `read_timeout` is the limit in seconds for each answer."""
        return Session.open(self.address, self.internal, read_timeout=read_timeout)


def make_running(settings: Settings, instance: Instance, request: CloneRequest) -> RunningClone:
    """Create the requested clone and start its server."""
    made = create(settings, instance, request)
    login, internal = made.login, credentials.read(made.info.internal_file)
    assert login is not None, "the request starts the server"
    assert internal is not None, "it was written a moment ago"
    return RunningClone(made.info, login, internal)


@contextlib.contextmanager
def ephemeral_clone(settings: Settings, instance: Instance, request: CloneRequest) -> Iterator[RunningClone]:
    """Yield a running clone with a random name, and destroy the clone after the block. No events are emitted.

    If this process is killed, the next `zsnapdb reap` removes the clone.
    """
    name = f"own-{secrets.token_hex(5)}"
    with locks.lock_ephemeral_maker(name):
        made = make_running(settings, instance.with_events(SILENT), replace(request, name=name, is_ephemeral=True))
        try:
            yield made
        finally:
            destroy.destroy_own(settings, instance.host, name)
