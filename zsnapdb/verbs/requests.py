"""All requests: each verb with its roles, route, command and parameters.

No field accepts an owner, a program, a file or an address, and no field can turn masking off. A verb is declared only
here. `COMMANDS` and `SERVED` list the arguments that root accepts from other accounts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from zsnapdb.documents import api
from zsnapdb.verbs import argument_patterns as patterns
from zsnapdb.verbs.argument_patterns import ALL, CHANGES, SEES_ALL, Role


@dataclass(frozen=True)
class VerbRoute:
    """API route of a verb. `answers` is the type of the answer: a document kind of the command line, or a model.

    GET and DELETE have parameters in the query, other methods in the body. `can_be_empty` is True if the body may be
    missing.
    """

    name: str
    method: Literal["GET", "POST", "DELETE"]
    path: str
    answers: str | type[BaseModel] | None = None
    status: int = 200
    can_be_empty: bool = False


class VerbKind(StrEnum):
    """Kinds of requests to the helper."""

    SUBJECT_GET = "subject.get"
    INSTANCE_LIST = "instance.list"
    CLONE_LIST = "clone.list"
    CLONE_GET = "clone.get"
    CLONE_CREATE = "clone.create"
    CLONE_RESET = "clone.reset"
    CLONE_START = "clone.start"
    CLONE_STOP = "clone.stop"
    CLONE_EXTEND = "clone.extend"
    CLONE_PROTECT = "clone.protect"
    CLONE_UNPROTECT = "clone.unprotect"
    CLONE_COMMIT = "clone.commit"
    CLONE_LOGS = "clone.logs"
    CLONE_LOGIN = "clone.login"
    CLONE_NEW_LOGIN = "clone.login.new"
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
    """Request for a new clone of the newest snapshot set, a point (`at`), or a snapshot set or commit (`from`).

    `mask` requests masking even if the configuration does not require it. With `heartbeat`, the clone is destroyed if
    no heartbeat arrives within this time. `fresh` requests the newest data even if a pool clone is available.
    """

    instance: patterns.InstanceWord
    name: patterns.Name | None = None
    at: patterns.Point | None = None
    source: Annotated[patterns.SetId | None, Field(alias="from")] = None
    ttl: patterns.Duration | None = None
    profile: Literal["tiny", "normal"] | None = None
    mask: Annotated[bool, Field(strict=True)] = False
    heartbeat: patterns.Duration | None = None
    fresh: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _is_of_one_state(self) -> NewClone:
        if self.at is not None and self.source is not None:
            raise ValueError("give from or at, not both")
        return self


class NewProtection(_Strict):
    """Length of a clone's protection from `zsnapdb reap`, counted from now."""

    time: Annotated[patterns.Duration, Field(alias="for")]


class NewCommit(_Strict):
    """Request for a new commit. `message` is a description of the data, on one line."""

    message: patterns.CommitMessage = ""


class NewBranch(_Strict):
    """Request for a branch named `branch`, which starts at the branch or commit `from` (None: the current state)."""

    branch: patterns.BranchWord
    start: Annotated[patterns.BranchWord | None, Field(alias="from")] = None


class ChosenBranch(_Strict):
    """A branch of a clone."""

    branch: patterns.BranchWord


class TwoStates(_Strict):
    """Two branches or commits of a clone. `limit` is the maximum number of differing rows shown per table."""

    before: patterns.BranchWord
    after: patterns.BranchWord
    limit: patterns.DifferentRows = 10


class NewLease(_Strict):
    """Length of a clone's lease from now (None: the lease of a new clone)."""

    ttl: patterns.Duration | None = None


