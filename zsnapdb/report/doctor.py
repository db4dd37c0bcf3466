"""The diagnosis of each instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.jobs.doctor import Diagnosis
from zsnapdb.planning.backup.fitness import Severity
from zsnapdb.report.findings import finding_fields, finding_lines
from zsnapdb.report.view import Fields, View


@dataclass(frozen=True)
class DoctorView(View):
    """The findings of each instance and its verdict."""

    diagnoses: Sequence[Diagnosis]
    kind: ClassVar[str] = "doctor"

    def text(self) -> str:
        verdicts = {
            Severity.OK: "fit",
            Severity.WARNING: "fit, with warnings",
            Severity.UNFIT: "unfit: a backup would be refused",
        }
        return "\n\n".join(
            "\n".join([f"instance {d.instance}", *finding_lines(d.findings), verdicts[d.worst]]) for d in self.diagnoses
        )

    def fields(self) -> Fields:
        rows = [
            {"instance": d.instance, "worst": d.worst.value, "findings": finding_fields(d.findings)}
            for d in self.diagnoses
        ]
        return {
            "instances": rows,
        }
