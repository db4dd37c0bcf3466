"""The diagnosis of each instance: as text, as a document, and as a line for Nagios and its relatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.jobs.doctor import Diagnosis
from zsnapdb.patterns import printable
from zsnapdb.planning.advice.catalogue import find_rule
from zsnapdb.planning.backup.fitness import FitnessFinding, PropertyChange, Severity
from zsnapdb.report.findings import finding_fields, finding_lines
from zsnapdb.report.view import Fields, View

_NAGIOS = {Severity.OK: "OK", Severity.WARNING: "WARNING", Severity.UNFIT: "CRITICAL"}
_SHOWN = 3


@dataclass(frozen=True)
class DoctorView(View):
    """The findings of each instance and its verdict, and the changes of `--fix`, made or planned."""

    diagnoses: Sequence[Diagnosis]
    fixed: Sequence[PropertyChange] = ()
    planned: Sequence[PropertyChange] = ()
    kind: ClassVar[str] = "doctor"

    def text(self) -> str:
        verdicts = {
            Severity.OK: "fit",
            Severity.WARNING: "fit, with warnings",
            Severity.UNFIT: "unfit: a backup would be refused",
        }
        changes = [f"done: {change.command}" for change in self.fixed]
        changes += [f"--fix would run: {change.command}" for change in self.planned]
        return "\n\n".join(
            [
                *(
                    "\n".join([f"instance {d.instance}", *_lines(d.findings), verdicts[d.worst]])
                    for d in self.diagnoses
                ),
                *(["\n".join(changes)] if changes else []),
            ]
        )

    def fields(self) -> Fields:
        rows = [
            {
                "instance": d.instance,
                "worst": d.worst.value,
                "findings": [
                    {**fields, **_rule_fields(finding)}
                    for fields, finding in zip(finding_fields(d.findings), d.findings, strict=True)
                ],
            }
            for d in self.diagnoses
        ]
        return {
            "instances": rows,
            "fixed": [change.command for change in self.fixed],
            "planned": [change.command for change in self.planned],
        }

    def nagios(self) -> str:
        """Return one line of a Nagios plugin: the state, what is wrong, and counts as performance data.

        Monitoring Plugins Development Guidelines, "Plugin Output": `|` begins the performance data.
        """
        findings = [(d.instance, f) for d in self.diagnoses for f in d.findings]
        bad = [
            f"{name} {f.what}: {f.detail}"
            for severity in (Severity.UNFIT, Severity.WARNING)
            for name, f in findings
            if f.severity is severity
        ]
        order = (Severity.UNFIT, Severity.WARNING)
        worst = next((s for s in order if any(f.severity is s for _, f in findings)), Severity.OK)
        more = (f"and {len(bad) - _SHOWN} more",) if len(bad) > _SHOWN else ()
        text = "; ".join((*bad[:_SHOWN], *more)) or f"{len(self.diagnoses)} instance(s) fit"
        counts = {severity: sum(f.severity is severity for _, f in findings) for severity in order}
        data = f"unfit={counts[Severity.UNFIT]} warnings={counts[Severity.WARNING]}"
        return f"{nagios_line(_NAGIOS[worst], text)} | {data}"


def nagios_line(state: str, text: str) -> str:
    """Return one line of a Nagios plugin. Nothing in `text` can end the line or begin performance data."""
    return f"ZSNAPDB {state} - {printable(text).replace('|', '/')}"


def _lines(findings: Sequence[FitnessFinding]) -> list[str]:
    """Return the lines of the findings. A finding of a rule that is not ok says why it matters, too."""
    lines: list[str] = []
    for finding in findings:
        first, *rest = finding_lines([finding])
        rule = find_rule(finding.rule) if finding.severity is not Severity.OK else None
        why = [f"{'':<8} {'':<15} why: {rule.reason}"] if rule is not None else []
        lines += [first, *why, *rest]
    return lines


def _rule_fields(finding: FitnessFinding) -> dict[str, str]:
    """Return the id, reason and source of the rule of a finding. A finding of no rule has none."""
    rule = find_rule(finding.rule)
    return {"rule": rule.id, "reason": rule.reason, "source": rule.source} if rule is not None else {}
