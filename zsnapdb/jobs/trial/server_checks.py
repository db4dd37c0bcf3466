"""Checks a restored copy: the page checksums of its files, its tables, and the configured probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import SecretStr

from zsnapdb.base.errors import PreflightError, ServerError, ZsnapdbError
from zsnapdb.config.settings import ProbeSettings
from zsnapdb.jobs.host.server_copy import Copy, check_inside
from zsnapdb.mysql.probe import probe
from zsnapdb.mysql.process import programs
from zsnapdb.mysql.schema.schema_catalogue import engine_libraries, stored_tables
from zsnapdb.mysql.schema.tables import TableChecker
from zsnapdb.mysql.schema.tablespace_overwrite import doublewrite_pages
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.schema_content import CatalogueTable, RowPlace
from zsnapdb.planning.server_copy.copy_options import LoginAccess
from zsnapdb.planning.server_facts import ServerFacts, plugin_hint
from zsnapdb.planning.trial.drill import (
    PageRange,
    Sized,
    batches,
    judge_probe,
    judge_table,
    lacks_resources,
    sample_pages,
    sample_whole,
    without,
)
from zsnapdb.repository.drills import ALL_PAGES, Outcome

_UNDO = ("undo_*", "undo[0-9]*", "*.ibu")
CHECKED = (RowPlace.FILES, RowPlace.OTHER_TABLES)
"""The tables that CHECK TABLE may read, by the location of their rows. A drill must not access rows on other hosts."""
_SMALLEST_TABLE = 16384


@dataclass(frozen=True)
class CheckOutcome:
    """The result of one check, with the checked object, the outcome, and the finding as text."""

    what: str
    outcome: Outcome
    finding: str = ""


def tablespaces(copy: Copy) -> list[Sized]:
    """Return the InnoDB files of a copy that can be checked one by one, sorted by path.

    If the system tablespace has several files, only the first is included, because the others have no header with the
    page size.
    """
    folders = {Path(copy.paths.translate(point)) for point, _ in copy.paths.pairs} | {copy.datadir}
    files = {file for folder in folders for pattern in ("*.ibd", *_UNDO) for file in folder.rglob(pattern)}
    return [
        Sized(str(file), file.stat().st_size)
        for file in sorted({*files, _system_file(copy)})
        if file.is_file() and not file.is_symlink()
    ]


def _system_file(copy: Copy) -> Path:
    first = copy.variables.get("innodb_data_file_path", "ibdata1:12M").split(";")[0].split(":")[0]
    home = copy.variables.get("innodb_data_home_dir", "")
    if first.startswith("/"):
        return Path(copy.paths.translate(first))
    return Path(copy.paths.translate(home)) / first if home.startswith("/") else copy.datadir / first


def check_pages(
    copy: Copy, innochecksum: Path, budget: int | None, seed: int, timeout: float
) -> Iterator[tuple[CheckOutcome, int]]:
    """Check the page checksums in about `budget` bytes of files. If `budget` is None, check all pages.

    Yield each result, and the number of bytes checked. The copy's server must be stopped. The doublewrite buffer is
    omitted, because its pages are not data.
    """
    page_size = int(copy.variables.get("innodb_page_size", "16384"))
    files = tablespaces(copy)
    sizes = {file.name: file.size for file in files}
    ranges = sample_pages(files, page_size, budget, seed)
    if not ranges:
        raise PreflightError(
            f"there is no InnoDB file below {copy.root}", hint="report this; the backup was not checked"
        )
    for batch in batches(ranges, sizes, alone=str(_system_file(copy))):
        damaged = _damaged(copy, innochecksum, batch, page_size, timeout)
        for part in batch:
            path = Path(part.file)
            what = str(path.relative_to(copy.root)) if path.is_relative_to(copy.root) else part.file
            pages = sizes[part.file] // page_size
            seen = ALL_PAGES if part.last is None else f"pages {part.first} to {part.last} of {pages}"
            wrong = damaged.get(path)
            outcome = Outcome.PASSED if wrong is None else Outcome.DAMAGED
            size = sizes[part.file] if part.last is None else (part.last - part.first + 1) * page_size
            yield CheckOutcome(what, outcome, seen if wrong is None else wrong), size


def _damaged(
    copy: Copy, innochecksum: Path, batch: Sequence[PageRange], page_size: int, timeout: float
) -> dict[Path, str]:
    """Return the output of innochecksum for each damaged file of a batch."""
    if len(batch) > 1:
        return programs.damaged_files(innochecksum, [Path(part.file) for part in batch], timeout=timeout)
    (part,), system = batch, _system_file(copy)
    left_out = doublewrite_pages(system, page_size) if part.file == str(system) else ()
    results = (
        programs.damaged_pages(innochecksum, Path(part.file), piece.first, piece.last, timeout=timeout)
        for piece in without(part, left_out)
    )
    wrong = next((words for words in results if words is not None), None)
    return {} if wrong is None else {Path(part.file): wrong}


class IsolatedServer:
    """A server on a restored copy. Only zsnapdb can reach it, and it starts no work by itself.

    `timeout` is the time limit of each answer in seconds.
    """

    def __init__(self, copy: Copy, server_id: int, timeout: float) -> None:
        self.copy = copy
        self.timeout = timeout
        self.identity = copy.identity(server_id=server_id, port=None, access=LoginAccess.PRIVATE_SOCKET)

    def start(self) -> ServerFacts:
        """Start the server and return its facts.

        The server runs without access control, so it does not load storage engines that were installed as plugins. If
        the backup does not record these plugins, the server is started again with the plugins in its own plugin table.

        Raises:
            ServerError: the server does not start.
        """
        self.copy.remove_keys()
        with self.copy.start(self.identity, "root", SecretStr(""), self.copy.for_one_task) as session:
            facts = probe(session)
            libraries = _engine_libraries(session) if self.copy.plugins is None else ()
        if not libraries:
            return facts
        self.copy.process().stop(timeout=self.timeout)
        options = (*self.copy.settings.options, *(f"plugin_load_add={library}" for library in libraries))
        with_engines = replace(self.copy, settings=self.copy.settings.model_copy(update={"options": options}))
        with with_engines.start(self.identity, "root", SecretStr(""), self.copy.for_one_task) as session:
            return probe(session)

    def session(self, *, of_users: bool = False) -> Session:
        """Open a session in which each answer has the time limit `timeout`.

        `of_users` has the same meaning as in `Session.open`.
        """
        return Session.open(
            Address(user="root", socket=Path(self.identity.socket)),
            SecretStr(""),
            read_timeout=self.timeout,
            of_users=of_users,
        )

    def query_as_user(self, sql: str) -> Sequence[Sequence[object]]:
        """Run a statement from the configuration, and return its rows.

        Raises:
            ServerError: the statement fails.
        """
        with self.session(of_users=True) as session:
            return session.query(sql)

    def is_running(self) -> bool:
        """Return whether the server's process exists."""
        return self.copy.process().pid() is not None

    def check(self, facts: ServerFacts) -> CheckOutcome:
        """Query the server, and check that its answers show that it is isolated."""
        check_inside(facts, self.copy.root)
        wrong = []
        if facts.variables.get("skip_networking", "").upper() not in ("ON", "1"):
            wrong.append("it listens on the network")
        if facts.variables.get("event_scheduler", "OFF").upper() not in ("OFF", "DISABLED"):
            wrong.append(f"event_scheduler is {facts.variables['event_scheduler']}")
        if any(channel.receiving or channel.applying for channel in facts.channels):
            wrong.append("replication is running")
        return CheckOutcome(
            "the server",
            Outcome.FAILED if wrong else Outcome.PASSED,
            "; ".join(wrong) or "no network, no events, no replication",
        )

    def end(self) -> None:
        """Kill the server. Its files are removed later, so no clean shutdown is needed."""
        self.copy.process().kill()

    def died(self, doing: str, error: ServerError) -> CheckOutcome:
        """Return the check result for a server that ended during a query.

        InnoDB stops the server when it finds a damaged page.
        """
        if self.is_running():
            return CheckOutcome(doing, Outcome.FAILED, error.message)
        log = self.copy.process().log_tail(400)
        damage = next((line.strip() for line in log.splitlines() if "corrupt" in line.lower()), "")
        return CheckOutcome(
            doing, Outcome.DAMAGED if damage else Outcome.FAILED, f"the server ended: {damage or log[-1000:]}"
        )


