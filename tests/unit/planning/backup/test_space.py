"""A pool without room for a snapshot is found before the backup, with its numbers and what bounds the space."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zsnapdb.planning.backup.fitness import DatasetSpace, Severity, judge_space

G = 1 << 30
POOL = DatasetSpace("tank", 50 * G, 50 * G, 0, 0, 0, 0, 0)
DATA = DatasetSpace("tank/mysql", 50 * G, 40 * G, 30 * G, 0, 0, 0, 0)


def test_plenty_of_room_is_said_with_its_number() -> None:
    (finding,) = judge_space(POOL, [DATA])
    assert (finding.severity, finding.detail) == (Severity.OK, "tank/mysql has 50.0 GiB free, tank 50.0 GiB")


@pytest.mark.parametrize("free", [0, 1 << 20, (4 << 20) - 1])
def test_a_full_pool_is_unfit(free: int) -> None:
    (finding,) = judge_space(replace(POOL, available=free), [replace(DATA, available=free)])
    assert finding.severity is Severity.UNFIT
    assert "`zfs snapshot` would fail" in finding.detail
    assert "zfs list -o space -r tank" in finding.hint
    assert "without `zsnapdb prune`" in finding.hint, "it would remove backups from the repository"


@pytest.mark.parametrize(
    ("pool", "volume", "limit"),
    [
        (POOL, replace(DATA, available=G, quota=41 * G), "its quota of 41.0 GiB"),
        (POOL, replace(DATA, available=0, refquota=30 * G), "its refquota of 30.0 GiB"),
        (POOL, replace(DATA, available=G), "a quota of a dataset above it"),
        (replace(POOL, available=G), replace(DATA, available=G), "the pool tank"),
    ],
)
def test_little_room_is_a_warning_that_names_what_bounds_it(
    pool: DatasetSpace, volume: DatasetSpace, limit: str
) -> None:
    (finding,) = judge_space(pool, [volume])
    assert finding.severity is Severity.WARNING
    assert limit in finding.detail
    assert finding.hint


def test_a_refreservation_needs_what_was_written_since_the_last_snapshot_once_more() -> None:
    """All free space is inside the reservation: 30 GiB are needed outside, 10 GiB are there."""
    reserved = replace(DATA, refreservation=60 * G, used_by_refreservation=30 * G, available=40 * G)
    (finding,) = judge_space(replace(POOL, available=10 * G), [reserved])
    assert finding.severity is Severity.WARNING
    assert "needs 30.0 GiB outside of it, and 10.0 GiB are free there" in finding.detail
    enough = judge_space(replace(POOL, available=30 * G), [replace(reserved, available=60 * G)])
    assert [f.severity for f in enough] == [Severity.OK]
