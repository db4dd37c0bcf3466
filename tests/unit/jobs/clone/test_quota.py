"""How much a new clone may write: as configured or as asked for, never what production needs, and never by a member."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool
from zsnapdb.base.domain_types import SnapshotSet
from zsnapdb.base.errors import PreflightError, UsageError
from zsnapdb.base.quantities import is_full
from zsnapdb.config import settings as configuration
from zsnapdb.config.settings import CloneSettings, Settings
from zsnapdb.jobs.base.host import THIS_HOST, Host
from zsnapdb.jobs.clone import catalogue, create_plan, data_replacement, lifecycle, reaper, space_limits, volumes
from zsnapdb.jobs.clone import pool as clone_pool
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.request import CloneRequest
from zsnapdb.jobs.clone.sources import CloneSource, commits
from zsnapdb.planning.clone.lease import SourceKind
from zsnapdb.planning.clone.space_limits import LEAST
from zsnapdb.report.clone.list import CloneDetailView, state
from zsnapdb.verbs.delegation import parse
from zsnapdb.verbs.requests import COMMANDS, SERVED

GIB = 1 << 30
NOW = datetime(2026, 1, 2, tzinfo=UTC)
CLONES = CloneSettings(dataset=HOME)


def settings(quota: int) -> Settings:
    return Settings.model_construct(instance={}, repository={}, clones=CloneSettings(quota=quota, free_floor=GIB))


@pytest.mark.parametrize(
    ("configured", "wanted", "free", "expected"),
    [
        (20 * GIB, None, 100 * GIB, 20 * GIB),
        (20 * GIB, 5 * GIB, 100 * GIB, 5 * GIB),
        (20 * GIB, 50 * GIB, 100 * GIB, 50 * GIB),
        (20 * GIB, 50 * GIB, 11 * GIB, 10 * GIB),
        (0, None, 100 * GIB, 0),
        (0, 5 * GIB, 100 * GIB, 5 * GIB),
    ],
)
def test_a_new_clone_gets_what_is_asked_for_as_far_as_the_pool_has_it(
    configured: int, wanted: int | None, free: int, expected: int
) -> None:
    assert space_limits.new_clone_quota(settings(configured), free, wanted) == expected


def test_less_than_a_server_needs_is_refused() -> None:
    with pytest.raises(UsageError, match=r"at least 64\.0 MiB"):
        space_limits.new_clone_quota(settings(GIB), 100 * GIB, LEAST - 1)


def test_a_member_of_the_group_names_no_quota_and_the_helper_does() -> None:
    words = ("create", "main", "mine", f"--quota={GIB}B")
    with pytest.raises(UsageError, match="unknown option"):
        parse(words, "ann", COMMANDS)
    assert f"--quota={GIB}B" in parse(words, "ci:shop/web", SERVED).words
    for hostile in ("0", "-1", "1GiB", "1 --admin", "9" * 20, "1e9"):
        with pytest.raises(UsageError, match="invalid value"):
            parse(("create", "main", "mine", f"--quota={hostile}"), "ci:shop/web", SERVED)


def test_an_account_has_as_many_clones_by_serve_as_by_sudo_and_no_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A token names it `unix:anna`, sudo `anna`; its clones say `anna`."""
    pool, host = ClonePool(), replace(THIS_HOST, run=tmp_path)
    pool.install(monkeypatch)
    pool.clone("first", pool.snapshot(f"{SOURCE}@zsnapdb-20261120T100000Z-0001"), owner="anna")
    limited = configuration.parse(
        f'[repository.r]\nurl = "file:///r"\n[instance.main]\nrepository = "r"\n'
        f'[clones]\ndataset = "{HOME}"\nper_owner = 1\n',
        "the test",
    )
    slot = catalogue.find(limited, host, "first")
    for owner in ("anna", "unix:anna"):
        request = CloneRequest(owner=owner, name="second")
        with pytest.raises(PreflightError, match=r"clones\.per_owner is 1"):
            create_plan._admitted(limited, host, request, "second", 1 << 40, catalogue.claims(limited))
        with pytest.raises(PreflightError, match=r"clones\.per_owner is 1"):
            clone_pool._admitted_beside(limited, request, replace(slot, name="slot"), "second")


@pytest.fixture
def heir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Heir:
    pool = ClonePool()
    pool.install(monkeypatch)
    monkeypatch.setattr("zsnapdb.jobs.base.run_locks.THIS_HOST", replace(THIS_HOST, run=tmp_path))
    base = pool.snapshot(f"{SOURCE}@zsnapdb-20260101T000000Z-0001")
    revision = pool.clone("heir", base, expires="2099-01-01T00:00:00Z")
    pool.things[revision].properties |= {"quota": str(GIB), "used": "0"}
    return Heir(pool, revision, replace(THIS_HOST, run=tmp_path))


