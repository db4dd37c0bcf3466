"""A backup source that is a virtual machine whose disks are zvols of this host. Its backups have no proved position.

`planning/vm/consistency_level.py` defines the grade, which is the consistency level of a snapshot set.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from zsnapdb.base.domain_types import Position, SnapshotSet
from zsnapdb.base.errors import LockNotGranted, NotFound, PreflightError, ServerError
from zsnapdb.base.name_resolution import addresses_of
from zsnapdb.config.instance import VmSourceSettings
from zsnapdb.jobs.backup import guest_freeze
from zsnapdb.jobs.backup.guest_freeze import GuardOpener, GuestFreeze
from zsnapdb.jobs.backup.hooks import Hooked
from zsnapdb.jobs.backup.preflight import judge_volumes_space
from zsnapdb.jobs.backup.source_interface import SnapshotRequest, SourceDescription
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import GRADE_PROPERTY
from zsnapdb.jobs.host.dataset_tuning import TunedVolume, volume_facts
from zsnapdb.jobs.host.site_dataset_settings import recorded_settings
from zsnapdb.mysql import locks
from zsnapdb.mysql.probe import probe, published_position
from zsnapdb.planning.backup.dataset_encryption import judge_sending
from zsnapdb.planning.backup.fitness import (
    FitnessFinding,
    judge_lock,
    judge_server,
    objection,
    ok,
    require_fit,
    unfit,
    warning,
    warnings,
)
from zsnapdb.planning.backup.lock_strategy import AUTO, LockChoice, choose, delays
from zsnapdb.planning.server_facts import ServerFacts
from zsnapdb.planning.vm import consistency_level, source_disks
from zsnapdb.planning.vm.clone_domain import obstacles
from zsnapdb.planning.vm.consistency_level import Freeze, Grade, Power, ReachedGrade, ServerLock
from zsnapdb.planning.vm.source_disks import DiskDevice, judge_grade
from zsnapdb.repository.manifest import ZvolType
from zsnapdb.repository.manifest_source import BoundPart, FreezePart, MachineSourcePart, ServerInsidePart
from zsnapdb.vm.hypervisor import Hypervisor, KnownDomain, MachineState, connected
from zsnapdb.vm.thaw_guard import guarding
from zsnapdb.zfs import datasets, encryption, snapshots, version, zvols


@dataclass(frozen=True)
class ObservedInside:
    """Facts about a server that runs inside a machine and can be locked, and the weakest sufficient lock."""

    facts: ServerFacts
    choice: LockChoice


@dataclass
class LockedGuestServer:
    """The locked server inside a machine. The lock lasts for at most `remaining()` more seconds.

    When the lock is released, `after` is set to the position that the server had published at that time.
    """

    facts: ServerFacts
    choice: LockChoice
    before: Position
    hold: locks.HeldLock
    after: Position | None = None

    def remaining(self) -> float:
        """Return the seconds left until the deadline of the lock."""
        return self.hold.remaining()

    @property
    def lock(self) -> ServerLock:
        """The description of the lock. The grade depends on this description."""
        return ServerLock(self.choice.name, self.choice.lock.holds_ddl and self.after is not None)

    def part(self) -> ServerInsidePart:
        """Return the manifest's description of the server. Call this after the lock was released."""
        return ServerInsidePart(
            flavour=self.facts.flavour,
            version=self.facts.version,
            server_uuid=self.facts.server_uuid,
            server_id=self.facts.server_id,
            lock=self.choice.name,
            lock_reason=self.choice.reason,
            held_ms=round(self.hold.held_ms, 3),
            before=bound(self.before),
            after=bound(self.after) if self.after is not None else None,
        )


def bound(position: Position) -> BoundPart:
    """Convert a published position of the server to the form that the manifest stores."""
    at = position.coordinates
    return BoundPart(
        binlog_file=at.file if at else None,
        binlog_offset=at.offset if at else None,
        gtids=str(position.gtids) if position.gtids is not None else None,
    )


