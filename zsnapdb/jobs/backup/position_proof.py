"""Proves the position of a snapshot set: the binlog inside it ends there, and the server publishes it.

The binlog is walked in two parts. What the server has written before it is held is walked in its own files, while
nobody waits; the rest in the snapshot, from there on. Both parts are checked event by event.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from zsnapdb.base import gtid
from zsnapdb.base.errors import ConsistencyError, ZsnapdbError
from zsnapdb.base.model import Position
from zsnapdb.jobs.backup.low_priority import at_low_priority
from zsnapdb.jobs.backup.preflight import Observed, role_of
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.set_properties import snapshot_name
from zsnapdb.jobs.record import tail_record
from zsnapdb.mysql.binlog.known_tail import KnownTail
from zsnapdb.mysql.binlog.read import find_position, tail_near_end
from zsnapdb.mysql.probe import published_position
from zsnapdb.mysql.session import Session
from zsnapdb.planning.family import family
from zsnapdb.planning.server_copy.identity import binlog_paths
from zsnapdb.zfs import snapshot_files

_CATCH_UP_SECONDS = 30.0


def tail_before(instance: Instance, observed: Observed) -> KnownTail | None:
    """Return the newest tail of the server's newest binlog that is known before the server is held.

    That is the recorded one, if little was written since. Else the server's own files are walked from there. The proof
    uses a tail only if the binlog in the snapshot has it too, and nothing but a proof records one. What cannot be read
    here is left to the proof, which says why.
    """
    known = tail_record.read(instance, observed.facts.flavour)
    paths = binlog_paths(observed.facts.variables, "log_bin")
    is_walked_whole = observed.binlog_key is not None and family(observed.facts.flavour).encrypts_each_event
    if not observed.facts.has_binlog or paths is None or is_walked_whole:
        return known
    base, index = (Path(path) for path in paths)
    has_gtids = observed.position.gtids is not None
    with at_low_priority(), contextlib.suppress(OSError, ZsnapdbError):
        return tail_near_end(index, base.parent, known, observed.facts.flavour, has_gtids=has_gtids, keys=observed.keys)
    return known


def prove_position(
    instance: Instance,
    observed: Observed,
    session: Session,
    backup_id: str,
    before: Position,
    known: KnownTail | None,
) -> Position:
    """Return the position from the snapshot's own binlog, which is walked from the `known` tail on if it has this tail.

    The position must contain what the server published before the snapshot, and the server must publish it soon.
    Afterwards the tail of the snapshot is recorded.
    """
    facts = observed.facts
    paths = binlog_paths(facts.variables, "log_bin")
    if not facts.has_binlog or paths is None:
        return before
    base, index = paths
    with in_snapshot([index, os.path.dirname(base)], observed, instance, backup_id) as (its_index, folder):
        found = find_position(
            its_index, folder, facts.flavour, known, has_gtids=before.gtids is not None, keys=observed.keys
        )
    position = found.position
    if isinstance(position.gtids, gtid.GtidSet):
        # Transactions that are in no binlog at all (gtid_purged) are part of the state too (refman 8.4, "gtid_purged").
        position = replace(position, gtids=position.gtids.union(facts.gtid_purged))
    if not _covers(position, before):
        raise ConsistencyError(
            f"the server had published {before.describe()} before the snapshot, but the binlog in the snapshot ends at"
            f" {position.describe()}",
            hint="check that all paths of the server are on the volumes; the snapshots were removed",
        )
    deadline = time.monotonic() + _CATCH_UP_SECONDS
    while not _covers(published_position(session, facts), position):
        if time.monotonic() > deadline:
            raise ConsistencyError(
                f"the snapshot's binlog ends at {position.describe()}, which the server has not published"
                f" {_CATCH_UP_SECONDS:.0f} s later",
                hint="check whether the server restarted or its binlog was reset; run the backup again",
            )
        time.sleep(0.05)
    if found.tail is not None:
        tail_record.write(instance, facts.flavour, found.tail)
    return position


def _covers(later: Position, earlier: Position) -> bool:
    """Whether all of `earlier` is in `later`, by GTIDs and by binlog coordinates."""
    if later.gtids is not None and earlier.gtids is not None and not gtid.contains(later.gtids, earlier.gtids):
        return False
    if later.coordinates is None or earlier.coordinates is None:
        return True
    there, here = later.coordinates, earlier.coordinates
    return (_number(there.file), there.offset) >= (_number(here.file), here.offset)


def _number(file: str) -> int:
    """Return the number at the end of the name of a binlog file."""
    return int(file.rpartition(".")[2])


@contextlib.contextmanager
def in_snapshot(paths: Sequence[str], observed: Observed, instance: Instance, backup_id: str) -> Iterator[list[Path]]:
    """Yield the paths of the server's files in the snapshot set of the backup, valid during the block."""
    roots: dict[str, Path] = {}
    with contextlib.ExitStack() as opened:
        inside = []
        for path in paths:
            real = os.path.realpath(path)
            role = role_of(real, observed, instance)
            mountpoint = observed.mountpoints[role]
            if role not in roots:
                name = f"{observed.volumes[role]}@{snapshot_name(backup_id)}"
                roots[role] = opened.enter_context(snapshot_files.root_of(name, Path(mountpoint)))
            inside.append(roots[role] / os.path.relpath(real, mountpoint))
        yield inside
