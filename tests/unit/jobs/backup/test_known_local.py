"""However many local sets a host has, a run reads few of them, and misses none that is no local one any more."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import pytest

from tests.unit.jobs.backup.test_store_away import Away
from tests.unit.support.events import Recorder
from tests.unit.support.simulated_zfs import Snap
from tests.unit.support.world import Died, World
from zsnapdb.base.domain_types import Snapshot
from zsnapdb.base.errors import PreflightError
from zsnapdb.jobs.backup import local_snapshot, plan, send, store_local_set
from zsnapdb.jobs.backup import run as job
from zsnapdb.jobs.base import instance_snapshots
from zsnapdb.jobs.base.instance_snapshots import SetsHere, own_snapshots
from zsnapdb.jobs.base.snapshot_set_properties import (
    BACKUP_PROPERTY,
    BASE_TAG,
    LOCAL,
    MARKS,
    STATE_PROPERTY,
    STORED,
)
from zsnapdb.jobs.host.local_snapshot_sets import local_sets, newest_set, require_whole
from zsnapdb.jobs.repository.inventory import inventory
from zsnapdb.zfs import datasets, holds, snapshots
from zsnapdb.zfs.snapshot_files import SnapshotNames

COUNT = 12
LOCAL_AND_FREE = {STATE_PROPERTY: LOCAL, instance_snapshots.HOLDS: "0"}


def snapshot(world: World) -> str:
    return local_snapshot.snapshot(world.instance, opener=world.open_source).backup_id


@pytest.fixture
def asked(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sets of which a snapshot was read by its name, once for each."""
    names: list[str] = []
    owned_among = snapshots.owned_among

    def noted(wanted: list[str], keys: list[str]) -> list[snapshots.OwnedSnapshot]:
        names.extend(sorted({name.partition("@zsnapdb-")[2] for name in wanted}))
        return owned_among(wanted, keys)

    def refused(*_: object) -> list[snapshots.OwnedSnapshot]:
        raise AssertionError("all snapshots were listed")

    monkeypatch.setattr(snapshots, "owned_among", noted)
    monkeypatch.setattr(snapshots, "list_owned", refused)
    monkeypatch.setattr(plan, "_all_points", refused)
    return names


def test_a_backup_reads_the_local_sets_once_and_then_what_is_new(world: World, asked: list[str]) -> None:
    local = [snapshot(world) for _ in range(COUNT)]
    first = world.backup().manifest.backup_id
    newest = snapshot(world)
    asked.clear()
    second = world.backup().manifest
    assert not set(asked) & {*local, newest}
    assert first in asked
    assert not second.is_full
    asked.clear()
    inventory(world.instance)
    assert not set(asked) & {*local, newest}
    assert {one.backup_id for one in local_sets(world.instance, LOCAL)} == {*local, newest}
    world.check_good()


def test_the_newest_set_is_found_among_few(world: World, asked: list[str]) -> None:
    local = [snapshot(world) for _ in range(COUNT)]
    asked.clear()
    found = newest_set(world.instance, STORED, LOCAL)
    assert found is not None
    assert (found.set.backup_id, found.state) == (local[-1], "local")
    assert len(asked) < COUNT
    stored = newest_set(world.instance, STORED)
    assert stored is not None
    assert stored.set.backup_id == world.ids()[-1]
    assert newest_set(world.instance, "live") is None


def test_of_sets_of_one_second_the_one_that_zfs_made_last_is_the_newest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter([f"20261120T100000Z-{digits}" for digits in ("2222", "ffff", "0001")])
    monkeypatch.setattr(world, "new_id", lambda *_: next(ids))
    made = [snapshot(world) for _ in range(3)]
    assert [one.backup_id for one in local_sets(world.instance, LOCAL)] == made
    newest = newest_set(world.instance, LOCAL)
    assert newest is not None
    assert newest.set.backup_id == made[-1]
    assert [one.backup_id for one in local_snapshot.sets(world.instance, LOCAL)] == made


