"""Decides which binlogs to archive next, with their incarnation, offsets and gaps. Pure.

An incarnation is one unbroken binlog history of one server. A file is recognized by its fingerprint and its last
archived bytes. Its name is not enough: after RESET, a restore or a failover, files with the same names have different
contents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from zsnapdb.base.gtid import GtidPosition, Gtids, GtidSet, contains


class KnownArchived(Protocol):
    """The properties of an archived binlog that the decisions in this module need."""

    @property
    def incarnation(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def is_rotated(self) -> bool: ...
    @property
    def is_anonymous(self) -> bool: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def previous(self) -> Gtids | None: ...
    @property
    def reached(self) -> Gtids | None: ...


@dataclass(frozen=True)
class ServerBinlog:
    """A binlog that the server's binlog index lists.

    `size` is in bytes. `problem` is the reason why the binlog cannot be read; it is empty if the binlog can be read.
    """

    name: str
    number: int
    size: int
    fingerprint: str = ""
    previous: Gtids | None = None
    problem: str = ""


@dataclass(frozen=True)
class ArchiveStep:
    """A binlog file to archive.

    `offset` bytes are already archived. `gap` describes missing data directly before the file.
    """

    name: str
    offset: int
    is_last: bool
    gap: str | None = None


@dataclass(frozen=True)
class Plan:
    """The files to archive, in order.

    `begin` is the reason for a new incarnation. It is None if the known incarnation continues.
    """

    begin: str | None
    steps: tuple[ArchiveStep, ...]


def has_all_of(newest: KnownArchived, local: Sequence[ServerBinlog]) -> bool:
    """Return whether the server still has the newest archived file of a history, with at least its archived length.

    The contents are not compared.
    """
    same = next((file for file in local if file.name == newest.name), None)
    return same is not None and not same.problem and _altered(newest, same, agrees=True) is None


def has_more(kept: Sequence[KnownArchived], local: Sequence[ServerBinlog]) -> bool:
    """Return whether the server has written more than the files of its history that are archived."""
    if not kept or not local:
        return False
    newest, last = kept[-1], local[-1]
    return last.name != newest.name or last.size > newest.end


def same_gtids(reached: Gtids | None, previous: Gtids | None) -> bool:
    """Return whether a file that starts at the GTIDs `previous` continues an archive that ended at `reached`.

    Between the archive and the file, MariaDB may have deleted domains (FLUSH … DELETE_DOMAIN_ID).
    """
    if isinstance(reached, GtidPosition) and isinstance(previous, GtidPosition):
        return all(reached.heads.get(domain) == head for domain, head in previous.heads.items())
    return reached == previous


def missing_between(before: KnownArchived, number: int, previous: Gtids | None) -> str | None:
    """Return a description of the gap between an archived file and the file numbered `number`; None if there is no gap.

    `previous` contains the GTIDs before the file numbered `number`. Rotated files with consecutive numbers are
    neighbours, unless their GTIDs contradict this. If a file is missing, or was not archived to its end, the GTIDs
    decide whether a transaction is missing. Without GTIDs, zsnapdb assumes that a transaction is missing.
    """
    reached = before.reached
    fits = previous is None or reached is None or same_gtids(reached, previous)
    in_order = before.is_rotated and number == before.number + 1
    if in_order and fits:
        return None
    if fits and previous and is_some(previous) and not before.is_anonymous:
        return None
    lost = ""
    if isinstance(previous, GtidSet) and isinstance(reached, GtidSet):
        lost = str(previous.minus(reached))
    elif isinstance(previous, GtidPosition) and reached is not None:
        lost = f"after {reached} up to {previous}"
    what = f"transactions {lost}" if lost and not fits else "what the server wrote"
    if number > before.number + 1:
        return f"{what}: the files between {before.name} and number {number} were removed before they were archived"
    if not before.is_rotated:
        return f"{what}: {before.name} was removed before it was archived after byte {before.end}"
    return f"{what}: {before.name} does not end where the next file begins"


def is_some(gtids: Gtids) -> bool:
    """Return whether the GTIDs contain at least one transaction."""
    return bool(gtids.intervals if isinstance(gtids, GtidSet) else gtids.heads)


def decide(
    kept: Sequence[KnownArchived],
    local: Sequence[ServerBinlog],
    *,
    agrees: bool,
    elsewhere: Gtids | None,
    returned: str | None = None,
) -> Plan:
    """Return the plan for the server's files.

    - `kept`: the files of the incarnation in which this server was last archived, in order; empty if it was never
      archived
    - `local`: the binlogs of the server, in the order of its index
    - `agrees`: whether the server's file, if the file exists, still contains the bytes that were archived last
    - `elsewhere`: the GTIDs that were archived from other servers of the instance
    - `returned`: why the server returned to production after `kept` was archived; None if it did not return

    If a server takes over from other servers, archiving starts with its newest file that follows the archived
    transactions without a gap.
    """
    if not local:
        return Plan(None, ())
    if not kept:
        return _afresh(local, elsewhere)
    if returned is not None:
        return Plan(returned, _steps(_unknown(kept, local)))
    newest = kept[-1]
    same_name = next((file for file in local if file.name == newest.name), None)
    if same_name is not None:
        why = _altered(newest, same_name, agrees)
        if why is not None:
            return Plan(why, _steps(_unknown(kept, local)))
        offset = 0 if newest.is_rotated else newest.end
        return Plan(None, _steps(_from(local, same_name.name, include=not newest.is_rotated), offset, newest))
    first = local[0]
    if first.name.rpartition(".")[0] != newest.name.rpartition(".")[0] or first.number < newest.number:
        return Plan(
            f"{newest.name} is gone, and the server's files begin with {first.name}: the server was reset, or it is"
            " another server",
            _steps(_unknown(kept, local)),
        )
    if first.previous is not None and newest.reached is not None and not contains(first.previous, newest.reached):
        return Plan(
            f"{first.name} does not follow on {newest.name}: {newest.reached} is not in {first.previous}",
            _steps(tuple(local)),
        )
    return Plan(None, _steps(tuple(local), 0, newest))


def _altered(newest: KnownArchived, local: ServerBinlog, agrees: bool) -> str | None:
    """Return why the server's file is no longer the file that was archived; None if it is the same file."""
    if local.problem:
        return None
    if local.fingerprint != newest.fingerprint:
        return (
            f"{local.name} differs from the archived file of that name: the server was reset or restored, or it is"
            " another server"
        )
    if local.size < newest.end or (newest.is_rotated and local.size != newest.size):
        return (
            f"{local.name} has {local.size} bytes, but {max(newest.end, newest.size)} were archived: the server lost or"
            " cut what it had written"
        )
    if not agrees:
        return f"{local.name} does not contain the bytes that were archived from it: the server was restored or cloned"
    return None


