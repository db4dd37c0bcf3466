"""What a role may do is a table that anybody can read, and some things hold for all of it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.serve.roles import USERS, CloneOwnership, Role, RoleVerdict, VerbKind, decide, sees_all

TRIPLES = st.tuples(st.sampled_from(Role), st.sampled_from(VerbKind), st.sampled_from(CloneOwnership))
OPERATIONS = {VerbKind.OPERATION_GET, VerbKind.OPERATION_CANCEL, VerbKind.OPERATION_WATCH}
LOGINS = {VerbKind.CLONE_LOGIN, VerbKind.CLONE_NEW_LOGIN}
TABLE = """
subject.get       viewer developer operator auditor
instance.list     viewer developer operator auditor
instance.points   viewer developer operator auditor
objective.list    viewer developer operator auditor
drill.list        viewer developer operator auditor
evidence.list                      operator auditor
fleet.list        viewer           operator auditor
clone.list        viewer developer operator auditor
clone.get         viewer developer operator auditor
clone.logs               developer operator
clone.login              developer operator
clone.login.new          developer operator
clone.beat               developer operator
clone.create             developer operator
clone.reset              developer operator
clone.start              developer operator
clone.stop               developer operator
clone.extend             developer operator
clone.protect            developer operator
clone.unprotect          developer operator
clone.commit             developer operator
clone.destroy            developer operator
clone.branch.list viewer developer operator auditor
clone.branch.log  viewer developer operator auditor
clone.branch.create      developer operator
clone.branch.switch      developer operator
clone.branch.diff        developer operator
clone.branch.delete      developer operator
operation.get            developer operator
operation.cancel         developer operator
operation.watch          developer operator
"""
MAY = {VerbKind(line.split()[0]): {Role(word) for word in line.split()[1:]} for line in TABLE.strip().splitlines()}


@pytest.mark.parametrize(("verb", "role", "belonging"), list(itertools.product(VerbKind, Role, CloneOwnership)))
def test_the_answer_to_each_role_is_that_of_the_table(verb: VerbKind, role: Role, belonging: CloneOwnership) -> None:
    if belonging is CloneOwnership.OTHERS and (verb in OPERATIONS or role in (Role.VIEWER, Role.DEVELOPER)):
        expected = RoleVerdict.HIDDEN
    elif belonging is CloneOwnership.OTHERS and verb in LOGINS:
        expected = RoleVerdict.FORBIDDEN
    else:
        expected = RoleVerdict.ALLOWED if role in MAY[verb] else RoleVerdict.FORBIDDEN
    assert decide(role, verb, belonging).verdict is expected


def test_the_table_has_every_verb() -> None:
    assert set(USERS) == set(VerbKind) == set(MAY)


@given(TRIPLES)
def test_a_refusal_has_a_reason_and_a_permission_has_none(asked: tuple[Role, VerbKind, CloneOwnership]) -> None:
    decision = decide(*asked)
    assert bool(decision.reason) == (decision.verdict is not RoleVerdict.ALLOWED)


@given(TRIPLES)
def test_nobody_may_more_with_what_is_others_than_with_what_is_own(
    asked: tuple[Role, VerbKind, CloneOwnership],
) -> None:
    role, verb, _ = asked
    if decide(role, verb, CloneOwnership.OTHERS).verdict is RoleVerdict.ALLOWED:
        assert decide(role, verb, CloneOwnership.OWN).verdict is RoleVerdict.ALLOWED
        assert sees_all(role)
