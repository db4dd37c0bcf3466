"""What the web process can ask the helper for: one line of JSON, parsed into one of these models, and nothing else.

Each value has the pattern that `zsnapdb-clone` has for it (`jobs/clone/delegation.py`). No field names an owner, a
program, a file or an address, and none can turn masking off.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError, model_validator

from zsnapdb.base import run_id
from zsnapdb.base.errors import UsageError
from zsnapdb.jobs.clone import delegation
from zsnapdb.serve.login_messages import LoginVerb
from zsnapdb.serve.roles import VerbKind

MOST_BYTES = 64 * 1024
"""The longest request."""
MOST_OF_BEARER = 8192
"""The longest bearer credential: id tokens with many claims have some thousand characters."""


def _form(pattern: re.Pattern[str]) -> StringConstraints:
    return StringConstraints(pattern=rf"^(?:{pattern.pattern})$", strict=True)


Name = Annotated[str, _form(delegation.CLONE)]
InstanceWord = Annotated[str, _form(delegation.INSTANCE_NAME)]
Point = Annotated[str, _form(delegation.POINT)]
Duration = Annotated[str, _form(delegation.DURATION)]
SetId = Annotated[str, _form(delegation.SOURCE)]
CommitMessage = Annotated[str, _form(delegation.MESSAGE)]
OperationId = Annotated[str, StringConstraints(pattern=rf"^(?:{run_id.PATTERN})$", strict=True)]
IdempotencyKey = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$", strict=True)]
BearerToken = Annotated[str, StringConstraints(pattern=rf"^[!-~]{{0,{MOST_OF_BEARER}}}$", strict=True)]


MOST_LOG_LINES = 999
MOST_RECORDS = 500
MOST_DRILLS = 1000
LogLines = Annotated[int, Field(ge=1, le=MOST_LOG_LINES)]
RecordNumber = Annotated[int, Field(ge=0, le=99_999_999)]
RecordCount = Annotated[int, Field(ge=1, le=MOST_RECORDS)]
DrillCount = Annotated[int, Field(ge=1, le=MOST_DRILLS)]


MOST_INSTANCES = 10_000
NamePattern = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.*?\[\]!-]{1,100}$", strict=True)]


class NewClone(BaseModel):
    """What is wanted of a new clone: of the newest set, as of a point (`at`), or of a set or commit (`from`).

    `mask` asks for masking where the site does not demand it. With `heartbeat` it goes if its holder does not say so
    often that it is there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    instance: InstanceWord
    name: Name | None = None
    at: Point | None = None
    source: Annotated[SetId | None, Field(alias="from")] = None
    ttl: Duration | None = None
    profile: Literal["tiny", "normal"] | None = None
    mask: Annotated[bool, Field(strict=True)] = False
    heartbeat: Duration | None = None

    @model_validator(mode="after")
    def _is_of_one_state(self) -> NewClone:
        if self.at is not None and self.source is not None:
            raise ValueError("give from or at, not both")
        return self


class NewProtection(BaseModel):
    """For how long a clone is kept from `zsnapdb reap`, from now on."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    time: Annotated[Duration, Field(alias="for")]


class NewCommit(BaseModel):
    """What is wanted of a new commit: a description of the data, on one line."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    message: CommitMessage = ""


class NewLease(BaseModel):
    """How long a clone stays from now on (None: as long as a new one)."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    ttl: Duration | None = None


class FleetQuery(BaseModel):
    """Which instances of a fleet are wanted (patterns of names, such as db-*), in which order, and how many of them.

    `red`: only those that are not met. `after` are left out at the beginning.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    red: bool = False
    instance: NamePattern | None = None
    host: NamePattern | None = None
    repository: NamePattern | None = None
    sort: Literal["red", "instance", "host", "age", "stored"] = "red"
    after: Annotated[int, Field(ge=0, le=MOST_INSTANCES)] = 0
    most: Annotated[int, Field(ge=1, le=MOST_INSTANCES)] = MOST_INSTANCES

    @property
    def filters(self) -> tuple[str, ...]:
        """The same as `zsnapdb fleet status --where` takes it."""
        named = {"instance": self.instance, "host": self.host, "repository": self.repository}
        patterns = tuple(f"{name}={pattern}" for name, pattern in named.items() if pattern is not None)
        return ("red", *patterns) if self.red else patterns