@dataclass(frozen=True)
class ExaminedInside:
    """All findings about the server, and the server if it can be locked."""

    observed: ObservedInside | None
    findings: tuple[FitnessFinding, ...]


def examine(instance: Instance, addresses: Collection[str], minimum: Grade) -> ExaminedInside:
    """Check the server in the machine, if one is configured. The machine has the given addresses.

    If the server cannot be locked and the grade must be quiesced, the finding prevents the backup. Otherwise it is a
    warning, and no lock is taken.
    """
    if instance.settings.host is None:
        return ExaminedInside(None, ())
    try:
        _prove_inside(instance.settings.host, addresses)
        with instance.session_inside() as session:
            facts = probe(session)
        setting = instance.settings.lock.strategy
        choice = choose(facts, setting, locks.STRATEGIES)
        findings = judge_server(facts, str(instance.address_inside), forced=setting != AUTO)
    except (ServerError, PreflightError) as error:
        judged = unfit if minimum is Grade.QUIESCED else warning
        text = f"{error.message}; without it the grade is at best frozen"
        return ExaminedInside(None, (judged("server", text, error.hint),))
    lock = judge_lock(choice)
    if not choice.lock.holds_ddl and minimum is Grade.QUIESCED:
        lock = unfit("lock", "the lock none holds nothing, so no backup is quiesced", "set lock.strategy to another")
    return ExaminedInside(ObservedInside(facts, choice), (*findings, lock))


def _prove_inside(host: str, addresses: Collection[str]) -> None:
    """Raise PreflightError unless the server's host name resolves to an address of the machine.

    A lock on a server outside the machine would not make the machine's disks consistent.
    """
    try:
        resolved = addresses_of(host)
    except OSError as error:
        raise PreflightError(f"the name {host} has no address: {error.strerror}", hint="correct host") from error
    if not resolved or not resolved <= set(addresses):
        raise PreflightError(
            f"the server at {host} ({', '.join(sorted(resolved))}) is not known to be in the machine, which has"
            f" {', '.join(sorted(addresses)) or 'no known address'}",
            hint="set host to an address of the machine (`virsh domifaddr --source agent`)",
        )


@contextlib.contextmanager
def locked(instance: Instance, observed: ObservedInside) -> Iterator[LockedGuestServer]:
    """Hold the server's lock during the block, for at most `lock.deadline`. All slow work is done before locking.

    Raises:
        LockNotGranted: the lock could not be acquired; the block did not run.
        LockError: the lock was lost; the block has run.
    """
    settings = instance.settings.lock
    strategy = locks.strategy(observed.choice.name, longest=settings.longest_statement, kill=settings.kill)
    terms = locks.LockTimeouts(settings.deadline, settings.deadline)
    with (
        instance.session_inside() as asking,
        instance.session_inside(read_timeout=settings.deadline + 30) as owner,
        instance.session_inside() as second,
    ):
        before = published_position(asking, observed.facts)
        with locks.holding(strategy, owner, locks.Watchdog(second), terms) as hold:
            held = LockedGuestServer(observed.facts, observed.choice, before, hold)
            yield held
        held.after = published_position(asking, observed.facts)


InsideLock = Callable[[Instance, ObservedInside], AbstractContextManager[LockedGuestServer]]
"""Function that locks the server inside a machine during a block."""


@dataclass(frozen=True)
class ObservedMachine:
    """A machine that is fit for a backup: its domain, the dataset of each disk by target, and all findings."""

    known: KnownDomain
    volumes: Mapping[str, str]
    findings: tuple[FitnessFinding, ...]
    inside: ObservedInside | None = None
    ciphers: Mapping[str, str] = field(default_factory=dict)

    @property
    def warnings(self) -> tuple[str, ...]:
        return warnings(self.findings)

    def with_findings(self, more: Iterable[FitnessFinding]) -> ObservedMachine:
        """Return the observation with more findings at the end."""
        return replace(self, findings=(*self.findings, *more))


