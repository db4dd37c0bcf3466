"""The evidence of an instance: for a person as text or as a page, for a program as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.quantities import counted, format_duration
from zsnapdb.jobs.health.evidence import EvidenceLog, EvidencePage
from zsnapdb.jobs.repository.evidence_report import EvidenceReport
from zsnapdb.planning.evidence.days import ReportedDay, kept
from zsnapdb.planning.evidence.policy import POLICY
from zsnapdb.report.document import Dumped
from zsnapdb.report.page import Section, page
from zsnapdb.report.repository.status import window_lines
from zsnapdb.report.units import table
from zsnapdb.report.view import View
from zsnapdb.repository.drills import Outcome
from zsnapdb.repository.evidence_log import EvidenceRecord

_CHANGE = ("WHAT", "BEFORE", "AFTER", "RESULT", "WHO", "RUN")


class ObjectiveStateFields(TypedDict):
    """Whether an objective is met now."""

    objective: str
    verdict: str
    reason: str


class DayFields(TypedDict):
    """What was done in a day (UTC), and which objectives were kept."""

    day: str
    good: int
    failed: int
    backups: int
    longest_without_backup_seconds: float | None
    longest_without_drill_seconds: float | None
    drills: int
    failed_drills: int
    objectives: dict[str, bool]


class ReportedDrillFields(TypedDict):
    """A drill in a report."""

    drill_id: str
    backup_id: str
    outcome: str
    seconds: float


class ExceptionFields(TypedDict):
    """What an auditor asks about."""

    when: str
    what: str


class PolicyChangeFields(TypedDict):
    """A change of keys or policy. `before` and `after` are null where there was, or is, nothing."""

    at: str
    what: str
    before: str | None
    after: str | None
    who: str
    run_id: str
    exit_code: int


class EvidenceReportDocument(TypedDict):
    """What was done in some days, and what is protected now."""

    instance: str
    repository: str
    is_whole: bool
    findings: list[str]
    objectives: list[ObjectiveStateFields]
    days: list[DayFields]
    drills: list[ReportedDrillFields]
    unreadable_drills: list[str]
    protection: dict[str, str]
    changes: list[PolicyChangeFields]
    exceptions: list[ExceptionFields]
    records: list[Annotated[dict[str, Any], Dumped(EvidenceRecord, without=("format",))]]


class EvidenceFindingFields(TypedDict):
    """A record of the evidence log that is not as it was written."""

    number: int | None
    text: str


class EvidenceCheckDocument(TypedDict):
    """Whether the evidence log is whole."""

    instance: str
    repository: str
    records: int
    findings: list[EvidenceFindingFields]


class UnbelievedRecordFields(TypedDict):
    """A record that cannot be believed, and why."""

    number: int
    problem: str


class EvidencePageDocument(TypedDict):
    """Some records of the evidence log in a row. `next`: what asks for the later ones (null: none)."""

    instance: str
    repository: str
    records: list[Annotated[dict[str, Any], Dumped(EvidenceRecord, without=("format",))]]
    not_believed: list[UnbelievedRecordFields]
    next: int | None


@dataclass(frozen=True)
class EvidenceReportView(View):
    """What was done in some days, whether the log of it is whole, and what is protected now."""

    report: EvidenceReport
    kind: ClassVar[str] = "report"

    def text(self) -> str:
        blocks = []
        for section in self.sections():
            rows = table(section.headings, section.rows) if section.rows else section.empty
            blocks.append(f"{section.title}\n{rows}")
        return "\n\n".join(blocks)

    def html(self) -> str:
        """Return a page of its own: it names no other address, and a browser prints it."""
        log, shown = self.report.log, self.report.days
        period = f"{shown[0].day} to {shown[-1].day}" if shown else "no days"
        return page(f"Evidence of instance {log.instance}, {period}", self.sections())

    def sections(self) -> tuple[Section, ...]:
        """Return all parts of the report, in order."""
        return (
            Section("What this is", ("", ""), self._head()),
            Section("Objectives now", ("OBJECTIVE", "STATE", "REASON"), self._objectives()),
            Section("Day by day (UTC)", self._day_headings(), [self._day(day) for day in self.report.days], "no days"),
            Section("Drills", ("BEGUN (UTC)", "BACKUP", "RESULT", "TOOK", "CHECKS"), self._drills(), "none"),
            Section("Retention, immutability and keys", ("WHAT", "STATE"), self._protection()),
            Section("Changes of keys and policy", ("FOUND (UTC)", *_CHANGE), self._changes(), "none"),
            Section("Exceptions", ("WHEN (UTC)", "WHAT"), list(self._exceptions()), "none"),
            Section("Runs", ("ENDED (UTC)", "JOB", "ABOUT", "RESULT", "WHO", "RUN"), self._runs(), "none"),
        )

    def fields(self) -> EvidenceReportDocument:
        log, health = self.report.log, self.report.protection.health
        return {
            "instance": log.instance,
            "repository": log.repository,
            "is_whole": not log.findings,
            "findings": [finding.text for finding in log.findings],
            "objectives": [
                {"objective": one.name, "verdict": one.verdict.value, "reason": one.reason} for one in health.judgements
            ],
            "days": [self._day_fields(day) for day in self.report.days],
            "drills": [
                {
                    "drill_id": drill.drill_id,
                    "backup_id": drill.backup_id,
                    "outcome": drill.outcome.value,
                    "seconds": drill.seconds,
                }
                for drill in self.report.drills.read
            ],
            "unreadable_drills": list(self.report.drills.unreadable),
            "protection": {row[0]: row[1] for row in self._protection()},
            "changes": [
                {
                    "at": record.finished.isoformat(),
                    "what": change.what,
                    "before": change.before or None,
                    "after": change.after or None,
                    "who": who_text(record),
                    "run_id": record.run_id,
                    "exit_code": record.exit_code,
                }
                for record in self._records
                for change in record.changes
            ],
            "exceptions": [{"when": when, "what": what} for when, what in self._exceptions()],
            "records": [record.model_dump(mode="json", exclude={"format"}) for record in self._records],
        }

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

    def _day_headings(self) -> tuple[str, ...]:
        return "DAY", "GOOD", "FAILED", "BACKUPS", "LONGEST WITHOUT", "DRILLS", "OBJECTIVES"

    def _day(self, day: ReportedDay) -> tuple[str, ...]:
        judged = kept(day, self.report.objectives)
        broken = [one for one in judged if not one.is_kept]
        words = ", ".join(f"{one.objective.value} BROKEN (limit {format_duration(one.limit)})" for one in broken)
        return (
            day.day.isoformat(),
            str(day.good),
            str(day.failed),
            str(day.backups),
            format_duration(day.longest_without_backup) if day.longest_without_backup is not None else "no backup",
            f"{day.drills}, {day.failed_drills} FAILED" if day.failed_drills else str(day.drills),
            words or ("met" if judged else "none"),
        )

    def _day_fields(self, day: ReportedDay) -> DayFields:
        return {
            "day": day.day.isoformat(),
            "good": day.good,
            "failed": day.failed,
            "backups": day.backups,
            "longest_without_backup_seconds": day.longest_without_backup,
            "longest_without_drill_seconds": day.longest_without_drill,
            "drills": day.drills,
            "failed_drills": day.failed_drills,
            "objectives": {one.objective.value: one.is_kept for one in kept(day, self.report.objectives)},
        }

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

    def _protection(self) -> list[tuple[str, str]]:
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
                who_text(record),
                record.run_id,
            )
            for record in self._records
            for change in record.changes
        ]

    def _exceptions(self) -> Iterator[tuple[str, str]]:
        """Yield what an auditor asks about: an altered log, failed runs, damage, drills that cannot be read."""
        for finding in self.report.log.findings:
            yield "", finding.text
        for damage in self.report.protection.known_damage:
            yield "", damage.describe()
        for error in self.report.protection.damaged:
            yield "", error.message
        for drill_id in self.report.drills.unreadable:
            yield "", f"the evidence of drill {drill_id} does not count: damaged, or foreign"
        if self.report.log.foreign:
            number = counted(len(self.report.log.foreign), "record")
            yield "", f"{number} of the log did not count: this host did not write what it says, and nobody signed it"
        for record in self._records:
            if record.exit_code != 0:
                yield f"{record.finished:%Y-%m-%d %H:%M:%S}", f"{record.command} FAILED with {record.exit_code}"

    def _runs(self) -> list[tuple[str, ...]]:
        return [
            (
                f"{record.finished:%Y-%m-%d %H:%M:%S}",
                record.job,
                record.about,
                "good" if record.exit_code == 0 else f"FAILED with {record.exit_code}",
                who_text(record),
                record.run_id,
            )
            for record in self._records
            if record.job != POLICY
        ]

    @property
    def _records(self) -> Sequence[EvidenceRecord]:
        shown = {day.day for day in self.report.days}
        return [record for record in self.report.log.believed if record.finished.date() in shown]


@dataclass(frozen=True)
class EvidenceCheckView(View):
    """Whether the evidence log is whole."""

    log: EvidenceLog
    kind: ClassVar[str] = "report-verify"

    def text(self) -> str:
        findings = [f"CHANGED       {one.text}" for one in self.log.findings]
        return "\n".join([f"evidence      {chain_text(self.log)}", *findings])

    def fields(self) -> EvidenceCheckDocument:
        return {
            "instance": self.log.instance,
            "repository": self.log.repository,
            "records": len(self.log.records),
            "findings": [{"number": one.number, "text": one.text} for one in self.log.findings],
        }


@dataclass(frozen=True)
class EvidencePageView(View):
    """Some records of the evidence log in a row."""

    page: EvidencePage
    kind: ClassVar[str] = "report-records"

    def text(self) -> str:
        rows = [
            (
                str(stored.link.number),
                f"{record.finished:%Y-%m-%d %H:%M:%S}" if record is not None else "",
                record.job if record is not None else f"NOT BELIEVED: {stored.link.problem}",
                record.about if record is not None else "",
                str(record.exit_code) if record is not None else "",
                who_text(record) if record is not None else "",
            )
            for stored in self.page.records
            for record in (stored.record,)
        ]
        return table(("NUMBER", "ENDED (UTC)", "JOB", "ABOUT", "CODE", "WHO"), rows) if rows else "no records"

    def fields(self) -> EvidencePageDocument:
        page = self.page
        return {
            "instance": page.instance,
            "repository": page.repository,
            "records": [one.record.model_dump(mode="json", exclude={"format"}) for one in page.records if one.record],
            "not_believed": [
                {"number": one.link.number, "problem": one.link.problem} for one in page.records if one.record is None
            ],
            "next": page.records[-1].link.number if page.records and not page.is_last else None,
        }


def chain_text(log: EvidenceLog) -> str:
    """Return the state of the chain in a few words."""
    state = "every record is as it was written" if not log.findings else f"{len(log.findings)} FINDINGS"
    return f"{len(log.records)} records: {state}"


def who_text(record: EvidenceRecord) -> str:
    """Return who did it, in a few words."""
    of_issuer = f"{record.who.subject}, vouched for by {record.who.issuer}" if record.who.issuer else ""
    person = of_issuer or record.who.subject or record.who.sudo or record.who.login
    via = f" ({person})" if person and person != record.who.account else ""
    return f"{record.who.account}{via} on {record.who.host}"
