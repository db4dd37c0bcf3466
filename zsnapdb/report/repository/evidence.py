"""Views of an instance's evidence: text or an HTML page for people, and a JSON document for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from zsnapdb.base.quantities import format_duration, quantity
from zsnapdb.base.untrusted_text import printed
from zsnapdb.documents.protection import EvidenceCheckDocument, EvidencePageDocument, EvidenceReportDocument
from zsnapdb.jobs.health.evidence_records import EvidenceLog, EvidencePage
from zsnapdb.jobs.repository.evidence_report import EvidenceReport
from zsnapdb.planning.evidence import POLICY
from zsnapdb.planning.health.daily_summary import JudgedDay
from zsnapdb.report.repository.protection import window_lines
from zsnapdb.report.view import View, table
from zsnapdb.repository.drills import Outcome
from zsnapdb.repository.evidence_log import EvidenceRecord

_DAY = ("DAY", "GOOD", "FAILED", "BACKUPS", "LONGEST WITHOUT", "DRILLS", "OBJECTIVES")
_CHANGE = ("WHAT", "BEFORE", "AFTER", "RESULT", "WHO", "RUN")


class EvidenceReportView(View, kind="report", document=EvidenceReportDocument):
    """A report with the runs in a period of days, the state of the log, and the current protection."""

    report: EvidenceReport

    def text(self) -> str:
        blocks = []
        for section in self.sections():
            rows = table(section.headings, section.rows) if section.rows else section.empty
            blocks.append(f"{section.title}\n{rows}")
        return "\n\n".join(blocks)

    def html(self) -> str:
        """Return a complete HTML page for printing. The page loads nothing from other addresses."""
        log, shown = self.report.log, self.report.days
        period = f"{shown[0].day} to {shown[-1].day}" if shown else "no days"
        return page(f"Evidence of instance {log.instance}, {period}", self.sections())

    def sections(self) -> tuple[Section, ...]:
        """Return all parts of the report, in order."""
        return (
            Section("What this is", ("", ""), self._head()),
            Section("Objectives now", ("OBJECTIVE", "STATE", "REASON"), self._objectives()),
            Section("Day by day (UTC)", _DAY, [self._day(one) for one in self.report.judged_days], "no days"),
            Section("Drills", ("BEGUN (UTC)", "BACKUP", "RESULT", "TOOK", "CHECKS"), self._drills(), "none"),
            Section("Retention, immutability and keys", ("WHAT", "STATE"), self.protection),
            Section("Changes of keys and policy", ("FOUND (UTC)", *_CHANGE), self._changes(), "none"),
            Section("Exceptions", ("WHEN (UTC)", "WHAT"), list(self.exceptions), "none"),
            Section("Runs", ("ENDED (UTC)", "JOB", "ABOUT", "RESULT", "WHO", "RUN"), self._runs(), "none"),
        )

    def _head(self) -> list[tuple[str, ...]]:
        log, longest = self.report.log, self.report.longest_drill
        return [
            ("instance", log.instance),
            ("repository", f"{log.repository} ({self.report.repository.url})"),
            ("made at", f"{self.report.at:%Y-%m-%d %H:%M:%S} UTC"),
            ("evidence", chain_text(log)),
            *(tuple(line.split(maxsplit=1)) for line in window_lines(self.report.protection.window)),
            ("longest drill", f"{format_duration(longest.seconds)} ({longest.drill_id})" if longest else "none passed"),
        ]

    def _objectives(self) -> list[tuple[str, ...]]:
        health = self.report.protection.health
        return [(one.name, one.verdict.value, one.reason) for one in health.judgements]

    def _day(self, judged: JudgedDay) -> tuple[str, ...]:
        day = judged.day
        broken = [one for one in judged.objectives if not one.is_kept]
        words = ", ".join(f"{one.objective.value} BROKEN (limit {format_duration(one.limit)})" for one in broken)
        return (
            day.day.isoformat(),
            str(day.good),
            str(day.failed),
            str(day.backups),
            format_duration(day.longest_without_backup) if day.longest_without_backup is not None else "no backup",
            f"{day.drills}, {day.failed_drills} FAILED" if day.failed_drills else str(day.drills),
            words or ("met" if judged.objectives else "none"),
        )

    def _drills(self) -> list[tuple[str, ...]]:
        return [
            (
                f"{drill.started:%Y-%m-%d %H:%M:%S}",
                drill.backup_id,
                drill.outcome.value if drill.outcome is Outcome.PASSED else drill.outcome.value.upper(),
                format_duration(drill.seconds),
                f"{len(drill.checks)}, {sum(check.outcome is not Outcome.PASSED for check in drill.checks)} not passed",
            )
            for drill in self.report.drills.read
        ]

    @property
    def protection(self) -> list[tuple[str, str]]:
        """Return texts about the protection of the backups, and about the keys that can read the backups."""
        keep, lock, keys = self.report.keep, self.report.repository.object_lock, self.report.repository.encryption
        rules = keep.model_dump(exclude_defaults=True) if keep is not None else {}
        return [
            ("retention", ", ".join(f"{name} = {rule}" for name, rule in rules.items()) or "nothing is ever removed"),
            (
                "immutability",
                f"{lock.mode} for {format_duration(lock.period)}" if lock is not None else "none configured",
            ),
            ("who can read", ", ".join(keys.recipients) or "who can read the repository: it is not encrypted"),
            ("who can sign", ", ".join(keys.signers) or "no other host is configured"),
            ("this host signs", "yes" if keys.signing_key_file is not None else "no"),
        ]

    def _changes(self) -> list[tuple[str, ...]]:
        return [
            (
                f"{record.finished:%Y-%m-%d %H:%M:%S}",
                change.what,
                change.before or "none",
                change.after or "none",
                "good" if record.exit_code == 0 else f"FAILED with {record.exit_code}",
                record.by,
                record.run_id,
            )
            for record in self.records
            for change in record.changes
        ]

    @property
    def exceptions(self) -> Iterator[tuple[str, str]]:
        """Yield the events that concern an auditor: an altered log, failed runs, damage, and unreadable drills."""
        for finding in self.report.log.findings:
            yield "", finding.text
        for damage in self.report.protection.known_damage:
            yield "", damage.describe()
        for error in self.report.protection.damaged:
            yield "", error.message
        for drill_id in self.report.drills.unreadable:
            yield "", f"the evidence of drill {drill_id} does not count: damaged, or foreign"
        for drill_id in self.report.drills.missing:
            yield "", f"the evidence of drill {drill_id} is gone: deleted, hidden, or rolled back"
        if self.report.log.foreign:
            number = quantity(len(self.report.log.foreign), "record")
            yield "", f"{number} of the log did not count: this host did not write it, and it is not signed"
        yield from self._of_wrong_clocks()
        for record in self.records:
            if record.exit_code != 0:
                yield f"{record.finished:%Y-%m-%d %H:%M:%S}", f"{record.command} FAILED with {record.exit_code}"

    def _of_wrong_clocks(self) -> Iterator[tuple[str, str]]:
        """If record times contradict the record order, yield a warning and failed runs that may be in the period."""
        doubtful, shown = self.report.of_wrong_clocks, {record.number for record in self.records}
        if not doubtful:
            return
        number = quantity(len(doubtful), "record")
        yield "", f"the times of {number} contradict their order: a clock was wrong, so the days may lack runs"
        for record in doubtful:
            if record.exit_code != 0 and record.number not in shown:
                yield "", f"{record.command} FAILED with {record.exit_code}, in record {record.number} of another time"

    def _runs(self) -> list[tuple[str, ...]]:
        return [
            (
                f"{record.finished:%Y-%m-%d %H:%M:%S}",
                record.job,
                record.about,
                "good" if record.exit_code == 0 else f"FAILED with {record.exit_code}",
                record.by,
                record.run_id,
            )
            for record in self.records
            if record.job != POLICY
        ]

    @property
    def records(self) -> Sequence[EvidenceRecord]:
        shown = {day.day for day in self.report.days}
        return [record for record in self.report.log.believed if record.finished.date() in shown]


class EvidenceCheckView(View, kind="report-verify", document=EvidenceCheckDocument, read_from="log"):
    """The state of the evidence log: complete, or changed."""

    log: EvidenceLog

    def text(self) -> str:
        findings = [f"CHANGED       {one.text}" for one in self.log.findings]
        return "\n".join([f"evidence      {chain_text(self.log)}", *findings])


class EvidencePageView(View, kind="report-records", document=EvidencePageDocument, read_from="page"):
    """Consecutive records of the evidence log."""

    page: EvidencePage

    def text(self) -> str:
        rows = [
            (
                str(stored.link.number),
                f"{record.finished:%Y-%m-%d %H:%M:%S}" if record is not None else "",
                record.job if record is not None else f"NOT BELIEVED: {stored.link.problem}",
                record.about if record is not None else "",
                str(record.exit_code) if record is not None else "",
                record.by if record is not None else "",
            )
            for stored in self.page.records
            for record in (stored.record,)
        ]
        return table(("NUMBER", "ENDED (UTC)", "JOB", "ABOUT", "CODE", "WHO"), rows) if rows else "no records"


def chain_text(log: EvidenceLog) -> str:
    """Return the state of the log's hash chain in a few words."""
    state = "no record was changed" if not log.findings else f"{len(log.findings)} FINDINGS"
    return f"{len(log.records)} records: {state}"