def _engine_libraries(session: Session) -> tuple[str, ...]:
    try:
        return engine_libraries(session)
    except ServerError:
        # The table of plugins is damaged or missing, which the later check of the tables reports.
        return ()


def sized(table: CatalogueTable) -> Sized:
    """Return the table's quoted name and approximate size in bytes, for the selection of a sample.

    A server lists a table that it cannot open, such as a damaged table on MariaDB, without an engine. For such a table,
    the size is 0, so that it is always checked.
    """
    return Sized(table.quoted, max(table.size, _SMALLEST_TABLE) if table.engine is not None else 0)


def check_tables(isolated: IsolatedServer, budget: int | None, seed: int) -> Iterator[CheckOutcome]:
    """Let the server check tables of about `budget` bytes in total. If `budget` is None, all tables are checked.

    If the server process ends, no further table is checked.
    """
    with isolated.session() as session:
        # Choose all types of tables whose rows are in the server's own files.
        tables = {table.quoted: table for table in stored_tables(session) if table.row_place in CHECKED}
        checker = TableChecker(session)
        for chosen in sample_whole([sized(table) for table in tables.values()], budget, seed):
            try:
                wrong = judge_table(checker.check(tables[chosen.name]))
            except ServerError as error:
                yield isolated.died(chosen.name, error)
                return
            yield CheckOutcome(chosen.name, Outcome.PASSED) if wrong is None else _objected(chosen.name, wrong)


def _objected(name: str, wrong: str) -> CheckOutcome:
    """Return FAILED if the server lacks a plugin or resources to open the table; DAMAGED for any other problem."""
    hint = plugin_hint(wrong) or ("give the server more files, memory or room" if lacks_resources(wrong) else "")
    if hint:
        return CheckOutcome(name, Outcome.FAILED, f"{wrong} ({hint})")
    return CheckOutcome(name, Outcome.DAMAGED, wrong)


def check_probes(
    probes: Sequence[ProbeSettings],
    query: Callable[[str], Sequence[Sequence[object]]],
    failures: tuple[type[ZsnapdbError], ...] = (ServerError,),
    longest: int | None = None,
) -> Iterator[CheckOutcome]:
    """Run the configured probes, and compare the answers with the expected results.

    A probe that cannot be run counts as failed. `query` runs a statement and returns its rows, or raises one of the
    errors in `failures`. `longest` is the maximum length of a finding in characters.
    """
    for number, item in enumerate(probes, 1):
        what = item.name or f"probe {number}: {item.sql}"
        try:
            rows = query(item.sql)
        except failures as error:
            yield CheckOutcome(what, Outcome.FAILED, error.message)
            continue
        wrong = judge_probe(item, rows)
        finding = (f"{rows[0][0]}" if wrong is None else f"it answered {wrong}")[:longest]
        yield CheckOutcome(what, Outcome.PASSED if wrong is None else Outcome.FAILED, finding)