@dataclass(frozen=True)
class MachineHold:
    """The result of holding the machine: the reached grade, the freeze, and the server that was locked, if any."""

    reached: ReachedGrade
    freeze: Freeze | None
    server: ServerInsidePart | None = None


@dataclass(frozen=True)
class MachineProof:
    """The grade of a set, and the type of each volume by role."""

    hold: MachineHold
    volumes: Mapping[str, ZvolType]

    @property
    def properties(self) -> Mapping[str, str]:
        return {GRADE_PROPERTY: self.hold.reached.grade.value}


@contextlib.contextmanager
def open_machine(instance: Instance, settings: VmSourceSettings) -> Iterator[MachineSource]:
    """Yield the machine of the instance.

    Raises:
        PreflightError: libvirt does not answer.
    """
    with connected(instance.vms.uri) as hypervisor:
        yield MachineSource(instance, settings, hypervisor)


@dataclass(frozen=True)
class MachineSource:
    """The machine of an instance, and the connection to libvirt."""

    instance: Instance
    settings: VmSourceSettings
    hypervisor: Hypervisor
    open_guard: GuardOpener = guarding
    lock: InsideLock = locked

    def recover(self) -> str | None:
        """If a killed run left the guest frozen, thaw it.

        The caller holds the instance's lock for work on the source.
        """
        return guest_freeze.thaw_forgotten(self.instance, self.hypervisor, is_running=self._runs)

    def _runs(self, uuid: str) -> bool:
        known = self.hypervisor.find(uuid)
        return known is not None and known.state is not MachineState.OFF

    def observe(self) -> ObservedMachine:
        """Check the machine and its disks.

        Raises:
            PreflightError: the machine or its disks are not fit for a backup; the message lists every objection.
        """
        examined = self.examine()
        require_fit(examined.findings)
        return examined

    def examine(self) -> ObservedMachine:
        """Return all findings about the machine and its disks; change nothing."""
        known = self.hypervisor.named(self.settings.domain)
        running = self.hypervisor.as_it_runs(known.domain.uuid) if known.state is not MachineState.OFF else None
        disks = (running or known.domain).volumes
        judged = source_disks.judge(known.domain, running, {disk.target: _device(disk.source) for disk in disks})
        findings = [ok("machine", f"{known.domain.name} ({known.domain.uuid}), {known.state}"), *judged.findings]
        ciphers: dict[str, str] = {}
        if objection(findings) is None:
            zvol_findings, ciphers = _judge_zvols(judged.volumes)
            findings += zvol_findings
        if objection(findings) is None:
            findings += judge_volumes_space(list(judged.volumes.values()))
        minimum, domain = Grade(self.settings.minimum_grade), known.domain
        inside = ExaminedInside(None, ())
        if known.state is MachineState.RUNNING and self._freezes(known):
            inside = examine(self.instance, self.hypervisor.addresses(domain.uuid), minimum)
        best = Grade.QUIESCED if inside.observed is not None else Grade.FROZEN
        findings += inside.findings
        findings += judge_grade(_power_of(known), minimum, domain.name, best if self._freezes(known) else Grade.CRASH)
        findings += _not_stored(domain.name, known.xml)
        if guest_freeze.marked(self.instance) is not None:
            text = "a killed run may have left the guest's file systems frozen, or a backup is running"
            findings.append(warning("freeze", text, "run a backup: a backup thaws them"))
        return ObservedMachine(known, judged.volumes, tuple(findings), inside.observed, ciphers)

    def hold(self, observed: ObservedMachine, request: SnapshotRequest, events: Events) -> MachineHold:
        """Create the snapshots between the hooks. If possible, lock the server in the machine and freeze the guest.

        Raises:
            HookError: a hook aborts the backup.
            LockError: the grade is below the minimum. No byte was sent.
            ConsistencyError: the grade is below the minimum. No byte was sent.
            CommandTimeout: the agent does not confirm the thaw of the guest.
        """
        hooked = Hooked(self.instance.name, self.instance.hooks(), request.backup_id, request.names, events)
        with hooked.around():
            before = self._power(observed)
            if before is Power.RUNNING and self._freezes(observed.known):
                freeze, server = self._snapshot_held(observed, hooked, request)
                guest_freeze.report(freeze, events)
            else:
                freeze, server = None, None
                hooked.locked("none", self.instance.settings.lock.deadline)
                pending = _prepared(request)
                pending.start()
                pending.finish()
            after = self._power(observed)
        reached = consistency_level.reached(before, after, freeze, server.lock if server is not None else None)
        consistency_level.refuse_below(reached, self._minimum, self.settings.domain)
        return MachineHold(reached, freeze, server.part() if server is not None else None)

    @property
    def _minimum(self) -> Grade:
        return Grade(self.settings.minimum_grade)

    def _freezes(self, known: KnownDomain) -> bool:
        return known.domain.has_agent and self.settings.freeze_deadline > 0

    def _snapshot_held(
        self, observed: ObservedMachine, hooked: Hooked, request: SnapshotRequest
    ) -> tuple[Freeze, LockedGuestServer | None]:
        """Create the snapshots while the guest is frozen, and under the lock of the server in the machine, if any.

        All slow work is done before the lock and the freeze. If the creation of the snapshots is slow, the kernel
        completes it after the thaw.
        """
        uuid, deadline, server = observed.known.domain.uuid, self.settings.freeze_deadline, None
        pending = _prepared(request)
        try:
            with (
                pending.ready(),
                guest_freeze.prepared(self.instance, self.hypervisor, uuid, deadline, self.open_guard) as freeze,
            ):
                if observed.inside is not None and not freeze.problem:
                    server = self._under_lock(observed.inside, freeze, hooked, pending)
                if server is None:
                    self._under_freeze(freeze, hooked, pending, None)
        finally:
            pending.finish()
        return freeze.result(), server

    def _under_lock(
        self, inside: ObservedInside, freeze: GuestFreeze, hooked: Hooked, pending: snapshots.PendingSnapshots
    ) -> LockedGuestServer | None:
        """Create the snapshots under the lock and the freeze.

        If the server does not grant the lock, try again within `lock.budget`. If the lock is never granted, return None
        and do not freeze the guest.

        Raises:
            LockNotGranted: the lock was never granted, and the grade must be quiesced.
        """
        give_up, pauses = time.monotonic() + self.instance.settings.lock.budget, delays()
        while True:
            try:
                with self.lock(self.instance, inside) as server:
                    self._under_freeze(freeze, hooked, pending, server)
            except LockNotGranted as error:
                pause = next(pauses)
                if time.monotonic() + pause < give_up:
                    time.sleep(pause)
                    continue
                if self._minimum is Grade.QUIESCED:
                    raise
                hooked.events.warn(f"{error.message}; continuing without the lock of the server")
                return None
            return server

    def _under_freeze(
        self, freeze: GuestFreeze, hooked: Hooked, pending: snapshots.PendingSnapshots, server: LockedGuestServer | None
    ) -> None:
        """Freeze the guest, create the snapshots, and thaw the guest.

        Raises:
            ConsistencyError: the guest must be frozen but is not. No snapshot was requested.
        """
        freeze.begin()
        consistency_level.refuse_below(
            consistency_level.reached(Power.RUNNING, Power.RUNNING, freeze.result()),
            min(self._minimum, Grade.FROZEN, key=lambda item: item.rank),
            self.settings.domain,
        )
        limit = min(freeze.remaining(), server.remaining()) if server is not None else freeze.remaining()
        hooked.locked(server.choice.name if server is not None else "freeze", limit)
        pending.start()
        if not pending.done_within(limit):
            freeze.too_late()
        freeze.end()

    def _power(self, observed: ObservedMachine) -> Power:
        """Return the current power state of the machine.

        Raises:
            PreflightError: the domain no longer exists.
        """
        known = self.hypervisor.find(observed.known.domain.uuid)
        if known is None:
            raise PreflightError(f"the domain {self.settings.domain} no longer exists", hint="see `virsh list --all`")
        return _power_of(known)

    def prove(self, _observed: ObservedMachine, hold: MachineHold, made: SnapshotSet) -> MachineProof:
        """Return the grade, and the sizes of the volumes in the snapshots."""
        seen = volume_facts(snapshot.dataset for snapshot in made.snapshots.values())
        types = {role: _type(s.dataset, s.full_name, seen[s.dataset]) for role, s in made.snapshots.items()}
        return MachineProof(hold, types)

    def describe(self, observed: ObservedMachine, proof: MachineProof) -> SourceDescription:
        """Return the manifest's description of the domain, its grade and its zvols."""
        freeze, domain = proof.hold.freeze, observed.known.domain
        part = MachineSourcePart(
            domain=domain.name,
            uuid=domain.uuid,
            grade=proof.hold.reached.grade,
            reason=proof.hold.reached.reason,
            freeze=FreezePart(
                count=freeze.count,
                held_ms=round(freeze.held_ms, 3),
                mount_points=freeze.mount_points,
                problem=freeze.problem,
            )
            if freeze is not None
            else None,
            server=proof.hold.server,
            xml=observed.known.xml,
        )
        places = {disk: dataset for disk, dataset in observed.volumes.items() if disk in proof.volumes}
        site = recorded_settings(places.values())
        volumes = {role: proof.volumes[role].model_copy(update={"site": site[name]}) for role, name in places.items()}
        return SourceDescription(part, volumes)


