"""How much a new clone may write: as configured or as asked for, never what production needs, and never by a member."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool
from zsnapdb.base.errors import PreflightError, UsageError
from zsnapdb.base.model import SnapshotSet
from zsnapdb.config import settings as configuration
from zsnapdb.config.settings import CloneSettings, Settings
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import catalogue, create_plan, data_reset, room, volumes
from zsnapdb.jobs.clone import pool as clone_pool
from zsnapdb.jobs.clone.delegation import COMMANDS, SERVED, parse
from zsnapdb.jobs.clone.request import CloneRequest
from zsnapdb.jobs.clone.sources import CloneSource
from zsnapdb.planning.clone.room import LEAST
from zsnapdb.planning.clone.source_kind import SourceKind

GIB = 1 << 30


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
    assert room.of_new_clone(settings(configured), free, wanted) == expected


def test_less_than_a_server_needs_is_refused() -> None:
    with pytest.raises(UsageError, match=r"needs 64\.0 MiB"):
        room.of_new_clone(settings(GIB), 100 * GIB, LEAST - 1)


def test_a_member_of_the_group_names_no_quota_and_the_helper_does() -> None:
    words = ("create", "main", "mine", f"--quota={GIB}")
    with pytest.raises(UsageError, match="unknown option"):
        parse(words, "ann", COMMANDS)
    assert f"--quota={GIB}" in parse(words, "ci:shop/web", SERVED).words
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
    instance = Instance.of(limited, "main").on_host(host)
    slot = catalogue.find(limited, host, "first")
    for owner in ("anna", "unix:anna"):
        request = CloneRequest(owner=owner, name="second")
        with pytest.raises(PreflightError, match=r"clones\.per_owner is 1"):
            create_plan._admitted(limited, host, request, "second", 1 << 40)
        with pytest.raises(PreflightError, match=r"clones\.per_owner is 1"):
            clone_pool._admitted_beside(limited, instance, request, replace(slot, name="slot"), "second")


def test_other_data_gets_no_quota_for_what_was_taken_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else a clone that was filled, committed, cloned, destroyed and reset might write twice as much, and so on."""
    pool, limited, given = ClonePool(), settings(GIB), list[int]()
    pool.install(monkeypatch)
    base = pool.snapshot(f"{SOURCE}@zsnapdb-20261120T100000Z-0001")
    revision = pool.clone("heir", base)
    limited = limited.model_copy(update={"clones": CloneSettings(dataset=HOME)})
    pool.things[revision].properties |= {"quota": str(GIB), "used": "0"}
    for taken in (GIB, 3 * GIB):
        with room.for_what_is_taken_over([revision], 9 * GIB):
            pool.things[revision].properties["used"] = str(taken)
    info = catalogue.find(limited, replace(THIS_HOST, run=tmp_path), "heir")
    assert (info.quota, info.written_quota) == (4 * GIB, GIB)
    monkeypatch.setattr(volumes, "clone_volumes", lambda *words: given.append(words[3]))
    source = CloneSource(SourceKind.BACKUP, SnapshotSet("20261120T100000Z-0001", {}), info.origin)
    assert (data_reset._clone_beside(limited, info, source), given) == (2, [GIB])
