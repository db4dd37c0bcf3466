"""The replay steps of a restore: archived binlogs in batches, and where they stop. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from zsnapdb.base.errors import NotThere
from zsnapdb.base.gtid import GtidPosition, Gtids, joined
from zsnapdb.base.model import Flavour, parse_gtids
from zsnapdb.planning.binlog.route import BackupPoint, RouteFile
from zsnapdb.planning.restore.steps import LogPart, Replay


def reached_by(point: BackupPoint, files: Iterable[RouteFile]) -> Gtids | None:
    """Return all transactions that a server contains after the backup and these binlogs."""
    reached = point.gtids
    for file in files:
        reached = joined(reached, file.gtids)
    return reached


def check_stop(target: str, flavour: Flavour, stopped_at: str | None, file: str) -> None:
    """Check that a replay to one GTID of MariaDB, or to right before it, stops at the transaction with that GTID.

    NotThere if it does not: another server gave the number in this history. A set of MySQL needs no check, because it
    contains its transactions themselves.
    """
    wanted = parse_gtids(flavour, target)
    if not isinstance(wanted, GtidPosition) or len(wanted.heads) != 1:
        return
    if stopped_at is None or parse_gtids(flavour, stopped_at) != wanted:
        what = f"{stopped_at} is in its place" if stopped_at is not None else "it has no such transaction"
        raise NotThere(
            f"{target} is not in {file} of this history: {what}",
            hint="name the history that has it with --history; `zsnapdb binlog status` lists the GTIDs",
        )


def located(
    steps: Sequence[Replay],
    local: Collection[tuple[str, str]],
    digests: Mapping[tuple[str, str], str] | None = None,
) -> tuple[Replay, ...]:
    """Return the steps with each binlog marked that is on this host: `local` are incarnation and name of those.

    `digests` are those of the descriptions of the rotated ones.
    """

    def marked(log: LogPart) -> LogPart:
        place = (log.incarnation, log.file)
        return replace(log, is_local=place in local, description=(digests or {}).get(place, ""))

    return tuple(replace(step, logs=tuple(marked(log) for log in step.logs)) for step in steps)


def mode_objection(files: Iterable[RouteFile], gtid_mode: str | None) -> str | None:
    """Return why a server of this gtid_mode cannot replay these binlogs; None if it can, or if it has no such mode.

    A server with gtid_mode ON applies no transaction without a GTID, one with OFF none with a GTID (refman 8.4,
    "Replication Mode Concepts").
    """
    with_transactions = [file for file in files if file.last_commit is not None]
    wrong = [file.name for file in with_transactions if file.is_anonymous is (gtid_mode == "ON")]
    if gtid_mode not in ("ON", "OFF") or not wrong:
        return None
    have = "have no GTIDs" if gtid_mode == "ON" else "have GTIDs"
    return (
        f"the transactions of {wrong[0]} {have}, and the server of the backup, with gtid_mode {gtid_mode}, replays none"
    )


def beyond(done: Sequence[LogPart], wanted: Sequence[LogPart]) -> tuple[LogPart, ...]:
    """Return what of the wanted ranges is left to replay, after those of a finished restore of the same backup.

    NotThere if the wanted ranges do not go on where the finished ones end: they lie before, or in another history.
    """
    if not done:
        return tuple(wanted)
    done = _joined_parts(done)
    end = done[-1]
    at = len(done) - 1
    same = len(wanted) > at and all(_is_same(*pair) for pair in zip(done[:-1], wanted, strict=False))
    last = wanted[at] if same else None
    if last is None or not _is_same(end, replace(last, stop=end.stop)):
        raise NotThere(
            f"the point does not lie behind that of the finished restore, which ends in {end.file}",
            hint="restore to it anew, into another dataset",
        )
    if end.stop is None or last.stop is None or last.stop < end.stop:
        raise NotThere(
            f"the point lies before that of the finished restore, which ends at {end.file}:{end.stop}",
            hint="restore to it anew, into another dataset",
        )
    rest = () if last.stop == end.stop else (replace(last, start=end.stop),)
    return (*rest, *wanted[at + 1 :])


def _joined_parts(parts: Sequence[LogPart]) -> list[LogPart]:
    """Return the ranges with those of one binlog joined: a restore that went on has replayed it in parts."""
    result: list[LogPart] = []
    for part in parts:
        before = result[-1] if result else None
        if before is not None and (before.incarnation, before.file) == (part.incarnation, part.file):
            result[-1] = replace(before, size=part.size, stop=part.stop)
        else:
            result.append(part)
    return result


def _is_same(done: LogPart, wanted: LogPart) -> bool:
    """Whether both are the same range of one file. A restore that an older version began has no fingerprints."""
    seen = replace(wanted, size=done.size, is_local=done.is_local, description=done.description)
    return done == seen or done == replace(seen, fingerprint="")


def replays(
    point: BackupPoint, files: Sequence[RouteFile], start: int, stop: int, gtids: Gtids | None, batch_bytes: int
) -> tuple[Replay, ...]:
    """Return the replay steps: the binlogs in batches of about `batch_bytes`, with the GTIDs after each batch.

    `gtids` are those after the last batch. The first binlog begins at `start`, the last ends at `stop` (offsets in
    bytes). A binlog with nothing to replay is left out.
    """
    steps: list[Replay] = []
    batch: list[LogPart] = []
    reached = point.gtids
    for index, file in enumerate(files):
        first, last = index == 0, index == len(files) - 1
        end = stop if last else file.end
        begin = start if first else file.start
        part = LogPart(file.incarnation, file.name, end, begin, end, fingerprint=file.fingerprint)
        if end > part.start:
            batch.append(part)
        reached = gtids if last else joined(reached, file.gtids)
        if batch and (last or sum(log_part.size for log_part in batch) >= batch_bytes):
            steps.append(Replay(len(steps) + 1, tuple(batch), None if reached is None else str(reached)))
            batch = []
    return tuple(steps)