class _Verb(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class GetSubjectVerb(_Verb):
    """Whoever asks: subject, role, until when the token is valid, and the limits of its clones."""

    kind: Literal[VerbKind.SUBJECT_GET] = VerbKind.SUBJECT_GET


class ListInstancesVerb(_Verb):
    """The instances that clones can be made of."""

    kind: Literal[VerbKind.INSTANCE_LIST] = VerbKind.INSTANCE_LIST


class ListClonesVerb(_Verb):
    """The clones that the subject sees."""

    kind: Literal[VerbKind.CLONE_LIST] = VerbKind.CLONE_LIST


class GetCloneVerb(_Verb):
    """One clone."""

    kind: Literal[VerbKind.CLONE_GET] = VerbKind.CLONE_GET
    name: Name


class CreateCloneVerb(_Verb):
    """A new clone. A second request with the same key and content begins nothing: it has the answer of the first."""

    kind: Literal[VerbKind.CLONE_CREATE] = VerbKind.CLONE_CREATE
    wanted: NewClone
    key: IdempotencyKey | None = None


class ResetCloneVerb(_Verb):
    """The first data of a clone again."""

    kind: Literal[VerbKind.CLONE_RESET] = VerbKind.CLONE_RESET
    name: Name


class ExtendCloneVerb(_Verb):
    """A longer lease."""

    kind: Literal[VerbKind.CLONE_EXTEND] = VerbKind.CLONE_EXTEND
    name: Name
    lease: NewLease = NewLease()


class ProtectCloneVerb(_Verb):
    """A time in which `zsnapdb reap` leaves a clone alone."""

    kind: Literal[VerbKind.CLONE_PROTECT] = VerbKind.CLONE_PROTECT
    name: Name
    protection: NewProtection


class UnprotectCloneVerb(_Verb):
    """The end of that time."""

    kind: Literal[VerbKind.CLONE_UNPROTECT] = VerbKind.CLONE_UNPROTECT
    name: Name


class CommitCloneVerb(_Verb):
    """A snapshot set of a clone, of which clones can be made."""

    kind: Literal[VerbKind.CLONE_COMMIT] = VerbKind.CLONE_COMMIT
    name: Name
    commit: NewCommit = NewCommit()


class CloneLogsVerb(_Verb):
    """The end of the error log of a clone's server."""

    kind: Literal[VerbKind.CLONE_LOGS] = VerbKind.CLONE_LOGS
    name: Name
    lines: LogLines = 100


class BeatCloneVerb(_Verb):
    """What the holder of a clone says so that it stays."""

    kind: Literal[VerbKind.CLONE_BEAT] = VerbKind.CLONE_BEAT
    name: Name


class DestroyCloneVerb(_Verb):
    """The end of a clone."""

    kind: Literal[VerbKind.CLONE_DESTROY] = VerbKind.CLONE_DESTROY
    name: Name


class GetOperationVerb(_Verb):
    """What became of a request that took long."""

    kind: Literal[VerbKind.OPERATION_GET] = VerbKind.OPERATION_GET
    id: OperationId


class CancelOperationVerb(_Verb):
    """The end of a request that is under way."""

    kind: Literal[VerbKind.OPERATION_CANCEL] = VerbKind.OPERATION_CANCEL
    id: OperationId


class InstancePointsVerb(_Verb):
    """The states of an instance of which clones can be made."""

    kind: Literal[VerbKind.INSTANCE_POINTS] = VerbKind.INSTANCE_POINTS
    name: InstanceWord


class ListObjectivesVerb(_Verb):
    """Whether the objectives of each instance are met."""

    kind: Literal[VerbKind.OBJECTIVE_LIST] = VerbKind.OBJECTIVE_LIST


class ListDrillsVerb(_Verb):
    """The newest drills of an instance."""

    kind: Literal[VerbKind.DRILL_LIST] = VerbKind.DRILL_LIST
    instance: InstanceWord
    limit: DrillCount = 100


class ListEvidenceVerb(_Verb):
    """Records of the evidence log of an instance, after the one of that number."""

    kind: Literal[VerbKind.EVIDENCE_LIST] = VerbKind.EVIDENCE_LIST
    instance: InstanceWord
    after: RecordNumber = 0
    limit: RecordCount = 100


class ListFleetVerb(_Verb):
    """All instances of all hosts, as they were read last."""

    kind: Literal[VerbKind.FLEET_LIST] = VerbKind.FLEET_LIST
    asked: FleetQuery = FleetQuery()


ChangeOfClone = (
    ResetCloneVerb | ExtendCloneVerb | ProtectCloneVerb | UnprotectCloneVerb | CommitCloneVerb | DestroyCloneVerb
)
ProtectionRead = InstancePointsVerb | ListObjectivesVerb | ListDrillsVerb | ListEvidenceVerb
"""What is asked about the protection of instances."""
CloneRead = GetSubjectVerb | ListInstancesVerb | ListClonesVerb | GetCloneVerb | CloneLogsVerb | BeatCloneVerb
RoleVerb = (
    CloneRead
    | CreateCloneVerb
    | ChangeOfClone
    | GetOperationVerb
    | CancelOperationVerb
    | ProtectionRead
    | ListFleetVerb
)
"""What needs a token, whose role decides about it."""
Verb = Annotated[RoleVerb | LoginVerb, Field(discriminator="kind")]


class HelperRequest(BaseModel):
    """What is asked for, with the token as the web process received it."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    token: BearerToken
    verb: Verb

    def line(self) -> bytes:
        """Return the request as it is sent."""
        return self.model_dump_json(by_alias=True).encode() + b"\n"


_REQUEST: TypeAdapter[HelperRequest] = TypeAdapter(HelperRequest)


def parse(line: bytes) -> HelperRequest:
    """Return the request in a line. UsageError, which repeats no value of it, if it is none."""
    try:
        return _REQUEST.validate_json(line)
    except ValidationError as error:
        raise UsageError(
            f"the request is not valid: {explained(error)}", hint="`GET /api/v1/openapi.json` says what is known"
        ) from None


def explained(error: ValidationError) -> str:
    """Return what is wrong with which field, without any value that was given."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{_place(one['loc'])}: {one['msg']}" for one in found[:5])


def _place(path: tuple[int | str, ...]) -> str:
    # The name of an unknown field is text of the sender. It is shown shortened; an error escapes it.
    return ".".join(str(part)[:40] for part in path) or "the line"
