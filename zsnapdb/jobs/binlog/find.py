"""`zsnapdb binlog find`: lists transactions by the changes that they made, from the server's binlogs and the archive.

The server's binlogs are read in place. The archive is read only for binlogs that the server no longer has.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from zsnapdb.base.errors import DamagedError, NotFound, RepositoryError, ServerError, UsageError, ZsnapdbError
from zsnapdb.base.patterns import below
from zsnapdb.base.program_start import Stop
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog.server_binlogs import LocalFiles, find_source
from zsnapdb.jobs.host.volume_space import open_session
from zsnapdb.jobs.record import own_archived_binlogs
from zsnapdb.mysql.binlog.binlog_files import open_binlog
from zsnapdb.mysql.binlog.binlog_keys import NO_KEYS, BinlogKeys
from zsnapdb.mysql.binlog.transaction_changes import transaction_changes
from zsnapdb.planning.binlog.changes import (
    ChangeFilter,
    ListedTransaction,
    Match,
    Period,
    TableFilter,
    TransactionList,
    is_within,
    parse_kinds,
)
from zsnapdb.planning.restore.point_forms import parse_time
from zsnapdb.planning.sql_quoting import parse_table
from zsnapdb.repository.binlog_descriptions import ArchivedFile

_SECOND = 1_000_000


@dataclass(frozen=True)
class FindRequest:
    """The search that the command line requests. `between` and `user_time` are periods: two times with a time zone."""

    table: str | None = None
    kinds: str | None = None
    rows_at_least: int = 0
    between: tuple[str, str] | None = None
    user_time: tuple[str, str] | None = None
    largest: bool = False
    limit: int = 100

    def filter(self) -> ChangeFilter:
        """Return the conditions of the search as a filter.

        Raises:
            UsageError: a condition cannot be parsed.
        """
        if self.limit < 1 or self.rows_at_least < 0:
            raise UsageError("a number of transactions or rows is negative or zero", hint="write a positive number")
        return ChangeFilter(
            table=None if self.table is None else _table(self.table),
            kinds=frozenset() if self.kinds is None else parse_kinds(self.kinds),
            rows_at_least=self.rows_at_least,
            committed=_period(self.between),
            began=_period(self.user_time),
        )


def _table(text: str) -> TableFilter:
    if "." not in text and "`" not in text and text:
        return TableFilter(None, text)
    name = parse_table(text)
    return TableFilter(name.schema, name.table or "")


def _period(times: tuple[str, str] | None) -> Period | None:
    if times is None:
        return None
    begin, end = (round(parse_time(text).timestamp() * _SECOND) for text in times)
    if begin > end:
        raise UsageError(f"{times[0]} is later than {times[1]}", hint="write the earlier time first")
    return Period(begin, end)


@dataclass(frozen=True)
class ReadBinlog:
    """A binlog that was read: its name, history and size in bytes. For a binlog on the server, the history is None."""

    name: str
    history: str | None
    size: int


@dataclass(frozen=True)
class Search:
    """The transactions that a search selects, in the order of the report.

    `matched` is the number of selected transactions before the limit was applied. `asks_archive` is set if the search
    also read archived binlogs that the server no longer has. `problems` lists the unreadable binlogs with the reasons.
    """

    transactions: tuple[ListedTransaction, ...]
    matched: int
    read: tuple[ReadBinlog, ...]
    problems: tuple[ZsnapdbError, ...]
    asks_archive: bool


@dataclass(frozen=True)
class _LiveBinlog:
    name: str
    path: Path
    created: int
    """The time at which the server began the transaction, in microseconds UTC."""
    fingerprint: str


@dataclass
class _Reading:
    """A search in progress: its conditions, and its results from the binlogs that were read so far."""

    conditions: ChangeFilter
    selected: TransactionList
    read: list[ReadBinlog] = field(default_factory=list)
    problems: list[ZsnapdbError] = field(default_factory=list)

    def add(self, path: Path, name: str, history: str | None, keys: BinlogKeys = NO_KEYS) -> None:
        """Read a binlog. If the binlog is damaged, record a problem and keep the transactions before the damage."""
        try:
            with open_binlog(path, keys) as file:
                self.read.append(ReadBinlog(name, history, file.seek(0, 2)))
                for transaction in transaction_changes(file, name):
                    match = self.conditions.match(transaction)
                    if match is not Match.NO:
                        self.selected.add(ListedTransaction(name, history, match, transaction))
        except ZsnapdbError as error:
            self.problems.append(error)


def find(instance: Instance, request: FindRequest) -> Search:
    """Return the transactions that the request selects; change nothing.

    The binlogs of the server are read. Archived binlogs are read only if the server has no binlogs, or if a requested
    period begins before the server's oldest binlog.
    """
    request.filter()
    problems: list[ZsnapdbError] = []
    try:
        with open_session(instance) as session:
            source = find_source(session)
    except ServerError as error:
        problems.append(error)
        return search(instance, request, None, problems)
    return search(instance, request, LocalFiles(source), problems)


def search(
    instance: Instance, request: FindRequest, files: LocalFiles | None, problems: Sequence[ZsnapdbError] = ()
) -> Search:
    """Return the result of `find` for the given binlogs of the server.

    If the server does not answer, `files` is None and `problems` contains the reason.
    """
    conditions = request.filter()
    selected = TransactionList(request.limit, by_size=request.largest)
    reading = _Reading(conditions, selected, problems=list(problems))
    live = [] if files is None else _live(files, reading.problems)
    asks_archive = not live or _begins_before(conditions, live[0].created)
    if asks_archive:
        try:
            _read_archived(instance, reading, live)
        except RepositoryError as error:
            if not live:
                raise
            reading.problems.append(error)
    for place, binlog in enumerate(live, 1):
        # The server commits all transactions in a binlog file before it begins the next file.
        last = live[place].created if place < len(live) else None
        if is_within(binlog.created, last, [conditions.committed]) and is_within(None, last, [conditions.began]):
            instance.events.tell(f"reading {binlog.name}")
            reading.add(binlog.path, binlog.name, None, NO_KEYS if files is None else files.source.keys)
    if not reading.read and reading.problems:
        raise reading.problems[0]
    return Search(
        reading.selected.listed(), reading.selected.matched, tuple(reading.read), tuple(reading.problems), asks_archive
    )


def _begins_before(conditions: ChangeFilter, moment: int) -> bool:
    periods = [period for period in (conditions.committed, conditions.began) if period is not None]
    return any(period.begin < moment for period in periods)


def _live(files: LocalFiles, problems: list[ZsnapdbError]) -> list[_LiveBinlog]:
    """Return the readable binlogs of the server, oldest first. Add the unreadable binlogs to `problems`."""
    live: list[_LiveBinlog] = []
    for binlog in files.list():
        if binlog.problem:
            problems.append(DamagedError(binlog.problem, hint="see the server's error log and `zpool status`"))
            continue
        opening = files.opening(binlog.name)
        live.append(
            _LiveBinlog(binlog.name, files.path(binlog.name), opening.head.created * _SECOND, opening.fingerprint)
        )
    return live


def _read_archived(instance: Instance, reading: _Reading, live: Sequence[_LiveBinlog]) -> None:
    """Read the archived binlogs that are not on the server and may contain transactions of the requested periods."""
    archive = instance.archive(instance.open_repository())
    loaded, _ = own_archived_binlogs.known_part(instance, archive.repository, archive.load())
    reading.problems.extend(loaded.damaged)
    on_server = {binlog.fingerprint for binlog in live}
    chosen = [file for file in loaded.files if file.fingerprint not in on_server and _may_match(file, reading)]
    if not loaded.files and not live:
        raise NotFound(
            f"no binlogs of {instance.name} are archived, and the server has none that can be read",
            hint="run `zsnapdb binlog archive`, and solve the problem with the server",
        )
    with tempfile.TemporaryDirectory(prefix="zsnapdb-") as folder:
        for file in chosen:
            instance.events.tell(f"fetching {file.name} of history {file.incarnation}")
            path = Path(below(folder, f"{file.incarnation}-{file.name}"))
            try:
                archive.fetch(file, path)
            except DamagedError as error:
                reading.problems.append(error)
                continue
            reading.add(path, file.name, file.incarnation)
            path.unlink()


def _may_match(file: ArchivedFile, reading: _Reading) -> bool:
    if not file.span.transactions:
        return False
    conditions = reading.conditions
    return is_within(file.first_commit, file.last_commit, [conditions.committed]) and is_within(
        None, file.last_commit, [conditions.began]
    )


_POLL_SECONDS = 0.5

Report = Callable[[ListedTransaction], None]


@dataclass(frozen=True)
class _Place:
    """The part of a binlog that was read.

    The fields contain the name and fingerprint of the binlog, and the end of the last transaction that was read.
    """

    name: str
    fingerprint: str
    end: int | None = None


def follow(instance: Instance, request: FindRequest, stop: Stop, report: Report) -> None:
    """Report each selected transaction that the server commits from now on, until `stop` is set.

    The binlogs are read in place, and the archive is not read. The server may be restarted or reset while this function
    runs.

    Raises:
        UsageError: the request contains a period or a sort order.
        DamagedError: a binlog is damaged.
    """
    conditions = request.filter()
    if request.between is not None or request.user_time is not None or request.largest:
        raise UsageError(
            "--follow reports only new transactions, in commit order",
            hint="leave --between, --user-time and --largest out",
        )
    with open_session(instance) as session:
        files = LocalFiles(find_source(session))
    follow_files(files, conditions, stop, report)


def follow_files(files: LocalFiles, conditions: ChangeFilter, stop: Stop, report: Report) -> None:
    """Report the selected transactions that are added to the given binlogs, until `stop` is set. See `follow`."""

    def select(listed: ListedTransaction) -> None:
        match = conditions.match(listed.changes)
        if match is not Match.NO:
            report(replace(listed, match=match))

    place = _present(files)
    while not stop.wait(_POLL_SECONDS):
        place = _read_on(files, place, select)


def _present(files: LocalFiles) -> _Place | None:
    """Return the end of the last transaction that the newest binlog contains now; None if there is no binlog yet."""
    names = [binlog.name for binlog in files.list() if not binlog.problem]
    if not names:
        return None
    return _read(files, _Place(names[-1], files.opening(names[-1]).fingerprint), lambda _listed: None)


def _read_on(files: LocalFiles, place: _Place | None, report: Report) -> _Place | None:
    """Report the transactions after the end of `place`, even in later binlogs. Return the part that was read last."""
    binlogs = files.list()
    problem = next((binlog.problem for binlog in binlogs if binlog.problem), None)
    if problem is not None:
        raise DamagedError(problem, hint="see the server's error log and `zpool status`")
    names = [binlog.name for binlog in binlogs]
    is_known = place is not None and place.name in names and files.opening(place.name).fingerprint == place.fingerprint
    # After a reset the server begins a new series, so every binlog is new.
    begin = names.index(place.name) if is_known and place is not None else 0
    for name in names[begin:]:
        if place is None or not is_known or name != place.name:
            place = _Place(name, files.opening(name).fingerprint)
        place = _read(files, place, report)
    return place


def _read(files: LocalFiles, place: _Place, report: Report) -> _Place:
    end = place.end
    with files.open(place.name) as file:
        for changes in transaction_changes(file, place.name, end):
            end = changes.end
            report(ListedTransaction(place.name, None, Match.YES, changes))
    return _Place(place.name, place.fingerprint, end)
