"""What can be asked for: each verb with who may, its route, its command, and what is sent with it.

No field names an owner, a program, a file or an address, and none can turn masking off. A verb is declared here alone;
what root accepts of it from others is written out in `COMMANDS` and `SERVED`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from zsnapdb.documents import api
from zsnapdb.verbs import values
from zsnapdb.verbs.roles import ALL, CHANGES, SEES_ALL, Role


@dataclass(frozen=True)
class VerbRoute:
    """How the API is asked for a verb, and how it answers: with a document of the command line, or of this model.

    What is sent stands in the query of GET and DELETE, else in the body. `can_be_empty`: the body may be left out.
    """

    name: str
    method: Literal["GET", "POST", "DELETE"]
    path: str
    answers: str | type[BaseModel] | None = None
    status: int = 200
    can_be_empty: bool = False


class VerbKind(StrEnum):
    """What the helper can be asked for."""

    SUBJECT_GET = "subject.get"
    INSTANCE_LIST = "instance.list"
    CLONE_LIST = "clone.list"
    CLONE_GET = "clone.get"
    CLONE_CREATE = "clone.create"
    CLONE_RESET = "clone.reset"
    CLONE_EXTEND = "clone.extend"
    CLONE_PROTECT = "clone.protect"
    CLONE_UNPROTECT = "clone.unprotect"
    CLONE_COMMIT = "clone.commit"
    CLONE_LOGS = "clone.logs"
    CLONE_BEAT = "clone.beat"
    CLONE_DESTROY = "clone.destroy"
    BRANCH_LIST = "clone.branch.list"
    BRANCH_LOG = "clone.branch.log"
    BRANCH_CREATE = "clone.branch.create"
    BRANCH_SWITCH = "clone.branch.switch"
    BRANCH_DIFF = "clone.branch.diff"
    BRANCH_DELETE = "clone.branch.delete"
    OPERATION_GET = "operation.get"
    OPERATION_CANCEL = "operation.cancel"
    OPERATION_WATCH = "operation.watch"
    INSTANCE_POINTS = "instance.points"
    OBJECTIVE_LIST = "objective.list"
    DRILL_LIST = "drill.list"
    EVIDENCE_LIST = "evidence.list"
    FLEET_LIST = "fleet.list"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class NewClone(_Strict):
    """What is wanted of a new clone: of the newest set, as of a point (`at`), or of a set or commit (`from`).

    `mask` asks for masking where the site does not demand it. With `heartbeat` it goes if its holder does not say so
    often that it is there.
    """

    instance: values.InstanceWord
    name: values.Name | None = None
    at: values.Point | None = None
    source: Annotated[values.SetId | None, Field(alias="from")] = None
    ttl: values.Duration | None = None
    profile: Literal["tiny", "normal"] | None = None
    mask: Annotated[bool, Field(strict=True)] = False
    heartbeat: values.Duration | None = None

    @model_validator(mode="after")
    def _is_of_one_state(self) -> NewClone:
        if self.at is not None and self.source is not None:
            raise ValueError("give from or at, not both")
        return self


class NewProtection(_Strict):
    """For how long a clone is kept from `zsnapdb reap`, from now on."""

    time: Annotated[values.Duration, Field(alias="for")]


class NewCommit(_Strict):
    """What is wanted of a new commit: a description of the data, on one line."""

    message: values.CommitMessage = ""


class NewBranch(_Strict):
    """What is wanted of a new branch: its name, and where it begins, a branch or commit (None: the present state)."""

    branch: values.BranchWord
    start: Annotated[values.BranchWord | None, Field(alias="from")] = None


class ChosenBranch(_Strict):
    """A branch of a clone."""

    branch: values.BranchWord


class TwoStates(_Strict):
    """Two branches or commits of a clone, and how many rows that differ are wanted of each table."""

    before: values.BranchWord
    after: values.BranchWord
    limit: values.DifferentRows = 10


class NewLease(_Strict):
    """How long a clone stays from now on (None: as long as a new one)."""

    ttl: values.Duration | None = None


class FleetQuery(_Strict):
    """Which instances of a fleet are wanted (patterns of names, such as db-*), in which order, and how many of them.

    `red`: only those that are not met. `after` are left out at the beginning.
    """

    red: bool = False
    instance: values.NamePattern | None = None
    host: values.NamePattern | None = None
    repository: values.NamePattern | None = None
    sort: Literal["red", "instance", "host", "age", "stored"] = "red"
    after: Annotated[int, Field(ge=0, le=values.MOST_INSTANCES)] = 0
    most: Annotated[int, Field(ge=1, le=values.MOST_INSTANCES)] = values.MOST_INSTANCES

    @property
    def filters(self) -> tuple[str, ...]:
        """The same as `zsnapdb fleet status --where` takes it."""
        named = {"instance": self.instance, "host": self.host, "repository": self.repository}
        patterns = tuple(f"{name}={pattern}" for name, pattern in named.items() if pattern is not None)
        return ("red", *patterns) if self.red else patterns


_FLAG = None


@dataclass(frozen=True)
class DelegatedCommand:
    """A command for people without root: what it runs, its words in order, its options, the form of each value.

    A word in brackets may be left out.
    """

    runs: str
    help: str
    words: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    options: Mapping[str, re.Pattern[str] | None] = field(default_factory=dict)


_NAME = {"NAME": values.CLONE}
_BRANCH = {**_NAME, "BRANCH": values.BRANCH}
_SHOWN: Mapping[str, re.Pattern[str] | None] = {"--json": _FLAG}
_PLANNED: Mapping[str, re.Pattern[str] | None] = {"--plan": _FLAG, "--json": _FLAG}
_CREATE: Mapping[str, re.Pattern[str] | None] = {
    "--from": values.SOURCE,
    "--at": values.POINT,
    "--ttl": values.DURATION,
    "--heartbeat": values.DURATION,
    "--profile": values.PROFILE,
    "--mask": _FLAG,
    "--no-start": _FLAG,
    **_PLANNED,
}
COMMANDS: Mapping[str, DelegatedCommand] = {
    "create": DelegatedCommand(
        "clone create", "make a clone of an instance", {"INSTANCE": values.INSTANCE_NAME, "NAME": values.CLONE}, _CREATE
    ),
    "list": DelegatedCommand("clone list", "list your clones", {}, _SHOWN),
    "login": DelegatedCommand(
        "clone connect",
        "write a file with the login that only you can read, or print the login",
        _NAME,
        {"--dsn": _FLAG, "--env": _FLAG, **_SHOWN},
    ),
    "start": DelegatedCommand("clone start", "start its server", _NAME, _PLANNED),
    "stop": DelegatedCommand("clone stop", "stop its server", _NAME, _PLANNED),
    "reset": DelegatedCommand(
        "clone reset", "give it its first data again", _NAME, {"--from": values.SOURCE, **_PLANNED}
    ),
    "extend": DelegatedCommand("clone extend", "extend its lease", _NAME, {"--ttl": values.DURATION, **_PLANNED}),
    "heartbeat": DelegatedCommand("clone heartbeat", "send a heartbeat for it", _NAME, _SHOWN),
    "keep": DelegatedCommand("clone keep", "keep it for a program, which asks for resets on stdin", _NAME, _SHOWN),
    "destroy": DelegatedCommand("clone destroy", "destroy it", _NAME, _PLANNED),
}

FORMER_NAMES: Mapping[str, str] = {"beat": "heartbeat", "hold": "keep"}
"""Former names of commands, which still work but are not shown."""

SERVED: Mapping[str, DelegatedCommand] = {
    **COMMANDS,
    # How much a clone may write is for the helper to say, and for nobody who asks.
    "create": replace(COMMANDS["create"], options={**_CREATE, "--quota": values.BYTES}),
    "protect": DelegatedCommand(
        "clone protect",
        "keep it from `zsnapdb reap` for a time; 0s ends that",
        _NAME,
        {"--for": values.DURATION, **_PLANNED},
    ),
    "commit": DelegatedCommand(
        "clone commit", "keep its present state, for clones of it", _NAME, {"--message": values.MESSAGE, **_PLANNED}
    ),
    "logs": DelegatedCommand(
        "clone logs", "show the end of its server's log", _NAME, {"--lines": values.LINES, **_SHOWN}
    ),
    "branch.list": DelegatedCommand("clone branch list", "list its branches", _NAME, _SHOWN),
    "branch.log": DelegatedCommand(
        "clone branch log", "list the commits of a branch", {**_NAME, "[OF]": values.BRANCH}, _SHOWN
    ),
    "branch.create": DelegatedCommand(
        "clone branch create", "begin a branch", _BRANCH, {"--from": values.BRANCH, **_PLANNED}
    ),
    "branch.switch": DelegatedCommand("clone branch switch", "give it another branch", _BRANCH, _PLANNED),
    "branch.diff": DelegatedCommand(
        "clone branch diff",
        "compare two of its states",
        {**_NAME, "BEFORE": values.BRANCH, "AFTER": values.BRANCH},
        {"--limit": values.ROWS, "--size": values.BYTES, **_SHOWN},
    ),
    "branch.delete": DelegatedCommand("clone branch delete", "forget a branch", _BRANCH, _PLANNED),
}
"""What the helper of `zsnapdb serve` runs, whose limits hold for these too."""


_OPERATION = "/operations/{id}"
_CLONE = "/clones/{name}"


VERBS: list[type[RoleVerb]] = []
"""Every verb, as they are declared here."""


class RoleVerb(_Strict):
    """What needs a token, whose role decides about it. `is_slow`: the answer may be that an operation has begun.

    `command` names the command that is run for it, in `SERVED`; `fixed` are options that nobody chooses.
    """

    users: ClassVar[frozenset[Role]]
    route: ClassVar[VerbRoute | None] = None
    command: ClassVar[str] = ""
    fixed: ClassVar[Mapping[str, object]] = {}
    is_slow: ClassVar[bool] = False
    kind: VerbKind

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Keep each class that is a verb. pydantic calls it."""
        if "kind" in cls.__annotations__:
            VERBS.append(cls)


