"""Documents of this host: setup, removal, configuration, doctor, agent, and sizing estimates."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from zsnapdb.documents.backup import BackupDocument
from zsnapdb.documents.base import At, Document, Dumped, FindingFields, Number, each, iso, may_lack, or_null, rows
from zsnapdb.documents.restore import DrillDocument

_Run = Annotated[dict[str, Any], Dumped("zsnapdb.planning.agent_jobs.RunRecord", without=("format",))]


def _pauses(pauses: Any) -> list[dict[str, object]]:
    return [{"instance": name, "until": iso(pause.until), "reason": pause.reason} for name, pause in pauses]


class AgentJobFields(Document):
    """A job of the agent. For a job of the host, `instance` is null. For a continuous job, `next` is null."""

    instance: Annotated[str | None, At("job.name.own_instance")]
    job: Annotated[str, At("job.name.kind")]
    next: Annotated[str | None, At("next", iso)]
    last: Annotated[_Run | None, At("last", lambda run: run.model_dump(mode="json", exclude={"format"}))]


class PauseFields(Document):
    """A pause of an instance, or of the host."""

    instance: str | None
    until: str
    reason: str


class HeldFields(Document):
    """An instance whose jobs do not start, because its server is being replaced and is down."""

    instance: str
    reason: str


class AgentDocument(Document):
    """The jobs of the agent, and how the running agent's configuration differs from the file (`difference`)."""

    is_running: bool
    difference: Annotated[str | None, At("difference", or_null)]
    jobs: tuple[AgentJobFields, ...]
    pauses: Annotated[tuple[PauseFields, ...], At("pauses", _pauses)]
    held: Annotated[tuple[HeldFields, ...], At("held", lambda held: rows("instance", "reason")(sorted(held.items())))]


class AgentPauseDocument(Document):
    """The end of the pause of an instance's jobs; null if the pause has ended."""

    instance: str
    until: Annotated[str | None, At("until", iso)]


class AgentRunDocument(Document):
    """An immediate run of a job: its exit code, and the file with its output."""

    job: Annotated[str, At("name", str)]
    exit_code: int
    log: str


class NotifiedDocument(Document):
    """The configured targets of a message, and the targets that the message did not reach."""

    targets: tuple[str, ...]
    failed: tuple[str, ...]


class DoctorFindingFields(FindingFields):
    """A finding of `doctor`, with its rule if a rule caused it."""

    rule: str = may_lack()
    reason: str = may_lack()
    source: str = may_lack()


class DiagnosisFields(Document):
    """The findings of an instance."""

    instance: str
    worst: str
    findings: tuple[DoctorFindingFields, ...]


class DoctorDocument(Document):
    """The findings of `doctor`, and the commands that `--fix` ran or would run."""

    instances: tuple[DiagnosisFields, ...]
    fixed: Annotated[tuple[str, ...], At("fixed", each("command"))]
    planned: Annotated[tuple[str, ...], At("planned", each("command"))]


class LoadAdviceFields(Document):
    """The effect of a change: `gain`, `no gain` or `unknown`.

    The change avoids at most `saved` of the `of` observed events.
    """

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


_PLANNING = "zsnapdb.planning.setup"


def _steps(steps: Any) -> list[dict[str, Any]]:
    return [asdict(step) for step in steps]


def _refusal_hint(plan: Any) -> str | None:
    return plan.refusal_hint if plan.refusals else None


class SetupPlanDocument(Document):
    """The findings about the host, and every step of the setup."""

    way: Annotated[str, At("plan.way")]
    server: Annotated[
        Annotated[dict[str, Any], Dumped(f"{_PLANNING}.facts.FoundServer")] | None, At("plan.server", asdict)
    ]
    notes: Annotated[tuple[str, ...], At("plan.notes")]
    refusals: Annotated[tuple[str, ...], At("plan.refusals")]
    hint: Annotated[str | None, At("plan", _refusal_hint)]
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
    """The completed steps, the results of the steps that prove the setup, and the remaining steps."""

    done: tuple[str, ...]
    recipient: Annotated[str | None, At("result.recipient")]
    signer: Annotated[str | None, At("result.signer")]
    proof: Annotated[tuple[DoctorProofFields | BackupProofFields | DrillProofFields, ...], At("proved")]


class RemovalDocument(Document):
    """The instance and every step of its removal. After a removal, it contains only the remaining steps."""

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
    """A setting: its value as TOML (null if not set or `hidden`), its origin, and its line in the file.

    The field `origin` is file, environment, repository (an instance uses the table of its repository) or default.
    """

    key: str
    value: str | None
    hidden: bool
    origin: str
    line: int | None


class EffectiveConfigurationDocument(Document):
    """The settings in effect. The field `chosen_by` is the source of the file name: option, environment or default."""

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


class MonthlyCostFields(Document):
    """Costs from a price list. The price `restore` covers the traffic of one restore outside the provider."""

    name: Annotated[str, At("price.name")]
    date: Annotated[str, At("price.date")]
    source: Annotated[str, At("price.source")]
    currency: Annotated[str, At("price.currency")]
    storage: Number
    requests: Number
    restore: Number


class RequestFields(Document):
    """The number of requests per month, by kind of request."""

    put: Number
    list: Number
    get: Number


class SizingDocument(Document):
    """Estimated seconds, bytes, objects, requests and costs of backups of a server."""

    size: Annotated[int, At("workload.size")]
    change: Annotated[Number, At("workload.change")]
    binlog: Annotated[Number, At("workload.binlog")]
    full_seconds: Number
    increment_seconds: Number
    restore_seconds: Number
    backup_memory: int
    restore_memory: int
    kept_full: Annotated[int, At("kept.full")]
    kept_increments: Annotated[int, At("kept.increments")]
    kept_days: Annotated[Number, At("kept.days")]
    stored_full: int
    stored_increments: int
    stored_binlogs: int
    objects: int
    requests: RequestFields
    costs: tuple[MonthlyCostFields, ...]
