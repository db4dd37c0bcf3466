"""Finds where a different server continues a history of the archive, or the reason why no server does. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from zsnapdb.base.domain_types import server_name
from zsnapdb.base.gtid import GtidPosition, Gtids, GtidSet, contains
from zsnapdb.planning.binlog.archive import is_some, same_gtids
from zsnapdb.planning.binlog.route_elements import ArchiveState, EndKind, History, RouteEnd, RouteFile, only_by_times


def begins_at(files: Sequence[RouteFile], gtids: Gtids) -> bool:
    """Return whether the first of the given files starts exactly where the given GTIDs end.

    `files` contains neighbouring files of one history. MariaDB may have deleted domains before the first file. In this
    case, no file may contain a deleted domain, because the transactions of that domain may already be reached.
    """
    previous = files[0].previous
    if previous is None or not is_some(previous) or not same_gtids(gtids, previous):
        return False
    if isinstance(gtids, GtidPosition) and isinstance(previous, GtidPosition):
        forgotten = gtids.heads.keys() - previous.heads.keys()
        heads = [file.gtids.heads.keys() for file in files if isinstance(file.gtids, GtidPosition)]
        return not any(forgotten & domains for domains in heads)
    return True


def failback(
    files: Sequence[RouteFile], at: int, histories: Sequence[History], reached: Gtids | None, state: ArchiveState
) -> RouteEnd | None:
    """Return the end of a route in its newest file if a different server's earlier history has later transactions.

    Otherwise return None. A route never returns to an earlier history. Transactions that a restore took back are not
    later, although the restored server has assigned no GTID yet.
    """
    here = files[at]
    if reached is None or not is_some(reached):
        return None
    for history in (history for history in histories if history.high <= at):
        last = files[history.high - 1]
        whole = last.reached
        if last.server == here.server or whole is None:
            continue
        # A MariaDB position seems to contain every lower sequence number, even the numbers of a server that was set
        # back.
        is_exact = isinstance(whole, GtidSet)
        if not is_exact and not (last.last_commit and here.last_commit and last.last_commit > here.last_commit):
            continue
        if isinstance(whole, GtidSet) and state.was_taken_back(here, whole):
            continue
        if contains(whole, reached) and not contains(reached, whole):
            reason = f"the archive of server {last.server} continues to {last.name}, in an earlier history"
            return RouteEnd(EndKind.UNPROVEN_FAILOVER, f"{reason}; so nothing proves that it continues here")
    return None


def second_writer(
    files: Sequence[RouteFile], here: RouteFile, reached: Gtids | None, state: ArchiveState
) -> RouteEnd | None:
    """Return the end of a route in its newest file `here` if another history was continued after this one began.

    Only a second writer continues such a history. If GTIDs of another server prove that the route has reached all of
    its transactions, for example because it is a replica, return None.
    """
    names = [other for name, other in state.grown if name == here.incarnation]
    for last in (file for file in reversed(files) if file.incarnation in names):
        names.remove(last.incarnation)
        whole = last.reached
        if last.server != here.server and not last.is_anonymous and reached is not None and whole is not None:
            is_reached = contains(reached, whole) if isinstance(whole, GtidSet) else has_heads_of(reached, whole)
            if is_reached:
                continue
        return RouteEnd(
            EndKind.SECOND_WRITER,
            f"server {last.server} archived transactions in history {last.incarnation}, up to {last.name}, after"
            f" history {here.incarnation} of server {here.server} began",
            last.incarnation,
        )
    return None


def takeover(
    files: Sequence[RouteFile], at: int, later: Sequence[History], reached: Gtids | None
) -> int | RouteEnd | None:
    """Return the index at which the newest history of another server continues this history, or why no history does.

    Return None if no other server wrote more transactions. After a failover that lost transactions, a server may reuse
    the lost transaction numbers, so its GTIDs may not show that its transactions are new. In this case, only commit
    times can show whether its transactions are older than the reached state. If they seem to be older, the result has
    the kind NEWEST and describes this doubt.
    """
    here, end = files[at], None
    if reached is None or not is_some(reached) or here.is_anonymous:
        return _without_gtids(files, at, later, reached)
    for history in reversed(later):
        first, own = files[history.low], files[history.low : history.high]
        if first.server == here.server:
            continue
        if first.is_anonymous:
            reason = f"server {first.server} took over, and {first.name} has transactions without GTIDs"
            end = end or RouteEnd(EndKind.UNPROVEN_FAILOVER, f"{reason}; so nothing proves that it continues here")
            continue
        if isinstance(reached, GtidSet):
            numbers_may_repeat = any(file.server == first.server for file in files[: history.low])
            outcome = _taken_over_set(own, reached, is_repeated=numbers_may_repeat)
        else:
            numbers_may_repeat = not has_heads_of(reached, own[-1].reached)
            outcome = _taken_over_position(own, reached)
        if isinstance(outcome, int):
            return history.low + outcome
        if outcome is None and numbers_may_repeat:
            reason = f"server {first.server} took over with {first.name}, and committed under numbers of this history"
            outcome = _by_times(own, _up_to(files, at), f"{reason}; so nothing proves that no transaction was lost")
        end = _first_proven(end, outcome)
    return end


def _first_proven(end: RouteEnd | None, other: RouteEnd | None) -> RouteEnd | None:
    """Return `end`. If `end` is None or only describes a doubt, return `other`, unless `other` is None."""
    return other if other is not None and (end is None or end.kind is EndKind.NEWEST) else end


def _without_gtids(
    files: Sequence[RouteFile], at: int, later: Sequence[History], reached: Gtids | None
) -> RouteEnd | None:
    """Return the end of a history with unknown GTIDs if another server committed later; None if no other server did.

    If `reached` is known to be empty, every GTID is later, even if the file with the transactions of the other server
    is lost.
    """
    here = files[at]
    is_empty = reached is not None and not is_some(reached) and not here.is_anonymous
    end: RouteEnd | None = None
    for history in reversed(later):
        first, own = files[history.low], files[history.low : history.high]
        if first.server == here.server:
            continue
        whole = own[-1].reached
        if is_empty and whole is not None and is_some(whole):
            reason = f"server {first.server} took over with {first.name}, and this history has no GTID"
            return RouteEnd(EndKind.UNPROVEN_FAILOVER, f"{reason}; so nothing proves that it continues here")
        reason = f"server {first.server} took over with {first.name}, and not all GTIDs of this history are known"
        reason += "; so nothing proves that it continues here"
        end = _first_proven(end, _by_times(own, _up_to(files, at), reason))
    return end


def _up_to(files: Sequence[RouteFile], at: int) -> Sequence[RouteFile]:
    return [file for file in files[: at + 1] if file.incarnation == files[at].incarnation]


def _by_times(own: Sequence[RouteFile], before: Sequence[RouteFile], reason: str) -> RouteEnd | None:
    """Return the end of the history `before` if only times show whether the transactions in `own` are later.

    If these transactions seem to be older, the end has the kind NEWEST. If `own` has no transactions, return None.
    MariaDB records commit times in whole seconds.
    """
    last = _last_commit(own)
    if not last:
        return None
    if last >= _last_commit(before):
        return RouteEnd(EndKind.UNPROVEN_FAILOVER, reason)
    return only_by_times(f"{own[0].name} of server {own[0].server}")


def _last_commit(files: Sequence[RouteFile]) -> int:
    """Return the time of the last commit in the files (microseconds UTC); 0 if they contain no commit."""
    return max((file.last_commit for file in files if file.last_commit is not None), default=0)


def has_heads_of(reached: Gtids, whole: Gtids | None) -> bool:
    """Return whether `reached` provably contains the last transaction of each domain in `whole`.

    A MariaDB position contains only the last transaction of each domain (MariaDB manual, "Global Transaction ID"). A
    server assigns sequence numbers in order. Therefore a lower number is provably contained only if the same server
    assigned it.
    """
    if not isinstance(reached, GtidPosition) or not isinstance(whole, GtidPosition):
        return False
    return all(
        domain in reached.heads and reached.heads[domain][0] == server and number <= reached.heads[domain][1]
        for domain, (server, number) in whole.heads.items()
    )


def _taken_over_set(files: Sequence[RouteFile], reached: GtidSet, *, is_repeated: bool) -> int | RouteEnd | None:
    """Return the index of another server's newest file that starts within the reached state, or why there is none.

    All transactions before the start of that file are reached. If `is_repeated` is set, the server also has an older
    history. Such a server may have been returned to an earlier state, and may have assigned its numbers to different
    transactions. Its numbers prove something only if they precede all the given files.
    """
    whole, first = files[-1].reached, files[0]
    if not isinstance(whole, GtidSet) or reached.contains(whole):
        return None
    before = first.previous if isinstance(first.previous, GtidSet) else GtidSet()
    own = GtidSet({name: part for name, part in reached.intervals.items() if name.partition(":")[0] == first.server})
    lost = own.minus(before) if is_repeated else GtidSet()
    lost = lost.union(reached.minus(whole))
    if lost.intervals:
        return RouteEnd(
            EndKind.LOST_IN_FAILOVER,
            f"server {first.server} took over with {first.name}, and its binlogs do not have transactions {lost} of"
            " this history",
        )
    for at in range(len(files) - 1, -1, -1):
        previous = files[at].previous
        if isinstance(previous, GtidSet) and not files[at].is_anonymous and reached.contains(previous):
            return at
    missing = before.minus(reached)
    return RouteEnd(EndKind.GAP, f"transactions {missing}: the binlogs of server {first.server} begin after them")


def _taken_over_position(files: Sequence[RouteFile], reached: Gtids) -> int | RouteEnd | None:
    """Return the index of the newest file of another server that starts exactly at the reached position.

    Within a file, a MariaDB position does not show whether two transactions with the same number are the same.
    """
    whole, first = files[-1].reached, files[0]
    if whole is None or contains(reached, whole):
        return None
    for at in range(len(files) - 1, -1, -1):
        if files[at].gap is None and not files[at].is_anonymous and begins_at(files[at:], reached):
            return at
    return RouteEnd(
        EndKind.UNPROVEN_FAILOVER,
        f"server {first.server} took over, and none of its binlogs begins exactly at {reached}; so nothing proves that"
        " no transaction was lost",
    )


@dataclass(frozen=True)
class RepeatedGtids:
    """GTIDs of the older history `history` that the server `server` assigns a second time in the newest history.

    If `by_server_id` is set, the GTIDs contain a server_id (MariaDB). Otherwise they contain a server_uuid.
    """

    server: str
    history: str
    gtids: str
    by_server_id: bool

    @property
    def text(self) -> str:
        return (
            f"{self.server} gives GTIDs a second time, because it was set back, reset or copied: {self.gtids} stand for"
            f" other transactions in history {self.history}"
        )

    @property
    def hint(self) -> str:
        way = (
            "set a server_id in its option file that no server had before, and restart it"
            if self.by_server_id
            else "stop it, remove auto.cnf from its data directory so that it gets a new server_uuid, and start it"
        )
        return f"{way}; rebuild its replicas"


def repeated_gtids(files: Sequence[RouteFile]) -> tuple[RepeatedGtids, ...]:
    """Return the GTIDs that the newest history's server assigns a second time, for each older history of the server.

    `files` contains all files of the archive, in order. If a newer history continues an older history, no GTIDs of the
    older history are assigned a second time.
    """
    if not files:
        return ()
    newest = files[-1]
    own = [file for file in files if file.incarnation == newest.incarnation]
    repeated = []
    for history in dict.fromkeys(file.incarnation for file in files if file.server == newest.server):
        if history == newest.incarnation:
            continue
        older = [file for file in files if file.incarnation == history]
        start = _with_set_by_hand(_common_end(own, older), own)
        gtids = reused_gtids(newest.server, start, (file.reached for file in older))
        if gtids:
            repeated.append(RepeatedGtids(newest.server, history, gtids, isinstance(start, GtidPosition)))
    return tuple(repeated)


def reused_gtids(server: str, start: Gtids | None, known: Iterable[Gtids | None]) -> str:
    """Return the known GTIDs that a server assigns a second time if it continues from `start`; empty if there are none.

    A MariaDB position contains only the last GTID of each domain, so earlier GTIDs may belong to a different server.
    """
    if isinstance(start, GtidSet):
        own = GtidSet()
        for gtids in known:
            own = own.union(gtids) if isinstance(gtids, GtidSet) else own
        of_server = {source: parts for source, parts in own.intervals.items() if source.partition(":")[0] == server}
        return str(GtidSet(of_server).minus(start))
    if start is None:
        return ""
    last: dict[int, tuple[int, int]] = {}
    for gtids in known:
        for domain, (server_id, number) in gtids.heads.items() if isinstance(gtids, GtidPosition) else ():
            if server_name(None, server_id) == server and number > last.get(domain, (0, 0))[1]:
                last[domain] = (server_id, number)
    return ", ".join(
        _range(domain, server_id, _number(start, domain) + 1, number)
        for domain, (server_id, number) in sorted(last.items())
        if number > _number(start, domain)
    )


def _number(position: GtidPosition, domain: int) -> int:
    """Return the sequence number of a domain's last transaction. Every server continues with the next number."""
    return position.heads.get(domain, (0, 0))[1]


