"""Each verb of a subject, and each dataset made for one, names the limits that judge it before its effect."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

import zsnapdb
from tests.unit.support.serve_host import ServeHost
from zsnapdb.config.serve import ServeSettings
from zsnapdb.config.settings import CloneSettings
from zsnapdb.serve.clone_documents import OwnedCommit
from zsnapdb.serve.helper_messages import FailureAnswer
from zsnapdb.serve.roles import VerbKind
from zsnapdb.verbs.requests import (
    COMMANDS,
    SERVED,
    ChosenBranch,
    CommitCloneVerb,
    CreateBranchVerb,
    CreateCloneVerb,
    DiffBranchesVerb,
    ExtendCloneVerb,
    NewBranch,
    NewClone,
    NewLease,
    NewProtection,
    ProtectCloneVerb,
    ResetCloneVerb,
    RoleVerb,
    StartCloneVerb,
    SwitchBranchVerb,
    TwoStates,
)

_STATE = ("serve.commits_per_subject", "serve.running_per_subject")
_LEASE = ("serve.longest_lease", "clones.max_age")
_RECEIVED = ("clones.received_per_owner", "clones.received_total", "clones.receives")
JUDGED_BY: Mapping[VerbKind, tuple[str, ...]] = {
    VerbKind.CLONE_CREATE: (
        "serve.per_subject",
        "serve.bytes_per_subject",
        "serve.running_per_subject",
        *_LEASE,
        "clones.per_owner",
        "clones.total",
        "clones.free_floor",
        *_RECEIVED,
    ),
    VerbKind.CLONE_RESET: (
        "serve.running_per_subject",
        "clones.quota",
        "clones.max_age",
        "clones.free_floor",
        *_RECEIVED,
    ),
    VerbKind.CLONE_START: ("serve.running_per_subject",),
    VerbKind.CLONE_EXTEND: _LEASE,
    VerbKind.CLONE_PROTECT: _LEASE,
    VerbKind.CLONE_COMMIT: ("serve.commits_per_subject",),
    VerbKind.BRANCH_CREATE: ("serve.commits_per_subject",),
    VerbKind.BRANCH_SWITCH: (*_STATE, "clones.quota", "clones.max_age"),
    VerbKind.BRANCH_DIFF: (
        "serve.running_per_subject",
        "serve.comparisons",
        "serve.comparisons_per_subject",
        "clones.free_floor",
    ),
}
"""The limits that judge each verb before its first effect: those of `serve` in the helper, others in its command."""
SUBJECT = "ci:shop/web"
ROOM = Path(zsnapdb.__file__).parent / "jobs" / "clone"
NO_EFFECT = {
    VerbKind.SUBJECT_GET,
    VerbKind.INSTANCE_LIST,
    VerbKind.CLONE_LIST,
    VerbKind.CLONE_GET,
    VerbKind.CLONE_UNPROTECT,
    VerbKind.CLONE_STOP,
    VerbKind.CLONE_LOGS,
    VerbKind.CLONE_LOGIN,
    VerbKind.CLONE_NEW_LOGIN,
    VerbKind.CLONE_BEAT,
    VerbKind.CLONE_DESTROY,
    VerbKind.BRANCH_LIST,
    VerbKind.BRANCH_LOG,
    VerbKind.BRANCH_DELETE,
    VerbKind.OPERATION_GET,
    VerbKind.OPERATION_CANCEL,
    VerbKind.OPERATION_WATCH,
    VerbKind.INSTANCE_POINTS,
    VerbKind.OBJECTIVE_LIST,
    VerbKind.DRILL_LIST,
    VerbKind.EVIDENCE_LIST,
    VerbKind.FLEET_LIST,
}
"""Verbs that make nothing: they read, end something, or say that a holder is there."""
MAKERS = {
    "create.py:_make_datasets": "room.guard and the quota of the plan",
    "space_limits.py:reserve_set_space": "its own quota and reservation",
    "source_fetch.py:reach": "below the anchor of space_limits.reserve_set_space",
    "set_preparation.py:_prepare": "room.of_prepared_form",
    "data_replacement.py:_clone_beside": "room.of_other_data",
    "volumes.py:clone_volumes": "the quota that its caller gives",
    "detach.py:_copy": "below its clone, whose home has a quota; administrators alone detach",
}
"""Every function of the room that makes datasets, and what bounds them."""


def makers() -> set[str]:
    found = set()
    for file in sorted(ROOM.glob("*.py")):
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.FunctionDef):
                called = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
                if called & {"datasets.create", "datasets.clone", "clone_volumes", "volumes.clone_volumes"}:
                    found.add(f"{file.name}:{function.name}")
    return found


def test_every_dataset_that_is_made_for_a_clone_has_a_bound() -> None:
    assert makers() <= set(MAKERS)


def test_every_verb_names_the_limits_that_judge_it_or_has_no_effect() -> None:
    assert set(JUDGED_BY) | NO_EFFECT == set(VerbKind)
    assert not set(JUDGED_BY) & NO_EFFECT
    known = {f"serve.{name}" for name in ServeSettings.model_fields}
    known |= {f"clones.{name}" for name in CloneSettings.model_fields}
    assert {setting for settings in JUDGED_BY.values() for setting in settings} <= known
    assert {kind.removeprefix("clone.") for kind in JUDGED_BY} <= set(SERVED)
    assert set(COMMANDS) <= set(SERVED)


FULL: tuple[tuple[str, RoleVerb], ...] = (
    ("per_subject", CreateCloneVerb(wanted=NewClone(instance="main", name="new"))),
    ('bytes_per_subject = "1MiB"', CreateCloneVerb(wanted=NewClone(instance="main", name="new"))),
    ("running_per_subject = 0", CreateCloneVerb(wanted=NewClone(instance="main", name="new"))),
    ("longest_lease", CreateCloneVerb(wanted=NewClone(instance="main", name="new", ttl="2d"))),
    ("running_per_subject = 0", ResetCloneVerb(name="mine")),
    ("running_per_subject = 0", StartCloneVerb(name="mine")),
    ("longest_lease", ExtendCloneVerb(name="mine", lease=NewLease(ttl="2d"))),
    ("longest_lease", ProtectCloneVerb(name="mine", protection=NewProtection.model_validate({"for": "2d"}))),
    ("commits_per_subject", CommitCloneVerb(name="mine")),
    ("commits_per_subject", CreateBranchVerb(name="mine", wanted=NewBranch(branch="b"))),
    ("commits_per_subject", SwitchBranchVerb(name="mine", chosen=ChosenBranch(branch="b"))),
    ("running_per_subject = 0", SwitchBranchVerb(name="mine", chosen=ChosenBranch(branch="b"))),
    ("running_per_subject = 1", DiffBranchesVerb(name="mine", states=TwoStates(before="a", after="b"))),
    ("comparisons = 0", DiffBranchesVerb(name="mine", states=TwoStates(before="a", after="b"))),
    ("comparisons_per_subject = 0", DiffBranchesVerb(name="mine", states=TwoStates(before="a", after="b"))),
)


def test_the_limits_of_the_helper_that_verbs_name_are_those_that_are_tried() -> None:
    tried = {(verb.kind, f"serve.{terms.partition(' ')[0]}") for terms, verb in FULL}
    named = {(kind, one) for kind, settings in JUDGED_BY.items() for one in settings if one.startswith("serve.")}
    assert tried == named


@pytest.mark.parametrize(("terms", "verb"), FULL, ids=lambda one: str(getattr(one, "kind", one)))
def test_a_verb_over_its_limit_begins_no_command(tmp_path: Path, terms: str, verb: RoleVerb) -> None:
    # The host of these tests names some limits already: a day, and three commits.
    host = ServeHost(tmp_path, per_subject=1 if terms == "per_subject" else 9, more=terms if "=" in terms else "")
    if terms == "commits_per_subject":
        host.commits += [OwnedCommit(f"20261120T100000Z-000{number}", SUBJECT) for number in range(3)]
    with host.helper():
        host.clones({"name": "mine", "owner": SUBJECT})
        answer = host.ask(host.token(SUBJECT), verb)
        assert isinstance(answer, FailureAnswer)
        assert terms.partition(" ")[0] in f"{answer.message} {answer.hint}"
        assert not host.calls(), "nothing was started"
