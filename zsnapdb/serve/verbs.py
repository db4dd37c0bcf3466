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
BranchWord = Annotated[str, _form(delegation.BRANCH)]
"""A branch of a clone or, where a state is wanted, a commit of it."""
OperationId = Annotated[str, StringConstraints(pattern=rf"^(?:{run_id.PATTERN})$", strict=True)]
IdempotencyKey = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$", strict=True)]
BearerToken = Annotated[str, StringConstraints(pattern=rf"^[!-~]{{0,{MOST_OF_BEARER}}}$", strict=True)]


MOST_LOG_LINES = 999
MOST_DIFFERENT_ROWS = 999
MOST_RECORDS = 500
MOST_DRILLS = 1000
LogLines = Annotated[int, Field(ge=1, le=MOST_LOG_LINES)]
DifferentRows = Annotated[int, Field(ge=0, le=MOST_DIFFERENT_ROWS)]
RecordNumber = Annotated[int, Field(ge=0, le=99_999_999)]
RecordCount = Annotated[int, Field(ge=1, le=MOST_RECORDS)]
DrillCount = Annotated[int, Field(ge=1, le=MOST_DRILLS)]


MOST_INSTANCES = 10_000
NamePattern = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.*?\[\]!-]{1,100}$", strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class NewClone(_Strict):
    """What is wanted of a new clone: of the newest set, as of a point (`at`), or of a set or commit (`from`).

    `mask` asks for masking where the site does not demand it. With `heartbeat` it goes if its holder does not say so
    often that it is there.
    """

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


class NewProtection(_Strict):
    """For how long a clone is kept from `zsnapdb reap`, from now on."""

    time: Annotated[Duration, Field(alias="for")]


class NewCommit(_Strict):
    """What is wanted of a new commit: a description of the data, on one line."""

    message: CommitMessage = ""


class NewBranch(_Strict):
    """What is wanted of a new branch: its name, and where it begins, a branch or commit (None: the present state)."""

    branch: BranchWord
    start: Annotated[BranchWord | None, Field(alias="from")] = None


class ChosenBranch(_Strict):
    """A branch of a clone."""

    branch: BranchWord


class TwoStates(_Strict):
    """Two branches or commits of a clone, and how many rows that differ are wanted of each table."""

    before: BranchWord
    after: BranchWord
    limit: DifferentRows = 10


class NewLease(_Strict):
    """How long a clone stays from now on (None: as long as a new one)."""

    ttl: Duration | None = None


class FleetQuery(_Strict):
    """Which instances of a fleet are wanted (patterns of names, such as db-*), in which order, and how many of them.

    `red`: only those that are not met. `after` are left out at the beginning.
    """

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


class _AboutClone(_Strict):
    name: Name


class _Deed(_AboutClone):
    """What a command does with a clone. A second request with the same key and content has the answer of the first."""

    key: IdempotencyKey | None = None


class GetSubjectVerb(_Strict):
    """Whoever asks: subject, role, until when the token is valid, and the limits of its clones."""

    kind: Literal[VerbKind.SUBJECT_GET] = VerbKind.SUBJECT_GET


class ListInstancesVerb(_Strict):
    """The instances that clones can be made of."""

    kind: Literal[VerbKind.INSTANCE_LIST] = VerbKind.INSTANCE_LIST


class ListClonesVerb(_Strict):
    """The clones that the subject sees."""

    kind: Literal[VerbKind.CLONE_LIST] = VerbKind.CLONE_LIST


class GetCloneVerb(_AboutClone):
    """One clone."""

    kind: Literal[VerbKind.CLONE_GET] = VerbKind.CLONE_GET


class CreateCloneVerb(_Strict):
    """A new clone. A second request with the same key and content begins nothing: it has the answer of the first."""

    kind: Literal[VerbKind.CLONE_CREATE] = VerbKind.CLONE_CREATE
    wanted: NewClone
    key: IdempotencyKey | None = None


class ResetCloneVerb(_Deed):
    """The first data of a clone again."""

    kind: Literal[VerbKind.CLONE_RESET] = VerbKind.CLONE_RESET


class ExtendCloneVerb(_Deed):
    """A longer lease."""

    kind: Literal[VerbKind.CLONE_EXTEND] = VerbKind.CLONE_EXTEND
    lease: NewLease = NewLease()


class ProtectCloneVerb(_Deed):
    """A time in which `zsnapdb reap` leaves a clone alone."""

    kind: Literal[VerbKind.CLONE_PROTECT] = VerbKind.CLONE_PROTECT
    protection: NewProtection


class UnprotectCloneVerb(_Deed):
    """The end of that time."""

    kind: Literal[VerbKind.CLONE_UNPROTECT] = VerbKind.CLONE_UNPROTECT


class CommitCloneVerb(_Deed):
    """A snapshot set of a clone, of which clones can be made."""

    kind: Literal[VerbKind.CLONE_COMMIT] = VerbKind.CLONE_COMMIT
    commit: NewCommit = NewCommit()


