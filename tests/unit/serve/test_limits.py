"""Limits of subjects and projects: no more than they say, whatever is asked at once, and what uses them is said."""

from __future__ import annotations

import ast
import itertools
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zsnapdb
from tests.unit.support.serve_host import ServeHost
from zsnapdb.base.errors import ConfigError
from zsnapdb.config.serve import ProjectLimits, ServeSettings
from zsnapdb.planning.clone.space_limits import LEAST
from zsnapdb.serve.helper_messages import FailureAnswer
from zsnapdb.serve.project_limits import (
    AdmittedClone,
    CountedClone,
    LimitKind,
    LimitRefusal,
    LongestLease,
    admitted,
    is_in_project,
    limits_of,
    longest_lease,
    objection_to_lease,
)
from zsnapdb.serve.roles import Role
from zsnapdb.verbs.requests import (
    CreateCloneVerb,
    DiffBranchesVerb,
    ExtendCloneVerb,
    GetSubjectVerb,
    NewClone,
    NewLease,
    ResetCloneVerb,
    StartCloneVerb,
    TwoStates,
)

GIB = 1 << 30
WEB, APP, OTHER = "ci:shop/web", "ci:shop/app", "ci:shopping/web"
PROJECT = '[serve.project."ci:shop"]\n'


def new(name: str, **more: str) -> CreateCloneVerb:
    return CreateCloneVerb(wanted=NewClone.model_validate({"instance": "main", "name": name, **more}))


@pytest.mark.parametrize(
    ("subject", "project", "expected"),
    [
        (WEB, "ci:shop", True),
        ("ci:shop", "ci:shop", True),
        (WEB, WEB, True),
        (OTHER, "ci:shop", False),
        ("ci:shop", WEB, False),
        ("user:ci@shop", "ci:shop", False),
    ],
)
def test_a_project_has_what_is_below_it_and_no_longer_name(subject: str, project: str, expected: bool) -> None:
    assert is_in_project(subject, project) is expected


subjects = st.sampled_from([WEB, APP, "ci:shop", OTHER, "ann"])
settings = st.builds(
    ServeSettings,
    per_subject=st.integers(1, 6),
    bytes_per_subject=st.none() | st.integers(0, 30 * GIB),
    running_per_subject=st.none() | st.integers(0, 6),
    project=st.dictionaries(
        st.sampled_from(["ci:shop", WEB]),
        st.builds(
            ProjectLimits,
            clones=st.none() | st.integers(0, 8),
            bytes=st.none() | st.integers(0, 30 * GIB),
            running=st.none() | st.integers(0, 8),
        ),
    ),
)


@given(settings, st.lists(subjects, max_size=30), st.sampled_from([0, 5 * GIB, 20 * GIB]))
def test_clones_that_are_admitted_one_after_another_keep_every_limit(
    limits: ServeSettings, asking: list[str], usual: int
) -> None:
    made: list[CountedClone] = []
    for number, subject in enumerate(asking):
        answer = admitted(limits_of(subject, limits), made, usual, LEAST)
        if isinstance(answer, AdmittedClone):
            most = usual if answer.most_bytes is None else answer.most_bytes
            assert answer.most_bytes is None or answer.most_bytes >= LEAST
            made.append(CountedClone(f"c{number}", subject, most, servers=1))
        else:
            assert "serve." in answer.message
    for limit in itertools.chain.from_iterable(limits_of(one, limits) for one in set(asking)):
        used = limit.used_by(made)
        is_bytes = limit.thing is LimitKind.BYTES
        assert (sum(one.most_bytes for one in used) if is_bytes else len(used)) <= limit.most


EXACT = {"of_key", "_begun", "belongs_to", "owns"}
"""Functions that compare the exact name: they decide about a right or a key, and count nothing."""


def test_every_count_of_a_subject_ignores_the_case_of_its_name() -> None:
    found = set()
    for file in (Path(zsnapdb.__file__).parent / "serve").glob("*.py"):
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.FunctionDef):
                compared = [one for one in ast.walk(function) if isinstance(one, ast.Compare)]
                equal = [one for one in compared if isinstance(one.ops[0], ast.Eq)]
                if any("subject" in ast.unparse(one) for one in equal):
                    found.add(function.name)
    assert found == EXACT


