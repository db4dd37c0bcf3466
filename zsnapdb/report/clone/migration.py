"""View of what a migration does: text for people, Markdown for a comment on a pull request, a document for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.quantities import counted, size
from zsnapdb.jobs.clone.migration import CheckedMigration
from zsnapdb.planning.clone.recorded_load import LoadFindings
from zsnapdb.report.units import table
from zsnapdb.report.view import View

_MOST_LINES = 200
"""How many lines of the difference of the schema people are shown."""


class MigratedTableFields(TypedDict):
    """A table that the migration touches: created, dropped, redefined, rewritten, written."""

    table: str
    effects: list[str]


class WaitFields(TypedDict):
    """The longest wait of a reader or a writer of a table, in seconds, and before the migration began."""

    table: str
    access: str
    longest_seconds: float
    before_seconds: float
    asked: int
    failed: int
    error: str


class RecordedLoadFields(TypedDict):
    """The recorded load beside the migration: so many transactions were applied, of so many seconds of production.

    `late_seconds` is how late one was at most during the migration, `late_before_seconds` in the seconds before. It is
    through if all of it was applied before the migration ended. `error` is what stopped it.
    """

    transactions: int
    seconds: float
    late_seconds: float
    late_before_seconds: float
    through: bool
    error: str


class MigrationDocument(TypedDict):
    """What a migration does. `second_run` is what running it again does.

    `without_table_seconds` is the longest wait of a statement that needs no table: so busy was the host. `load` is null
    if there was none beside it.
    """

    backup_id: str
    command: list[str]
    masked: bool
    seconds: float
    failure: str
    tables: list[MigratedTableFields]
    waits: list[WaitFields]
    without_table_seconds: float
    unwatched_tables: int
    second_run: str
    load: RecordedLoadFields | None
    own_bytes: int
    schema_difference: str
    problems: list[str]


@dataclass(frozen=True)
class MigrationView(View):
    """What a migration does; the last line is the verdict."""

    checked: CheckedMigration
    as_markdown: bool = False
    kind: ClassVar[str] = "migration-check"

    def text(self) -> str:
        return "\n".join(self._markdown() if self.as_markdown else self._lines())

    def fields(self) -> MigrationDocument:
        checked, findings = self.checked, self.checked.findings
        return {
            "backup_id": checked.backup_id,
            "command": list(checked.command),
            "masked": checked.is_masked,
            "seconds": findings.run.seconds,
            "failure": findings.run.failure,
            "tables": [{"table": str(one.name), "effects": sorted(one.effects)} for one in checked.tables],
            "waits": [
                {
                    "table": str(one.table),
                    "access": one.access.value,
                    "longest_seconds": one.longest,
                    "before_seconds": one.before,
                    "asked": one.asked,
                    "failed": one.failed,
                    "error": one.error,
                }
                for one in findings.waits
            ],
            "without_table_seconds": findings.without_table,
            "unwatched_tables": checked.unwatched,
            "second_run": findings.again.value,
            "load": _load_fields(findings.load),
            "own_bytes": checked.own_bytes,
            "schema_difference": checked.difference,
            "problems": list(checked.problems),
        }

    def _facts(self) -> Iterator[tuple[str, str]]:
        checked, findings = self.checked, self.checked.findings
        yield "data", f"of {checked.backup_id}, {'masked' if checked.is_masked else 'not masked'}"
        yield "took", f"{findings.run.seconds:.1f} s"
        yield "noise", f"a statement without a table waits up to {findings.without_table:.3f} s"
        if findings.load is not None:
            yield "load", _load_text(findings.load)
        yield "again", f"a second run {findings.again}"
        yield "space", f"{size(checked.own_bytes)} more"
        if checked.unwatched:
            yield "tables", f"{checked.unwatched} more were touched, and not watched"

    def _tables(self) -> list[tuple[str, ...]]:
        """Return the rows: table, what is done to it, how long a read and a write wait."""
        waits = {(one.table, one.access.value): f"{one.longest:.3f} s" for one in self.checked.findings.waits}
        return [
            (
                str(one.name),
                ", ".join(sorted(one.effects)),
                waits.get((one.name, "read"), "-"),
                waits.get((one.name, "write"), "-"),
            )
            for one in self.checked.tables
        ]

    @property
    def _verdict(self) -> str:
        return "the migration has problems" if self.checked.problems else "the migration keeps to the limits"

    def _difference(self) -> Sequence[str]:
        lines = self.checked.difference.splitlines()
        more = [f"(and {len(lines) - _MOST_LINES} more lines)"] if len(lines) > _MOST_LINES else []
        return [*lines[:_MOST_LINES], *more]

    def _lines(self) -> Iterator[str]:
        yield f"`{' '.join(self.checked.command)}`"
        yield from (f"  {label:<8} {text}" for label, text in self._facts())
        if self.checked.tables:
            yield table(_HEADINGS, self._tables())
        yield from self._difference()
        yield from (f"  problem  {problem}" for problem in self.checked.problems)
        yield self._verdict

    def _markdown(self) -> Iterator[str]:
        yield f"### {self._verdict[0].upper()}{self._verdict[1:]}"
        yield ""
        yield from (f"- {_cell(problem)}" for problem in self.checked.problems)
        yield from (f"- {label}: {text}" for label, text in self._facts())
        if self.checked.tables:
            yield ""
            yield f"| {' | '.join(heading.lower() for heading in _HEADINGS)} |"
            yield "|---|---|---:|---:|"
            yield from (f"| {' | '.join(map(_cell, row))} |" for row in self._tables())
        if self.checked.difference:
            # A fence longer than any run of backticks in the text ends where it should.
            fence = "`" * (3 + max((len(run) for run in _runs_of_backticks(self.checked.difference)), default=0))
            yield from ("", f"{fence}diff", *self._difference(), fence)


_HEADINGS = ("TABLE", "WHAT", "A READ WAITS", "A WRITE WAITS")


def _load_fields(load: LoadFindings | None) -> RecordedLoadFields | None:
    if load is None:
        return None
    return {
        "transactions": load.transactions,
        "seconds": load.seconds,
        "late_seconds": load.late,
        "late_before_seconds": load.late_before,
        "through": load.is_through,
        "error": load.error,
    }


def _load_text(load: LoadFindings) -> str:
    through = ", which is all of it: a part of the migration ran without load" if load.is_through else ""
    return (
        f"{counted(load.transactions, 'transaction')} of {load.seconds:.0f} s of production beside it{through}; up to"
        f" {load.late:.1f} s late ({load.late_before:.1f} s before the migration)"
    )


def _cell(text: str) -> str:
    """Return the text as Markdown shows it: names of tables and messages of servers are no markup."""
    escaped = "".join(f"\\{one}" if one in "\\`*_{}[]<>()#+!|~&" else one for one in text)
    return " ".join(escaped.split())


def _runs_of_backticks(text: str) -> list[str]:
    return "".join(one if one == "`" else " " for one in text).split()
