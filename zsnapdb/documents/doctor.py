"""The documents of the doctor and of the load of an instance."""

from __future__ import annotations

from typing import Annotated

from zsnapdb.documents.base import At, Document, Number, each, may_lack
from zsnapdb.documents.errors import FindingFields


class DoctorFindingFields(FindingFields):
    """A finding of the doctor, with the rule it comes from, if it comes from one."""

    rule: str = may_lack()
    reason: str = may_lack()
    source: str = may_lack()


class DiagnosisFields(Document):
    """The findings of an instance."""

    instance: str
    worst: str
    findings: tuple[DoctorFindingFields, ...]


class DoctorDocument(Document):
    """The findings of the doctor, and the commands of `--fix` that ran or would run."""

    instances: tuple[DiagnosisFields, ...]
    fixed: Annotated[tuple[str, ...], At("fixed", each("command"))]
    planned: Annotated[tuple[str, ...], At("planned", each("command"))]


class LoadAdviceFields(Document):
    """What a change would bring: `gain`, `no gain` or `unknown`. At most `saved` of `of` events of the while."""

    topic: str
    prospect: str
    text: str
    figures: tuple[str, ...]
    unknown: str
    saved: int | None
    of: int | None


class LoadDocument(Document):
    """The load of an instance in a while, and what it shows. A part of the counters is null if it could not be read."""

    instance: str
    seconds: Annotated[Number, At("load.seconds")]
    advice: tuple[LoadAdviceFields, ...]
    server: Annotated[dict[str, int] | None, At("load.server")]
    arc: Annotated[dict[str, int] | None, At("load.arc")]
    intent_log: Annotated[dict[str, int] | None, At("load.intent_log")]
    processor_busy: Annotated[Number | None, At("load.busy")]
