"""The evidence log of an instance, day by day and record by record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.jobs.evidence import EvidenceLog, EvidenceReport
from zsnapdb.report.units import duration, table
from zsnapdb.report.view import Fields, View
from zsnapdb.repository.evidence_log import EvidenceRecord


@dataclass(frozen=True)
class EvidenceReportView(View):
    """What was done in some days, and whether the log of it is whole."""

    report: EvidenceReport
    kind: ClassVar[str] = "report"

    def text(self) -> str:
        log = self.report.log
        head = [f"instance      {log.instance}", f"repository    {log.repository}", chain_line(log)]
        days = [
            (
                day.day.isoformat(),
                str(day.good),
                str(day.failed),
                str(day.backups),
                duration(day.longest_without_backup) if day.longest_without_backup is not None else "no backup",
                f"{day.drills}, {day.failed_drills} FAILED" if day.failed_drills else str(day.drills),
            )
            for day in self.report.days
        ]
        runs = [
            (
                f"{record.finished:%Y-%m-%d %H:%M:%S}",
                record.job,
                "good" if record.exit_code == 0 else f"FAILED with {record.exit_code}",
                who_text(record),
                record.run_id,
            )
            for record in self._records
        ]
        return "\n".join(
            [
                *head,
                "",
                table(("DAY", "GOOD", "FAILED", "BACKUPS", "LONGEST WITHOUT", "DRILLS"), days),
                "",
                table(("ENDED (UTC)", "JOB", "RESULT", "WHO", "RUN"), runs),
            ]
        )

    def fields(self) -> Fields:
        return {
            "instance": self.report.log.instance,
            "repository": self.report.log.repository,
            "is_whole": not self.report.log.findings,
            "findings": [finding.text for finding in self.report.log.findings],
            "days": [
                {
                    "day": day.day.isoformat(),
                    "good": day.good,
                    "failed": day.failed,
                    "backups": day.backups,
                    "longest_without_backup_seconds": day.longest_without_backup,
                    "drills": day.drills,
                    "failed_drills": day.failed_drills,
                }
                for day in self.report.days
            ],
            "records": [record.model_dump(mode="json", exclude={"format"}) for record in self._records],
        }

    @property
    def _records(self) -> list[EvidenceRecord]:
        shown = {day.day for day in self.report.days}
        return [record for record in self.report.log.believed if record.finished.date() in shown]


@dataclass(frozen=True)
class EvidenceCheckView(View):
    """Whether the evidence log is whole."""

    log: EvidenceLog
    kind: ClassVar[str] = "report-verify"

    def text(self) -> str:
        return "\n".join([chain_line(self.log), *(f"CHANGED       {one.text}" for one in self.log.findings)])

    def fields(self) -> Fields:
        return {
            "instance": self.log.instance,
            "repository": self.log.repository,
            "records": len(self.log.records),
            "findings": [{"number": one.number, "text": one.text} for one in self.log.findings],
        }


def chain_line(log: EvidenceLog) -> str:
    """Return a line about the chain."""
    state = "every record is as it was written" if not log.findings else f"{len(log.findings)} FINDINGS"
    return f"evidence      {len(log.records)} records: {state}"


def who_text(record: EvidenceRecord) -> str:
    """Return who did it, in a few words."""
    person = record.who.sudo or record.who.login
    via = f" ({person})" if person and person != record.who.account else ""
    return f"{record.who.account}{via} on {record.who.host}"
