"""Finds the transactions that a rewind leaves out, and archives the last binlogs before the rewind replaces them."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.base.domain_types import BinlogCoordinates, parse_gtids
from zsnapdb.base.errors import NotFound, ZsnapdbError
from zsnapdb.base.quantities import size
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog.archive_run import archive_once
from zsnapdb.jobs.binlog.server_binlogs import LocalFiles, find_source
from zsnapdb.jobs.host.volume_space import open_session
from zsnapdb.mysql.binlog.transaction_changes import transaction_changes
from zsnapdb.mysql.replication import replay
from zsnapdb.planning.binlog.archive import ServerBinlog
from zsnapdb.planning.restore.left_out import LeftOut, LeftOutCounter, count_unknown
from zsnapdb.planning.restore.plan import RestorePlan

_MOST_READ = 256 << 20
"""The maximum size in bytes of the binlogs that are read, so that the count delays a rewind by a minute at most."""
_PATIENCE = 10.0
"""The time in seconds for which an unreachable store is retried: the binlogs also stay on the replaced datasets."""


def count(instance: Instance, planned: RestorePlan) -> LeftOut:
    """Return the transactions of the running server that the restored state lacks; change nothing.

    The numbers come from the server's GTIDs and from its binlogs on this host. Raises no errors: if a number is
    unknown, the result contains the reason.
    """
    if planned.point.gtids is None:
        return count_unknown("its transactions have no GTIDs")
    try:
        with open_session(instance) as session:
            executed = replay.executed(session, planned.flavour)
            source = find_source(session)
        counter = LeftOutCounter(planned.flavour, parse_gtids(planned.flavour, planned.point.gtids), executed)
        return read(LocalFiles(source), counter)
    except (ZsnapdbError, OSError) as error:
        return count_unknown(_reason(error))


def read(files: LocalFiles, counter: LeftOutCounter, most: int = _MOST_READ) -> LeftOut:
    """Return the left-out transactions in the server's binlogs. At most about `most` bytes are read, oldest first."""
    binlogs, unread = files.list(), list[str]()
    later = binlogs[_first_needed(binlogs, counter) :]
    counter.start(later[0].previous if later else None)
    for place, binlog in enumerate(later):
        if binlog.problem:
            unread.append(f"a binlog was not read: {binlog.problem}")
            continue
        if place and sum(one.size for one in later[: place + 1]) > most:
            rest = size(sum(one.size for one in later[place:]))
            unread.append(f"the binlogs from {binlog.name} on ({rest}) were not read, because this would take too long")
            break
        try:
            with files.open(binlog.name) as file:
                for changes in transaction_changes(file, binlog.name):
                    counter.add(changes)
        except (ZsnapdbError, OSError) as error:
            unread.append(f"{binlog.name} was not read completely: {_reason(error)}")
    return counter.result(binlogs[0].previous if binlogs else None, unread)


def _first_needed(binlogs: list[ServerBinlog], counter: LeftOutCounter) -> int:
    """Return the index of the newest binlog before which the restored state contains all transactions."""
    return max((place for place, one in enumerate(binlogs) if counter.is_all_in(one.previous)), default=0)


@dataclass(frozen=True)
class ArchivedRest:
    """The end of the server's archived binlogs, and their history. If they were not archived, `missing` says why."""

    end: BinlogCoordinates | None = None
    history: str | None = None
    missing: str = ""


def archive_rest(instance: Instance) -> ArchivedRest:
    """Archive the binlogs of the running server that are not archived yet.

    If the repository contains no binlogs of the instance, archive nothing. Raises no errors, because the binlogs also
    stay on the replaced datasets.
    """
    hurried = instance.impatient(_PATIENCE)
    try:
        if not hurried.archive(hurried.open_repository()).load().incarnations:
            raise NotFound(f"the repository has no binlogs of {instance.name}", hint="run `zsnapdb binlog archive`")
        done = archive_once(hurried)
    except (ZsnapdbError, OSError) as error:
        return ArchivedRest(missing=_reason(error))
    return ArchivedRest(done.end, done.incarnation)


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, ZsnapdbError) else str(error)
