"""The replay steps of a restore: archived binlogs in batches. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zsnapdb.gtid import Gtids, joined
from zsnapdb.planning.binlog.route import BackupPoint, RouteFile
from zsnapdb.planning.restore.steps import LogPart, Replay


def reached_by(point: BackupPoint, files: Iterable[RouteFile]) -> Gtids | None:
    """Return all transactions that a server contains after the backup and these binlogs."""
    reached = point.gtids
    for file in files:
        reached = joined(reached, file.gtids)
    return reached


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
        part = LogPart(file.incarnation, file.name, end, start if first else file.start, end)
        if end > part.start:
            batch.append(part)
        reached = gtids if last else joined(reached, file.gtids)
        if batch and (last or sum(log_part.size for log_part in batch) >= batch_bytes):
            steps.append(Replay(len(steps) + 1, tuple(batch), None if reached is None else str(reached)))
            batch = []
    return tuple(steps)
