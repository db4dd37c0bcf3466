"""The database server inside a virtual machine, reached over TCP: its lock around a snapshot of the machine's disks.

Its files are not on filesystems of this host, so its position in the snapshot is not read. What the server published
before and after is recorded: the position lies between the two.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from zsnapdb.base.errors import PreflightError, ServerError
from zsnapdb.base.model import Position
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.mysql import locks
from zsnapdb.mysql.probe import probe, published_position
from zsnapdb.planning.backup.fitness import FitnessFinding, judge_lock, judge_server, unfit, warning
from zsnapdb.planning.backup.lock_strategy import AUTO, LockChoice, choose
from zsnapdb.planning.facts import ServerFacts
from zsnapdb.planning.vm.grade import Grade, ServerLock
from zsnapdb.repository.machine_source import BoundPart, ServerInsidePart


@dataclass(frozen=True)
class ObservedInside:
    """A server inside a machine that can be locked: its facts, and the lock that is enough for it."""

    facts: ServerFacts
    choice: LockChoice


@dataclass
class HeldInside:
    """The server while it is locked, for at most `remaining()` seconds.

    Afterwards `after` is what it had published once the lock was released, and `lock` says how the lock was held.
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
        """The lock as the grade needs it."""
        return ServerLock(self.choice.name, self.choice.lock.holds_ddl and self.after is not None)

    def part(self) -> ServerInsidePart:
        """Return what the manifest says about the server. Call it after the lock was released."""
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
    """Return the stored form of what a server had published."""
    at = position.coordinates
    return BoundPart(
        binlog_file=at.file if at else None,
        binlog_offset=at.offset if at else None,
        gtids=str(position.gtids) if position.gtids is not None else None,
    )


@dataclass(frozen=True)
class ExaminedInside:
    """Every check of the server, and the server if it can be locked."""

    observed: ObservedInside | None
    findings: tuple[FitnessFinding, ...]


def examine(instance: Instance, addresses: Collection[str], minimum: Grade) -> ExaminedInside:
    """Check the server, if one is configured. `addresses` are those of the machine.

    What is in the way is an objection if the grade has to be quiesced. Else it is a warning: a backup takes no lock.
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
    """Raise PreflightError unless the host's name leads to an address of the machine: another server proves nothing."""
    try:
        resolved = {str(answer[4][0]) for answer in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise PreflightError(f"the name {host} has no address: {error.strerror}", hint="correct host") from error
    if not resolved or not resolved <= set(addresses):
        raise PreflightError(
            f"the server at {host} ({', '.join(sorted(resolved))}) is not known to be in the machine, which has"
            f" {', '.join(sorted(addresses)) or 'no known address'}",
            hint="set host to an address of the machine (`virsh domifaddr --source agent`)",
        )


@contextlib.contextmanager
def locked(instance: Instance, observed: ObservedInside) -> Iterator[HeldInside]:
    """Hold the server's lock for the block, at most lock.deadline. All slow work is done before the lock.

    LockNotGranted, before the block, if the lock could not be acquired; LockError after the block if it was lost.
    """
    settings = instance.settings.lock
    strategy = locks.strategy(observed.choice.name, longest=settings.longest_statement, kill=settings.kill)
    terms = locks.Terms(settings.deadline, settings.deadline)
    with (
        instance.session_inside() as asking,
        instance.session_inside(read_timeout=settings.deadline + 30) as owner,
        instance.session_inside() as second,
    ):
        before = published_position(asking, observed.facts)
        with locks.holding(strategy, owner, locks.Watchdog(second), terms) as hold:
            held = HeldInside(observed.facts, observed.choice, before, hold)
            yield held
        held.after = published_position(asking, observed.facts)
