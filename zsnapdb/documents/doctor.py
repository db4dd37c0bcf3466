"""Documents of doctor and of an instance's load."""

from __future__ import annotations

from typing import Annotated

from zsnapdb.documents.base import At, Document, Number, each, may_lack
from zsnapdb.documents.errors import FindingFields


class DoctorFindingFields(FindingFields):
    """A finding of doctor, with its rule if it has one."""

    rule: str = may_lack()
    reason: str = may_lack()
    source: str = may_lack()


class DiagnosisFields(Document):
    """The findings of an instance."""

    instance: str
    worst: str
    findings: tuple[DoctorFindingFields, ...]


class DoctorDocument(Document):
    """The findings of doctor, and the commands of `--fix` that ran or would run."""

    instances: tuple[DiagnosisFields, ...]
    fixed: Annotated[tuple[str, ...], At("fixed", each("command"))]
    planned: Annotated[tuple[str, ...], At("planned", each("command"))]


class LoadAdviceFields(Document):
    """The effect of a change: `gain`, `no gain` or `unknown`. It avoids at most `saved` of `of` observed events."""

    topic: str
    prospect: str
    text: str
    figures: tuple[str, ...]
    unknown: str
    saved: int | None
    of: int | None


class LoadDocument(Document):
    """The observed load of an instance, with advice. A group of counters is null if it could not be read."""

    instance: str
    seconds: Annotated[Number, At("load.seconds")]
    advice: tuple[LoadAdviceFields, ...]
    server: Annotated[dict[str, int] | None, At("load.server")]
    arc: Annotated[dict[str, int] | None, At("load.arc")]
    intent_log: Annotated[dict[str, int] | None, At("load.intent_log")]
    processor_busy: Annotated[Number | None, At("load.busy")]
