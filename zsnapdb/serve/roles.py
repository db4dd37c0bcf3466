"""The permissions of roles. The decisions are pure, and depend on the role, the verb and the clone's owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.verbs.argument_patterns import CHANGES, SEES_ALL
from zsnapdb.verbs.argument_patterns import Role as Role
from zsnapdb.verbs.requests import VERBS, AboutOperation
from zsnapdb.verbs.requests import VerbKind as VerbKind


class CloneOwnership(StrEnum):
    """Whether the subject owns the clone or operation of a verb. NOBODY: the verb is about no clone or a new clone."""

    NOBODY = "nobody"
    OWN = "own"
    OTHERS = "others"


class RoleVerdict(StrEnum):
    """The verdict on a request. A HIDDEN object gets the same answer as an unknown name."""

    ALLOWED = "allowed"
    FORBIDDEN = "forbidden"
    HIDDEN = "hidden"


@dataclass(frozen=True)
class RoleDecision:
    """A verdict, and its reason; "" if the request is allowed. `hint` is advice for the subject after a refusal."""

    verdict: RoleVerdict
    reason: str = ""
    hint: str = "ask an administrator for a token of another role"


USERS: Mapping[VerbKind, frozenset[Role]] = {verb.model_fields["kind"].default: verb.users for verb in VERBS}
"""The roles that may use each verb on the objects that they can see."""
_FOR_OWNER = frozenset(verb.model_fields["kind"].default for verb in VERBS if verb.for_owner)
_OWN_ALONE = frozenset(verb.model_fields["kind"].default for verb in VERBS if issubclass(verb, AboutOperation))


def decide(role: Role, verb: VerbKind, belonging: CloneOwnership) -> RoleDecision:
    """Return whether the role may use the verb on an object with that owner.

    Objects that the role may not see are hidden. Only the subject that started an operation can see the operation. Only
    the owner of a clone can see its login.
    """
    if belonging is CloneOwnership.OTHERS and (verb in _OWN_ALONE or not sees_all(role)):
        return RoleDecision(RoleVerdict.HIDDEN, "it belongs to somebody else")
    if belonging is CloneOwnership.OTHERS and verb in _FOR_OWNER:
        return RoleDecision(
            RoleVerdict.FORBIDDEN,
            "only the owner of a clone may have its login",
            "ask the owner of the clone, or create a clone of your own",
        )
    if role in USERS[verb]:
        return RoleDecision(RoleVerdict.ALLOWED)
    users = " and ".join(sorted(f"{one}s" for one in USERS[verb]))
    return RoleDecision(RoleVerdict.FORBIDDEN, f"the role {role} may not use {verb}: {users} may")


def may_change(role: Role) -> bool:
    """Return whether the role may change anything, such as its own clones."""
    return role in CHANGES


def sees_all(role: Role) -> bool:
    """Return whether the role sees the clones of other subjects, and the texts of errors about them."""
    return role in SEES_ALL


def may_see_results(role: Role, begun_as: Role) -> bool:
    """Return whether the role may see an operation that the same subject started with the role `begun_as`.

    A result can come from an unmasked clone, which only some roles may see.
    """
    return may_see_unmasked(role) or not may_see_unmasked(begun_as)


def may_see_unmasked(role: Role) -> bool:
    """Return whether the role may have an unmasked clone of an instance whose masking is optional."""
    return role is Role.OPERATOR
