"""What a role may do is a table that anybody can read, and some things hold for all of it."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.serve.roles import READS, Belonging, Role, RoleVerdict, VerbKind, decide, sees_all

TRIPLES = st.tuples(st.sampled_from(Role), st.sampled_from(VerbKind), st.sampled_from(Belonging))
CHANGES = set(VerbKind) - READS - {VerbKind.OPERATION_GET}


@given(TRIPLES)
def test_a_refusal_has_a_reason_and_a_permission_has_none(asked: tuple[Role, VerbKind, Belonging]) -> None:
    decision = decide(*asked)
    assert bool(decision.reason) == (decision.verdict is not RoleVerdict.ALLOWED)


@given(TRIPLES)
def test_what_is_somebody_elses_is_hidden_from_whoever_does_not_see_all(
    asked: tuple[Role, VerbKind, Belonging],
) -> None:
    role, verb, belonging = asked
    if belonging is Belonging.OTHERS and (not sees_all(role) or verb is VerbKind.OPERATION_GET):
        assert decide(role, verb, belonging).verdict is RoleVerdict.HIDDEN
    else:
        assert decide(role, verb, belonging).verdict is not RoleVerdict.HIDDEN


@given(TRIPLES)
def test_nobody_may_more_with_what_is_others_than_with_what_is_own(asked: tuple[Role, VerbKind, Belonging]) -> None:
    role, verb, _ = asked
    if decide(role, verb, Belonging.OTHERS).verdict is RoleVerdict.ALLOWED:
        assert decide(role, verb, Belonging.OWN).verdict is RoleVerdict.ALLOWED


def test_who_changes_what() -> None:
    allowed = {
        (role, belonging)
        for role, verb, belonging in itertools.product(Role, CHANGES, Belonging)
        if decide(role, verb, belonging).verdict is RoleVerdict.ALLOWED
    }
    assert allowed == {
        (Role.DEVELOPER, Belonging.NOBODY),
        (Role.DEVELOPER, Belonging.OWN),
        *((Role.OPERATOR, belonging) for belonging in Belonging),
    }


def test_everybody_reads_what_is_own() -> None:
    for role, verb in itertools.product(Role, READS):
        assert decide(role, verb, Belonging.OWN).verdict is RoleVerdict.ALLOWED