def test_newest_set_after_clock_ahead_is_the_last_made(
    world: World, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    years = [2031] * 8 + [2026] * 2
    ids = iter([f"{year}1120T1000{number:02d}Z-0000" for number, year in enumerate(years)])
    monkeypatch.setattr(world, "new_id", lambda *_: next(ids))
    made = [snapshot(world) for _ in years]
    asked.clear()
    newest = newest_set(world.instance, LOCAL)
    assert newest is not None
    assert newest.set.backup_id == made[-1]
    assert len(asked) < len(made)


@pytest.mark.parametrize("is_listed", [True, False])
def test_newest_set_that_lacks_a_volume_is_not_passed_over(
    world: World, monkeypatch: pytest.MonkeyPatch, is_listed: bool
) -> None:
    older, whole, torn = (snapshot(world) for _ in range(3))
    monkeypatch.setattr(datasets, "exists", lambda _: True)
    if not is_listed:
        monkeypatch.setattr(instance_snapshots, "snapshot_names", lambda _: None)
    groups = {one.backup_id: one.createtxg for one in local_sets(world.instance, LOCAL)}
    require_whole(world.instance, groups[torn])
    for name in [name for name in world.snapshots if name.endswith((f"data@zsnapdb-{torn}", f"data@zsnapdb-{older}"))]:
        del world.snapshots[name]
    newest = newest_set(world.instance, LOCAL)
    assert newest is not None
    assert newest.set.backup_id == whole
    with pytest.raises(PreflightError, match=f"is incomplete: another program left only [a-z/]+@zsnapdb-{torn}\\n"):
        require_whole(world.instance, newest.set.createtxg)
    with pytest.raises(PreflightError, match="is incomplete"):
        store_local_set.open_set(world.instance, "latest")
    told = Recorder([])
    require_whole(world.instance.with_events(told), newest.set.createtxg, accepts_older=True)
    assert [text for text in told.lines if "an older state is used" in text]
    require_whole(world.instance, groups[torn])
    snapshot(world)
    assert store_local_set.open_set(world.instance, "latest").set.backup_id not in (older, whole, torn)


def _with(key: str, value: str) -> Callable[[World, Snap], None]:
    return lambda _, snap: snap.properties.update({key: value})


def _renamed(world: World, snap: Snap) -> None:
    del world.snapshots[snap.name]
    snap.name = f"{snap.name.partition('@')[0]}@manual"
    world.snapshots[snap.name] = snap


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "change",
    [
        *(_with(key, "-") for key in MARKS),
        _with(BACKUP_PROPERTY, "20200101T000000Z-0000"),
        _with(STATE_PROPERTY, "gone"),
        _renamed,
    ],
)
def test_newest_set_that_others_changed_is_not_passed_over(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[World, Snap], None],
    count: int,
    is_listed: bool,
) -> None:
    whole, changed = (snapshot(world) for _ in range(2))
    monkeypatch.setattr(datasets, "exists", lambda _: True)
    if not is_listed:
        monkeypatch.setattr(instance_snapshots, "snapshot_names", lambda _: None)
    for snap in [snap for snap in world.snapshots.values() if snap.name.endswith(f"@zsnapdb-{changed}")][:count]:
        change(world, snap)
    newest = newest_set(world.instance, LOCAL)
    assert newest is not None
    assert newest.set.backup_id == whole
    with pytest.raises(PreflightError, match=r"a newer snapshot set of main is incomplete: another program (left|cha)"):
        require_whole(world.instance, newest.set)
    again = snapshot(world)
    newest = newest_set(world.instance, LOCAL)
    assert newest is not None
    assert newest.set.backup_id == again
    require_whole(world.instance, newest.set)


@pytest.mark.parametrize("mount", ["0:30 2", ""])
def test_what_was_mounted_again_or_is_not_mounted_is_read_anew(world: World, mount: str) -> None:
    made = snapshot(world)
    world.backup()
    for snap in world.snapshots.values():
        if snap.properties["zsnapdb:backup"] == made:
            # Another host changed it meanwhile, which had the pool.
            snap.properties |= {"zsnapdb:state": "stored", "zsnapdb:repository": "elsewhere"}
    before = [one.backup_id for one in local_sets(world.instance)]
    assert made not in before
    world.mount = mount
    assert made in [one.backup_id for one in local_sets(world.instance)]
    assert not world.backup().manifest.is_full


