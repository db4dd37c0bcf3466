"""What a role may do, as a pure function of the role, the verb, and whose the clone is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.verbs.requests import VERBS, AboutOperation
from zsnapdb.verbs.requests import VerbKind as VerbKind
from zsnapdb.verbs.roles import CHANGES, SEES_ALL
from zsnapdb.verbs.roles import Role as Role


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


USERS: Mapping[VerbKind, frozenset[Role]] = {verb.model_fields["kind"].default: verb.users for verb in VERBS}
"""Who may use each verb, on what he sees."""
_FOR_OWNER = frozenset(verb.model_fields["kind"].default for verb in VERBS if verb.for_owner)
_OWN_ALONE = frozenset(verb.model_fields["kind"].default for verb in VERBS if issubclass(verb, AboutOperation))


def decide(role: Role, verb: VerbKind, belonging: Belonging) -> RoleDecision:
    """Return whether the role may use the verb on what belongs to its subject, to others, or to nobody yet.

    What the role does not see is hidden. An operation is seen by whoever began it alone. A login is for the owner.
    """
    if belonging is Belonging.OTHERS and (verb in _OWN_ALONE or not sees_all(role)):
        return RoleDecision(RoleVerdict.HIDDEN, "it belongs to somebody else")
    if belonging is Belonging.OTHERS and verb in _FOR_OWNER:
        return RoleDecision(RoleVerdict.FORBIDDEN, "only the owner of a clone may have its login")
    if role in USERS[verb]:
        return RoleDecision(RoleVerdict.ALLOWED)
    users = " and ".join(sorted(f"{one}s" for one in USERS[verb]))
    return RoleDecision(RoleVerdict.FORBIDDEN, f"the role {role} may not use {verb}: {users} may")


def may_change(role: Role) -> bool:
    """Whether the role may change anything, such as its own clones."""
    return role in CHANGES


def sees_all(role: Role) -> bool:
    """Whether the role sees the clones of others, and the texts of errors about what is not its own."""
    return role in SEES_ALL


def may_see_results(role: Role, begun_as: Role) -> bool:
    """Whether the role may see what the same subject began with another one: an operator's clone can be unmasked."""
    return may_see_unmasked(role) or not may_see_unmasked(begun_as)


def may_see_unmasked(role: Role) -> bool:
    """Whether the role may have a clone that is not masked, of an instance with masking that is not required."""
    return role is Role.OPERATOR
