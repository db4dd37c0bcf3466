"""Views of the diagnosis of each instance: text, a JSON document, or a line for Nagios and compatible programs."""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.base.patterns import printable
from zsnapdb.documents.base import FindingFields, read
from zsnapdb.documents.host import DiagnosisFields, DoctorDocument, DoctorFindingFields, LoadDocument
from zsnapdb.jobs.doctor.instance_checks import Diagnosis
from zsnapdb.jobs.doctor.rule_facts import LoadReport
from zsnapdb.planning.advice.catalogue import find_rule
from zsnapdb.planning.backup.fitness import FitnessFinding, PropertyChange, Severity
from zsnapdb.report.view import Part, Table, TabularView, View, paragraph, spaced

_NAGIOS = {Severity.OK: "OK", Severity.WARNING: "WARNING", Severity.UNFIT: "CRITICAL"}
_SHOWN = 3


class DoctorView(TabularView, kind="doctor", document=DoctorDocument):
    """The findings and the verdict of each instance, and the changes that `--fix` made or would make."""

    diagnoses: Sequence[Diagnosis]
    fixed: Sequence[PropertyChange] = ()
    planned: Sequence[PropertyChange] = ()

    def parts(self) -> Sequence[Part]:
        verdicts = {
            Severity.OK: "fit",
            Severity.WARNING: "fit, with warnings",
            Severity.UNFIT: "unfit: a backup would be refused",
        }
        changes = [f"done: {change.command}" for change in self.fixed]
        changes += [f"--fix would run: {change.command}" for change in self.planned]
        blocks: list[list[Part]] = []
        for d in self.diagnoses:
            rows = _rows(d.findings)
            lines = [f"{severity:<8} {what:<15} {text}" for severity, what, text in rows]
            findings: list[Part] = [Table((), rows, lines=lines)] if rows else []
            blocks.append([f"instance {d.instance}", *findings, verdicts[d.worst]])
        return spaced([*blocks, *([changes] if changes else [])])

    @property
    def instances(self) -> Sequence[DiagnosisFields]:
        return [
            DiagnosisFields(instance=d.instance, worst=d.worst.value, findings=tuple(map(_with_rule, d.findings)))
            for d in self.diagnoses
        ]

    def nagios(self) -> str:
        """Return one line for Nagios with the state, the worst findings, and counts as performance data.

        Source: Monitoring Plugins Development Guidelines, "Plugin Output" (`|` begins the performance data).
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
    """Return one line in the output format of Nagios plugins.

    Characters in `text` that would end the line or begin performance data are replaced.
    """
    return f"ZSNAPDB {state} - {printable(text).replace('|', '/')}"


def _rows(findings: Sequence[FitnessFinding]) -> list[tuple[str, ...]]:
    """Return a row for each finding: severity, check and text, and the reason of its rule if the finding is not OK."""
    rows: list[tuple[str, ...]] = []
    for finding in findings:
        rule = find_rule(finding.rule) if finding.severity is not Severity.OK else None
        rows.append((finding.severity.value, finding.what, finding.detail))
        rows += [("", "", f"why: {rule.reason}")] if rule is not None else []
        rows += [("", "", f"hint: {finding.hint}")] if finding.hint else []
    return rows


def _with_rule(finding: FitnessFinding) -> DoctorFindingFields:
    """Return the fields of a finding and, if it has a rule, the id, reason and source of this rule."""
    rule = find_rule(finding.rule)
    more = {} if rule is None else {"rule": rule.id, "reason": rule.reason, "source": rule.source}
    return DoctorFindingFields.model_validate({**read(FindingFields, finding), **more})


class LoadView(View, kind="load", document=LoadDocument, read_from="report"):
    """The load, as one line for each topic with its figures and with facts that counters do not show."""

    report: LoadReport

    def text(self) -> str:
        lines = [f"instance {self.report.instance}, watched for {self.report.load.seconds:.0f} s"]
        said = {one.text for one in self.report.advice}
        if len(said) == 1:
            return "\n".join([*lines, *said])
        for one in self.report.advice:
            lines += paragraph(f"{one.topic:<12} ", f"{one.prospect}: {one.text}")
            lines += [line for figure in one.figures for line in paragraph(f"{'':<12}   ", figure)]
            lines += paragraph(f"{'':<12}   ", f"not known: {one.unknown}") if one.unknown else []
        return "\n".join(lines)