def test_a_noted_set_that_is_stored_later_is_settled_wherever_that_run_is_killed(world: World) -> None:
    world.steps.clear()
    made = snapshot(world)
    world.backup()
    world.steps.clear()
    job.backup_local_set(world.instance, made)
    steps = len(world.steps)
    assert steps > 6
    for at in range(1, steps + 1):
        made = snapshot(world)
        world.backup()
        world.steps.clear()
        world.die_at = at
        with pytest.raises(Died):
            job.backup_local_set(world.instance, made)
        world.rise()
        world.backup()
        held = [snap.name for snap in world.snapshots.values() if snap.holds]
        states = {snap.properties["zsnapdb:state"] for snap in world.snapshots.values()}
        assert (held, states - {"local", "stored"}) == ([], set()), at


def test_a_note_that_is_not_ours_hides_nothing(world: World) -> None:
    snapshot(world)
    world.backup()
    notes = [*(world.instance.host.run / "read" / "main").glob("[0-9a-f]*")]
    assert len(notes) == 2
    for file in notes:
        for content in (b"", b"0:30 1", b"\xff\xfe\n\xff", b"0:30 1\n\n\n", b"0:30 2\n" + file.read_bytes()):
            file.write_bytes(content)
            assert len(own_snapshots(world.instance, world.instance.volumes.values(), states=(STORED,))) == 4


def test_a_dataset_with_a_long_name_is_noted_and_forgotten_as_others_are(world: World) -> None:
    place = "tank/" + "/".join(["a long:name"] * 18)
    assert len(place) < 256 - len("@zsnapdb-") - len(world.ids()[-1])
    names = {place: SnapshotNames(world.mount, {"zsnapdb-x": 7})}
    seen = snapshots.OwnedSnapshot(Snapshot(dataset=place, name="zsnapdb-x", guid=1, createtxg=1), LOCAL_AND_FREE)
    instance_snapshots.note_snapshots(world.instance, names, [seen], instance_snapshots.read_generation(world.instance))
    assert instance_snapshots.recorded_snapshots(world.instance, place, names[place]) == {"zsnapdb-x"}
    with instance_snapshots.changing_sets(world.instance, [place]):
        assert not instance_snapshots.recorded_snapshots(world.instance, place, names[place])


def test_who_read_before_something_was_changed_notes_nothing(world: World) -> None:
    made = snapshot(world)
    here = SetsHere.look(world.instance, world.instance.volumes.values())
    seen = here.read((instance_snapshots.HOLDS,))
    with instance_snapshots.changing_sets(world.instance, world.instance.volumes.values()):
        pass
    here.note(seen)
    again = SetsHere.look(world.instance, world.instance.volumes.values())
    assert made in {one.properties[BACKUP_PROPERTY] for one in again.all_but_noted()}
    again.note(again.read((instance_snapshots.HOLDS,)))
    assert made not in {one.properties[BACKUP_PROPERTY] for one in again.all_but_noted()}


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("is_early", [True, False], ids=["store away", "stored later"])
def test_who_reads_a_set_just_before_it_is_held_hides_it_from_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch, is_early: bool, at: int, is_killed: bool
) -> None:
    ensure_held, held = holds.ensure_held, list[str]()
    looks: list[tuple[SetsHere, list[snapshots.OwnedSnapshot]]] = []

    def hold(names: list[str], tag: str) -> None:
        if {world.snapshots[name].properties["zsnapdb:state"] for name in names} == {LOCAL}:
            held.append(tag)
        if len(held) != at or looks:
            ensure_held(names, tag)
            return
        here = SetsHere.look(world.instance, world.instance.volumes.values())
        looks.append((here, here.read((instance_snapshots.HOLDS,))))
        ensure_held(names, tag)
        here.note(looks[-1][1])
        if is_killed:
            world.dead = True
            raise Died

    made = snapshot(world)
    with monkeypatch.context() as patch, contextlib.suppress(Died):
        patch.setattr(holds, "ensure_held", hold)
        if is_early:
            Away(world, 2)
            made = world.backup().manifest.backup_id
        else:
            job.backup_local_set(world.instance, made)
    world.on_call = None
    world.rise()
    ((here, seen),) = looks
    here.note(seen)
    if not is_killed:
        assert made in {one.backup_id for one in local_sets(world.instance)}
    world.backup()
    assert not [snap.name for snap in world.snapshots.values() if snap.holds]


