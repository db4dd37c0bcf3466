"""Chooses the samples of a drill, judges its results, and estimates step durations from past drills. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from statistics import median

from zsnapdb.base.domain_types import Flavour, Position
from zsnapdb.base.errors import NotFound
from zsnapdb.base.gtid import GtidPosition, Gtids, GtidSet, contains
from zsnapdb.config.settings import ProbeSettings
from zsnapdb.planning.backup_chain import OTHER_ADDRESS_HINT

_FINE = ("ok", "table is already up to date")
_CANNOT = "doesn't support check"
_BATCH_FILES = 200
_BATCH_BYTES = 64 << 20


@dataclass(frozen=True)
class Sized:
    """An object that can be checked, with its size in bytes."""

    name: str
    size: int


@dataclass(frozen=True)
class PageRange:
    """The pages from `first` to `last` of a file, both included and counted from 0.

    If `last` is None, the range contains all pages from `first` on.
    """

    file: str
    first: int
    last: int | None


def _order(seed: int, name: str) -> bytes:
    return hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()


def _shuffled(items: Sequence[Sized], seed: int) -> list[Sized]:
    """Return the items in an order that depends only on the seed."""
    return sorted(items, key=lambda item: (_order(seed, item.name), item.name))


def sample_whole(items: Sequence[Sized], budget: int | None, seed: int) -> tuple[Sized, ...]:
    """Return a selection of items with at most `budget` bytes in total; all items if `budget` is None.

    If no item fits, return the smallest item. The same items, budget and seed always give the same result. With enough
    different seeds, every item that fits the budget is chosen.
    """
    if budget is None:
        return tuple(sorted(items, key=lambda item: item.name))
    chosen, left = [], budget
    for item in _shuffled(items, seed):
        if item.size <= left:
            chosen.append(item)
            left -= item.size
    if not chosen and items:
        chosen = [min(items, key=lambda item: (item.size, item.name))]
    return tuple(sorted(chosen, key=lambda item: item.name))


def sample_pages(files: Sequence[Sized], page_size: int, budget: int | None, seed: int) -> tuple[PageRange, ...]:
    """Return page ranges of about `budget` bytes in total. If `budget` is None, return all pages of all files.

    If a file is larger than the remaining budget, the function chooses a part of the file.
    """
    if budget is None:
        return tuple(PageRange(file.name, 0, None) for file in sorted(files, key=lambda file: file.name))
    chosen, left = [], max(1, budget // page_size)
    for file in _shuffled(files, seed):
        pages = file.size // page_size
        if not left or not pages:
            continue
        if pages <= left:
            chosen.append(PageRange(file.name, 0, None))
            left -= pages
        else:
            first = int.from_bytes(_order(seed, f"page of {file.name}")) % (pages - left + 1)
            chosen.append(PageRange(file.name, first, first + left - 1))
            left = 0
    return tuple(sorted(chosen, key=lambda item: item.file))


def batches(ranges: Sequence[PageRange], sizes: Mapping[str, int], *, alone: str) -> Iterator[tuple[PageRange, ...]]:
    """Yield the ranges in order, in groups that one process can check: small files in groups, each other range alone.

    The argument `sizes` has the size of each file in bytes. The file `alone` is in no group, even if it is small.
    Starting a process takes longer than reading a small file, and a server may have tens of thousands of files.
    """
    batch: list[PageRange] = []
    total = 0
    for part in ranges:
        size = sizes[part.file]
        small = part.last is None and part.file != alone and size <= _BATCH_BYTES
        if batch and (not small or len(batch) == _BATCH_FILES or total + size > _BATCH_BYTES):
            yield tuple(batch)
            batch, total = [], 0
        if small:
            batch.append(part)
            total += size
        else:
            yield (part,)
    if batch:
        yield tuple(batch)


def without(part: PageRange, left_out: Sequence[range]) -> tuple[PageRange, ...]:
    """Return the pages of the range without the pages in `left_out`."""
    rest, first = [], part.first
    for pages in sorted(left_out, key=lambda pages: pages.start):
        last = pages.start - 1 if part.last is None else min(part.last, pages.start - 1)
        if first <= last:
            rest.append(PageRange(part.file, first, last))
        first = max(first, pages.stop)
    if part.last is None or first <= part.last:
        rest.append(PageRange(part.file, first, part.last))
    return tuple(rest)


def seed_of(drill_id: str) -> int:
    """Return the default seed of a drill. It depends on the id, so that each drill has a different seed."""
    return int.from_bytes(hashlib.blake2b(drill_id.encode(), digest_size=4).digest())


def choose_backup(known: Sequence[str], seed: int) -> str:
    """Return one of the backups. The seed determines which one. Raises NotFound if there is no backup."""
    if not known:
        raise NotFound("the repository has no backup of the instance", hint=OTHER_ADDRESS_HINT)
    return known[int.from_bytes(_order(seed, "backup")) % len(known)]


_NO_RESOURCES = re.compile(
    r"(?:errno|errcode)[: ]+(?:12|23|24|27|28|122)\b|out of (?:resources|memory)|too many open files|no space left"
    r"|disk quota exceeded|file too large",
    re.IGNORECASE,
)
"""The texts of servers for ENOMEM, ENFILE, EMFILE, EFBIG, ENOSPC and EDQUOT."""


def lacks_resources(text: str) -> bool:
    """Return whether CHECK TABLE reports that the server ran out of open files, memory or space. This is not damage."""
    return _NO_RESOURCES.search(text) is not None


def judge_table(rows: Sequence[Sequence[object]]) -> str | None:
    """Return the objections of CHECK TABLE; None if the table is sound.

    Each row has a table, an operation, a message type and a text. The last row is the verdict. Errors and warnings
    about corruption are objections even if the verdict is good. All other warnings are ignored, such as a warning that
    a client has the table open. An engine without a check says so in a note.
    """
    texts = [(str(row[2]).lower(), str(row[3])) for row in rows]
    if not texts:
        return "CHECK TABLE answered nothing"
    bad = [text for kind, text in texts if kind == "error" or (kind == "warning" and "corrupt" in text.lower())]
    verdict = texts[-1][1].lower()
    if not bad and (verdict in _FINE or _CANNOT in verdict):
        return None
    return "; ".join(dict.fromkeys([*bad, *(text for kind, text in texts if kind == "warning"), texts[-1][1]]))


def judge_probe(probe: ProbeSettings, rows: Sequence[Sequence[object]]) -> str | None:
    """Return why the answer to a probe is not as expected; None if it is as expected."""
    if len(rows) != 1:
        return f"{len(rows)} rows, not one"
    answer = rows[0][0]
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else "NULL" if answer is None else str(answer)
    if probe.expect is not None:
        if isinstance(probe.expect, str):
            return None if text == probe.expect else f"{text!r}, not {probe.expect!r}"
        number = _number(text)
        return None if number == Decimal(str(probe.expect)) else f"{text}, not {probe.expect}"
    number = _number(text)
    if number is None:
        return f"{text!r} is not a number"
    if probe.at_least is not None and number < Decimal(str(probe.at_least)):
        return f"{text}, less than {probe.at_least}"
    if probe.at_most is not None and number > Decimal(str(probe.at_most)):
        return f"{text}, more than {probe.at_most}"
    return None


def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


@dataclass(frozen=True)
class Timing:
    """The duration of a step in a past drill, and the number of bytes that the step transferred."""

    kind: str
    seconds: float
    size: int


def expected_seconds(kind: str, size: int, history: Sequence[Timing]) -> float | None:
    """Return the expected duration of a step in seconds.

    The result is the median of past steps of this kind, computed per byte if the step transfers bytes. It is None if
    there is no such past step.
    """
    past = [timing for timing in history if timing.kind == kind]
    if size:
        rates = [timing.seconds / timing.size for timing in past if timing.size]
        return median(rates) * size if rates else None
    return median(timing.seconds for timing in past) if past else None


_LONGEST = 400


@dataclass(frozen=True)
class GuestServerAnswer:
    """A server's answers: its family, version and identity, and its binlogs with their sizes in bytes, oldest first.

    The field `recovered` contains the GTIDs at the start of the first binlog that the server wrote in the drill. The
    field `executed` contains the GTIDs that are now in all its binlogs. Both are None if the server has no GTIDs.
    """

    flavour: Flavour
    version: str
    server_uuid: str | None
    server_id: int
    binlogs: tuple[tuple[str, int], ...]
    recovered: Gtids | None
    executed: Gtids | None


class InsideResult(StrEnum):
    """The result of a comparison. WRONG means that the copy differs from the server that was backed up."""

    PROVED = "proved"
    WRONG = "wrong"
    UNPROVABLE = "unprovable"


@dataclass(frozen=True)
class InsideVerdict:
    """The result of a comparison, with its reason as text."""

    result: InsideResult
    reason: str


def binlog_of_start(names: Sequence[str], published: str | None) -> str:
    """Return the binlog that the server created when it was started in the drill.

    The argument `names` contains all binlogs, oldest first.

    At about the time of the snapshot, the server wrote to `published`. The result is the next binlog. It need not be
    the newest, because the server may have started more binlogs since then (FLUSH LOGS of a log rotation). If
    `published` is None or not in `names`, the result is the newest binlog.
    """
    later = [name for name in names if published is not None and _position_number(name) > _position_number(published)]
    return later[0] if later else names[-1]


def judge_identity(
    flavour: Flavour, server_uuid: str | None, server_id: int, answer: GuestServerAnswer
) -> InsideVerdict:
    """Return whether the server is the one that was backed up.

    The argument `server_uuid` is None if the server that was backed up had none.
    """
    if flavour is not answer.flavour:
        return _wrong(f"it is a server of {answer.flavour.value}, and {flavour.value} was backed up")
    if server_uuid is not None and server_uuid.lower() != answer.server_uuid:
        return _wrong(f"its server_uuid is {answer.server_uuid}, and {server_uuid} was backed up")
    if server_id != answer.server_id:
        return _wrong(f"its server_id is {answer.server_id}, and {server_id} was backed up")
    own = answer.server_uuid or f"server_id {answer.server_id}"
    return InsideVerdict(InsideResult.PROVED, f"{answer.flavour.value} {answer.version}, {own}, as in the backup")


def judge_position(before: Position, after: Position | None, answer: GuestServerAnswer) -> InsideVerdict:
    """Return whether the server recovered to a state between the positions published before and after the snapshot.

    If `after` is None, the lock was lost, so the state has no upper bound. The function compares GTIDs or, if there are
    none, binlog files and offsets.
    """
    if before.gtids is not None and answer.recovered is not None:
        return _by_gtids(before.gtids, after.gtids if after is not None else None, answer, answer.recovered)
    if before.coordinates is None:
        return InsideVerdict(InsideResult.UNPROVABLE, "the server that was backed up wrote no binlog")
    if before.gtids is not None:
        return _wrong("it has no GTIDs in the binlog of its start, and had some when it was backed up")
    return _by_files(before, after, answer)


def _by_gtids(before: Gtids, after: Gtids | None, answer: GuestServerAnswer, recovered: Gtids) -> InsideVerdict:
    certain = _proved_gtids(answer, recovered)
    if not contains(certain, before):
        return _wrong(
            f"it recovered to {_short(recovered)} and lacks {_lacking(before, certain)}, which it had published before"
            " the snapshot"
        )
    if after is not None and not contains(after, recovered):
        return _wrong(
            f"it recovered to {_short(recovered)} and has {_lacking(recovered, after)}, which it had not published"
            " after the snapshot"
        )
    above = f", and nothing beyond {_short(after)}" if after is not None else "; nothing bounds it from above"
    return InsideVerdict(InsideResult.PROVED, f"recovered to {_short(recovered)}: all of {_short(before)}{above}")


def _proved_gtids(answer: GuestServerAnswer, recovered: Gtids) -> Gtids:
    """Return the GTIDs that the server certainly has: those in its binlogs, and those that other servers assigned.

    A MySQL replica may apply transactions without logging them. A GTID from another server always means the same
    transaction. But a GTID of the server itself may belong to a new transaction, because the server may have reused a
    lost number since its start.
    """
    if not isinstance(recovered, GtidSet) or not isinstance(answer.executed, GtidSet):
        return recovered
    others = {
        source: intervals
        for source, intervals in answer.executed.intervals.items()
        if source.partition(":")[0] != answer.server_uuid
    }
    return recovered.union(GtidSet(others))


def _lacking(wanted: Gtids, held: Gtids) -> str:
    if isinstance(wanted, GtidSet) and isinstance(held, GtidSet):
        return _short(wanted.minus(held))
    if isinstance(wanted, GtidPosition) and isinstance(held, GtidPosition):
        heads = {
            domain: head
            for domain, head in wanted.heads.items()
            if domain not in held.heads or held.heads[domain][1] < head[1]
        }
        return f"transactions up to {_short(GtidPosition(heads))}"
    return _short(wanted)


def _by_files(before: Position, after: Position | None, answer: GuestServerAnswer) -> InsideVerdict:
    sizes, at = dict(answer.binlogs), before.coordinates
    assert at is not None
    if at.file not in sizes:
        return _without_file(at.file, [name for name, _ in answer.binlogs])
    if sizes[at.file] < at.offset:
        return _wrong(
            f"its binlog {at.file} has {sizes[at.file]} bytes, and it had published {at.offset} before the snapshot"
        )
    until = after.coordinates if after is not None else None
    if until is not None and sizes.get(until.file, 0) > until.offset:
        return _wrong(
            f"its binlog {until.file} has {sizes[until.file]} bytes, and it had published {until.offset} after the"
            " snapshot"
        )
    return InsideVerdict(
        InsideResult.PROVED,
        f"its binlogs reach {at.file}:{at.offset}, published before the snapshot, and do not pass the"
        " position published after it; it has no GTIDs, so transactions were not compared",
    )


def _without_file(file: str, names: Sequence[str]) -> InsideVerdict:
    number = _position_number(file)
    if names and all(_position_number(name) > number for name in names):
        return InsideVerdict(InsideResult.UNPROVABLE, f"the server has removed its binlog {file} since it started")
    return _wrong(f"it has no binlog {file}, to which it wrote before the snapshot")


def _position_number(name: str) -> int:
    digits = name.rpartition(".")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() else 0


def _short(gtids: Gtids) -> str:
    text = str(gtids) or "(no transactions)"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _wrong(reason: str) -> InsideVerdict:
    return InsideVerdict(InsideResult.WRONG, reason)
