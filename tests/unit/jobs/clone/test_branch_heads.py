"""The head of a branch is what ZFS and the anchor say of it; a branch that is begun or deleted changes no data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool, origin
from zsnapdb.base.errors import DamagedError, PreflightError, UnknownNameError
from zsnapdb.config.settings import CloneSettings, parse
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.clone import branches, commits
from zsnapdb.jobs.clone.catalogue import find
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.planning.clone.branches import Branches

BASE, FIRST, SECOND = (f"2026112{day}T000000Z-000{day}" for day in (1, 2, 3))
SETTINGS = parse(
    '[repository.r]\nurl = "file:///r"\n[instance.main]\nrepository = "r"\nvolumes = { data = "tank/mysql" }\n',
    "the test",
).model_copy(update={"clones": CloneSettings(dataset=HOME)})


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ClonePool:
    made = ClonePool()
    made.install(monkeypatch)
    monkeypatch.setattr("zsnapdb.jobs.base.run_locks.THIS_HOST", replace(THIS_HOST, run=tmp_path))
    made.clone("web", made.snapshot(f"{SOURCE}@zsnapdb-{BASE}"))
    return made


def commit(pool: ClonePool, revision: int, commit_id: str, parent: str) -> None:
    name = pool.commit(f"{HOME}/web/r{revision}", commit_id)
    pool.things[name].properties |= {
        "zsnapdb:parent": parent,
        "zsnapdb:origin": origin().encode(),
        "zsnapdb:instance": "main",
        "zsnapdb:role": "data",
    }


def web() -> CloneInfo:
    return find(SETTINGS, THIS_HOST, "web")


def anchor(pool: ClonePool) -> dict[str, str]:
    return pool.things[f"{HOME}/web"].properties


def test_a_commit_moves_the_branch_that_the_clone_is_on_by_itself(pool: ClonePool) -> None:
    assert commits.read_branches(web()) == Branches()
    assert commits.parent_of(web()) == BASE
    commit(pool, 1, FIRST, BASE)
    assert commits.read_branches(web()) == Branches("main", {"main": FIRST})
    assert commits.parent_of(web()) == FIRST
    # A commit of the data that another branch had is none of this one.
    anchor(pool)["zsnapdb:branches"] = f"other main={FIRST} other={FIRST}"
    anchor(pool)["zsnapdb:revision"], anchor(pool)["zsnapdb:backup"] = "2", FIRST
    pool.volume("web", 2, f"{HOME}/web/r1@zsnapdb-{FIRST}")
    assert commits.read_branches(web()).heads == {"main": FIRST, "other": FIRST}
    commit(pool, 2, SECOND, FIRST)
    assert commits.read_branches(web()).heads == {"main": FIRST, "other": SECOND}
    seen = branches.listing(SETTINGS, THIS_HOST, "web")
    assert (list(branches.log(seen)), list(branches.log(seen, "main"))) == ([SECOND, FIRST], [FIRST])


def test_a_commit_that_another_clone_left_to_this_one_is_no_head_of_it(pool: ClonePool) -> None:
    # As after `zfs promote`: the snapshot that its data was cloned from is one of its own volume.
    commit(pool, 1, BASE, "")
    assert commits.newest_commit(web()) is None


def test_other_data_changes_no_branch(pool: ClonePool) -> None:
    assert commits.branches_to_keep(web()) == ""
    commit(pool, 1, FIRST, BASE)
    # Nobody has asked for a branch, and the commit is that of the first one all the same, also of a detached clone.
    assert commits.branches_to_keep(web()) == f"main main={FIRST}"
    anchor(pool)["zsnapdb:branches"] = "main main=- other=-"
    assert commits.branches_to_keep(web()) == f"main main={FIRST} other=-"


def test_a_branch_is_begun_at_a_commit_and_deleted_by_one_property(pool: ClonePool) -> None:
    commit(pool, 1, FIRST, BASE)
    pool.commands.clear()
    seen = branches.create(SETTINGS, THIS_HOST, "web", "feature/one", FIRST).run()
    assert (seen.branches.current, seen.branches.heads) == ("main", {"feature/one": FIRST, "main": FIRST})
    assert pool.commands == [["set", f"zsnapdb:branches=main feature/one={FIRST} main={FIRST}", f"{HOME}/web"]]
    for refused in (FIRST[:-1] + "9", "nowhere", "../web", ""):
        with pytest.raises(UnknownNameError):
            branches.create(SETTINGS, THIS_HOST, "web", "another", refused).run()
    with pytest.raises(PreflightError, match="is on branch main"):
        branches.delete(SETTINGS, THIS_HOST, "web", "main").run()
    assert branches.delete(SETTINGS, THIS_HOST, "web", "feature/one").run().branches.heads == {"main": FIRST}
    assert f"{HOME}/web/r1@zsnapdb-{FIRST}" in pool.things


def test_branches_that_somebody_altered_are_named_and_keep_the_clone_from_nothing_else(pool: ClonePool) -> None:
    anchor(pool)["zsnapdb:branches"] = "../x"
    with pytest.raises(DamagedError, match="cannot be read"):
        branches.listing(SETTINGS, THIS_HOST, "web")
    assert commits.branches_to_keep(web()) == ""
    assert commits.parent_of(web()) == BASE