class AboutClone(RoleVerb):
    """What is asked about one clone."""

    name: values.Name


class CloneDeed(AboutClone):
    """What a command does with a clone that is there; it may take long.

    A second request with the same key and content has the answer of the first.
    """

    users = CHANGES
    is_slow = True
    key: values.IdempotencyKey | None = None

    @property
    def time(self) -> str | None:
        """The time that is asked for (None: as a new clone has)."""
        return None


class AboutOperation(RoleVerb):
    """What is asked about an operation by who began it, and by nobody else: its result can have a login."""

    users = CHANGES
    id: values.OperationId


class AboutNothing(RoleVerb):
    """What is about no clone and no operation: the role alone decides."""


class ToldOfClone(AboutClone):
    """What a command tells of a clone."""


class ProtectionRead(AboutNothing):
    """What is asked about the protection of instances."""


class GetSubjectVerb(AboutNothing):
    """Whoever asks: subject, role, until when the token is valid, and the limits of its clones."""

    kind: Literal[VerbKind.SUBJECT_GET] = VerbKind.SUBJECT_GET
    users = ALL


class ListInstancesVerb(AboutNothing):
    """List the instances that clones can be made of."""

    kind: Literal[VerbKind.INSTANCE_LIST] = VerbKind.INSTANCE_LIST
    users, route = ALL, VerbRoute("instances", "GET", "/instances")


