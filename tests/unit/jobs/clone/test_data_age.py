"""What holds production's snapshots for subjects in small steps ends `clones.max_age` after the first step."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool, origin
from zsnapdb.base.domain_types import SnapshotSet
from zsnapdb.base.errors import PreflightError
from zsnapdb.config.serve import ServeSettings
from zsnapdb.config.settings import CloneSettings, parse
from zsnapdb.jobs.base.host import THIS_HOST, Host
from zsnapdb.jobs.clone import cached_sets, catalogue, expected_clone
from zsnapdb.jobs.clone.clone_info import CloneClaim
from zsnapdb.jobs.clone.sources import CloneSource
from zsnapdb.planning.clone.lease import CloneLease, SourceKind, first_lease, policy, quota_of, read_stamp, stamp
from zsnapdb.zfs import snapshots

DAY = timedelta(days=1)
BEGAN = datetime(2026, 11, 22, tzinfo=UTC)
LIMITS = CloneSettings(dataset=HOME, max_age=90 * 86400.0)
SETTINGS = parse(
    '[repository.r]\nurl = "file:///r"\n[instance.main]\nrepository = "r"\nvolumes = { data = "tank/mysql" }\n',
    "the test",
).model_copy(update={"clones": LIMITS})


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ClonePool:
    made = ClonePool()
    made.install(monkeypatch)
    monkeypatch.setattr("zsnapdb.jobs.base.run_locks.THIS_HOST", replace(THIS_HOST, run=tmp_path))
    monkeypatch.setenv(expected_clone.CAUSER_VARIABLE, "ada")
    return made


def host_on(day: int) -> Host:
    return _host_at(BEGAN + day * DAY)


def _host_at(moment: datetime) -> Host:
    return replace(THIS_HOST, now=lambda: moment)


def source(snapshot: str, kind: SourceKind = SourceKind.BACKUP) -> CloneSource:
    (described,) = snapshots.describe([snapshot])
    return CloneSource(kind, SnapshotSet(snapshot.partition("@zsnapdb-")[2], {"data": described}), origin())


def made(pool: ClonePool, name: str, base: str, since: int, ends: int, owner: str = "ada") -> None:
    at, end = stamp(BEGAN + since * DAY), stamp(BEGAN + ends * DAY)
    pool.clone(name, base, owner=owner, begun=at, created=at, expires=end, key=source(base).key)


def others() -> list[CloneClaim]:
    return list(catalogue.claims(SETTINGS).copies)


def test_clones_of_a_set_that_overlap_hold_it_no_longer_than_one(pool: ClonePool) -> None:
    base = pool.snapshot(f"{SOURCE}@zsnapdb-20261121T000000Z-0001")
    newer = pool.snapshot(f"{SOURCE}@zsnapdb-20261129T000000Z-0002")
    made(pool, "first", base, 0, 90)
    began = cached_sets.kept_since(source(base), others(), host_on(89))
    assert read_stamp(began) == BEGAN
    lease = CloneLease(BEGAN + 100 * DAY)
    with pytest.raises(PreflightError, match=r"clones\.max_age"):
        cached_sets.require(SETTINGS, lease, None, began)
    assert read_stamp(cached_sets.kept_since(source(newer), others(), host_on(89))) == BEGAN + 89 * DAY
    # What root holds is root's to end.
    pool.things[f"{HOME}/first"].properties["zsnapdb:owner"] = "root"
    assert read_stamp(cached_sets.kept_since(source(base), others(), host_on(89))) == BEGAN + 89 * DAY


def test_a_fresh_clone_gets_no_old_data_by_a_reset(pool: ClonePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease was given to new data: it would keep the old for as long, and the next clone for longer."""
    base = pool.snapshot(f"{SOURCE}@zsnapdb-20261121T000000Z-0001")
    newer = pool.snapshot(f"{SOURCE}@zsnapdb-20261129T000000Z-0002")
    made(pool, "first", base, 0, 90)
    made(pool, "fresh", newer, 88, 118)
    commit = pool.commit(f"{HOME}/first/r1", "20261122T000000Z-000c")
    pool.things[commit].properties |= {"zsnapdb:begun": stamp(BEGAN), "zsnapdb:origin": origin().encode()}
    fresh = catalogue.find(SETTINGS, THIS_HOST, "fresh")
    for old in (source(base), source(commit, SourceKind.COMMIT)):
        with pytest.raises(PreflightError, match=r"clones\.max_age"):
            cached_sets.begun_after(SETTINGS, host_on(89), fresh, old)
        short = replace(fresh, lease=CloneLease(BEGAN + 89 * DAY))
        assert read_stamp(cached_sets.begun_after(SETTINGS, host_on(89), short, old)) == BEGAN
    # Nothing of what it had stays: its data is kept since now.
    first = catalogue.find(SETTINGS, THIS_HOST, "first")
    monkeypatch.setattr(cached_sets, "commits", lambda _: [])
    assert read_stamp(cached_sets.begun_after(SETTINGS, host_on(89), first, source(newer))) == BEGAN + 88 * DAY
    monkeypatch.delenv(expected_clone.CAUSER_VARIABLE)
    assert read_stamp(cached_sets.begun_after(SETTINGS, host_on(89), fresh, source(base))) == BEGAN