class FleetQuery(_Strict):
    """Selection of a fleet's instances by name patterns, such as db-*, with the order and the maximum number of rows.

    With `red`, only instances with unmet objectives are selected. `after` is the number of skipped instances.
    """

    red: bool = False
    instance: patterns.NamePattern | None = None
    host: patterns.NamePattern | None = None
    repository: patterns.NamePattern | None = None
    sort: Literal["red", "instance", "host", "age", "stored"] = "red"
    after: Annotated[int, Field(ge=0, le=patterns.MOST_INSTANCES)] = 0
    most: Annotated[int, Field(ge=1, le=patterns.MOST_INSTANCES)] = patterns.MOST_INSTANCES

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters as arguments of `zsnapdb fleet status --where`."""
        named = {"instance": self.instance, "host": self.host, "repository": self.repository}
        filters = tuple(f"{name}={pattern}" for name, pattern in named.items() if pattern is not None)
        return ("red", *filters) if self.red else filters


_FLAG = None


@dataclass(frozen=True)
class DelegatedCommand:
    """A command for users without root rights: its zsnapdb command, ordered arguments, options, and patterns of values.

    An argument in brackets is optional.
    """

    runs: str
    help: str
    words: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    options: Mapping[str, re.Pattern[str] | None] = field(default_factory=dict)

    @property
    def accepted(self) -> Mapping[str, re.Pattern[str] | None]:
        """The options of the command, and `--guid` if the command is about an existing clone."""
        is_about_clone = "NAME" in self.words and self.runs != "clone create"
        return {**self.options, **({"--guid": patterns.CLONE_GUID} if is_about_clone else {})}


_NAME = {"NAME": patterns.CLONE}
_BRANCH = {**_NAME, "BRANCH": patterns.BRANCH}
_SHOWN: Mapping[str, re.Pattern[str] | None] = {"--json": _FLAG}
_PLANNED: Mapping[str, re.Pattern[str] | None] = {"--plan": _FLAG, "--json": _FLAG}
_CREATE: Mapping[str, re.Pattern[str] | None] = {
    "--from": patterns.SOURCE,
    "--at": patterns.POINT,
    "--ttl": patterns.DURATION,
    "--heartbeat": patterns.DURATION,
    "--profile": patterns.PROFILE,
    **dict.fromkeys(("--mask", "--fresh", "--no-start"), _FLAG),
    **_PLANNED,
}
COMMANDS: Mapping[str, DelegatedCommand] = {
    "create": DelegatedCommand(
        "clone create", "create a clone of an instance", {"INSTANCE": patterns.INSTANCE_NAME, **_NAME}, _CREATE
    ),
    "list": DelegatedCommand("clone list", "list your clones", {}, _SHOWN),
    "login": DelegatedCommand(
        "clone login",
        "write a file with the login that only you can read, or print the login",
        _NAME,
        {"--new": _FLAG, "--dsn": _FLAG, "--env": _FLAG, **_SHOWN},
    ),
    "start": DelegatedCommand("clone start", "start its server", _NAME, _PLANNED),
    "stop": DelegatedCommand("clone stop", "stop its server", _NAME, _PLANNED),
    "reset": DelegatedCommand(
        "clone reset", "reset it to its original data", _NAME, {"--from": patterns.SOURCE, **_PLANNED}
    ),
    "extend": DelegatedCommand("clone extend", "extend its lease", _NAME, {"--ttl": patterns.DURATION, **_PLANNED}),
    "heartbeat": DelegatedCommand("clone heartbeat", "send a heartbeat for it", _NAME, _SHOWN),
    "keep": DelegatedCommand("clone keep", "keep it for a program, which asks for resets on stdin", _NAME, _SHOWN),
    "destroy": DelegatedCommand("clone destroy", "destroy it", _NAME, _PLANNED),
}

FORMER_NAMES: Mapping[str, str] = {"beat": "heartbeat", "hold": "keep"}
"""Former names of commands. These names still work, but the help does not show them."""

SERVED: Mapping[str, DelegatedCommand] = {
    **COMMANDS,
    # The helper sets the quota, and the caller cannot.
    "create": replace(COMMANDS["create"], options={**_CREATE, "--quota": patterns.BYTES}),
    "protect": DelegatedCommand(
        "clone protect",
        "protect it from `zsnapdb reap` for a time; 0s ends the protection",
        _NAME,
        {"--for": patterns.DURATION, **_PLANNED},
    ),
    "commit": DelegatedCommand(
        "clone commit", "commit its present state, for clones of it", _NAME, {"--message": patterns.MESSAGE, **_PLANNED}
    ),
    "logs": DelegatedCommand(
        "clone logs", "show the end of its server's log", _NAME, {"--lines": patterns.LINES, **_SHOWN}
    ),
    "branch.list": DelegatedCommand("clone branch list", "list its branches", _NAME, _SHOWN),
    "branch.log": DelegatedCommand(
        "clone branch log", "list the commits of a branch", {**_NAME, "[OF]": patterns.BRANCH}, _SHOWN
    ),
    "branch.create": DelegatedCommand(
        "clone branch create", "create a branch", _BRANCH, {"--from": patterns.BRANCH, **_PLANNED}
    ),
    "branch.switch": DelegatedCommand("clone branch switch", "switch it to another branch", _BRANCH, _PLANNED),
    "branch.diff": DelegatedCommand(
        "clone branch diff",
        "compare two of its states",
        {**_NAME, "BEFORE": patterns.BRANCH, "AFTER": patterns.BRANCH},
        {"--limit": patterns.ROWS, "--size": patterns.BYTES, **_SHOWN},
    ),
    "branch.delete": DelegatedCommand("clone branch delete", "delete a branch", _BRANCH, _PLANNED),
}
"""Commands of the helper of `zsnapdb serve`. The limits of `zsnapdb serve` apply to these commands too."""


_OPERATION = "/operations/{id}"
_CLONE = "/clones/{name}"


VERBS: list[type[RoleVerb]] = []
"""All verbs, in the order of their declaration."""


class RoleVerb(_Strict):
    """A request that needs a token. The token's role decides whether the request is allowed.

    - `is_slow`: whether the answer may only report that an operation has started.
    - `command` is the verb's command in `SERVED`. `fixed` has options that callers cannot choose.
    - `for_owner`: whether only the owner of a clone may send the request, independent of the role.
    """

    users: ClassVar[frozenset[Role]]
    route: ClassVar[VerbRoute | None] = None
    command: ClassVar[str] = ""
    fixed: ClassVar[Mapping[str, object]] = {}
    is_slow: ClassVar[bool] = False
    for_owner: ClassVar[bool] = False
    kind: VerbKind

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Register each class that is a verb. pydantic calls this method."""
        if "kind" in cls.__annotations__:
            VERBS.append(cls)


