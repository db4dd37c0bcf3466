"""Which backups are of a history that production left: the path from now back through each restore says so."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from zsnapdb.planning.repository.production_restores import (
    ProductionPoints,
    ProductionRestore,
    ProductionRestoreRecord,
    rolled_back,
)

NO_RESTORE = ProductionRestoreRecord()
FIRST, SECOND = "20261120T100000Z-0001", "20261121T100000Z-0002"


@dataclass(frozen=True)
class Volume:
    """A volume of a backup. Its GUID is the transaction group."""

    guid: int
    role: str = "data"
    dataset: str = "tank/data"
    from_guid: int | None = None
    send_flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Made:
    """A backup of a pool, made in a transaction group."""

    createtxg: int
    pool_guid: int = 1
    sequence: int | None = None
    writer: str = "server"

    @property
    def volumes(self) -> tuple[Volume, ...]:
        return (Volume(self.createtxg),)

    @property
    def backup_id(self) -> str:
        return f"{self.pool_guid}:{self.createtxg}"


def put_back(restore_id: str, base: int, group: int, base_pool: int = 1, pool: int = 1) -> ProductionRestore:
    return ProductionRestore(restore_id=restore_id, base_pool=base_pool, base_group=base, pool=pool, group=group)


def left(record: ProductionRestoreRecord, *groups: int, pool: int = 1) -> list[int]:
    made = [Made(group, pool) for group in groups]
    found = record.taken_back(made)
    return [one.createtxg for one in made if one.backup_id in found]


def test_backups_between_the_base_and_the_exchange_are_left() -> None:
    record = ProductionRestoreRecord().with_restore(put_back(FIRST, 20, 50))
    assert left(record, 10, 20, 21, 50, 51) == [21, 50]
    assert record.taken_back([Made(30)]) == {"1:30": FIRST}
    assert left(record, 30, pool=9) == [], "nothing is known about that pool"
    assert [record.is_since(Made(group)) for group in (20, 50, 51)] == [False, False, True]


def test_a_restore_to_what_an_earlier_one_left_makes_that_the_path() -> None:
    record = ProductionRestoreRecord().with_restore(put_back(FIRST, 20, 50)).with_restore(put_back(SECOND, 40, 70))
    assert left(record, 10, 30, 40, 45, 60, 80) == [45, 60]


def test_a_second_restore_adds_to_what_is_left() -> None:
    record = ProductionRestoreRecord().with_restore(put_back(FIRST, 20, 50)).with_restore(put_back(SECOND, 60, 70))
    assert left(record, 20, 30, 55, 60, 65, 80) == [30, 65]
    assert record.taken_back([Made(65)]) == {"1:65": SECOND}


def test_a_restore_into_another_pool_leaves_what_is_later_in_the_first() -> None:
    record = ProductionRestoreRecord().with_restore(put_back(FIRST, 20, 5, base_pool=1, pool=2))
    assert left(record, 10, 20, 30, 1000) == [30, 1000]
    assert left(record, 6, 7, pool=2) == []
    home = record.with_restore(put_back(SECOND, 6, 2000, base_pool=2, pool=1))
    assert left(home, 10, 20, 1000, 2001) == [1000]


@pytest.mark.parametrize(("mark", "counted"), [(FIRST, 1), (SECOND, 2), (None, 0), ("20990101T000000Z-0009", 0)])
def test_what_was_undone_by_hand_does_not_count(mark: str | None, counted: int) -> None:
    record = ProductionRestoreRecord().with_restore(put_back(FIRST, 20, 50)).with_restore(put_back(SECOND, 60, 70))
    assert len(record.as_of(mark).restores) == counted


def test_a_resumed_restore_is_recorded_once() -> None:
    record = ProductionRestoreRecord().with_restore(put_back(FIRST, 20, 50))
    assert record.with_restore(put_back(FIRST, 20, 99)) is record


def lost(
    newest_first: list[Made], production: ProductionPoints, record: ProductionRestoreRecord = NO_RESTORE
) -> list[int]:
    made = list(reversed(newest_first))
    found = rolled_back(made, production, record)
    return [one.createtxg for one in made if one.backup_id in found]


def test_rollback_loses_backups_later_than_its_snapshot() -> None:
    made = [Made(group) for group in (60, 50, 40, 30)]
    assert lost(made, ProductionPoints(1, {30, 40}, 30)) == [50, 60]
    assert lost(made, ProductionPoints(1, {30, 40, 60}, 30)) == [], "a later backup is of production again"
    assert lost(made, ProductionPoints(1, {10}, 10)) == [30, 40, 50, 60]
    assert lost(made, ProductionPoints(1, {45}, 45)) == [50, 60], "an earlier dataset had the others"


def test_datasets_without_older_points_are_not_rolled_back() -> None:
    made = [Made(group) for group in (60, 50)]
    for production in (ProductionPoints(1, set(), None), ProductionPoints(1, {70}, 70), ProductionPoints(2, {10}, 10)):
        assert lost(made, production) == []


def test_rollback_before_a_recorded_restore_is_not_judged() -> None:
    record = ProductionRestoreRecord().with_restore(put_back(FIRST, 20, 55))
    made = [Made(group) for group in (60, 50)]
    assert lost(made, ProductionPoints(1, {10}, 10), record) == [60]


def test_backups_of_restore_undone_by_hand_are_discarded() -> None:
    """Production went to pool 2, and an operator put the datasets in pool 1 back."""
    record = ProductionRestoreRecord().with_restore(put_back(FIRST, 20, 7, pool=2))
    undone = record.undone_since(record.as_of(None))
    made = [Made(30), Made(7, 2), Made(8, 2), Made(9, 3)]
    assert undone.discarded(made, [1]) == {"2:8": FIRST}
    assert undone.discarded(made, [1, 2]) == {}
    assert record.undone_since(record.as_of(FIRST)).discarded(made, [1]) == {}