class ListBranchesVerb(_AboutClone):
    """The branches of a clone."""

    kind: Literal[VerbKind.BRANCH_LIST] = VerbKind.BRANCH_LIST


class LogBranchVerb(_AboutClone):
    """The commits that lead to a branch or a commit of a clone (None: the branch that it is on)."""

    kind: Literal[VerbKind.BRANCH_LOG] = VerbKind.BRANCH_LOG
    state: BranchWord | None = None


class CreateBranchVerb(_Deed):
    """One branch of a clone more."""

    kind: Literal[VerbKind.BRANCH_CREATE] = VerbKind.BRANCH_CREATE
    wanted: NewBranch


class SwitchBranchVerb(_Deed):
    """The data of another branch."""

    kind: Literal[VerbKind.BRANCH_SWITCH] = VerbKind.BRANCH_SWITCH
    chosen: ChosenBranch


class DiffBranchesVerb(_Deed):
    """How two states of a clone differ. It changes nothing, and takes two servers as long as it lasts."""

    kind: Literal[VerbKind.BRANCH_DIFF] = VerbKind.BRANCH_DIFF
    states: TwoStates


class DeleteBranchVerb(_Deed):
    """The end of a branch; its commits stay."""

    kind: Literal[VerbKind.BRANCH_DELETE] = VerbKind.BRANCH_DELETE
    chosen: ChosenBranch


class CloneLogsVerb(_AboutClone):
    """The end of the error log of a clone's server."""

    kind: Literal[VerbKind.CLONE_LOGS] = VerbKind.CLONE_LOGS
    lines: LogLines = 100


class BeatCloneVerb(_AboutClone):
    """What the holder of a clone says so that it stays."""

    kind: Literal[VerbKind.CLONE_BEAT] = VerbKind.CLONE_BEAT


class DestroyCloneVerb(_Deed):
    """The end of a clone."""

    kind: Literal[VerbKind.CLONE_DESTROY] = VerbKind.CLONE_DESTROY


class GetOperationVerb(_Strict):
    """What became of a request that took long."""

    kind: Literal[VerbKind.OPERATION_GET] = VerbKind.OPERATION_GET
    id: OperationId


class CancelOperationVerb(_Strict):
    """The end of a request that is under way."""

    kind: Literal[VerbKind.OPERATION_CANCEL] = VerbKind.OPERATION_CANCEL
    id: OperationId


class WatchOperationVerb(_Strict):
    """What an operation is about, and its ending if it has ended (`WatchedOperation`)."""

    kind: Literal[VerbKind.OPERATION_WATCH] = VerbKind.OPERATION_WATCH
    id: OperationId


class InstancePointsVerb(_Strict):
    """The states of an instance of which clones can be made."""

    kind: Literal[VerbKind.INSTANCE_POINTS] = VerbKind.INSTANCE_POINTS
    name: InstanceWord


class ListObjectivesVerb(_Strict):
    """Whether the objectives of each instance are met."""

    kind: Literal[VerbKind.OBJECTIVE_LIST] = VerbKind.OBJECTIVE_LIST


class ListDrillsVerb(_Strict):
    """The newest drills of an instance."""

    kind: Literal[VerbKind.DRILL_LIST] = VerbKind.DRILL_LIST
    instance: InstanceWord
    limit: DrillCount = 100


class ListEvidenceVerb(_Strict):
    """Records of the evidence log of an instance, after the one of that number."""

    kind: Literal[VerbKind.EVIDENCE_LIST] = VerbKind.EVIDENCE_LIST
    instance: InstanceWord
    after: RecordNumber = 0
    limit: RecordCount = 100


class ListFleetVerb(_Strict):
    """All instances of all hosts, as they were read last."""

    kind: Literal[VerbKind.FLEET_LIST] = VerbKind.FLEET_LIST
    asked: FleetQuery = FleetQuery()


CloneDeed = (
    ResetCloneVerb
    | ExtendCloneVerb
    | ProtectCloneVerb
    | UnprotectCloneVerb
    | CommitCloneVerb
    | CreateBranchVerb
    | SwitchBranchVerb
    | DiffBranchesVerb
    | DeleteBranchVerb
    | DestroyCloneVerb
)
"""What a command does with a clone that is there; it may take long."""
ToldOfClone = CloneLogsVerb | ListBranchesVerb | LogBranchVerb
"""What a command tells of a clone."""
ProtectionRead = InstancePointsVerb | ListObjectivesVerb | ListDrillsVerb | ListEvidenceVerb
"""What is asked about the protection of instances."""
CloneRead = GetSubjectVerb | ListInstancesVerb | ListClonesVerb | GetCloneVerb | ToldOfClone | BeatCloneVerb
RoleVerb = (
    CloneRead
    | CreateCloneVerb
    | CloneDeed
    | GetOperationVerb
    | WatchOperationVerb
    | CancelOperationVerb
    | ProtectionRead
    | ListFleetVerb
)
"""What needs a token, whose role decides about it."""
Verb = Annotated[RoleVerb | LoginVerb, Field(discriminator="kind")]


class HelperRequest(_Strict):
    """What is asked for, with the token as the web process received it."""

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