GUID_HEADER = "Clone-GUID"
"""The API header with the `guid` of the clone that a request is about."""


class AboutClone(RoleVerb):
    """A request about one clone.

    With a `guid`, the request is only about the clone with that GUID. For a later clone with the same name, the answer
    is the same as for a missing clone.
    """

    name: patterns.Name
    guid: patterns.CloneGuid | None = None


class CloneAction(AboutClone):
    """A command on an existing clone. It may take a long time.

    A second request with the same idempotency key and content gets the answer of the first request.
    """

    users = CHANGES
    is_slow = True
    key: patterns.IdempotencyKey | None = None

    @property
    def time(self) -> str | None:
        """The requested time (None means the default for a new clone)."""
        return None


class AboutOperation(RoleVerb):
    """A request about an operation.

    Only the subject that started the operation may send this request, because the result can contain a login.
    """

    users = CHANGES
    id: patterns.OperationId


class AboutNothing(RoleVerb):
    """A request about neither a clone nor an operation. Only the role determines whether it is allowed."""


class CloneQuery(AboutClone):
    """A request that is answered by a command that reads a clone."""


class ProtectionRead(AboutNothing):
    """A request that reads facts about the protection of instances."""


class GetSubjectVerb(AboutNothing):
    """Show the caller: subject, role, end of the token, and the limits of its clones."""

    kind: Literal[VerbKind.SUBJECT_GET] = VerbKind.SUBJECT_GET
    users = ALL


class ListInstancesVerb(AboutNothing):
    """List the instances that can be cloned."""

    kind: Literal[VerbKind.INSTANCE_LIST] = VerbKind.INSTANCE_LIST
    users, route = ALL, VerbRoute("instances", "GET", "/instances")


class InstancePointsVerb(ProtectionRead):
    """Show the states in which an instance can be cloned: times for `at`, and snapshot sets for `from`."""

    kind: Literal[VerbKind.INSTANCE_POINTS] = VerbKind.INSTANCE_POINTS
    users, route = ALL, VerbRoute("points", "GET", "/instances/{name}/points", api.PointsDocument)
    name: patterns.InstanceWord


class ListClonesVerb(AboutNothing):
    """List the clones that you may see."""

    kind: Literal[VerbKind.CLONE_LIST] = VerbKind.CLONE_LIST
    users, route = ALL, VerbRoute("clones", "GET", "/clones")


class CreateCloneVerb(RoleVerb):
    """Create a clone. The answer contains the login, or is 202 with an operation if the creation takes too long."""

    kind: Literal[VerbKind.CLONE_CREATE] = VerbKind.CLONE_CREATE
    users, route = CHANGES, VerbRoute("create", "POST", "/clones", "clone", 201)
    command, is_slow = "create", True
    wanted: NewClone
    key: patterns.IdempotencyKey | None = None


class GetCloneVerb(AboutClone):
    """Show one clone."""

    kind: Literal[VerbKind.CLONE_GET] = VerbKind.CLONE_GET
    users, route = ALL, VerbRoute("clone", "GET", _CLONE)


class DestroyCloneVerb(CloneAction):
    """Destroy a clone."""

    kind: Literal[VerbKind.CLONE_DESTROY] = VerbKind.CLONE_DESTROY
    command = "destroy"
    route = VerbRoute("destroy", "DELETE", _CLONE, "clone-destroyed")


