"""Simulation of a server and its archive: writes, rotations, backups, resets, rollbacks and takeovers.

Every transaction has its own key, independent of its number in the server, so that a wrong restore is visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests.unit.support.binlog_window import SECOND, Kept
from zsnapdb.base.domain_types import BinlogCoordinates, Flavour
from zsnapdb.base.gtid import GtidPosition, Gtids, GtidSet, contains, joined
from zsnapdb.planning.binlog.route import BackupPoint, Route, RouteFile, commit_time
from zsnapdb.planning.binlog.route_elements import ArchiveState, CompleteUntil
from zsnapdb.planning.restore.point_forms import AtTime
from zsnapdb.planning.restore.replays import Scanned, boundary_in, find_stop, start_in
from zsnapdb.planning.restore.route_choice import RestoreRoute

HEAD, SIZE = 100, 10


@dataclass(frozen=True)
class Written:
    """A transaction: `key` is unique; server and number are its GTID."""

    key: int
    server: int
    number: int
    second: int


@dataclass(frozen=True)
class Binlog:
    """A binlog of the server: its transactions, and the transactions that the server had numbered before.

    `started` distinguishes binlogs with the same number and the same creation time of a clock that was set back.
    """

    number: int
    created: int
    before: tuple[Written, ...]
    written: tuple[Written, ...] = ()
    is_rotated: bool = False
    started: int = 0


@dataclass(frozen=True)
class Server:
    """A server with the data `history`. `numbered` are the transactions in its GTIDs; a reset empties only these."""

    id: int
    history: tuple[Written, ...]
    numbered: tuple[Written, ...]
    binlogs: tuple[Binlog, ...]

    def write(self, written: Written) -> Server:
        last = replace(self.binlogs[-1], written=(*self.binlogs[-1].written, written))
        return replace(
            self,
            history=(*self.history, written),
            numbered=(*self.numbered, written),
            binlogs=(*self.binlogs[:-1], last),
        )

    def without_last(self, count: int) -> Server:
        """Return the server as it was before its last transactions, which are all in its newest binlog."""
        if not count:
            return self
        last = replace(self.binlogs[-1], written=self.binlogs[-1].written[:-count])
        return replace(
            self,
            history=self.history[:-count],
            numbered=self.numbered[:-count],
            binlogs=(*self.binlogs[:-1], last),
        )

    def rotate(self, clock: int, started: int) -> Server:
        last = replace(self.binlogs[-1], is_rotated=True)
        following = Binlog(last.number + 1, clock, self.numbered, started=started)
        return replace(self, binlogs=(*self.binlogs[:-1], last, following))


@dataclass
class Simulation:
    """The result of a simulation: backups, archived files, and every real history of a server.

    `incarnations` are the numbers of the incarnations in which the backups were made.
    """

    flavour: Flavour
    has_gtids: bool
    points: list[BackupPoint] = field(default_factory=list)
    files: list[Kept] = field(default_factory=list)
    histories: list[tuple[Written, ...]] = field(default_factory=list)
    states: dict[str, tuple[Written, ...]] = field(default_factory=dict)
    contents: dict[tuple[str, str], tuple[Written, ...]] = field(default_factory=dict)
    complete: list[CompleteUntil] = field(default_factory=list)
    incarnations: dict[str, int] = field(default_factory=dict)

    @property
    def state(self) -> ArchiveState:
        """The archive's state without its files: until when it is complete."""
        return ArchiveState(complete=tuple(self.complete))

    def unarchived(self, incarnation: int, server: Server, most: int) -> int:
        """Return how many of the server's last transactions can be lost: at most `most`, and none known as archived."""
        place = f"{incarnation:03d}", f"binlog.{server.binlogs[-1].number:06d}"
        ends = [record.end for record in self.complete if (record.incarnation, record.name) == place]
        return min(most, len(server.binlogs[-1].written) - (max(ends, default=HEAD) - HEAD) // SIZE)

    def name(self, server: int) -> str:
        """Return the name of a server in the archive."""
        if self.flavour is Flavour.MARIADB:
            return f"server_id {server}"
        return f"{server:08d}-71ca-11e1-9e33-c80aa9429562"

    def gtid(self, written: Written) -> str | None:
        if not self.has_gtids:
            return None
        if self.flavour is Flavour.MARIADB:
            return f"0-{written.server}-{written.number}"
        return f"{self.name(written.server)}:{written.number}"

    def gtids(self, numbered: Sequence[Written]) -> Gtids | None:
        if not self.has_gtids:
            return None
        if self.flavour is Flavour.MARIADB:
            last = numbered[-1] if numbered else None
            return GtidPosition({0: (last.server, last.number)} if last else {})
        return GtidSet.of([(self.name(one.server), (one.number, one.number)) for one in numbered])

    def head(self, server: Server, binlog: Binlog) -> str:
        """Return the fingerprint of a binlog."""
        return f"{self.name(server.id)} {binlog.number} {binlog.created} {binlog.started}"

    def back_up(self, server: Server, second: int, clock: int, *, has_head: bool) -> None:
        """Back up the server. The backup records the head of its binlog if `has_head`."""
        name, moment, active = f"b{second:06d}", clock * SECOND, server.binlogs[-1]
        position = BinlogCoordinates(f"binlog.{active.number:06d}", HEAD + SIZE * len(active.written))
        gtids = self.gtids(server.numbered)
        head = self.head(server, active) if has_head else None
        self.points.append(BackupPoint(name, moment, moment, self.name(server.id), position, gtids, self.flavour, head))
        self.states[name] = server.history

    def archive(self, incarnation: str, server: Server, known: set[Binlog]) -> None:
        """Archive the server's files as a new history, from the first file that is not completely archived."""
        fresh = [at for at, binlog in enumerate(server.binlogs) if binlog not in known or not binlog.is_rotated]
        for binlog in server.binlogs[fresh[0] :]:
            own = self.gtids(binlog.written) if binlog.written else None
            end = HEAD + SIZE * len(binlog.written)
            before = self.gtids(binlog.before) if self.has_gtids else GtidSet()
            file = Timed(
                incarnation,
                binlog.number,
                before,
                own,
                binlog.created,
                self.name(server.id),
                is_rotated=binlog.is_rotated,
                is_anonymous=bool(binlog.written) and not self.has_gtids,
                start=HEAD,
                end=end,
                size=end,
                fingerprint=self.head(server, binlog),
                times=tuple(one.second * SECOND for one in binlog.written),
            )
            self.files.append(file)
            self.contents[incarnation, file.name] = binlog.written


@dataclass(frozen=True)
class Timed(Kept):
    """An archived file whose transactions are committed at `times` (microseconds)."""

    times: tuple[int, ...] = ()

    @property
    def first_commit(self) -> int | None:
        return min(self.times, default=None)

    @property
    def last_commit(self) -> int | None:
        return max(self.times, default=None)


def simulate(kind: tuple[Flavour, bool], happenings: Sequence[tuple[str, int]], lost: set[int]) -> Simulation:
    """Return the result of the events in order. The number of an event chooses one of its variants.

    `lost` are the indexes of archived files that no longer exist.
    """
    made = Simulation(*kind)
    server = Server(1, (), (), (Binlog(1, 10, ()),))
    earlier: list[Server] = [server]
    known: set[Binlog] = set()
    incarnation, ids, behind = 1, 1, 0

    def leave(lost: int = 0) -> None:
        """End an incarnation. Its files are archived up to now, without the last `lost` transactions."""
        nonlocal incarnation, known
        made.archive(f"{incarnation:03d}", server.without_last(lost), known)
        made.histories.append(server.history)
        known = set(server.binlogs)
        incarnation += 1

    for second, (happening, way) in zip(range(20, 10_000, 10), happenings, strict=False):
        clock = second - behind
        if happening == "write":
            numbers = [
                one.number for one in server.numbered if made.flavour is Flavour.MARIADB or one.server == server.id
            ]
            server = server.write(Written(second, server.id, max(numbers, default=0) + 1, clock))
        elif happening == "rotate":
            server = server.rotate(clock, second)
        elif happening == "clock":
            behind += 30 + way
        elif happening == "backup":
            made.back_up(server, second, clock, has_head=bool(way % 2))
            made.incarnations[made.points[-1].backup_id] = incarnation
        elif happening == "quiet":
            active = server.binlogs[-1]
            end = HEAD + SIZE * len(active.written)
            record = CompleteUntil(f"{incarnation:03d}", f"binlog.{active.number:06d}", end, clock * SECOND)
            made.complete.append(record)
        elif happening == "reset":
            leave()
            server = replace(server, numbered=(), binlogs=(Binlog(1, clock, (), started=second),))
            earlier = [server]
        elif happening == "back":
            leave()
            server = earlier[way % len(earlier)].rotate(clock, second)
        elif happening in ("failover", "lost"):
            unarchived = made.unarchived(incarnation, server, 1 + way % 3) if happening == "lost" else 0
            leave(unarchived)
            ids += 1
            # What a lost server had archived is all that its successor has.
            server = _successor(server.without_last(unarchived), ids, 2 * way if happening == "lost" else way)
            known, earlier = set(), []
        earlier.append(server)
    leave()
    # The newest file of an incarnation stays, because a history without any file is unknown.
    last = {file.incarnation: at for at, file in enumerate(made.files)}
    made.files = [file for at, file in enumerate(made.files) if at not in lost or last[file.incarnation] == at]
    return made


def _successor(server: Server, new_id: int, way: int) -> Server:
    """Return a replica with all transactions or all but the last few, and some of them in its own binlogs."""
    loss, copied = (way % 3 if way % 2 else 0), way % 4
    replicated = server.numbered[: len(server.numbered) - loss] if loss else server.numbered
    history = server.history[: len(server.history) - min(loss, len(server.numbered))]
    before = replicated[: max(0, len(replicated) - copied)]
    written = replicated[len(before) :]
    # Its binlog contains the earlier commits, so it was created after them.
    latest = max([one.second for one in before], default=server.binlogs[-1].created)
    created = min([one.second for one in written], default=max(latest, server.binlogs[-1].created))
    return Server(new_id, history, replicated, (Binlog(50, created, before, written),))


def restored(simulation: Simulation, route: Route, choice: RestoreRoute | None = None) -> tuple[Written, ...]:
    """Return the state after a restore along the route, with the rules of the servers' appliers.

    MySQL skips transactions that it has, by their GTIDs; MariaDB does not. With a choice, its files are replayed up to
    its boundary.
    """
    state = list(simulation.states[route.point.backup_id])
    executed = route.point.gtids

    def scan(file: RouteFile) -> list[Scanned]:
        return [
            Scanned(
                simulation.gtid(one),
                file.start + SIZE * at,
                file.start + SIZE * (at + 1),
                commit_time(one.second * SECOND),
            )
            for at, one in enumerate(simulation.contents[file.incarnation, file.name])
        ]

    until: int | None = None
    if choice is not None and isinstance(choice.target, AtTime):
        begin = start_in(route, scan(route.files[0]))
        last, until = find_stop(choice, begin, scan, commit_time(10**9 * SECOND))
        choice = replace(choice, files=choice.files[: last + 1], boundary=choice.files[last])
    for index, file in enumerate(route.files if choice is None else choice.files):
        written = simulation.contents[file.incarnation, file.name]
        scanned = scan(file)
        start = start_in(route, scanned) if index == 0 else file.start
        is_last = choice is not None and file is choice.boundary
        stop = boundary_in(choice, start, scanned, until).stop if choice is not None and is_last else file.end
        for one, place in zip(written, scanned, strict=True):
            own = simulation.gtids([one])
            is_known = executed is not None and own is not None and contains(executed, own)
            if place.start < start or place.end > stop or (is_known and simulation.flavour is Flavour.MYSQL):
                continue
            state.append(one)
            executed = joined(executed, own)
    return tuple(state)
