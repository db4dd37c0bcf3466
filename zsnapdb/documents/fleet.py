"""The documents of a fleet: its state, and the results of operator commands."""

from __future__ import annotations

from typing import Annotated

from zsnapdb.documents.base import At, Document, ErrorFields, error_fields, iso


class FleetRepositoryFields(Document):
    """A repository.

    - `read`: the time when the repository was last read.
    - `changed`: number of instances that this command read again.
    - `opaque`: whether the backups are encrypted and this host has no key that decrypts them.
    - `signed`: whether only objects with the signature of a known key are trusted.
    - `foreign_folders`: number of folders that do not have the name of an instance.
    """

    repository: Annotated[str, At("name")]
    id: Annotated[str | None, At("seen.id")]
    read: Annotated[str | None, At("seen.read", iso)]
    error: Annotated[ErrorFields | None, At("error", error_fields)]
    instances: Annotated[int, At("seen.instances", len, 0)]
    changed: int
    encrypted: Annotated[bool, At("seen.is_encrypted", default=False)]
    opaque: Annotated[bool, At("is_opaque")]
    signed: Annotated[bool, At("is_believed_by_key")]
    foreign_folders: Annotated[int, At("seen.foreign", default=0)]
    note: Annotated[str, At("seen.note", default="")]


class FleetHostFields(Document):
    """A host that appears in the newest backup of at least one instance."""

    host: str
    heard: Annotated[str | None, At("heard", iso)]
    silent: Annotated[bool, At("is_silent")]
    instances: int


class FleetReasonFields(Document):
    """A reason why an instance's state is not good."""

    what: str
    verdict: str
    reason: Annotated[str, At("text")]
    hint: str
    since: Annotated[str | None, At("since", iso)]


class FleetDrillFields(Document):
    """The newest drill."""

    drill_id: str
    finished: Annotated[str, At("finished", iso)]
    passed: bool


class FleetInstanceFields(Document):
    """An instance in a repository.

    The field `objectives` says where the objectives come from: the instance's backups or the fleet's configuration.

    The text `problem` says why the instance could not be read this time; "" if it was read.
    """

    instance: str
    repository: str
    host: str
    verdict: str
    exit_code: int
    since: Annotated[str | None, At("since", iso)]
    reasons: tuple[FleetReasonFields, ...]
    problem: str
    read: Annotated[str | None, At("read", iso)]
    heard: Annotated[str | None, At("facts.heard", iso)]
    objectives: Annotated[str, At("facts.objectives", lambda _: "backup", "fleet")]
    newest_backup: Annotated[str | None, At("facts.health.newest_backup", iso)]
    newest_point: Annotated[str | None, At("facts.health.newest_point", iso)]
    oldest_point: Annotated[str | None, At("facts.oldest_point", iso)]
    archived_until: Annotated[str | None, At("facts.health.archived_until", iso)]
    drill: Annotated[FleetDrillFields | None, At("facts.health.newest_drill")]
    drill_due: Annotated[bool, At("is_drill_due")]
    backups: Annotated[int, At("facts.backups", default=0)]
    backup_bytes: Annotated[int, At("facts.backup_bytes", default=0)]
    binlog_bytes: Annotated[int, At("facts.binlog_bytes", default=0)]
    tool_version: Annotated[str, At("facts.tool_version", default="")]
    server: Annotated[str, At("facts.server", default="")]


class FleetCountsFields(Document):
    """The numbers of instances by state, including unselected instances, and their stored bytes."""

    broken: int
    warnings: int
    drills_due: int
    stored_bytes: int


class FleetDocument(Document):
    """The state of a fleet. The field `total` is the number of all instances, including unselected instances.

    The field `chosen` is the number of selected instances, even if only some of them are shown.
    """

    at: Annotated[str, At("at", iso)]
    cached: Annotated[bool, At("is_cached")]
    repositories: tuple[FleetRepositoryFields, ...]
    hosts: tuple[FleetHostFields, ...]
    instances: Annotated[tuple[FleetInstanceFields, ...], At("rows")]
    chosen: int
    counts: FleetCountsFields
    total: int


class FleetChangeFields(Document):
    """A change of a schedule or of a bucket's limit. The field `wave` is the change's wave in the rollout."""

    change: Annotated[str, At("kind")]
    name: str
    reason: str
    wave: int


class FleetPlanDocument(Document):
    """The planned changes. The field `unchanged` is the number of schedules and limits that are already correct.

    The field `left` is the number of changes in later waves.
    """

    changes: tuple[FleetChangeFields, ...]
    unchanged: int
    left: int


class JobRunFields(Document):
    """A run of a job. The field `host` is the host that runs the job, or the only host that may run it."""

    id: Annotated[str, At("workflow_id")]
    verb: Annotated[str, At("job.verb", default="")]
    instance: Annotated[str, At("job.instance", default="")]
    host: Annotated[str, At("place")]
    state: str
    started: Annotated[str, At("started", iso)]
    ended: Annotated[str | None, At("ended", iso)]
    message: str


class JobRunsDocument(Document):
    """Runs of jobs."""

    runs: tuple[JobRunFields, ...]


class PausedJobFields(Document):
    """A paused or resumed schedule."""

    name: str
    verb: str
    instance: str
    note: str


class PausedJobsDocument(Document):
    """Schedules that were paused, or resumed."""

    schedules: Annotated[tuple[PausedJobFields, ...], At("jobs")]
