"""What the plan of a verb on a clone refuses, its run refuses in the same words, and neither changes anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool
from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.config.settings import CloneSettings, Settings
from zsnapdb.jobs.base.events import SILENT
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.clone import branches, commits, destroy, detach, lifecycle, reset
from zsnapdb.jobs.clone.expected_clone import MEANT_VARIABLE, ExpectedClone
from zsnapdb.jobs.dataset_copies.catalogue import Verb

BASE = f"{SOURCE}@zsnapdb-20261120T100000Z-0001"
GIB = 1 << 30
SETTINGS = Settings.model_construct(instance={}, repository={}, clones=CloneSettings(dataset=HOME))


@dataclass(frozen=True)
class Ways:
    plan: Callable[[], object]
    run: Callable[[], object]


def _ways(verb: Verb[Any, Any, Any]) -> Ways:
    return Ways(verb.plan, verb.run)


HOST = SETTINGS, THIS_HOST, "dev"
VERBS: dict[str, Callable[[], Ways]] = {
    "start": lambda: _ways(lifecycle.start(*HOST, SILENT)),
    "stop": lambda: _ways(lifecycle.stop(*HOST)),
    "extend": lambda: _ways(lifecycle.extend(*HOST, 1e9)),
    "quota": lambda: _ways(lifecycle.extend(*HOST, None, GIB)),
    "quota and lease": lambda: _ways(lifecycle.extend(*HOST, 1e9, 9 * GIB)),
    "protect": lambda: _ways(lifecycle.protect(*HOST, 1e9)),
    "commit": lambda: _ways(commits.commit(*HOST, "message")),
    "detach": lambda: _ways(detach.detach(*HOST, SILENT)),
    "branch": lambda: _ways(branches.create(*HOST, "main")),
    "delete": lambda: _ways(branches.delete(*HOST, "main")),
    "switch": lambda: _ways(branches.switch(*HOST, "none", SILENT)),
    "reset": lambda: Ways(
        lambda: reset.reset_plan(*HOST, None, replaces=True), lambda: reset.reset(*HOST, None, SILENT, replaces=True)
    ),
    "destroy": lambda: Ways(lambda: destroy.plan(*HOST), lambda: destroy.destroy(*HOST)),
}
NOBODYS, UNFINISHED = "of the pool of main was replaced by a reset", "is not complete"
STATES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "stopped": (
        {},
        {
            **dict.fromkeys(("start", "stop"), "is not configured"),
            **dict.fromkeys(("extend", "quota and lease", "protect"), "is longer than clones.max_"),
            "quota": "already uses",
            "branch": "the branch main exists",
            "delete": "is on branch main",
            "switch": "there is no branch",
        },
    ),
    "never started": ({"phase": "new"}, {"commit": "was never started", "switch": "was never started"}),
    "changing": ({"phase": "changing"}, {"commit": "was never started", "start": "is not configured"}),
    "of a set": ({"set": "web source"}, {"branch": "one of the set", "switch": "one of the set"}),
    "half made": ({"phase": "making"}, dict.fromkeys(sorted(VERBS.keys() - {"destroy"}), UNFINISHED)),
    "of nobody": (
        {"pool": "replaced", "owner": "the pool"},
        dict.fromkeys(sorted(VERBS.keys() - {"destroy"}), NOBODYS),
    ),
    "expired": (
        {"expires": "2026-11-22T01:00:00Z"},
        {
            **dict.fromkeys(("start", "commit", "detach", "branch", "switch", "reset"), "extend its lease first"),
            **dict.fromkeys(("extend", "protect"), "is longer than clones.max_"),
            "stop": "is not configured",
            "quota": "already uses",
            "delete": "is on branch main",
        },
    ),
    "unreadable": ({"port": "much"}, dict.fromkeys(VERBS, "cannot be read")),
    "of another": ({"owner": "eve"}, dict.fromkeys(VERBS, "there is no clone dev")),
}
CASES = [(state, verb, reason) for state, (_, reasons) in STATES.items() for verb, reason in reasons.items()]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ClonePool:
    made = ClonePool()
    made.install(monkeypatch)
    monkeypatch.setattr("zsnapdb.jobs.base.run_locks.THIS_HOST", replace(THIS_HOST, run=tmp_path))
    monkeypatch.setenv(MEANT_VARIABLE, ExpectedClone(owner="ada").model_dump_json())
    return made


@pytest.mark.parametrize(("state", "name", "reason"), CASES)
def test_plan_refuses_what_the_run_refuses(
    pool: ClonePool, monkeypatch: pytest.MonkeyPatch, state: str, name: str, reason: str
) -> None:
    if state == "of nobody":
        # Subjects do not see the clones of the pool.
        monkeypatch.delenv(MEANT_VARIABLE)
    pool.clone("dev", pool.snapshot(BASE), **STATES[state][0])
    pool.things[f"{HOME}/dev"].properties["used"] = str(2 * GIB)
    before, ways = {one: dict(thing.properties) for one, thing in pool.things.items()}, VERBS[name]()
    answers = []
    for way in (ways.plan, ways.run):
        with pytest.raises(ZsnapdbError, match=reason) as refused:
            way()
        answers.append((type(refused.value), str(refused.value), refused.value.hint))
        assert {one: dict(thing.properties) for one, thing in pool.things.items()} == before
    assert answers[0] == answers[1]
