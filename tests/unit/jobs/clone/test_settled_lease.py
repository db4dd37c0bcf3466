"""A lease or data of a time when the clock was ahead count from when the clock is right."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool
from zsnapdb.config.settings import CloneSettings, Settings
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.clone import cached_sets, catalogue
from zsnapdb.jobs.dataset_copies.properties import lease_values
from zsnapdb.planning.clock_guard import RemovalTime
from zsnapdb.planning.clone.lease import CloneLease, changed, extended, policy, stamp

NOW = datetime(2026, 11, 22, tzinfo=UTC)
AHEAD = NOW + timedelta(days=40)
DAY = timedelta(days=1)
SETTINGS = Settings.model_construct(instance={}, repository={}, clones=CloneSettings(dataset=HOME))


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> ClonePool:
    made = ClonePool()
    made.install(monkeypatch)
    return made


def clone(pool: ClonePool, begun: datetime, lease: CloneLease) -> None:
    base = pool.snapshot(f"{SOURCE}@zsnapdb-20261122T000000Z-0001", backup="20261122T000000Z-0001")
    facts: dict[str, Any] = {name.partition(":")[2]: value for name, value in lease_values(lease).items()}
    pool.clone("box", base, **{**facts, "created": stamp(begun), "begun": stamp(begun)})


def settled() -> tuple[CloneLease, str, str]:
    """Settle the clone, and return what is recorded then."""
    cached_sets.settle(catalogue.of_dataset(SETTINGS, THIS_HOST, "box"), RemovalTime(NOW, NOW))
    found = catalogue.of_dataset(SETTINGS, THIS_HOST, "box")
    return found.lease, found.begun, found.created


def test_data_cloned_ahead_gets_no_older_than_allowed(pool: ClonePool) -> None:
    clone(pool, AHEAD, CloneLease(AHEAD + DAY))
    assert settled() == (CloneLease(NOW + DAY), stamp(NOW), stamp(NOW))


def test_extension_made_ahead_begins_when_the_clock_is_right(pool: ClonePool) -> None:
    before, time = CloneLease(NOW + DAY), RemovalTime(AHEAD, NOW, "a doubt")
    lease = changed(before, extended(before, 3 * 86_400, policy(SETTINGS.clones), time.latest), time)
    assert lease.expires == AHEAD + 3 * DAY
    clone(pool, NOW - DAY, lease)
    assert settled() == (CloneLease(NOW + 3 * DAY), stamp(NOW - DAY), stamp(NOW - DAY))
