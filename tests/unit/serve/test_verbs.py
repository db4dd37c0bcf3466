"""The helper knows a few verbs, and every value of them has the form that `zsnapdb-clone` knows too."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cli.test_sudo_cli import DANGEROUS
from zsnapdb.base.errors import UsageError
from zsnapdb.serve import helper_request_handler
from zsnapdb.serve.helper_messages import HelperRequest, parse_request
from zsnapdb.serve.helper_request_handler import CloneTerms
from zsnapdb.serve.roles import VerbKind
from zsnapdb.verbs.requests import (
    SERVED,
    ChosenBranch,
    CloneAction,
    CloneLogsVerb,
    CommitCloneVerb,
    CreateBranchVerb,
    CreateCloneVerb,
    DestroyCloneVerb,
    DiffBranchesVerb,
    ExtendCloneVerb,
    ListBranchesVerb,
    LogBranchVerb,
    NewBranch,
    NewClone,
    NewCommit,
    NewLease,
    NewProtection,
    ProtectCloneVerb,
    ResetCloneVerb,
    SwitchBranchVerb,
    TwoStates,
    UnprotectCloneVerb,
)

TOKEN = "zsnapdb_secret"


def line(**verb: object) -> bytes:
    return json.dumps({"token": TOKEN, "verb": verb}).encode()


@pytest.mark.parametrize(
    "verb",
    [
        {"kind": "clone.create", "wanted": {"instance": "main", "name": "mine"}},
        {"kind": "clone.destroy", "name": "mine"},
        {"kind": "clone.extend", "name": "mine", "lease": {"ttl": "2h"}},
        {"kind": "clone.create", "wanted": {"instance": "main", "from": "20260101T000000Z-0123"}},
        {"kind": "clone.protect", "name": "mine", "protection": {"for": "2h"}},
        {"kind": "clone.commit", "name": "mine", "commit": {"message": 'Zustand größer --als "vorher"'}},
        {"kind": "evidence.list", "instance": "main", "after": 7, "limit": 500},
        {"kind": "clone.list"},
        {"kind": "clone.branch.create", "name": "mine", "wanted": {"branch": "feature/x", "from": "main"}, "key": "1"},
        {"kind": "clone.branch.diff", "name": "mine", "states": {"before": "main", "after": "20260101T000000Z-0123"}},
        {"kind": "operation.get", "id": "20260101T000000Z-0123abcd"},
    ],
)
def test_a_request_is_what_was_sent(verb: dict[str, object]) -> None:
    request = parse_request(line(**verb))
    assert parse_request(request.line()) == request
    assert request.verb.kind == verb["kind"]


HOSTILE = (
    "--config",
    "--config=/tmp/x",
    "-x",
    "../x",
    "a/b",
    "a b",
    "a\n",
    "a\0",
    "",
    "A",
    "a" * 33,
    "ä",
    "a'",
    "$(id)",
)


@pytest.mark.parametrize("value", HOSTILE)
def test_no_name_is_an_option_a_path_or_a_second_line(value: str) -> None:
    verbs: list[dict[str, object]] = [
        {"kind": "clone.destroy", "name": value},
        {"kind": "clone.reset", "name": value},
        {"kind": "clone.get", "name": value},
        {"kind": "clone.extend", "name": value, "lease": {}},
        {"kind": "clone.create", "wanted": {"instance": "main", "name": value}},
        {"kind": "clone.extend", "name": "mine", "lease": {"ttl": value}},
        {"kind": "clone.create", "wanted": {"instance": "main", "ttl": value}},
        {"kind": "clone.create", "wanted": {"instance": "main", "profile": value}},
        {"kind": "clone.create", "wanted": {"instance": "main", "from": value}},
        {"kind": "clone.protect", "name": "mine", "protection": {"for": value}},
        {"kind": "clone.commit", "name": value},
        {"kind": "clone.logs", "name": value},
        {"kind": "clone.branch.list", "name": value},
        {"kind": "clone.branch.switch", "name": value, "chosen": {"branch": "x"}},
        {"kind": "clone.branch.delete", "name": value, "chosen": {"branch": "x"}},
        {"kind": "instance.points", "name": f"../{value}"},
        {"kind": "drill.list", "instance": f"-{value}"},
        {"kind": "operation.get", "id": value},
        {"kind": "operation.cancel", "id": value},
    ]
    for verb in verbs:
        with pytest.raises(UsageError):
            parse_request(line(**verb))


NO_BRANCHES = (
    "--config",
    "-x",
    "../x",
    "/etc/x",
    ".git",
    "_x",
    "a b",
    "a\n",
    "a\0",
    "",
    "ä",
    "a'",
    "$(id)",
    "x" * 61,
    7,
)


@pytest.mark.parametrize("value", NO_BRANCHES)
def test_no_branch_is_an_option_a_path_upwards_or_a_second_line(value: object) -> None:
    verbs: list[dict[str, object]] = [
        {"kind": "clone.branch.switch", "chosen": {"branch": value}},
        {"kind": "clone.branch.delete", "chosen": {"branch": value}},
        {"kind": "clone.branch.create", "wanted": {"branch": value}},
        {"kind": "clone.branch.create", "wanted": {"branch": "x", "from": value}},
        {"kind": "clone.branch.log", "state": value},
        {"kind": "clone.branch.diff", "states": {"before": value, "after": "x"}},
        {"kind": "clone.branch.diff", "states": {"before": "x", "after": value}},
    ]
    for verb in verbs:
        with pytest.raises(UsageError):
            parse_request(line(name="mine", **verb))


@pytest.mark.parametrize("name", [word.removeprefix("--") for word in DANGEROUS] + ["masks", "plan", "source", "quota"])
def test_no_field_names_an_owner_a_file_or_a_program(name: str) -> None:
    wanted = {"instance": "main", name: "x"}
    if name == "name":
        assert isinstance(parse_request(line(kind="clone.create", wanted=wanted)).verb, CreateCloneVerb)
        return
    for verb in (
        {"kind": "clone.create", "wanted": wanted},
        {"kind": "clone.create", "wanted": {"instance": "main"}, name: "x"},
        {"kind": "clone.destroy", "name": "mine", name: "x"},
        {"kind": "clone.branch.create", "name": "mine", "wanted": {"branch": "x", name: "x"}},
        {"kind": "clone.branch.diff", "name": "mine", "states": {"before": "x", "after": "x", name: "x"}},
    ):
        with pytest.raises(UsageError):
            parse_request(line(**verb))


@pytest.mark.parametrize("mask", [None, 1, "yes", "true", []])
def test_masking_is_asked_for_by_true_alone(mask: object) -> None:
    with pytest.raises(UsageError):
        parse_request(line(kind="clone.create", wanted={"instance": "main", "mask": mask}))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 60_000,
        b'{"token": "x"}',
        b'{"token": 1, "verb": {"kind": "clone.list"}}',
        b'{"token": "x", "verb": {"kind": "shell", "words": ["id"]}}',
        b'{"token": "x", "verb": {"kind": "clone.list"}, "uid": 0}',
        b'{"token": "x\\ny", "verb": {"kind": "clone.list"}}',
    ],
)
def test_what_is_no_request_is_refused(text: bytes) -> None:
    with pytest.raises(UsageError):
        parse_request(text)


@pytest.mark.parametrize(
    "verb",
    [
        {"kind": "clone.create", "wanted": {"instance": "main", "from": "latest", "at": "2h"}},
        {"kind": "clone.create", "wanted": {"instance": "main", "from": "live"}},
        {"kind": "clone.create", "wanted": {"instance": "main", "from": "@daily"}},
        {"kind": "clone.protect", "name": "mine"},
        {"kind": "clone.protect", "name": "mine", "protection": {}},
        {"kind": "clone.protect", "name": "mine", "protection": {"time": "2h"}},
        {"kind": "clone.unprotect", "name": "mine", "protection": {"for": "2h"}},
        *(
            {"kind": "clone.commit", "name": "mine", "commit": {"message": one}}
            for one in ("a\nb", "a\0", "x" * 251, 7)
        ),
        *({"kind": "clone.logs", "name": "mine", "lines": one} for one in (0, 1000, -1, "all")),
        *(
            {"kind": "clone.branch.diff", "name": "mine", "states": {"before": "a", "after": "b", "limit": one}}
            for one in (-1, 1000, "all")
        ),
        {"kind": "clone.branch.diff", "name": "mine", "states": {"before": "a", "after": "b", "size": "9GiB"}},
        {"kind": "clone.branch.create", "name": "mine", "wanted": {"branch": "a", "start": "b"}},
        {"kind": "clone.branch.switch", "name": "mine"},
        {"kind": "clone.reset", "name": "mine", "key": "a b"},
        *({"kind": "evidence.list", "instance": "main", "after": one} for one in (-1, 10**8, "x")),
        *({"kind": "evidence.list", "instance": "main", "limit": one} for one in (0, 501)),
        {"kind": "evidence.list"},
        {"kind": "drill.list", "instance": "main", "limit": 0},
        {"kind": "objective.list", "instance": "main"},
    ],
    ids=json.dumps,
)
def test_a_value_of_another_form_is_refused(verb: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        parse_request(line(**verb))


def test_an_error_repeats_no_value() -> None:
    for verb in ({"kind": "clone.destroy", "name": "planted value"}, {"kind": "planted", "name": "planted value"}):
        with pytest.raises(UsageError) as refused:
            parse_request(line(**verb))
        assert "planted value" not in str(refused.value)
        assert TOKEN not in str(refused.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
KINDS = st.sampled_from(VerbKind)
WORDS = st.sampled_from(
    ["main", "mine", "2h", "latest", "--config", "tiny", "../x", "a b", "20260101T000000Z-0123abcd"]
)
FIELDS = st.dictionaries(
    st.sampled_from(
        [
            *("instance", "name", "at", "from", "ttl", "for", "message", "lines", "id", "owner", "config"),
            *("branch", "before", "after", "limit", "state", "key"),
        ]
    ),
    WORDS | JSON,
    max_size=5,
)


PARTS = {
    VerbKind.CLONE_CREATE: "wanted",
    VerbKind.CLONE_EXTEND: "lease",
    VerbKind.CLONE_PROTECT: "protection",
    VerbKind.CLONE_COMMIT: "commit",
    VerbKind.BRANCH_CREATE: "wanted",
    VerbKind.BRANCH_SWITCH: "chosen",
    VerbKind.BRANCH_DELETE: "chosen",
    VerbKind.BRANCH_DIFF: "states",
}


@given(KINDS, FIELDS, FIELDS)
def test_whatever_is_asked_for_only_known_words_reach_zsnapdb(
    kind: VerbKind, own: dict[str, object], wanted: dict[str, object]
) -> None:
    try:
        request: HelperRequest = parse_request(
            line(kind=kind, **own, **({PARTS[kind]: wanted} if kind in PARTS else {}))
        )
    except UsageError:
        return
    match request.verb:
        case CreateCloneVerb(wanted=new):
            words = helper_request_handler.create_words(
                new, CloneTerms(new.name or "made", 60.0, new.mask), "ci:shop/web"
            )
        case CloneLogsVerb() | ListBranchesVerb() | LogBranchVerb():
            words = helper_request_handler.query_arguments(request.verb, request.verb.name, "ci:shop/web")
        case verb if isinstance(verb, CloneAction):
            words = helper_request_handler.action_arguments(verb, verb.name, 60.0, "ci:shop/web")
        case _:
            return
    command = next(one for one in SERVED.values() if tuple(one.runs.split()) == words[: len(one.runs.split())])
    assert words[0] == "clone"
    for word in words[len(command.runs.split()) :]:
        name, _, value = word.partition("=")
        if not word.startswith("-"):
            assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*", word)
        elif name in ("--owner", "--name"):
            assert name == "--name" or value == "ci:shop/web"
        else:
            form = command.options[name]
            assert form is None or form.fullmatch(value)


def test_the_words_of_each_verb() -> None:
    wanted = NewClone(instance="main", at="2026-01-01 10:00 UTC", profile="tiny")
    assert helper_request_handler.create_words(
        wanted, CloneTerms("mine", 7200.0, masks=True), "user:ann@example.org"
    ) == (
        *("clone", "create", "--name=mine", "--owner=user:ann@example.org", "--ttl=7200.000s"),
        *("--at=2026-01-01 10:00 UTC", "--profile=tiny", "--mask", "--json", "main"),
    )
    lease = ExtendCloneVerb(name="mine", lease=NewLease(ttl="1h"))
    assert helper_request_handler.action_arguments(lease, "c1", 3600.0, "ci:x") == (
        "clone",
        "extend",
        "--ttl=3600.000s",
        "--json",
        "c1",
    )
    assert helper_request_handler.action_arguments(ResetCloneVerb(name="mine"), "c1", 0, "ci:x") == (
        "clone",
        "reset",
        "--json",
        "c1",
    )
    assert helper_request_handler.action_arguments(DestroyCloneVerb(name="mine"), "c1", 0, "ci:x") == (
        "clone",
        "destroy",
        "--json",
        "c1",
    )
    protect = ProtectCloneVerb(name="mine", protection=NewProtection.model_validate({"for": "2h"}))
    assert helper_request_handler.action_arguments(protect, "c1", 7200.0, "ci:x") == (
        "clone",
        "protect",
        "--for=7200.000s",
        "--json",
        "c1",
    )
    assert helper_request_handler.action_arguments(UnprotectCloneVerb(name="mine"), "c1", 9, "ci:x") == (
        *("clone", "protect", "--for=0s", "--json", "c1"),
    )
    commit = CommitCloneVerb(name="mine", commit=NewCommit(message="--json is no option here"))
    assert helper_request_handler.action_arguments(commit, "c1", 9, "ci:x") == (
        *("clone", "commit", "--message=--json is no option here", "--json", "c1"),
    )
    assert helper_request_handler.query_arguments(CloneLogsVerb(name="mine", lines=7), "c1", "ci:x") == (
        "clone",
        "logs",
        "--lines=7",
        "c1",
    )
    assert helper_request_handler.query_arguments(ListBranchesVerb(name="mine"), "c1", "ci:x") == (
        "clone",
        "branch",
        "list",
        "c1",
    )
    assert helper_request_handler.query_arguments(LogBranchVerb(name="mine"), "c1", "ci:x") == (
        "clone",
        "branch",
        "log",
        "c1",
    )
    assert helper_request_handler.query_arguments(LogBranchVerb(name="mine", state="main"), "c1", "ci:x") == (
        "clone",
        "branch",
        "log",
        "c1",
        "main",
    )
    begin = CreateBranchVerb(name="mine", wanted=NewBranch.model_validate({"branch": "f/x", "from": "main"}))
    assert helper_request_handler.action_arguments(begin, "c1", 9, "ci:x") == (
        "clone",
        "branch",
        "create",
        "--from=main",
        "--json",
        "c1",
        "f/x",
    )
    switch = SwitchBranchVerb(name="mine", chosen=ChosenBranch(branch="f/x"))
    assert helper_request_handler.action_arguments(switch, "c1", 9, "ci:x") == (
        "clone",
        "branch",
        "switch",
        "--json",
        "c1",
        "f/x",
    )
    diff = DiffBranchesVerb(name="mine", states=TwoStates(before="main", after="f/x", limit=3))
    assert helper_request_handler.action_arguments(diff, "c1", 9, "ci:x") == (
        *("clone", "branch", "diff", "--limit=3", "--size=262144B", "--json", "c1", "main", "f/x"),
    )
    of_set = NewClone.model_validate({"instance": "main", "from": "20260101T000000Z-0123"})
    assert "--from=20260101T000000Z-0123" in helper_request_handler.create_words(
        of_set, CloneTerms("mine", 60.0, masks=False), "ci:x"
    )
