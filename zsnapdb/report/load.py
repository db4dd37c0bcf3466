"""What the load of an instance shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.documents.doctor import LoadDocument
from zsnapdb.jobs.doctor.load import LoadReport
from zsnapdb.report.units import paragraph
from zsnapdb.report.view import View


@dataclass(frozen=True)
class LoadView(View):
    """A line for each topic, the figures behind it, and what no counter knows."""

    report: LoadReport
    kind: ClassVar[str] = "load"
    document_class = LoadDocument
    read_from = "report"

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