class InstancePointsVerb(ProtectionRead):
    """Show of which states of an instance clones can be made: times for `at`, sets for `from`."""

    kind: Literal[VerbKind.INSTANCE_POINTS] = VerbKind.INSTANCE_POINTS
    users, route = ALL, VerbRoute("points", "GET", "/instances/{name}/points", api.PointsDocument)
    name: values.InstanceWord


class ListClonesVerb(AboutNothing):
    """List the clones that you may see."""

    kind: Literal[VerbKind.CLONE_LIST] = VerbKind.CLONE_LIST
    users, route = ALL, VerbRoute("clones", "GET", "/clones")


class CreateCloneVerb(RoleVerb):
    """Make a clone. The answer has its login, once. 202 with an operation if it takes longer."""

    kind: Literal[VerbKind.CLONE_CREATE] = VerbKind.CLONE_CREATE
    users, route = CHANGES, VerbRoute("create", "POST", "/clones", "clone", 201)
    command, is_slow = "create", True
    wanted: NewClone
    key: values.IdempotencyKey | None = None


class GetCloneVerb(AboutClone):
    """Show one clone."""

    kind: Literal[VerbKind.CLONE_GET] = VerbKind.CLONE_GET
    users, route = ALL, VerbRoute("clone", "GET", _CLONE)