_STYLE = """
body { font: 14px/1.5 sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25em .75em .25em 0; border-bottom: 1px solid #ddd; }
td { overflow-wrap: anywhere; }
@media print { body { margin: 0; max-width: none; font-size: 10px; } tr { break-inside: avoid; } }
"""


@dataclass(frozen=True)
class Section:
    """A titled table. Each row has one cell per heading. `empty` is shown for a table without rows."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    empty: str = ""


def page(title: str, sections: Sequence[Section]) -> str:
    """Return the complete HTML page. Every text is escaped, because names and messages are untrusted."""
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{_escaped(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{_escaped(title)}</h1>",
            *(line for section in sections for line in _section(section)),
            "</body></html>",
        ]
    )


def _section(section: Section) -> Iterator[str]:
    yield f"<h2>{_escaped(section.title)}</h2>"
    if not section.rows:
        yield f"<p>{_escaped(section.empty)}</p>"
        return
    yield "<table>"
    if any(section.headings):
        yield f"<thead><tr>{''.join(f'<th>{_escaped(one)}</th>' for one in section.headings)}</tr></thead>"
    yield "<tbody>"
    for row in section.rows:
        yield f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>"
    yield "</tbody></table>"


def _escaped(text: str) -> str:
    return escape(printed(text), quote=True)