@given(
    st.lists(st.tuples(st.sampled_from((True, True, True, False)), st.integers(0, 3), st.integers(5, 25)), max_size=60)
)
def test_no_order_of_clones_resets_and_ends_holds_a_set_beyond_its_age(
    deeds: list[tuple[bool, int, int]],
) -> None:
    """Whoever holds the set at a time got it, or from one who had it, at most `max_age` before."""
    limits = policy(LIMITS)
    held: dict[int, CloneClaim] = {}
    leases: dict[int, CloneLease] = {}
    free_since, at = BEGAN, BEGAN
    base = CloneSource(SourceKind.BACKUP, SnapshotSet("s", {}), origin())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(expected_clone.CAUSER_VARIABLE, "ada")
        for creates, who, days in deeds:
            at += days * DAY
            ended = [one for one in held if leases[one].expires <= at]
            for one in ended:
                del held[one]
            if not held:
                free_since = at
            if creates:
                since = cached_sets.kept_since(base, held.values(), _host_at(at))
                try:
                    lease = cached_sets.require(SETTINGS, first_lease(30 * 86400.0, limits, at), None, since)
                except PreflightError:
                    continue
                leases[who] = lease
                held[who] = CloneClaim(
                    name="c", top="t", port=1, owner=f"owner{who}", key=base.key, begun=since, created=since
                )
            else:
                held.pop(who, None)
            assert all(leases[one].expires <= free_since + 91 * DAY for one in held)


def test_what_subjects_use_keeps_a_prepared_form_no_longer(pool: ClonePool, monkeypatch: pytest.MonkeyPatch) -> None:
    base = pool.snapshot(f"{SOURCE}@zsnapdb-20261121T000000Z-0001")
    anchor = cached_sets.anchor_of(HOME, cached_sets.PREPARED, cached_sets.name_of(source(base), ""))
    pool.clone("x", base)
    pool.things[anchor] = replace(pool.things[f"{HOME}/x"], properties={"zsnapdb:created": stamp(BEGAN)})
    used = "zsnapdb:used"
    for day, recorded in ((10, 10), (200, 90)):
        cached_sets.mark_used(SETTINGS, HOME, source(base), BEGAN + day * DAY)
        assert pool.things[anchor].properties[used] == stamp(BEGAN + recorded * DAY)
    monkeypatch.delenv(expected_clone.CAUSER_VARIABLE)
    cached_sets.mark_used(SETTINGS, HOME, source(base), BEGAN + 200 * DAY)
    assert pool.things[anchor].properties[used] == stamp(BEGAN + 200 * DAY)


@pytest.mark.parametrize(
    ("configured", "is_subject", "limits"),
    [
        (CloneSettings(), True, (12, 50)),
        (CloneSettings(), False, (0, 0)),
        (CloneSettings(per_owner=0, total=0), True, (0, 0)),
        (CloneSettings(per_owner=3, total=4), False, (3, 4)),
    ],
)
def test_what_is_not_configured_is_bounded_for_a_subject_alone(
    configured: CloneSettings, limits: tuple[int, int], *, is_subject: bool
) -> None:
    serve = ServeSettings(per_subject=12)
    quota = quota_of(SETTINGS.model_copy(update={"clones": configured, "serve": serve}), is_subject=is_subject)
    assert (quota.per_owner, quota.total) == limits
