"""A bookmark of data that `zfs receive -F` replaced is neither a base nor a state of production."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.world import World
from zsnapdb.planning.creation_order import is_kept_state
from zsnapdb.zfs import replaced_data
from zsnapdb.zfs.replaced_data import Replacements

RECEIVED = "2026-11-29.18:05:13 [txg:{}] clone swap {}/%recv (345) parent=mysql\n"
BEGIN = "History for 'tank':\n2026-11-20.10:00:00 zpool create tank /dev/x\n2026-11-20.10:00:00 [txg:4] create pool\n"


@given(st.lists(st.tuples(st.sampled_from(["snapshot", "destroy", "replace"]), st.integers(0, 7)), max_size=30))
def test_kept_state_is_an_earlier_state_of_the_data(steps: list[tuple[str, int]]) -> None:
    """A state is the groups from which the data comes. A replacement returns to a snapshot, or starts with no data."""
    lineage: tuple[int, ...] = ()
    snapshots: dict[int, tuple[int, ...]] = {}
    bookmarks: list[int] = []
    replaced: list[int] = []
    for group, (step, at) in enumerate(steps, 10):
        lineage = (*lineage, group)
        if step == "snapshot":
            snapshots[group] = lineage
            bookmarks.append(group)
        elif step == "destroy" and snapshots:
            del snapshots[sorted(snapshots)[at % len(snapshots)]]
        elif step == "replace":
            kept = [*sorted(snapshots), None][at % (len(snapshots) + 1)]
            lineage = (*(snapshots[kept] if kept is not None else ()), group)
            snapshots = {made: state for made, state in snapshots.items() if kept is not None and made <= kept}
            snapshots[group] = lineage
            replaced.append(group)
        for mark in bookmarks:
            is_kept = is_kept_state(mark, snapshots, replaced, 4)
            assert not is_kept or mark in lineage
            assert is_kept or any(mark < one for one in replaced)
            assert is_kept_state(mark, snapshots, replaced, mark + 1) is None


def test_replacements_follow_renames() -> None:
    text = (
        BEGIN + RECEIVED.format(7, "tank/a b/data") + "2026-11-29.18:06:13 [txg:8] rename tank/a b (54) -> tank/new\n"
    )
    text += RECEIVED.format(9, "tank/a b") + "2026-11-29.18:06:13 [txg:10] snapshot tank/a b@x (6)\n"
    known = Replacements.parse(text)
    assert (known.first, known.groups) == (4, {"tank/new/data": (7,), "tank/a b": (9,)})
    assert Replacements.parse("History for 'tank':\n").first is None


@pytest.mark.parametrize("history", ["replaced", "unreadable", "overwritten"])
def test_bookmark_of_replaced_data_is_no_base(world: World, history: str) -> None:
    first, second = world.backup().manifest, world.backup().manifest
    assert not second.is_full
    for name in [name for name in world.snapshots if name.endswith(f"@zsnapdb-{second.backup_id}")]:
        del world.snapshots[name]
    kept = world.backup().manifest
    assert {one.from_guid for one in kept.volumes} == {one.guid for one in second.volumes}
    for name in [name for name in world.snapshots if name.endswith(f"@zsnapdb-{kept.backup_id}")]:
        del world.snapshots[name]
    made = max(snap.createtxg for snap in world.bookmarks.values())
    world.zfs.history = {
        "replaced": BEGIN + RECEIVED.format(made + 1, "tank/mysql"),
        "unreadable": "",
        "overwritten": f"x [txg:{made + 1}] set tank/mysql (54) a=b\n",
    }[history]
    present = world.backup().manifest
    assert {one.from_guid for one in present.volumes} == {one.guid for one in first.volumes}


def test_replaced_data_has_only_states_before_it(world: World) -> None:
    backups = [world.backup().manifest for _ in range(3)]
    places = set(world.instance.volumes.values())
    assert replaced_data.abandoned_bookmarks(places, if_unknown=True) == {}
    for name in [name for name in world.snapshots if not name.endswith(f"@zsnapdb-{backups[1].backup_id}")]:
        del world.snapshots[name]
    assert replaced_data.abandoned_bookmarks(places, if_unknown=True) == {}
    made = max(snap.createtxg for snap in world.bookmarks.values())
    world.zfs.history = BEGIN + "".join(RECEIVED.format(made + 1, place) for place in places)
    lost = replaced_data.abandoned_bookmarks(places, if_unknown=False)
    assert set(lost) == {f"{place}#zsnapdb-{backups[2].backup_id}" for place in places}
    world.zfs.history = ""
    assert replaced_data.abandoned_bookmarks(places, if_unknown=False) == {}