class DestroyCloneVerb(CloneDeed):
    """Destroy a clone."""

    kind: Literal[VerbKind.CLONE_DESTROY] = VerbKind.CLONE_DESTROY
    command = "destroy"
    route = VerbRoute("destroy", "DELETE", _CLONE, "clone-destroyed")


class ResetCloneVerb(CloneDeed):
    """Give a clone its first data again."""

    kind: Literal[VerbKind.CLONE_RESET] = VerbKind.CLONE_RESET
    command, route = "reset", VerbRoute("reset", "POST", f"{_CLONE}/reset", "clone-reset")


class ExtendCloneVerb(CloneDeed):
    """Extend the lease of a clone."""

    kind: Literal[VerbKind.CLONE_EXTEND] = VerbKind.CLONE_EXTEND
    command, route = "extend", VerbRoute("extend", "POST", f"{_CLONE}/extend", "clone-changed")
    lease: NewLease = NewLease()

    @property
    def time(self) -> str | None:
        return self.lease.ttl


class ProtectCloneVerb(CloneDeed):
    """Keep a clone from `zsnapdb reap` for some time."""

    kind: Literal[VerbKind.CLONE_PROTECT] = VerbKind.CLONE_PROTECT
    command, route = "protect", VerbRoute("protect", "POST", f"{_CLONE}/protect", "clone-changed")
    protection: NewProtection

    @property
    def time(self) -> str | None:
        return self.protection.time


class UnprotectCloneVerb(CloneDeed):
    """End the protection of a clone."""

    kind: Literal[VerbKind.CLONE_UNPROTECT] = VerbKind.CLONE_UNPROTECT
    command, route = "protect", VerbRoute("unprotect", "POST", f"{_CLONE}/unprotect", "clone-changed")
    fixed = {"for": "0s"}


class CommitCloneVerb(CloneDeed):
    """Keep the present state of a clone. `from` of a new clone takes the `id` of the answer."""

    kind: Literal[VerbKind.CLONE_COMMIT] = VerbKind.CLONE_COMMIT
    command, route = "commit", VerbRoute("commit", "POST", f"{_CLONE}/commit", "clone-commit", can_be_empty=True)
    commit: NewCommit = NewCommit()


class ListBranchesVerb(ToldOfClone):
    """List the branches of a clone, each with its newest commit."""

    kind: Literal[VerbKind.BRANCH_LIST] = VerbKind.BRANCH_LIST
    users, command = ALL, "branch.list"
    route = VerbRoute("branches", "GET", f"{_CLONE}/branches", "clone-branches")


class CreateBranchVerb(CloneDeed):
    """Begin a branch of a clone: at `from`, else at the present state, which is committed if need be."""

    kind: Literal[VerbKind.BRANCH_CREATE] = VerbKind.BRANCH_CREATE
    command, route = "branch.create", VerbRoute("create_branch", "POST", f"{_CLONE}/branches", "clone-branches", 201)
    wanted: NewBranch


class DeleteBranchVerb(CloneDeed):
    """Forget a branch of a clone. Its commits stay as long as the clone."""

    kind: Literal[VerbKind.BRANCH_DELETE] = VerbKind.BRANCH_DELETE
    command, route = "branch.delete", VerbRoute("delete_branch", "DELETE", f"{_CLONE}/branches", "clone-branches")
    chosen: ChosenBranch


class SwitchBranchVerb(CloneDeed):
    """Give a clone the newest commit of another branch. What was written on the one that is left is committed."""

    kind: Literal[VerbKind.BRANCH_SWITCH] = VerbKind.BRANCH_SWITCH
    command, route = "branch.switch", VerbRoute("switch_branch", "POST", f"{_CLONE}/switch", "clone-switched")
    chosen: ChosenBranch