@dataclass(frozen=True)
class Heir:
    """A clone that may write 1 GiB, and takes commits over."""

    pool: ClonePool
    revision: str
    host: Host
    settings: Settings = field(default_factory=lambda: settings(GIB).model_copy(update={"clones": CLONES}))

    def gets(self, commit: str, written: int) -> None:
        """Take over a commit of so many bytes; so many are used then, beside what its users write."""
        name = self.pool.commit(self.revision, commit)
        self.pool.things[name].properties["written"] = str(written)
        self.uses(written)

    def uses(self, more: int) -> None:
        for dataset in (self.revision, self.revision.rpartition("/")[0]):
            used = int(self.pool.things[dataset].properties.get("used", "0"))
            self.pool.things[dataset].properties["used"] = str(used + more)

    @property
    def info(self) -> CloneInfo:
        return catalogue.find(self.settings, self.host, "heir")

    @property
    def quotas(self) -> tuple[int, int]:
        return self.info.quota, self.info.written_quota


def test_a_clone_may_write_as_much_as_before_when_it_took_something_over(heir: Heir) -> None:
    for number in (1, 3):
        with catalogue.taking_over([heir.revision], 9 * GIB):
            assert heir.info.quota > 9 * GIB
            heir.gets(f"20260101T000000Z-000{number}", number * GIB)
            # What its users write meanwhile is no reason to give it more.
            heir.uses(GIB // 4)
    assert (heir.quotas, heir.info.takes_over) == ((5 * GIB, GIB), ())


@pytest.mark.parametrize(("written", "expected"), [(GIB - (9 << 20), "stopped, quota full"), (GIB // 2, "stopped")])
def test_show_stopped_clone_names_full_quota(heir: Heir, written: int, expected: str) -> None:
    heir.uses(written - heir.info.own_bytes)
    assert state(heir.info) == expected
    text = CloneDetailView(info=heir.info, commits=(), now=NOW).text()
    assert ("`zsnapdb clone reset heir`" in text) == (expected != "stopped")


@pytest.mark.parametrize("quota", [0, 1, 1 << 40])
def test_is_full_needs_quota_and_space(quota: int) -> None:
    assert (is_full(1 << 50, quota), is_full(None, quota), is_full(0, quota)) == (quota > 0, False, False)


WAYS: dict[str, Callable[[Heir], object]] = {
    "reap": lambda heir: reaper.reap(heir.settings, heir.host),
    "its next change": lambda heir: lifecycle.protect(heir.settings, heir.host, "heir", 60.0).run(),
    "the next that is taken over": lambda heir: takes_over(heir, 0),
}


def takes_over(heir: Heir, written: int) -> None:
    with catalogue.taking_over([heir.revision], 9 * GIB):
        if written:
            heir.gets("20260101T000000Z-0002", written)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("has_taken", [False, True])
def test_a_kill_while_something_is_taken_over_leaves_no_larger_quota_than_is_right(
    heir: Heir, monkeypatch: pytest.MonkeyPatch, way: str, has_taken: bool
) -> None:
    settle = catalogue.settle_adopted_commits
    # Whoever is killed comes to no end.
    monkeypatch.setattr(catalogue, "settle_adopted_commits", lambda _: None)
    takes_over(heir, 3 * GIB if has_taken else 0)
    assert heir.quotas[0] == 10 * GIB
    heir.uses(GIB // 2)
    monkeypatch.setattr(catalogue, "settle_adopted_commits", settle)
    WAYS[way](heir)
    assert heir.quotas == ((4 * GIB, GIB) if has_taken else (GIB, GIB))


def test_other_data_gets_no_quota_for_what_was_taken_over_nor_for_what_commits_keep(
    heir: Heir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a clone that was filled, committed and reset might write twice as much, and so on."""
    given = list[int]()
    monkeypatch.setattr(volumes, "clone_volumes", lambda *words: given.append(words[3]))

    def beside() -> int:
        source = CloneSource(SourceKind.BACKUP, SnapshotSet("20260101T000000Z-0001", {}), heir.info.origin)
        assert data_replacement._clone_beside(heir.settings, heir.info, source, commits(heir.info.current)) == 2
        return given[-1]

    heir.uses(GIB // 4)
    assert beside() == GIB, "the data goes: one that is full can be reset"
    with catalogue.taking_over([heir.revision], 9 * GIB):
        heir.gets("20260101T000000Z-0002", 3 * GIB)
    assert (heir.quotas, beside()) == ((4 * GIB, GIB), 3 * GIB // 4)
    # The old data is kept for its commits, and the clone may have as much in all as before.
    volume = heir.pool.volume("heir", 2, f"{SOURCE}@zsnapdb-20260101T000000Z-0001")
    heir.pool.things[volume].properties["quota"] = str(given[-1])
    heir.pool.things[f"{HOME}/heir"].properties["zsnapdb:revision"] = "2"
    assert heir.quotas == (4 * GIB, 3 * GIB // 4)
    assert lifecycle.extend(heir.settings, heir.host, "heir", None, 5 * GIB).run().quota == 5 * GIB


def test_a_clone_whose_commits_keep_all_that_it_may_have_gets_no_other_data(heir: Heir) -> None:
    heir.gets("20260101T000000Z-0002", GIB - LEAST + 1)
    with pytest.raises(PreflightError, match=r"use 960\.0 MiB of its quota of 1\.0 GiB") as refused:
        data_replacement.quota_beside(heir.settings, heir.info)
    assert "zsnapdb clone extend heir --quota" in refused.value.hint
