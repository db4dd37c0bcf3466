"""Documents of setup, removal, configuration and examples."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from zsnapdb.documents.backup import BackupDocument
from zsnapdb.documents.base import At, Document, Dumped, each
from zsnapdb.documents.doctor import DoctorDocument
from zsnapdb.documents.trial import DrillDocument

_PLANNING = "zsnapdb.planning.setup"


def _steps(steps: Any) -> list[dict[str, Any]]:
    return [asdict(step) for step in steps]


class SetupPlanDocument(Document):
    """The findings on the host, and every step."""

    way: Annotated[str, At("plan.way")]
    server: Annotated[
        Annotated[dict[str, Any], Dumped(f"{_PLANNING}.facts.FoundServer")] | None, At("plan.server", asdict)
    ]
    notes: Annotated[tuple[str, ...], At("plan.notes")]
    refusals: Annotated[tuple[str, ...], At("plan.refusals")]
    configuration: Annotated[str, At("plan.configuration")]
    identity: Annotated[str | None, At("plan.identity")]
    steps: Annotated[tuple[Annotated[dict[str, Any], Dumped(f"{_PLANNING}.plan.SetupStep")], ...], At("steps", _steps)]


class _ProofFields(Document):
    kind: str


class DoctorProofFields(DoctorDocument, _ProofFields):
    """The findings of doctor at the end of a setup."""

    kind: Literal["doctor"]


class BackupProofFields(BackupDocument, _ProofFields):
    """The first backup."""

    kind: Literal["backup"]


class DrillProofFields(DrillDocument, _ProofFields):
    """The first drill."""

    kind: Literal["drill"]


class SetupDocument(SetupPlanDocument):
    """The completed steps, the results that prove them, and the remaining steps."""

    done: tuple[str, ...]
    recipient: Annotated[str | None, At("result.recipient")]
    signer: Annotated[str | None, At("result.signer")]
    proof: Annotated[tuple[DoctorProofFields | BackupProofFields | DrillProofFields, ...], At("proved")]


class RemovalDocument(Document):
    """The instance and every step of its removal. After a removal: the remaining steps."""

    instance: Annotated[str, At("plan.facts.instance")]
    configuration: Annotated[str, At("plan.facts.configuration")]
    notes: Annotated[tuple[str, ...], At("plan.notes")]
    steps: Annotated[
        tuple[Annotated[dict[str, Any], Dumped(f"{_PLANNING}.removal.RemovalStep")], ...], At("steps", _steps)
    ]


class ConfigurationDocument(Document):
    """A valid configuration."""

    instances: Annotated[tuple[str, ...], At("instance", sorted)]
    repositories: Annotated[tuple[str, ...], At("repository", sorted)]


class EffectiveSettingFields(Document):
    """A setting: its value as TOML (null: not set, or `hidden`), its origin, and its line in the file.

    `origin`: file, environment, repository (an instance uses the table of its repository) or default.
    """

    key: str
    value: str | None
    hidden: bool
    origin: str
    line: int | None


class EffectiveConfigurationDocument(Document):
    """The settings in effect. `chosen_by`: what named the file: option, environment or default."""

    file: Annotated[str, At("file")]
    chosen_by: str
    settings: tuple[EffectiveSettingFields, ...]


class ExamplesDocument(Document):
    """The names of all examples."""

    examples: Annotated[tuple[str, ...], At("examples", each("name"))]


class ExampleDocument(Document):
    """An example."""

    name: str
    text: str


class GrantsDocument(Document):
    """The statements that create an account."""

    flavour: str
    statements: str