def newest(world: World) -> list[Snap]:
    """The snapshots of the newest backup, whose bookmarks are gone: neither is received with a stream."""
    of_newest = [snap for snap in world.snapshots.values() if snap.name.endswith(f"@zsnapdb-{world.ids()[-1]}")]
    for snap in of_newest:
        world.bookmarks.pop(snap.name.replace("@", "#"), None)
    return of_newest


def test_a_note_of_another_account_and_a_link_in_its_place_hide_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot(world)
    world.backup()
    here = SetsHere.look(world.instance, world.instance.volumes.values())
    assert len(here.all_but_noted()) == 4, "the local set was noted"
    uid = os.geteuid()
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: uid + 1)
        assert len(here.all_but_noted()) == 6
    for place in world.instance.volumes.values():
        file = instance_snapshots._file(world.instance, place)
        file.rename(file.with_suffix(".elsewhere"))
        file.symlink_to(file.with_suffix(".elsewhere"))
    assert len(here.all_but_noted()) == 6


def renamed(world: World) -> str:
    """Give the newest backup's snapshots another name and remove their bookmarks. Return the new name of one."""
    for snap in newest(world):
        del world.snapshots[snap.name]
        snap.name = f"{snap.name.partition('@')[0]}@kept"
        world.snapshots[snap.name] = snap
    return "tank/mysql@kept"


def received(world: World) -> str:
    """Make the newest backup's snapshots as a restore receives them: with their names, without properties."""
    for snap in newest(world):
        snap.properties.clear()
    return f"tank/mysql@zsnapdb-{world.ids()[-1]}"


@pytest.mark.parametrize("change", [renamed, received])
def test_a_base_that_is_of_no_set_is_used_and_let_go_wherever_the_run_is_killed(
    world: World, change: Callable[[World], str]
) -> None:
    world.steps.clear()
    base = world.snapshots[change(world)].guid
    second = world.backup().manifest
    assert base in {volume.from_guid for volume in second.volumes}
    steps = len(world.steps)
    for at in range(1, steps + 1):
        change(world)
        world.steps.clear()
        world.die_at = at
        with pytest.raises(Died):
            world.backup()
        was_held = any(BASE_TAG in snap.holds for snap in world.snapshots.values())
        world.rise()
        world.backup()
        assert not [snap.name for snap in world.snapshots.values() if snap.holds], (at, was_held)
        for name in [name for name, snap in world.snapshots.items() if name.endswith("@kept") or not snap.properties]:
            del world.snapshots[name]


def test_a_hold_of_an_older_version_on_a_base_with_another_name_is_released_once(world: World) -> None:
    kept = renamed(world)
    world.backup()
    world.zfs.run(["zfs", "hold", BASE_TAG, kept])
    (world.instance.host.bases / "main").unlink()
    world.backup()
    assert not world.snapshots[kept].holds


def test_a_hold_on_a_base_of_a_dataset_that_was_renamed_meanwhile_is_released(world: World) -> None:
    kept = renamed(world)
    world.backup()
    world.zfs.run(["zfs", "hold", BASE_TAG, kept])
    assert send.may_hold_base(world.instance, ["tank/before@kept"]) == ["tank/before@kept"]
    world.backup()
    assert not world.snapshots[kept].holds