def _prepared(request: SnapshotRequest) -> snapshots.PendingSnapshots:
    # Set a lower bound now, so that the set has a grade even if this run is killed. The proof sets the reached grade
    # later.
    return request.prepare({GRADE_PROPERTY: Grade.CRASH.value})


def _not_stored(domain: str, xml: str) -> list[FitnessFinding]:
    """Return a warning that lists the resources of this host that the machine uses, except disks."""
    reasons = obstacles(xml)
    if not reasons:
        return []
    text = f"resources of the host that {domain} uses besides its disks are not in the backup: {'; '.join(reasons)}"
    return [warning("machine", text, "a restored machine does not get it; see `virsh dumpxml`")]


def _power_of(known: KnownDomain) -> Power:
    if known.state is MachineState.RUNNING:
        return Power.RUNNING
    if known.state is not MachineState.OFF:
        return Power.OTHER
    return Power.SHUT_DOWN if known.was_shut_down else Power.OFF


def _device(source: str | None) -> DiskDevice:
    if source is None or not source.startswith("/"):
        return DiskDevice(None)
    path = Path(source)
    return DiskDevice(zvols.dataset_behind(path), zvols.is_partition(path))


def _judge_zvols(volumes: Mapping[str, str]) -> tuple[list[FitnessFinding], dict[str, str]]:
    findings, ciphers = [], {}
    for target, dataset in sorted(volumes.items()):
        try:
            at_rest = encryption.at_rest([dataset])[dataset]
        except NotFound:
            text = f"the zvol {dataset} of the disk {target} is gone"
            findings.append(unfit("zvols", text, "see `zfs list -t volume`"))
            continue
        if at_rest.cipher is not None:
            ciphers[dataset] = at_rest.cipher
    return findings + judge_sending(ciphers, version.kernel_release() if ciphers else ()), ciphers


def _type(dataset: str, snapshot: str, seen: TunedVolume) -> ZvolType:
    """Return the size of the zvol in the snapshot, and its block size.

    The block size of a zvol never changes (zfsprops(7), volblocksize).
    """
    size = datasets.properties(snapshot, ["volsize"])["volsize"].value
    block_size = datasets.properties(dataset, ["volblocksize"])["volblocksize"].value
    return ZvolType(
        volsize=int(size), volblocksize=int(block_size), properties=seen.properties, encryption=seen.encryption
    )