def test_lease_or_protection_shorter_than_a_command_can_say_is_refused() -> None:
    """`protect --for=0.000s` would end the protection that it was to begin."""
    longest = LongestLease(3600.0, "serve.longest_lease")
    assert [objection_to_lease("x", seconds, longest) is None for seconds in (0.0004, 0.001, 3600.0, 3600.1)] == [
        *(False, True, True, False)
    ]


def test_a_refusal_says_the_limit_and_what_uses_it() -> None:
    clones = [CountedClone("b", WEB, 2 * GIB, servers=1), CountedClone("a", WEB, GIB, servers=0)]
    limits = ServeSettings(per_subject=9, bytes_per_subject=3 * GIB)
    answer = admitted(limits_of(WEB, limits), clones, 0, LEAST)
    assert isinstance(answer, LimitRefusal)
    said = f"{WEB} has clones that may write 3.0 GiB (a: 1.0 GiB, b: 2.0 GiB), and serve.bytes_per_subject is 3.0 GiB"
    assert answer.message == said
    running = ServeSettings(running_per_subject=1)
    answer = admitted(limits_of(WEB, running), clones, 0, LEAST)
    assert isinstance(answer, LimitRefusal)
    assert answer.message == f"{WEB} has 1 running servers of clones (b), and serve.running_per_subject is 1"


def test_the_last_clone_gets_what_is_left_and_less_than_a_server_needs_is_nothing() -> None:
    limits = limits_of(WEB, ServeSettings(per_subject=9, bytes_per_subject=30 * GIB))
    first = CountedClone("a", WEB, 20 * GIB, servers=1)
    assert admitted(limits, [], 20 * GIB, LEAST) == AdmittedClone(None)
    assert admitted(limits, [first], 20 * GIB, LEAST) == AdmittedClone(10 * GIB)
    nearly = CountedClone("b", WEB, 10 * GIB - LEAST + 1, servers=1)
    assert isinstance(admitted(limits, [first, nearly], 20 * GIB, LEAST), LimitRefusal)


def test_the_shortest_lease_of_site_and_projects_holds() -> None:
    site = ServeSettings(
        ttl=60,
        longest_lease=7200,
        project={"ci:shop": ProjectLimits(longest_lease=3600), WEB: ProjectLimits(longest_lease=9000)},
    )
    assert longest_lease(WEB, site).setting == 'serve.project."ci:shop".longest_lease'
    assert longest_lease(OTHER, site).setting == "serve.longest_lease"


@pytest.mark.parametrize("name", ["shop", "user:anna@example.org", "ci:", "ci:shop/../x", "unix:anna"])
def test_a_project_is_one_of_a_ci(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is not a project"):
        ServeHost(tmp_path, more=f'[serve.project."{name}"]\nclones = 1').settings()


def test_twenty_requests_at_once_over_a_quota_of_a_project_give_ten(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, per_subject=100, more=f"{PROJECT}clones = 10")
    with host.helper():
        tokens = [host.token(f"ci:shop/{number % 5}") for number in range(20)]
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda n: host.ask(tokens[n], new(f"c{n}")), range(20)))
        kinds = Counter(one.code if isinstance(one, FailureAnswer) else one.kind for one in answers)
        assert kinds == {"result": 10, "quota": 10}
        refused = next(one.message for one in answers if isinstance(one, FailureAnswer))
        assert 'serve.project."ci:shop".clones is 10' in refused
        assert refused.count("ci:shop/") == 1, "others in the project have no names here"
        host.done(host.token(OTHER), new("other"))


def test_a_clone_may_write_what_its_subject_has_left(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, more=f'{PROJECT}bytes = "30GiB"')
    with host.helper():
        host.clones({"name": "old", "owner": APP, "quota": 12 * GIB, "own_bytes": 1})
        host.done(host.token(WEB), new("mine"))
        assert f"--quota={18 * GIB}B" in host.calls()[-1].words
        host.clones({"name": "old", "owner": APP, "quota": 12 * GIB}, {"name": "mine", "owner": WEB, "quota": 18 * GIB})
        refused = host.refused(host.token(WEB, Role.OPERATOR), new("more"))
        assert refused.message == (
            "the project ci:shop has as much as it may have; ci:shop/web has clones that may write 18.0 GiB (mine: 18.0"
            ' GiB), and serve.project."ci:shop".bytes is 30.0 GiB'
        )