def _afresh(local: Sequence[ServerBinlog], elsewhere: Gtids | None) -> Plan:
    if elsewhere is None or not is_some(elsewhere):
        return Plan("this server has no archived binlogs yet", _steps(tuple(local)))
    covered = [file.name for file in local if file.previous is not None and contains(elsewhere, file.previous)]
    if covered:
        return Plan("another server of the instance takes over", _steps(_from(local, covered[-1], include=True)))
    gap = (
        f"the transactions in {local[0].previous} that are not in {elsewhere}: the server that takes over has no older"
        " binlog"
    )
    return Plan("another server of the instance takes over", _steps(tuple(local), gap=gap))


def _from(local: Sequence[ServerBinlog], name: str, *, include: bool) -> tuple[ServerBinlog, ...]:
    at = next(index for index, file in enumerate(local) if file.name == name)
    return tuple(local[at if include else at + 1 :])


def _unknown(kept: Sequence[KnownArchived], local: Sequence[ServerBinlog]) -> tuple[ServerBinlog, ...]:
    """Return the server's files, starting with the first file that has no identical archived file."""
    known = {(file.name, file.fingerprint, file.size) for file in kept if file.is_rotated}
    for index, file in enumerate(local):
        if (file.name, file.fingerprint, file.size) not in known:
            return tuple(local[index:])
    return ()


def _steps(
    files: tuple[ServerBinlog, ...], offset: int = 0, before: KnownArchived | None = None, gap: str | None = None
) -> tuple[ArchiveStep, ...]:
    """Return a step for each readable file. If a file is unreadable, the step for the next file records a gap."""
    steps: list[ArchiveStep] = []
    for index, file in enumerate(files):
        if file.problem:
            gap = "; ".join(word for word in (gap, file.problem) if word)
            continue
        is_same = before is not None and file.name == before.name
        if not steps and before is not None and not is_same:
            gap = "; ".join(word for word in (missing_between(before, file.number, file.previous), gap) if word) or None
        steps.append(
            ArchiveStep(file.name, offset if is_same else 0, index == len(files) - 1, None if is_same else gap)
        )
        gap = None
    return tuple(steps)
