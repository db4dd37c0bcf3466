"""However a backup ends: no good backup is lost, no bad backup is listed as good, and the next run finishes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support.world import VOLUMES, Died, World, made, stream
from zsnapdb.errors import CommandError, ConsistencyError, DamagedError, LeaseError, RepositoryError
from zsnapdb.jobs.backup.run import BackupResult
from zsnapdb.repository import keys, layout
from zsnapdb.repository.writer_lease import Holder


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A host with one good backup."""
    with made(tmp_path) as world:
        world.backup()
        world.check_settled()
        world.steps.clear()
        yield world


def die(world: World, step: int) -> bool:
    """Run a backup that is killed before that step. Return whether the backup reached the step."""
    world.rise()
    world.die_at = step
    try:
        world.backup()
    except Died:
        return True
    finally:
        world.dead = False
    return False


def interrupt(world: World, at: str, number: int = 1) -> str:
    """Run a backup that is killed before the given occurrence of a step; return its id."""
    world.rise()
    seen: list[str] = []
    step = world.step

    def watched(what: str) -> None:
        if at in what:
            seen.append(what)
            if len(seen) == number:
                world.dead = True
                raise Died
        step(what)

    world.step = watched  # type: ignore[method-assign]
    with pytest.raises(Died):
        world.backup()
    world.step = step  # type: ignore[method-assign]
    world.rise()
    (begun,) = world.journals()
    return begun


def warnings_of(result: BackupResult) -> tuple[str, ...]:
    """Return the warnings of a run, without the one about the lease of the killed run."""
    return tuple(text for text in result.warnings if not text.startswith("taking over"))


def chunk_puts(world: World, backup_id: str) -> list[str]:
    return [step for step in world.steps if step.startswith("put ") and f"/chunks/{backup_id}/" in step]


def test_two_runs_in_peace_are_a_full_backup_and_an_increment(world: World) -> None:
    result = world.backup()
    world.check_settled()
    assert not result.manifest.is_full
    assert (result.continued, result.warnings, world.reported) == ((), (), [])


def test_killed_before_any_step_the_next_run_finishes(tmp_path: Path) -> None:
    """Each change to snapshots, journal and repository is one step, and the run dies before each step in turn."""
    step = 0
    states = set()
    while True:
        step += 1
        (tmp_path / str(step)).mkdir()
        with made(tmp_path / str(step)) as world:
            (good,) = [world.backup().manifest.backup_id]
            if not die(world, step):
                break
            states.add(world.steps[-1].split()[0])
            assert good in world.ids()
            world.check_good()
            world.rise()
            result = world.backup()
            world.check_settled()
            assert not result.manifest.is_full
            assert {good, result.manifest.backup_id, *(m.backup_id for m in result.continued)} <= set(world.ids())
    assert step > 35
    assert {"snapshot", "hold", "bookmark", "torn", "put", "journal", "set", "release", "delete", "replace"} <= states


