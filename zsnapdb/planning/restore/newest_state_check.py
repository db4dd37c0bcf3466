"""Finds unusable backups and archived binlogs that are newer than the state that `latest` reaches. Pure.

The module considers unreadable manifests, and backups and archived positions that this host stored but the repository
lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.domain_types import backup_time
from zsnapdb.base.errors import AbandonedHistoryError, DamagedError, HistoryError
from zsnapdb.base.gtid import Gtids, contains
from zsnapdb.planning.binlog.route import BackupPoint, RouteFile
from zsnapdb.planning.creation_order import is_after
from zsnapdb.planning.repository.backup_writers import Writer
from zsnapdb.planning.repository.host_backup_record import ArchivedPosition
from zsnapdb.planning.restore.point_forms import AtBackup, Latest, Target
from zsnapdb.planning.restore.route_choice import RestoreRoute
from zsnapdb.planning.server_family import family

_MICROSECONDS = 1_000_000
_SHOWN = 5


@dataclass(frozen=True)
class UnusableBackup:
    """A stored backup that cannot be used, with the reason. If the server or the GTIDs are unknown, they are None."""

    backup_id: str
    why: str
    server: str | None = None
    gtids: Gtids | None = None


@dataclass(frozen=True)
class UnusableArchive:
    """Archived binlogs that cannot be used, with the reason.

    They end at byte `end` of the binlog `file`. Their last commit is at `last_commit` (microseconds UTC).
    """

    why: str
    last_commit: int | None
    file: str
    end: int

    def is_before(self, choice: RestoreRoute) -> bool:
        """Return whether both binlog numbers and times show that these binlogs end at or before the restored state."""
        point = choice.point.coordinates
        files = choice.route.files
        name, offset = (files[-1].name, files[-1].end) if files else (point.file, point.offset) if point else ("", 0)
        (base, _, number), (other, _, reached) = self.file.rpartition("."), name.rpartition(".")
        is_passed = base == other and (int(reached), offset) >= (int(number), self.end)
        return is_passed and self.last_commit is not None and self.last_commit <= choice.route.to


def asks_for_newest(target: Target) -> bool:
    """Return whether the target is the newest state or the newest backup, without an id from the user."""
    return isinstance(target, Latest) or target == AtBackup(None)


def newer_than(
    chosen: str,
    choice: RestoreRoute | None,
    backups: Sequence[UnusableBackup],
    archive: UnusableArchive | None,
    order: Sequence[str],
) -> tuple[str, ...]:
    """Return texts about the unusable backups and binlogs that are newer than the chosen backup.

    The argument `choice` is the route from the backup to the target. If the source has no binlogs, the target is the
    backup itself, and `choice` is None. The argument `order` lists the backups in the repository and those that this
    host stored, oldest first.
    """
    newer = [
        f"backup {item.backup_id}: {item.why}"
        for item in backups
        if is_after(item.backup_id, chosen, order) and not (choice is not None and _is_covered(choice, item))
    ]
    if archive is not None and choice is not None and isinstance(choice.target, Latest):
        newer += [] if archive.is_before(choice) else [archive.why]
    return tuple(newer)


def _is_covered(choice: RestoreRoute, item: UnusableBackup) -> bool:
    """Return whether the replay passes the backup, so that the restored state contains all transactions of the backup.

    GTIDs alone do not prove this, because a server reuses GTIDs after a reset. So the replay must also reach the time
    of the backup.
    """
    reached = choice.route.reached
    if not isinstance(choice.target, Latest) or item.gtids is None or reached is None:
        return False
    return (
        contains(reached, item.gtids)
        and item.server in {file.server for file in choice.route.files}
        and choice.route.to >= round(backup_time(item.backup_id).timestamp()) * _MICROSECONDS
    )


def last_writers(known: Sequence[Writer], ends: Mapping[str, BackupPoint]) -> tuple[Writer, ...]:
    """Return the servers, without those whose history another server provably continued.

    MySQL GTIDs prove this if the newest backup of the other server contains every transaction in the newest backup of
    the first server. The argument `ends` contains the positions of the backups by id.
    """

    def goes_on_from(one: BackupPoint, other: BackupPoint) -> bool:
        return (
            family(one.flavour).gtids_are_sets
            and one.gtids is not None
            and other.gtids is not None
            and contains(one.gtids, other.gtids)
            and not contains(other.gtids, one.gtids)
        )

    newest = [ends[writer.newest] for writer in known]
    return tuple(writer for writer in known if not any(goes_on_from(other, ends[writer.newest]) for other in newest))


def ambiguous(instance: str, known: Sequence[Writer]) -> HistoryError:
    """Return the error for backups of several servers. Its text contains the newest backup of each server."""
    listed = "; ".join(f"{writer.name}, newest backup {writer.newest}" for writer in known)
    return HistoryError(
        f"several servers wrote backups under the name {instance}, and the command does not choose one: {listed}",
        hint="name a backup id, a time or a GTID with --to, or restore on the host of that server. With `--to latest`,"
        " name the server's binlog history with --history (`zsnapdb binlog status` lists them)",
    )


def abandoned_history_error(requested: str, taken_back: Mapping[str, str]) -> AbandonedHistoryError:
    """Return the error for an instance whose usable backups are all from a history that production abandoned."""
    listed = [f"{name}: {why}" for name, why in taken_back.items()]
    return AbandonedHistoryError(
        f"{requested} would be a state that production no longer has: {'; '.join(listed[-_SHOWN:])}",
        hint="make a backup of production now (`zsnapdb backup`), or name a backup id with --to",
    )


def left_history_error(instance: str, restore_id: str, last: str, backup_id: str) -> HistoryError:
    """Return the error for an archive that ends in a history that production abandoned with a restore."""
    return HistoryError(
        f"the latest state cannot be reached: restore {restore_id} put {instance} back, and it is not proved that the"
        f" newest archived binlog, {last}, was written after that",
        hint=f"`zsnapdb backup {instance}` stores its present state; --accept-older uses backup {backup_id} alone; a"
        " time, a GTID or --history reaches the discarded state",
    )


def check_own_history(
    choice: RestoreRoute, archived: ArchivedPosition | None, files: Sequence[RouteFile], begun: Collection[str]
) -> None:
    """Check that the route to the latest state does not leave out what this host archived last.

    A copy of the server may archive under the same name, in a newer history. `archived` is the newest position that
    this host archived, and `files` contains all archived binlogs. `begun` contains the histories that this host began.

    Raises:
        HistoryError: the route ends in a history of the same server that this host did not begin, and lacks this
        position.
    """
    last = next((file for file in files if archived and _is_at(archived, file)), None)
    if archived is None or last is None or not choice.route.files:
        return
    end = choice.route.files[-1]
    same = (file for file in files if (file.name, file.fingerprint) == (last.name, last.fingerprint))
    holding = {last.incarnation, *(file.incarnation for file in same if file.end >= archived.end)}
    replayed = any(_is_at(archived, file) and file.end >= archived.end for file in choice.route.files)
    names = list(dict.fromkeys(file.incarnation for file in files))
    is_own = end.incarnation in begun and end.incarnation in names[names.index(last.incarnation) :]
    if end.server != last.server or end.incarnation in holding or replayed or is_own:
        return
    raise HistoryError(
        f"the latest state is doubtful: history {end.incarnation} of server {end.server} lacks binlogs that this host"
        f" archived in history {last.incarnation}, up to {last.name}; the server was set back, or a copy of it writes",
        hint="run `zsnapdb binlog archive --once`, then `zsnapdb backup`;"
        f" `--history {last.incarnation}` or `--history {end.incarnation}` chooses one history",
    )


def _is_at(position: ArchivedPosition, file: RouteFile) -> bool:
    return (file.incarnation, file.name) == (position.incarnation, position.file)


def refusal(requested: str, instead: str, newer: Sequence[str]) -> DamagedError:
    """Return the error for a restore that is refused because of newer, unusable items. Its text lists these items.

    The text `instead` describes the older state that can be reached.
    """
    shown = [*newer[:_SHOWN], *([f"and {len(newer) - _SHOWN} more"] if len(newer) > _SHOWN else [])]
    return DamagedError(
        f"{requested} would be {instead}, but something newer was stored that cannot be used: {'; '.join(shown)}",
        hint="run `zsnapdb verify`, and look for the objects in older versions or in a copy of the bucket; with"
        " --accept-older the older state is used",
    )