def _range(domain: int, server_id: int, first: int, last: int) -> str:
    end = f"{domain}-{server_id}-{last}"
    return end if first == last else f"{domain}-{server_id}-{first} to {end}"


def _with_set_by_hand(start: Gtids | None, own: Sequence[RouteFile]) -> Gtids | None:
    """Return the GTIDs `start` and the GTIDs that were set by hand, for example by loading a dump.

    The server itself never assigns GTIDs that were set by hand. If gtid_purged is set, the server starts a new binlog.
    The previous GTIDs of that binlog then include GTIDs that no earlier binlog contains (refman 8.4, "gtid_purged").
    """
    if not isinstance(start, GtidSet):
        return start
    for before, file in pairwise(own):
        follows = file.gap is None and file.number == before.number + 1
        if follows and isinstance(before.reached, GtidSet) and isinstance(file.previous, GtidSet):
            start = start.union(file.previous.minus(before.reached))
    return start


def _common_end(own: Sequence[RouteFile], older: Sequence[RouteFile]) -> Gtids | None:
    """Return the GTIDs at the end of the binlogs that two histories of a server share.

    One of the two archived copies of a file may be shorter. Up to the end of the shorter copy, the transactions are the
    same.
    """
    known = {file.fingerprint: file for file in older}
    common = own[0].previous
    for file in own:
        copy = known.get(file.fingerprint)
        if copy is None:
            break
        common = min(file, copy, key=lambda each: each.end).reached
        if file.end != copy.end:
            break
    return common
