"""Determines the consistency level (grade) of a snapshot of a machine's disks. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.base.errors import ConsistencyError


class Grade(StrEnum):
    """The consistency levels (grades) of a snapshot, from the lowest to the highest.

    CRASH means that the disks are in a state as after a power failure. FROZEN means that the guest had written
    everything to its disks and kept its file systems frozen. QUIESCED means that, in addition, the guest's programs
    were quiet, or that the guest had shut down.
    """

    CRASH = "crash"
    FROZEN = "frozen"
    QUIESCED = "quiesced"

    @property
    def rank(self) -> int:
        """The rank of the grade. A higher grade has a higher rank."""
        return list(Grade).index(self)


class Power(StrEnum):
    """The power state of a machine.

    SHUT_DOWN means that the guest shut the machine down. OFF means that the machine is off for another reason.
    """

    RUNNING = "running"
    SHUT_DOWN = "shut down"
    OFF = "off"
    OTHER = "other"


@dataclass(frozen=True)
class Freeze:
    """A freeze of the guest's file systems around a snapshot.

    The guest froze `count` file systems for `held_ms` milliseconds. The field `mount_points` contains all mount points
    that the agent listed before the freeze. If the freeze is not valid, `problem` contains the reason. It is "" if the
    guest was frozen until the snapshot existed.
    """

    count: int
    held_ms: float
    mount_points: tuple[str, ...] = ()
    problem: str = ""

    @property
    def counts(self) -> bool:
        """Whether the guest was frozen during the whole snapshot."""
        return self.count > 0 and not self.problem


@dataclass(frozen=True)
class ServerLock:
    """The lock of the server in a machine during a snapshot: its strategy, and whether it was held throughout."""

    strategy: str
    was_held: bool


@dataclass(frozen=True)
class ReachedGrade:
    """The grade of a snapshot set, with its reason."""

    grade: Grade
    reason: str


def reached(before: Power, after: Power, freeze: Freeze | None, lock: ServerLock | None = None) -> ReachedGrade:
    """Return the grade that a snapshot has.

    A server lock without a freeze does not raise the grade, because the last writes may be in the guest's memory.

    If the guest shut the machine down, the grade is QUIESCED, because its programs have ended and its file systems are
    unmounted. If the machine is off for any other or an unknown reason, the grade is CRASH, because the disks may be in
    a state as after a power failure. After a restart of libvirt, the reason is unknown.
    """
    if before != after:
        return ReachedGrade(Grade.CRASH, f"the machine was {before} before the snapshot and {after} after it")
    if before is Power.SHUT_DOWN:
        return ReachedGrade(Grade.QUIESCED, "the guest had shut down, and the machine was off")
    if before is not Power.RUNNING:
        state = "off, but not known to be shut down by its guest" if before is Power.OFF else "neither running nor off"
        return ReachedGrade(Grade.CRASH, f"the machine was {state}")
    if freeze is None:
        return ReachedGrade(Grade.CRASH, "the machine ran, and nothing in it was held")
    if not freeze.counts:
        return ReachedGrade(Grade.CRASH, freeze.problem or "the guest agent froze no file system")
    if lock is not None and lock.was_held:
        text = f"the server held still under the lock {lock.strategy}, and the guest agent held"
        return ReachedGrade(Grade.QUIESCED, f"{text} {freeze.count} file systems frozen")
    return ReachedGrade(Grade.FROZEN, f"the guest agent held {freeze.count} file systems frozen")


def refuse_below(reached_grade: ReachedGrade, minimum: Grade, domain: str) -> None:
    """Raise ConsistencyError if the grade is below the minimum."""
    if reached_grade.grade.rank < minimum.rank:
        raise ConsistencyError(
            f"the snapshot of the machine {domain} has the grade {reached_grade.grade}, below minimum_grade ="
            f" {minimum}: {reached_grade.reason}",
            hint=hint_for(minimum),
        )


def hint_for(minimum: Grade) -> str:
    """Return a hint that says how a backup can reach the grade `minimum`."""
    if minimum is Grade.QUIESCED:
        return "set host to the server inside, shut the machine down from inside, or lower minimum_grade"
    return "start qemu-guest-agent in the guest and give the domain its channel, or lower minimum_grade"