@pytest.mark.parametrize("seed", range(12))
def test_killed_again_and_again_at_random_and_with_streams_that_differ_each_time(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with made(tmp_path) as world:
        world.backup()
        for _ in range(6):
            world.salt += chance.randrange(2)
            die(world, chance.randrange(1, 60))
            world.check_good()
        world.rise()
        world.backup()
        world.check_settled()


def test_the_next_run_stores_only_what_is_missing_and_then_makes_a_backup_of_its_own(world: World) -> None:
    begun = interrupt(world, "put main/chunks/", number=3)
    held_snapshots = [snap.name for snap in world.snapshots.values() if "zsnapdb:backup" in snap.holds]
    assert held_snapshots == [f"{dataset}@zsnapdb-{begun}" for dataset in VOLUMES.values()]
    result = world.backup()
    assert [m.backup_id for m in result.continued] == [begun]
    assert len(chunk_puts(world, begun)) == 8 - 2
    assert len(result.continued[0].keys) == 2
    assert warnings_of(result) == (f"continuing backup {begun}, which was interrupted",)
    assert result.manifest.volumes[0].from_guid == result.continued[0].volumes[0].guid
    world.check_settled()


def test_a_stream_that_differs_is_never_spliced(world: World) -> None:
    begun = interrupt(world, "put main/chunks/", number=7)
    world.salt = 1
    world.backup()
    manifest = world.repository.manifest("main", begun)
    data = manifest.volume("data")
    assert data is not None
    # `data` was complete before, so it stays as it was. `parent` is sent again, and is completely from the second run.
    assert world.content(begun)["data"] == stream(data.guid, data.from_guid or 0)
    parent = manifest.volume("parent")
    assert parent is not None
    assert world.content(begun)["parent"] == stream(parent.guid, parent.from_guid or 0, 1)
    world.check_settled()


def test_killed_while_a_chunk_is_replaced_the_journal_does_not_believe_the_old_one(world: World) -> None:
    """The first run stores A. The second run replaces A with B and dies right after.

    The third run, whose stream is A again, must not take B for A.
    """
    begun = interrupt(world, "put main/chunks/", number=4)
    world.salt = 1
    interrupt(world, "journal chunk", number=1)
    world.salt = 0
    world.backup()
    world.salt = 1
    assert begun in world.ids()
    world.check_settled()


def test_chunks_that_vanished_meanwhile_are_stored_again(world: World) -> None:
    begun = interrupt(world, "put main/manifests/")
    for index in (1, 2):
        world.local.delete(layout.chunk("main", begun, "data", index))
    world.backup()
    assert len(chunk_puts(world, begun)) == 2
    world.check_settled()


def test_other_hosts_see_that_it_is_unfinished(world: World) -> None:
    from zsnapdb.repository.unfinished import unfinished

    begun = interrupt(world, "put main/chunks/", number=2)
    (mark,) = unfinished(world.repository, "main", world.ids())
    assert (mark.backup_id, set(mark.snapshots)) == (begun, set(VOLUMES))
    assert begun not in world.ids()


@pytest.mark.parametrize("seed", range(6))
def test_a_send_that_dies_anywhere_becomes_no_backup_and_the_next_run_goes_on(world: World, seed: int) -> None:
    before = world.ids()
    world.send_dies_at = random.Random(seed).randrange(0, 12_900)
    with pytest.raises((CommandError, DamagedError)):
        world.backup()
    assert world.ids() == before
    (begun,) = world.journals()
    world.send_dies_at = None
    assert [m.backup_id for m in world.backup().continued] == [begun]
    world.check_settled()


def test_a_stream_without_its_end_becomes_no_backup_even_if_send_ended_well(world: World) -> None:
    before = world.ids()
    world.end_is_missing = True
    with pytest.raises(DamagedError, match="END"):
        world.backup()
    assert world.ids() == before
    world.end_is_missing = False
    world.backup()
    world.check_settled()


def test_a_backup_that_cannot_be_continued_does_not_stand_in_the_way_of_new_ones(world: World) -> None:
    """If its send fails again, for example because of a bad block, the backup is given up and a new backup is made."""
    begun = interrupt(world, "put main/chunks/", number=2)
    world.unreadable = begun
    result = world.backup()
    assert result.continued == ()
    assert f"backup {begun}, which was interrupted, is given up: it failed again: bad block" in result.warnings
    world.check_settled()


def test_a_store_that_cannot_be_reached_gives_nothing_up(world: World) -> None:
    begun = interrupt(world, "put main/chunks/", number=2)

    def broken(name: str, key: str) -> None:
        if "/chunks/" in key and name == "put":
            raise RepositoryError("the network is gone")

    world.on_call = broken
    with pytest.raises(RepositoryError) as caught:
        world.backup()
    assert any(f"backup {begun} is unfinished" in note for note in caught.value.__notes__)
    assert world.journals() == [begun]
    world.on_call = None
    assert [m.backup_id for m in world.backup().continued] == [begun]
    world.check_settled()


def lose_snapshot(world: World, begun: str) -> None:
    snap = world.snapshots.pop(f"{VOLUMES['data']}@zsnapdb-{begun}")
    assert snap.holds


def lose_base(world: World, begun: str) -> None:
    for table in (world.snapshots, world.bookmarks):
        for name in [name for name in table if begun not in name]:
            del table[name]


def lose_base_manifest(world: World, begun: str) -> None:
    world.removed |= set(world.ids())
    world.local.delete(layout.manifest("main", world.ids()[0]))


def change_recipients(world: World, begun: str) -> None:
    more = keys.AgeIdentity.new()
    world.recipients = (*world.recipients, more.recipient)


def change_repository(world: World, begun: str) -> None:
    world.removed |= set(world.ids())
    for item in list(world.local.list("")):
        world.local.delete(item.key)


def grow_old(world: World, begun: str) -> None:
    world.time += timedelta(days=4)


def break_journal(world: World, begun: str) -> None:
    file = world.folder / "journal" / "main" / begun
    body = bytearray(file.read_bytes())
    body[100] ^= 1
    file.write_bytes(body)


GIVEN_UP = {
    lose_snapshot: "its snapshot of tank/mysql/data is gone",
    lose_base: "the snapshot that it is an increment of is gone from tank/mysql, tank/mysql/data",
    lose_base_manifest: "which the repository no longer holds",
    change_recipients: "the recipients were changed",
    change_repository: "it was begun in repository",
    grow_old: "resume_within is 72.0 hours",
    break_journal: "cannot be read",
}


@pytest.mark.parametrize("change", GIVEN_UP, ids=lambda change: change.__name__)
def test_what_cannot_go_on_is_given_up_with_its_reason(world: World, change: Any) -> None:
    begun = interrupt(world, "put main/chunks/", number=2)
    change(world, begun)
    result = world.backup()
    assert result.continued == ()
    assert begun in warnings_of(result)[0]
    assert GIVEN_UP[change] in warnings_of(result)[0]
    assert begun not in world.ids()
    if change is lose_snapshot:
        # A snapshot was removed by force. The other snapshot of the set is removed only if it has our property.
        assert not [name for name in world.snapshots if begun in name]
    world.check_settled()


def test_a_base_of_which_only_the_bookmark_is_left_is_good_enough(world: World) -> None:
    begun = interrupt(world, "put main/chunks/", number=2)
    for name in [name for name in world.snapshots if begun not in name]:
        del world.snapshots[name]
    assert [m.backup_id for m in world.backup().continued] == [begun]
    world.check_settled()


@pytest.mark.parametrize("stray", [".20261120T100100Z-0064.swp", "20261120T100100Z-0064.bak", "README"])
def test_a_stray_file_beside_the_journals_stops_no_backup_and_stays(world: World, stray: str) -> None:
    begun = interrupt(world, "put main/chunks/", number=2)
    file = world.folder / "journal" / "main" / stray
    file.write_text("a note")
    result = world.backup()
    assert [m.backup_id for m in result.continued] == [begun]
    assert warnings_of(result) == (f"continuing backup {begun}, which was interrupted",)
    assert world.journals() == [stray]
    file.unlink()
    world.check_settled()


def test_a_bookmark_goes_though_a_snapshot_of_its_backup_cannot(world: World) -> None:
    begun = interrupt(world, "put main/chunks/", number=2)
    data, parent = (f"{dataset}@zsnapdb-{begun}" for dataset in VOLUMES.values())
    assert {f"{dataset}#zsnapdb-{begun}" for dataset in VOLUMES.values()} <= set(world.bookmarks)
    del world.snapshots[data]
    world.snapshots[parent].holds.add("somebody")
    result = world.backup()
    assert f"not all leftovers of backup {begun} could be removed" in warnings_of(result)[1]
    assert not [name for name in world.bookmarks if begun in name]
    assert [name for name in world.snapshots if begun in name] == [parent]


def test_fresh_gives_up_what_was_interrupted(world: World) -> None:
    begun = interrupt(world, "put main/chunks/", number=2)
    result = world.backup(fresh=True)
    assert (result.continued, warnings_of(result)) == (
        (),
        (f"backup {begun}, which was interrupted, is given up: it was requested",),
    )
    world.check_settled()


def test_a_clock_that_steps_back_or_forward_loses_nothing_good(world: World) -> None:
    for step in (timedelta(days=-400), timedelta(days=300)):
        good = world.ids()
        begun = interrupt(world, "put main/chunks/", number=2)
        world.time += step
        world.backup()
        assert set(good) <= set(world.ids())
        assert (begun in world.ids()) == (step < timedelta(0))
        world.check_good()
        assert world.journals() == []


def test_a_manifest_that_can_no_longer_be_read_protects_what_is_left_of_its_backup(world: World) -> None:
    begun = interrupt(world, "set zsnapdb:state=stored")
    key = layout.manifest("main", begun)
    good = world.local.get(key)
    world.local.put(key, b"{")
    result = world.backup()
    assert f"the leftovers of backup {begun} stay" in warnings_of(result)[0]
    assert [name for name in world.snapshots if begun in name]
    world.local.put(key, good)
    world.backup()
    world.check_settled()


@pytest.mark.parametrize("count", range(0, 16, 3))
def test_a_full_disk_under_the_journal_costs_only_the_resumption(world: World, count: int) -> None:
    world.journal_fails_at = count
    world.backup()
    world.check_settled()
    world.rise()
    world.journal_fails_at = count
    die(world, 30)
    world.journal_fails_at = None
    world.rise()
    world.backup()
    world.check_settled()


def test_without_a_journal_an_error_leaves_nothing_and_promises_nothing(world: World) -> None:
    before = set(world.snapshots), set(world.bookmarks)
    world.journal_fails_at, world.send_dies_at = 3, 9000
    with pytest.raises((CommandError, DamagedError)) as caught:
        world.backup()
    assert not any("is unfinished" in note for note in getattr(caught.value, "__notes__", ()))
    assert (set(world.snapshots), set(world.bookmarks), world.journals()) == (*before, [])
    world.journal_fails_at = world.send_dies_at = None
    world.backup()
    world.check_settled()


def test_a_journal_that_was_lost_leaves_no_hold_behind(world: World) -> None:
    begun = interrupt(world, "put main/chunks/", number=2)
    (world.folder / "journal" / "main" / begun).unlink()
    assert [snap.name for snap in world.snapshots.values() if "zsnapdb:base" in snap.holds]
    assert world.backup(full=True).continued == ()
    world.check_settled()


def test_a_lease_that_is_lost_ends_the_run_before_its_manifest(world: World) -> None:
    before = world.ids()
    them = Holder("them", "db2", 7, "elsewhere", "backing up", "now", 1, "", 30.0)

    def displaced(name: str, key: str) -> None:
        if name == "put" and key.endswith("parent/00000003"):
            world.local.put("main/writer.lock", them.encode())

    world.on_call = displaced
    with pytest.raises(LeaseError, match="was lost to process 7 on db2"):
        world.backup()
    assert world.ids() == before
    world.on_call = None
    world.rise()
    world.backup()
    world.check_settled()


def test_a_store_that_acknowledges_what_it_does_not_keep_is_found_out(world: World) -> None:
    before = world.ids()
    world.on_call = lambda name, key: 0 if name == "put" and key.endswith("data/00000002") else None
    with pytest.raises(ConsistencyError, match="the store accepted main"):
        world.backup()
    assert world.ids() == before
    world.on_call = None
    assert len(world.backup().continued) == 1
    world.check_settled()


@pytest.mark.parametrize("refused", ["list", "get", "check", "read_version"])
def test_being_refused_is_never_taken_for_an_empty_repository(world: World, refused: str) -> None:
    def deny(name: str, key: str) -> None:
        if name == refused:
            raise RepositoryError("access denied")

    snapshots = set(world.snapshots)
    world.on_call = deny
    with pytest.raises(RepositoryError, match="access denied"):
        world.backup()
    assert set(world.snapshots) == snapshots
    assert world.journals() == []
    world.on_call = None
    result = world.backup()
    assert not result.manifest.is_full
    world.check_settled()


def test_a_host_that_may_neither_read_chunks_nor_remove_anything_backs_up_incrementally(tmp_path: Path) -> None:
    with made(tmp_path) as world:

        def write_only(name: str, key: str) -> None:
            if name == "delete" or (name in ("get", "read_version") and "/chunks/" in key):
                raise RepositoryError("access denied")

        world.on_call = write_only
        first = world.backup()
        interrupt(world, "put main/chunks/", number=3)
        second = world.backup()
        assert (first.manifest.is_full, second.manifest.is_full, len(second.continued)) == (True, False, 1)
        assert warnings_of(second) == (f"continuing backup {second.continued[0].backup_id}, which was interrupted",)
        world.check_settled()


def test_a_full_backup_can_be_asked_for(world: World) -> None:
    assert world.backup(full=True).manifest.is_full
    world.check_settled()


def test_a_chunk_of_another_backup_does_not_pass_even_with_a_manifest_that_names_it(world: World) -> None:
    """An attacker who can write to the repository and forge an unsigned manifest cannot swap encrypted backups."""
    other = world.backup(full=True).manifest
    target = world.backup(full=True).manifest
    moved = target.volumes[0].model_copy(update={"chunks": other.volumes[0].chunks, "sha256": other.volumes[0].sha256})
    forged = target.model_copy(update={"keys": other.keys, "volumes": (moved, *target.volumes[1:])})
    for index in range(1, len(moved.chunks) + 1):
        body = world.local.get(layout.chunk("main", other.backup_id, "data", index))
        world.local.put(layout.chunk("main", target.backup_id, "data", index), body)
    world.local.put(layout.manifest("main", target.backup_id), forged.encode() + b"\n")
    with pytest.raises(DamagedError, match="does not decrypt"):
        world.content(target.backup_id)


def test_a_stream_that_was_shortened_by_its_last_chunks_does_not_pass(world: World) -> None:
    target = world.backup(full=True).manifest
    rows = target.volumes[0].chunks[:-1]
    shorter = target.volumes[0].model_copy(update={"chunks": rows, "plain_size": sum(row.plain_size for row in rows)})
    world.local.put(
        layout.manifest("main", target.backup_id),
        target.model_copy(update={"volumes": (shorter, *target.volumes[1:])}).encode() + b"\n",
    )
    with pytest.raises(DamagedError, match="does not decrypt"):
        world.content(target.backup_id)