class ResetCloneVerb(CloneAction):
    """Reset a clone to its original data."""

    kind: Literal[VerbKind.CLONE_RESET] = VerbKind.CLONE_RESET
    command, route = "reset", VerbRoute("reset", "POST", f"{_CLONE}/reset", "clone-reset")


class StartCloneVerb(CloneAction):
    """Start the server of a clone. If the server is already running, do nothing."""

    kind: Literal[VerbKind.CLONE_START] = VerbKind.CLONE_START
    command, route = "start", VerbRoute("start", "POST", f"{_CLONE}/start", "clone-changed")


class StopCloneVerb(CloneAction):
    """Stop the server of a clone. The clone keeps its data and its lease."""

    kind: Literal[VerbKind.CLONE_STOP] = VerbKind.CLONE_STOP
    command, route = "stop", VerbRoute("stop", "POST", f"{_CLONE}/stop", "clone-changed")


class ExtendCloneVerb(CloneAction):
    """Extend the lease of a clone."""

    kind: Literal[VerbKind.CLONE_EXTEND] = VerbKind.CLONE_EXTEND
    command, route = "extend", VerbRoute("extend", "POST", f"{_CLONE}/extend", "clone-changed")
    lease: NewLease = NewLease()

    @property
    def time(self) -> str | None:
        return self.lease.ttl


class ProtectCloneVerb(CloneAction):
    """Protect a clone from `zsnapdb reap` for some time."""

    kind: Literal[VerbKind.CLONE_PROTECT] = VerbKind.CLONE_PROTECT
    command, route = "protect", VerbRoute("protect", "POST", f"{_CLONE}/protect", "clone-changed")
    protection: NewProtection

    @property
    def time(self) -> str | None:
        return self.protection.time


class UnprotectCloneVerb(CloneAction):
    """End the protection of a clone."""

    kind: Literal[VerbKind.CLONE_UNPROTECT] = VerbKind.CLONE_UNPROTECT
    command, route = "protect", VerbRoute("unprotect", "POST", f"{_CLONE}/unprotect", "clone-changed")
    fixed = {"for": "0s"}


class CommitCloneVerb(CloneAction):
    """Commit the current state of a clone. The `id` in the answer can be the `from` of a new clone."""

    kind: Literal[VerbKind.CLONE_COMMIT] = VerbKind.CLONE_COMMIT
    command, route = "commit", VerbRoute("commit", "POST", f"{_CLONE}/commit", "clone-commit", can_be_empty=True)
    commit: NewCommit = NewCommit()


class ListBranchesVerb(CloneQuery):
    """List the branches of a clone, each with its newest commit."""

    kind: Literal[VerbKind.BRANCH_LIST] = VerbKind.BRANCH_LIST
    users, command = ALL, "branch.list"
    route = VerbRoute("branches", "GET", f"{_CLONE}/branches", "clone-branches")


class CreateBranchVerb(CloneAction):
    """Create a branch of a clone at `from`, or at the current state, which is committed if necessary."""

    kind: Literal[VerbKind.BRANCH_CREATE] = VerbKind.BRANCH_CREATE
    command, route = "branch.create", VerbRoute("create_branch", "POST", f"{_CLONE}/branches", "clone-branches", 201)
    wanted: NewBranch


class DeleteBranchVerb(CloneAction):
    """Delete a branch of a clone. The branch's commits are kept as long as the clone exists."""

    kind: Literal[VerbKind.BRANCH_DELETE] = VerbKind.BRANCH_DELETE
    command, route = "branch.delete", VerbRoute("delete_branch", "DELETE", f"{_CLONE}/branches", "clone-branches")
    chosen: ChosenBranch


class SwitchBranchVerb(CloneAction):
    """Switch a clone to the newest commit of another branch.

    Uncommitted changes are first committed to the current branch.
    """

    kind: Literal[VerbKind.BRANCH_SWITCH] = VerbKind.BRANCH_SWITCH
    command, route = "branch.switch", VerbRoute("switch_branch", "POST", f"{_CLONE}/switch", "clone-switched")
    chosen: ChosenBranch


class LogBranchVerb(CloneQuery):
    """List the commits that lead to a branch or a commit of a clone, newest first."""

    model_config = ConfigDict(populate_by_name=True)
    kind: Literal[VerbKind.BRANCH_LOG] = VerbKind.BRANCH_LOG
    users, command = ALL, "branch.log"
    route = VerbRoute("commits", "GET", f"{_CLONE}/commits", "clone-branch-log")
    state: Annotated[patterns.BranchWord | None, Field(alias="of")] = None