def test_what_commits_keep_beside_the_quota_of_a_clone_is_counted(tmp_path: Path) -> None:
    """A reset gives new data as much again, and the commits of before keep theirs."""
    host = ServeHost(tmp_path, more='bytes_per_subject = "30GiB"\n')
    with host.helper():
        host.clones({"name": "old", "owner": WEB, "quota": 10 * GIB, "own_bytes": 28 * GIB})
        host.done(host.token(WEB), new("mine"))
        assert f"--quota={2 * GIB}B" in host.calls()[-1].words


def test_bytes_of_a_clone_that_is_being_made_are_counted(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, patience=0.1, more=f'{PROJECT}bytes = "30GiB"')
    host.let("slow", "60")
    with host.helper():
        host.ask(host.token(WEB), new("first"))
        host.ask(host.token(APP), new("second"))
        assert host.refused(host.token(APP), new("third")).code == "quota"


def test_a_second_request_for_a_name_that_is_being_made_hides_nothing_of_the_first(tmp_path: Path) -> None:
    """Only one of them can be made, and it may be the larger one."""
    host = ServeHost(tmp_path, patience=0.1, more='bytes_per_subject = "30GiB"\n')
    host.let("slow", "60")
    with host.helper():
        token = host.token(WEB)
        for number in range(2):
            host.ask(token, CreateCloneVerb(wanted=NewClone(instance="main", name="first"), key=f"key{number}"))
        host.ask(token, new("second"))
        deadline = time.monotonic() + 120
        while len(host.calls()) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    quotas = [dict(word.partition("=")[::2] for word in one.words).get("--quota", "") for one in host.calls()]
    assert sorted(quotas) == ["", f"{10 * GIB}B", f"{10 * GIB}B"]


def test_reset_and_start_keep_the_limit_of_running_servers(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, more=f"{PROJECT}running = 1")
    with host.helper():
        stopped, running = {"name": "mine", "owner": WEB}, {"name": "other", "owner": APP, "pid": 7}
        host.clones(stopped, running)
        token = host.token(WEB)
        assert host.refused(token, ResetCloneVerb(name="mine")).code == "quota"
        assert host.refused(token, StartCloneVerb(name="mine")).code == "quota"
        assert host.refused(token, new("new")).code == "quota"
        host.done(host.token(APP), ResetCloneVerb(name="other"))
        host.clones(stopped, {**running, "pid": None})
        host.done(token, ResetCloneVerb(name="mine"))
        host.done(token, StartCloneVerb(name="mine"))


def test_comparisons_are_few_for_a_subject_and_in_all(tmp_path: Path) -> None:
    """Each runs two servers, which may write: eight at once ran sixteen."""
    host = ServeHost(tmp_path, patience=0.1)
    host.let("slow", "60")
    diff = {name: DiffBranchesVerb(name=name, states=TwoStates(before="main", after="x")) for name in "abcd"}
    with host.helper():
        owners = {"a": WEB, "b": WEB, "c": APP, "d": OTHER}
        host.clones(*({"name": name, "owner": owner} for name, owner in owners.items()))
        host.ask(host.token(WEB), diff["a"])
        refused = host.refused(host.token(WEB), diff["b"])
        assert (refused.code, "serve.comparisons_per_subject is 1" in refused.message) == ("quota", True)
        host.ask(host.token(APP), diff["c"])
        refused = host.refused(host.token(OTHER), diff["d"])
        assert (refused.code, "serve.comparisons allows, 2" in refused.message) == ("quota", True)
        assert WEB not in refused.message


def test_a_project_has_a_longest_lease_of_its_own_also_for_what_an_operator_extends(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, more=f'{PROJECT}longest_lease = "1h"')
    with host.helper():
        host.clones({"name": "mine", "owner": WEB})
        token = host.token(WEB)
        refused = host.refused(token, new("other", ttl="61m"))
        assert (refused.code, "longest_lease is the limit" in refused.hint) == ("usage", True)
        long = ExtendCloneVerb(name="mine", lease=NewLease(ttl="2h"))
        assert host.refused(host.token("user:op@example.org", Role.OPERATOR), long).code == "usage"
        host.done(token, new("usual"))
        assert "--ttl=3600.000s" in host.calls()[-1].words, "the usual lease is cut to the longest"
        limits = host.done(token, GetSubjectVerb()).document["clones"]
        assert limits == {"most": 10, "ttl": 3600.0, "longest_lease": 3600.0}
