"""Views of a tested migration and of a rehearsed upgrade: text, Markdown for a pull request, or a JSON document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from zsnapdb.base.quantities import quantity, size
from zsnapdb.documents.comparison import MigrationDocument, RehearsalDocument
from zsnapdb.jobs.clone.migration import CheckedMigration
from zsnapdb.jobs.clone.upgrade import Rehearsal
from zsnapdb.planning.clone.migration_findings import LoadFindings
from zsnapdb.report.view import View, table

_MOST_LINES = 200
"""Maximum number of schema difference lines in the text."""


class MigrationView(View, kind="migration-check", document=MigrationDocument, read_from="checked"):
    """The effects of a migration, with the verdict on the last line."""

    checked: CheckedMigration
    as_markdown: bool = False

    def text(self) -> str:
        return "\n".join(self._markdown() if self.as_markdown else self._lines())

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
            # The fence is longer than any run of backticks in the text, so the text cannot end it.
            fence = "`" * (3 + max(map(len, re.findall("`+", self.checked.difference)), default=0))
            yield from ("", f"{fence}diff", *self._difference(), fence)


_HEADINGS = ("TABLE", "WHAT", "A READ WAITS", "A WRITE WAITS")


def _load_text(load: LoadFindings) -> str:
    through = ", which is all of it: a part of the migration ran without load" if load.is_through else ""
    return (
        f"{quantity(load.transactions, 'transaction')} of {load.seconds:.0f} s of production at the same time{through};"
        f" up to {load.late:.1f} s late ({load.late_before:.1f} s before the migration)"
    )


def _cell(text: str) -> str:
    """Return the text, escaped for Markdown, so that table names and server messages cannot act as markup."""
    escaped = "".join(f"\\{one}" if one in "\\`*_{}[]<>()#+!|~&" else one for one in text)
    return " ".join(escaped.split())


_SHOWN = 20


class RehearsalView(View, kind="upgrade-rehearsal", document=RehearsalDocument, read_from="rehearsal"):
    """The result of a rehearsal, with the verdict on the last line."""

    rehearsal: Rehearsal

    def text(self) -> str:
        rehearsal = self.rehearsal
        lines = [f"upgrade of {rehearsal.old_version} to {rehearsal.new_version}, rehearsed on {rehearsal.backup_id}"]
        lines += [f"  {phase.name:<30} {phase.seconds:8.1f} s" for phase in rehearsal.phases]
        bad = sum(not checked.is_good for checked in rehearsal.tables)
        lines.append(f"  {len(rehearsal.tables)} tables checked, {bad} with problems")
        different = sum(not compared.is_equal for compared in rehearsal.queries)
        lines.append(f"  {len(rehearsal.queries)} queries compared, {different} with a different result")
        lines += [f"  log       {line}" for line in rehearsal.warnings[:_SHOWN]]
        if len(rehearsal.warnings) > _SHOWN:
            lines.append(f"  log       and {len(rehearsal.warnings) - _SHOWN} more")
        lines += [f"  problem   {problem}" for problem in rehearsal.problems]
        return "\n".join(
            [*lines, "the upgrade would fail or change results" if rehearsal.problems else "the upgrade would succeed"]
        )