class LogBranchVerb(ToldOfClone):
    """List the commits that lead to a branch or a commit of a clone, newest first."""

    model_config = ConfigDict(populate_by_name=True)
    kind: Literal[VerbKind.BRANCH_LOG] = VerbKind.BRANCH_LOG
    users, command = ALL, "branch.log"
    route = VerbRoute("commits", "GET", f"{_CLONE}/commits", "clone-branch-log")
    state: Annotated[values.BranchWord | None, Field(alias="of")] = None


class DiffBranchesVerb(CloneDeed):
    """Compare two branches or commits of a clone: definitions, and rows by table. It takes ten minutes at most."""

    kind: Literal[VerbKind.BRANCH_DIFF] = VerbKind.BRANCH_DIFF
    command, route = "branch.diff", VerbRoute("diff", "POST", f"{_CLONE}/diff", "clone-branch-difference")
    # The helper keeps it for a day, as how each operation ended.
    fixed = {"size": f"{256 << 10}B"}
    states: TwoStates


class CloneLogsVerb(ToldOfClone):
    """Show the last lines of the error log of a clone's server, at most 64 KiB. Others chose their text."""

    kind: Literal[VerbKind.CLONE_LOGS] = VerbKind.CLONE_LOGS
    users, command, route = CHANGES, "logs", VerbRoute("logs", "GET", f"{_CLONE}/logs", api.LogsDocument)
    lines: values.LogLines = 100


class BeatCloneVerb(AboutClone):
    """Say that the holder of a clone is there, which was made with `heartbeat`."""

    kind: Literal[VerbKind.CLONE_BEAT] = VerbKind.CLONE_BEAT
    users, route = CHANGES, VerbRoute("beat", "POST", f"{_CLONE}/heartbeat", api.HeartbeatDocument)


class GetOperationVerb(AboutOperation):
    """Show what became of a request: 202 while it is under way, then the answer that the request would have had."""

    kind: Literal[VerbKind.OPERATION_GET] = VerbKind.OPERATION_GET
    is_slow, route = True, VerbRoute("operation", "GET", _OPERATION)


class CancelOperationVerb(AboutOperation):
    """End a request that is under way: what it began is undone. 202 if that takes longer, 409 if it had ended."""

    kind: Literal[VerbKind.OPERATION_CANCEL] = VerbKind.OPERATION_CANCEL
    is_slow, route = True, VerbRoute("cancel", "DELETE", _OPERATION, api.CancelledOperation)


class WatchOperationVerb(AboutOperation):
    """What an operation is about, and its ending if it has ended (`WatchedOperation`)."""

    kind: Literal[VerbKind.OPERATION_WATCH] = VerbKind.OPERATION_WATCH


class ListObjectivesVerb(ProtectionRead):
    """Show whether the objectives of each instance are met."""

    kind: Literal[VerbKind.OBJECTIVE_LIST] = VerbKind.OBJECTIVE_LIST
    users, route = ALL, VerbRoute("objectives", "GET", "/objectives", api.ObjectivesDocument)


class ListDrillsVerb(ProtectionRead):
    """List the newest drills of an instance."""

    kind: Literal[VerbKind.DRILL_LIST] = VerbKind.DRILL_LIST
    users, route = ALL, VerbRoute("drills", "GET", "/drills", api.ToldDrills)
    instance: values.InstanceWord
    limit: values.DrillCount = 100


class ListEvidenceVerb(ProtectionRead):
    """List records of the evidence log of an instance by number, after the one that `after` names."""

    kind: Literal[VerbKind.EVIDENCE_LIST] = VerbKind.EVIDENCE_LIST
    users, route = SEES_ALL, VerbRoute("evidence", "GET", "/evidence", api.EvidenceDocument)
    instance: values.InstanceWord
    after: values.RecordNumber = 0
    limit: values.RecordCount = 100


class ListFleetVerb(AboutNothing):
    """List all instances of all hosts, red first, as they were read last."""

    kind: Literal[VerbKind.FLEET_LIST] = VerbKind.FLEET_LIST
    users, route = SEES_ALL | {Role.VIEWER}, VerbRoute("fleet", "GET", "/fleet", "fleet-status")
    asked: FleetQuery = FleetQuery()
