"""What the load of an instance shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.jobs.doctor.load import LoadReport
from zsnapdb.planning.load.rules import LoadAdvice
from zsnapdb.report.units import paragraph
from zsnapdb.report.view import View


class LoadAdviceFields(TypedDict):
    """What a change would bring: `gain`, `no gain` or `unknown`. At most `saved` of `of` events of the while."""

    topic: str
    prospect: str
    text: str
    figures: list[str]
    unknown: str
    saved: int | None
    of: int | None


class LoadDocument(TypedDict):
    """The load of an instance in a while, and what it shows. A part of the counters is null if it could not be read."""

    instance: str
    seconds: float
    advice: list[LoadAdviceFields]
    server: dict[str, int] | None
    arc: dict[str, int] | None
    intent_log: dict[str, int] | None
    processor_busy: float | None


@dataclass(frozen=True)
class LoadView(View):
    """A line for each topic, the figures behind it, and what no counter knows."""

    report: LoadReport
    kind: ClassVar[str] = "load"

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

    def fields(self) -> LoadDocument:
        load = self.report.load
        return {
            "instance": self.report.instance,
            "seconds": load.seconds,
            "advice": [_fields(one) for one in self.report.advice],
            "server": dict(load.server) if load.server is not None else None,
            "arc": dict(load.arc) if load.arc is not None else None,
            "intent_log": dict(load.intent_log) if load.intent_log is not None else None,
            "processor_busy": load.busy,
        }


def _fields(one: LoadAdvice) -> LoadAdviceFields:
    return {
        "topic": one.topic.value,
        "prospect": one.prospect.value,
        "text": one.text,
        "figures": list(one.figures),
        "unknown": one.unknown,
        "saved": one.saved,
        "of": one.of,
    }
