"""The checks of a drilled machine from inside: its server's own client is run by the guest agent."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from zsnapdb.base.errors import CommandError, CommandTimeout, DamagedError, ServerError
from zsnapdb.base.model import BinlogCoordinates, Flavour, Position, parse_gtids
from zsnapdb.base.patterns import printable
from zsnapdb.config.settings import ProbeSettings
from zsnapdb.jobs.trial.server_checks import CHECKED, CheckOutcome, sized
from zsnapdb.mysql.schema import inside_questions as questions
from zsnapdb.mysql.schema.inside_questions import Rows
from zsnapdb.planning.schema_content import CatalogueTable
from zsnapdb.planning.trial.drill import judge_probe, judge_table, sample_whole
from zsnapdb.planning.trial.inside import (
    InsideAnswer,
    InsideIdentity,
    InsideResult,
    InsideVerdict,
    binlog_of_start,
    judge_identity,
    judge_position,
)
from zsnapdb.repository.drills import Outcome
from zsnapdb.repository.machine_source import BoundPart, ServerInsidePart
from zsnapdb.vm import guest_programs
from zsnapdb.vm.thawing import Agent

_ANSWER_POLL_SECONDS = 1.0
_LONGEST_ERROR = 300
_LONGEST_ANSWER = 1000
_TABLES_AT_ONCE, _MOST_TABLES = 50, 1_000_000
_LONGEST_POSITION = 1 << 16
"""Of what a guest says so many characters get into the evidence. A set of GTIDs of many servers is shorter."""


@dataclass(frozen=True)
class InsideClient:
    """The client of a server in a guest: its command line, and how many seconds an answer may take.

    It gets its statements by stdin, and its password from a file in the guest, if it needs one.
    """

    hypervisor: Agent
    uuid: str
    argv: tuple[str, ...]
    timeout: float
    sleep: Callable[[float], None] = time.sleep

    def query(self, sql: str) -> Rows:
        """Return the rows of the answer.

        ServerError if the client ends with an error, CommandError if the agent does not run it, CommandTimeout if there
        is no answer in time, DamagedError if the agent's answer cannot be read.
        """
        return self._ask(sql, time.monotonic() + self.timeout)

    def query_once_up(self, sql: str, patience: float) -> Rows:
        """Return the rows of the answer, as soon as the server answers. ServerError after `patience` seconds."""
        deadline = time.monotonic() + patience
        while True:
            try:
                return self._ask(sql, max(deadline, time.monotonic() + self.timeout))
            except NotUpError as error:
                if time.monotonic() >= deadline:
                    raise ServerError(
                        f"the server in the machine did not answer within {patience:g} s (vms.start_timeout):"
                        f" {error.message}",
                        hint="restore the backup, and look at the server's log in the machine",
                    ) from error
            self.sleep(_ANSWER_POLL_SECONDS)

    def _ask(self, sql: str, deadline: float) -> Rows:
        argv = (*self.argv, *questions.CLIENT_OPTIONS)
        end = guest_programs.run(self.hypervisor, self.uuid, argv, questions.question(sql), deadline, self.sleep)
        if end.is_good:
            return questions.rows(end.out)
        said = printable(end.err.strip() or f"exit status {end.code}")[:_LONGEST_ERROR]
        kind = NotUpError if questions.is_not_up(end.err) else ServerError
        raise kind(
            f"{self.argv[0]} in the machine: {said}",
            hint="set client under [instance.NAME.vm] to a command that logs in, such as with --defaults-file",
        )


class NotUpError(ServerError):
    """The server in the machine does not answer yet."""


def ask(client: InsideClient, patience: float, part: ServerInsidePart | None) -> InsideAnswer:
    """Return what the server says of itself, as soon as it answers. The errors are those of `InsideClient`.

    `part` is what the backup says of it (None: nothing).
    """
    known = questions.variables(client.query_once_up(questions.VARIABLES, patience))
    if not questions.has_binlog(known):
        return questions.answered(known, (), None, None)
    logs = questions.binlogs(client.query(questions.BINLOGS))
    alone = questions.answered(known, logs, None, None)
    published = (part.after or part.before).binlog_file if part is not None else None
    start = binlog_of_start([name for name, _ in logs], published)
    begins = client.query(questions.beginning(start))
    now = client.query(questions.executed(alone.flavour))
    listed = questions.recovered(alone.flavour, begins)
    return questions.answered(known, logs, listed, questions.gtids_now(alone.flavour, now))


def check_server(answer: InsideAnswer, part: ServerInsidePart) -> CheckOutcome:
    """Check that the server is the one that was backed up."""
    expected = InsideIdentity(part.flavour, part.server_uuid, part.server_id)
    return _outcome("the server inside", judge_identity(expected, answer))


def judge_bounds(answer: InsideAnswer, part: ServerInsidePart) -> InsideVerdict:
    """Return whether the server recovered to a state between the bounds in the manifest.

    DamagedError if the bounds cannot be read.
    """
    before = bound_position(part.flavour, part.before)
    after = bound_position(part.flavour, part.after) if part.after is not None else None
    return judge_position(before, after, answer)


def bound_position(flavour: Flavour, bound: BoundPart) -> Position:
    """Return a bound of a manifest as a position. DamagedError if its GTIDs cannot be read."""
    at = None
    if bound.binlog_file is not None and bound.binlog_offset is not None:
        at = BinlogCoordinates(bound.binlog_file, bound.binlog_offset)
    try:
        gtids = parse_gtids(flavour, bound.gtids) if bound.gtids is not None else None
    except ValueError as error:
        raise DamagedError(
            f"the manifest says that the server had published {printable(bound.gtids or '')[:200]}, which are no GTIDs",
            hint="the manifest was altered, or a newer zsnapdb wrote it",
        ) from error
    return Position(flavour, at, gtids, "manifest")


def position_of(answer: InsideAnswer) -> str:
    """Return the GTIDs that the server recovered to, for the evidence; "" if it has none."""
    text = str(answer.recovered) if answer.recovered is not None else ""
    return text if len(text) <= _LONGEST_POSITION else f"{text[:_LONGEST_POSITION]}…"


def position_check(what: str, verdict: InsideVerdict) -> CheckOutcome:
    """Return the check that a judgement on the position is. Call it for one that is proved or wrong."""
    return _outcome(what, verdict)


def _outcome(what: str, verdict: InsideVerdict) -> CheckOutcome:
    outcome = Outcome.PASSED if verdict.result is InsideResult.PROVED else Outcome.FAILED
    return CheckOutcome(what, outcome, verdict.reason)


def _tables(client: InsideClient) -> Iterator[CatalogueTable]:
    for number in itertools.count(step=questions.TABLES_AT_ONCE):
        page = questions.tables(client.query(questions.tables_from(number)))
        yield from page
        if len(page) < questions.TABLES_AT_ONCE or number > _MOST_TABLES:
            return


def check_tables(client: InsideClient, budget: int | None, seed: int) -> Iterator[CheckOutcome]:
    """Let the server check about `budget` bytes of tables (None: all). Sequences are left out: nothing checks them."""
    listed = list(_tables(client))
    known = {table.quoted: table for table in listed if table.row_place in CHECKED and not table.is_sequence}
    chosen = [known[item.name] for item in sample_whole([sized(table) for table in known.values()], budget, seed)]
    for first in range(0, len(chosen), _TABLES_AT_ONCE):
        batch = chosen[first : first + _TABLES_AT_ONCE]
        rows = questions.checked(batch, client.query(questions.check_of(batch)))
        for table in batch:
            wrong = judge_table(rows[table.quoted])
            outcome = Outcome.PASSED if wrong is None else Outcome.DAMAGED
            yield CheckOutcome(table.quoted[:_LONGEST_ANSWER], outcome, (wrong or "")[:_LONGEST_ANSWER])


def check_probes(client: InsideClient, probes: Sequence[ProbeSettings]) -> Iterator[CheckOutcome]:
    """Run the configured probes and judge the answers. A probe that cannot be run has failed."""
    for number, item in enumerate(probes, 1):
        what = item.name or f"probe {number}: {item.sql}"
        try:
            rows = client.query(item.sql)
        except (ServerError, CommandError, CommandTimeout, DamagedError) as error:
            yield CheckOutcome(what, Outcome.FAILED, error.message)
            continue
        wrong = judge_probe(item, rows)
        finding = (f"{rows[0][0]}" if wrong is None else f"it answered {wrong}")[:_LONGEST_ANSWER]
        yield CheckOutcome(what, Outcome.PASSED if wrong is None else Outcome.FAILED, finding)
