"""Whether a server gives GTIDs a second time, to other transactions. Pure.

A server that is set back or reset counts on from an earlier transaction. If it keeps its identity (server_uuid on
MySQL, server_id on MariaDB), its next transactions get GTIDs that other transactions had. A replica and a restore to a
GTID cannot tell such transactions apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from zsnapdb.base.gtid import GtidPosition, Gtids, GtidSet
from zsnapdb.base.model import server_name
from zsnapdb.planning.binlog.history import RouteFile


@dataclass(frozen=True)
class RepeatedGtids:
    """GTIDs of transactions in an older `history` that `server` gives again in the newest history.

    `by_server_id`: the GTIDs contain a server_id (MariaDB). Otherwise they contain a server_uuid.
    """

    server: str
    history: str
    gtids: str
    by_server_id: bool

    @property
    def text(self) -> str:
        """The finding in words."""
        return (
            f"{self.server} gives GTIDs a second time, because it was set back or reset: {self.gtids} stand for other"
            f" transactions in history {self.history}"
        )

    @property
    def hint(self) -> str:
        """What to do."""
        way = (
            "set a server_id in its option file that no server had before, and restart it"
            if self.by_server_id
            else "stop it, remove auto.cnf from its data directory so that it gets a new server_uuid, and start it"
        )
        return f"{way}; make its replicas anew"


def repeated_gtids(files: Sequence[RouteFile]) -> tuple[RepeatedGtids, ...]:
    """Return the GTIDs that the server of the newest history gives again, for each older history of that server.

    `files` are the whole archive, in order. What a history took over from an older one is not repeated.
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
        gtids = given_again(newest.server, start, (file.reached for file in older))
        if gtids:
            repeated.append(RepeatedGtids(newest.server, history, gtids, isinstance(start, GtidPosition)))
    return tuple(repeated)


def given_again(server: str, start: Gtids | None, known: Iterable[Gtids | None]) -> str:
    """Return the known GTIDs of a server that it gives again if it counts on from `start`; empty if there are none.

    Of a position of MariaDB only the last GTID of each domain is known, so GTIDs before it may be of another server.
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
    """Return the number of the last transaction of a domain: every server counts on from it."""
    return position.heads.get(domain, (0, 0))[1]


def _range(domain: int, server_id: int, first: int, last: int) -> str:
    end = f"{domain}-{server_id}-{last}"
    return end if first == last else f"{domain}-{server_id}-{first} to {end}"


def _with_set_by_hand(start: Gtids | None, own: Sequence[RouteFile]) -> Gtids | None:
    """Return the GTIDs with those that somebody set, as the load of a dump does: the server will not give them.

    Setting gtid_purged begins a binlog, whose previous GTIDs have what no binlog before it has (refman 8.4,
    "gtid_purged").
    """
    if not isinstance(start, GtidSet):
        return start
    for before, file in pairwise(own):
        follows = file.gap is None and file.number == before.number + 1
        if follows and isinstance(before.reached, GtidSet) and isinstance(file.previous, GtidSet):
            start = start.union(file.previous.minus(before.reached))
    return start


def _common_end(own: Sequence[RouteFile], older: Sequence[RouteFile]) -> Gtids | None:
    """Return the GTIDs at the end of what two histories of a server have in common.

    A file may be archived in both, once cut. Up to its end the shorter file has the same transactions.
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