class DiffBranchesVerb(CloneAction):
    """Compare two branches or commits of a clone: definitions, and rows by table. The time limit is ten minutes."""

    kind: Literal[VerbKind.BRANCH_DIFF] = VerbKind.BRANCH_DIFF
    command, route = "branch.diff", VerbRoute("diff", "POST", f"{_CLONE}/diff", "clone-branch-difference")
    # The helper keeps the answer for a day, as for each operation.
    fixed = {"size": f"{256 << 10}B"}
    states: TwoStates


class CloneLogsVerb(CloneQuery):
    """Show the last lines of the error log of a clone's server, at most 64 KiB. The text is untrusted."""

    kind: Literal[VerbKind.CLONE_LOGS] = VerbKind.CLONE_LOGS
    users, command, route = CHANGES, "logs", VerbRoute("logs", "GET", f"{_CLONE}/logs", api.LogsDocument)
    lines: patterns.LogLines = 100


class LoginOfClone(CloneQuery):
    """The login of a clone. The login is not recorded, so each request for a new password creates another password."""

    users, command, for_owner = CHANGES, "login", True


class GetLoginVerb(LoginOfClone):
    """Show the login of one of your clones."""

    kind: Literal[VerbKind.CLONE_LOGIN] = VerbKind.CLONE_LOGIN
    route = VerbRoute("login", "GET", f"{_CLONE}/login", api.ShownLogin)


class NewLoginVerb(LoginOfClone):
    """Give one of your clones a new password, and show the login. Sessions with the former password end."""

    kind: Literal[VerbKind.CLONE_NEW_LOGIN] = VerbKind.CLONE_NEW_LOGIN
    route = VerbRoute("new_login", "POST", f"{_CLONE}/login", api.ShownLogin)
    fixed = {"new": True}


class BeatCloneVerb(AboutClone):
    """Send a heartbeat for a clone that was created with `heartbeat`."""

    kind: Literal[VerbKind.CLONE_BEAT] = VerbKind.CLONE_BEAT
    users, route = CHANGES, VerbRoute("beat", "POST", f"{_CLONE}/heartbeat", api.HeartbeatDocument)


class GetOperationVerb(AboutOperation):
    """Show an operation's result. The answer is 202 while the operation runs, and then the original answer."""

    kind: Literal[VerbKind.OPERATION_GET] = VerbKind.OPERATION_GET
    is_slow, route = True, VerbRoute("operation", "GET", _OPERATION)


class CancelOperationVerb(AboutOperation):
    """Cancel an operation and undo its changes. The answer is 202 if this is slow, or 409 if it has ended."""

    kind: Literal[VerbKind.OPERATION_CANCEL] = VerbKind.OPERATION_CANCEL
    is_slow, route = True, VerbRoute("cancel", "DELETE", _OPERATION, api.CancelledOperation)


class WatchOperationVerb(AboutOperation):
    """Show the id and subject of an operation, and its result if it has ended (`WatchedOperation`)."""

    kind: Literal[VerbKind.OPERATION_WATCH] = VerbKind.OPERATION_WATCH


class ListObjectivesVerb(ProtectionRead):
    """Show whether the objectives of each instance are met."""

    kind: Literal[VerbKind.OBJECTIVE_LIST] = VerbKind.OBJECTIVE_LIST
    users, route = ALL, VerbRoute("objectives", "GET", "/objectives", api.ObjectivesDocument)


class ListDrillsVerb(ProtectionRead):
    """List the newest drills of an instance."""

    kind: Literal[VerbKind.DRILL_LIST] = VerbKind.DRILL_LIST
    users, route = ALL, VerbRoute("drills", "GET", "/drills", api.PublicDrills)
    instance: patterns.InstanceWord
    limit: patterns.DrillCount = 100


class ListEvidenceVerb(ProtectionRead):
    """List the records after number `after` in an instance's evidence log."""

    kind: Literal[VerbKind.EVIDENCE_LIST] = VerbKind.EVIDENCE_LIST
    users, route = SEES_ALL, VerbRoute("evidence", "GET", "/evidence", api.EvidenceDocument)
    instance: patterns.InstanceWord
    after: patterns.RecordNumber = 0
    limit: patterns.RecordCount = 100


class ListFleetVerb(AboutNothing):
    """List all instances on all hosts, red first, as of the last reading of the fleet."""

    kind: Literal[VerbKind.FLEET_LIST] = VerbKind.FLEET_LIST
    users, route = SEES_ALL | {Role.VIEWER}, VerbRoute("fleet", "GET", "/fleet", "fleet-status")
    asked: FleetQuery = FleetQuery()
