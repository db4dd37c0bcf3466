"""What a role may do, as a pure function of the role, the verb, and whose the clone is."""

from __future__ import annotations

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
    CLONE_DESTROY = "clone.destroy"
    OPERATION_GET = "operation.get"


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


READS = frozenset({VerbKind.SUBJECT_GET, VerbKind.INSTANCE_LIST, VerbKind.CLONE_LIST, VerbKind.CLONE_GET})
_SEES_ALL = frozenset({Role.OPERATOR, Role.AUDITOR})
_CHANGES = frozenset({Role.DEVELOPER, Role.OPERATOR})


def decide(role: Role, verb: VerbKind, belonging: Belonging) -> RoleDecision:
    """Return whether the role may use the verb on what belongs to its subject, to others, or to nobody yet.

    An operation is seen by whoever began it alone, because its result can have the login of a clone.
    """
    if belonging is Belonging.OTHERS and (verb is VerbKind.OPERATION_GET or not sees_all(role)):
        return RoleDecision(RoleVerdict.HIDDEN, "it belongs to somebody else")
    if verb in READS or role in _CHANGES:
        return RoleDecision(RoleVerdict.ALLOWED)
    return RoleDecision(RoleVerdict.FORBIDDEN, f"the role {role} may not use {verb}: it reads")


def may_change(role: Role) -> bool:
    """Whether the role may change anything, such as its own clones."""
    return role in _CHANGES


def sees_all(role: Role) -> bool:
    """Whether the role sees the clones of others."""
    return role in _SEES_ALL


def may_see_unmasked(role: Role) -> bool:
    """Whether the role may have a clone that is not masked, of an instance with masking that is not required."""
    return role is Role.OPERATOR
