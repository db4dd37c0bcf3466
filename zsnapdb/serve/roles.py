"""What a role may do, as a pure function of the role, the verb, and whose the clone is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What the holder of a token is.

    viewer: reads instances and own clones. developer: has clones of its own. operator: may all with all clones.
    auditor: reads everything, changes nothing.
    """

    VIEWER = "viewer"
    DEVELOPER = "developer"
    OPERATOR = "operator"
    AUDITOR = "auditor"


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


class Belonging(StrEnum):
    """Whose the clone or operation is that a verb is about. NOBODY: it is about none, or about a new one."""

    NOBODY = "nobody"
    OWN = "own"
    OTHERS = "others"


class RoleVerdict(StrEnum):
    """What becomes of a request. HIDDEN is answered as if there were nothing of that name."""

    ALLOWED = "allowed"
    FORBIDDEN = "forbidden"
    HIDDEN = "hidden"


@dataclass(frozen=True)
class RoleDecision:
    """A verdict, and why ("" if it is allowed)."""

    verdict: RoleVerdict
    reason: str = ""


_ALL = frozenset(Role)
_SEES_ALL = frozenset({Role.OPERATOR, Role.AUDITOR})
_CHANGES = frozenset({Role.DEVELOPER, Role.OPERATOR})
USERS: Mapping[VerbKind, frozenset[Role]] = {
    VerbKind.SUBJECT_GET: _ALL,
    VerbKind.INSTANCE_LIST: _ALL,
    VerbKind.INSTANCE_POINTS: _ALL,
    VerbKind.OBJECTIVE_LIST: _ALL,
    VerbKind.DRILL_LIST: _ALL,
    VerbKind.EVIDENCE_LIST: _SEES_ALL,
    VerbKind.FLEET_LIST: _SEES_ALL | {Role.VIEWER},
    VerbKind.CLONE_LIST: _ALL,
    VerbKind.CLONE_GET: _ALL,
    VerbKind.CLONE_LOGS: _CHANGES,
    VerbKind.CLONE_BEAT: _CHANGES,
    VerbKind.CLONE_CREATE: _CHANGES,
    VerbKind.CLONE_RESET: _CHANGES,
    VerbKind.CLONE_EXTEND: _CHANGES,
    VerbKind.CLONE_PROTECT: _CHANGES,
    VerbKind.CLONE_UNPROTECT: _CHANGES,
    VerbKind.CLONE_COMMIT: _CHANGES,
    VerbKind.CLONE_DESTROY: _CHANGES,
    VerbKind.BRANCH_LIST: _ALL,
    VerbKind.BRANCH_LOG: _ALL,
    VerbKind.BRANCH_CREATE: _CHANGES,
    VerbKind.BRANCH_SWITCH: _CHANGES,
    VerbKind.BRANCH_DIFF: _CHANGES,
    VerbKind.BRANCH_DELETE: _CHANGES,
    VerbKind.OPERATION_GET: _CHANGES,
    VerbKind.OPERATION_CANCEL: _CHANGES,
    VerbKind.OPERATION_WATCH: _CHANGES,
}
"""Who may use each verb, on what he sees.

A log and a difference have words of the clone's data, so they are for who may have its login.
"""
_OWN_ALONE = frozenset({VerbKind.OPERATION_GET, VerbKind.OPERATION_CANCEL, VerbKind.OPERATION_WATCH})
"""The result of an operation can have the login of a clone."""


def decide(role: Role, verb: VerbKind, belonging: Belonging) -> RoleDecision:
    """Return whether the role may use the verb on what belongs to its subject, to others, or to nobody yet.

    What the role does not see is hidden. An operation is seen by whoever began it alone.
    """
    if belonging is Belonging.OTHERS and (verb in _OWN_ALONE or not sees_all(role)):
        return RoleDecision(RoleVerdict.HIDDEN, "it belongs to somebody else")
    if role in USERS[verb]:
        return RoleDecision(RoleVerdict.ALLOWED)
    return RoleDecision(RoleVerdict.FORBIDDEN, f"the role {role} may not use {verb}: {_users(verb)} may")


def _users(verb: VerbKind) -> str:
    return " and ".join(sorted(f"{role}s" for role in USERS[verb]))


def may_change(role: Role) -> bool:
    """Whether the role may change anything, such as its own clones."""
    return role in _CHANGES


def sees_all(role: Role) -> bool:
    """Whether the role sees the clones of others, and the texts of errors about what is not its own."""
    return role in _SEES_ALL


def may_see_results(role: Role, begun_as: Role) -> bool:
    """Whether the role may see what the same subject began with another one: an operator's clone can be unmasked."""
    return may_see_unmasked(role) or not may_see_unmasked(begun_as)


def may_see_unmasked(role: Role) -> bool:
    """Whether the role may have a clone that is not masked, of an instance with masking that is not required."""
    return role is Role.OPERATOR
