"""A set of `zsnapdb snapshot` can be the start of a restore from the host; nobody who proves the repository sees it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.binlog_file import File
from tests.unit.support.manifests import manifest
from tests.unit.support.planning_host import BACKUPS, VARIABLES, PlanningHost
from zsnapdb.base.domain_types import Snapshot, SnapshotSet
from zsnapdb.base.errors import NotFound, PreflightError, UnreachableError
from zsnapdb.jobs.backup import local_snapshot
from zsnapdb.jobs.backup.source_interface import SourceDescription
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import source_fetch
from zsnapdb.jobs.host.binlog_spans import LocalBinlogs
from zsnapdb.jobs.record.host_backup_record import note_stored
from zsnapdb.jobs.restore import offline_repository
from zsnapdb.jobs.restore import plan as restore_plan
from zsnapdb.jobs.restore.backup_selection import first_manifest
from zsnapdb.jobs.restore.handover_plan import Handover
from zsnapdb.jobs.restore.plan import RestoreRequest
from zsnapdb.jobs.restore.startup_steps import ServerWork
from zsnapdb.planning.creation_order import in_order
from zsnapdb.planning.restore.plan import RestoreOrigin, RestorePlan
from zsnapdb.planning.restore.steps import Recover
from zsnapdb.repository.manifest_source import ServerSourcePart
from zsnapdb.zfs import datasets, snapshots, version
from zsnapdb.zfs.datasets import Property
from zsnapdb.zfs.snapshots import SendPoints

SET = "20261120T093000Z-5e75"


@pytest.fixture
def local(host: PlanningHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Snapshot]:
    """The snapshots on the host, by full name: those of a local set that is newer than the backup."""
    here: dict[str, Snapshot] = {}
    monkeypatch.setattr(Host, "local_sets", tmp_path / "local")
    monkeypatch.setattr(version, "pool_guid", lambda pool: manifest(BACKUPS[0]).pool_guid)
    like = host.instance.open_repository().manifest("main", BACKUPS[0])
    for volume in like.volumes:
        made = Snapshot(volume.dataset, f"zsnapdb-{SET}", volume.guid - 1000, 9)
        here[made.full_name] = made
    assert isinstance(like.source, ServerSourcePart)
    described = SourceDescription(
        like.source.model_copy(
            update={
                "position": like.source.position.model_copy(update={"gtids": "0-1-77"}),
                "server": like.source.server.model_copy(update={"variables": VARIABLES}),
            }
        ),
        {volume.role: volume.type for volume in like.volumes},
    )
    made_set = SnapshotSet(SET, {v.role: here[f"{v.dataset}@zsnapdb-{SET}"] for v in like.volumes})
    local_snapshot.write(host.instance, described, made_set, host.instance.host.now())

    def describe(names: list[str]) -> list[Snapshot]:
        for name in names:
            if name not in here:
                raise NotFound(f"{name} does not exist")
        return [here[name] for name in names]

    monkeypatch.setattr(snapshots, "describe", describe)
    monkeypatch.setattr(
        snapshots,
        "send_points_there",
        lambda places: {
            place: SendPoints({one.guid: one.full_name for one in here.values() if one.dataset == place}, {})
            for place in places
        },
    )
    return here


def recovered(plan: RestorePlan) -> list[str | None]:
    return [step.gtids for step in plan.steps if isinstance(step, Recover)]


def test_local_set_comes_after_the_backups_that_this_host_stored_before(
    host: PlanningHost, local: dict[str, Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = host.instance.open_repository()
    stored = repository.manifest("main", BACKUPS[0]).model_copy(update={"sequence": 7, "pool_guid": 5})
    note_stored(host.instance, repository, stored)
    before = local_snapshot.read(host.instance, SET)
    assert before is not None
    described = SourceDescription(before.source, {volume.role: volume.type for volume in before.volumes})
    made = {volume.role: local[f"{volume.dataset}@zsnapdb-{SET}"] for volume in before.volumes}
    local_snapshot.write(host.instance, described, SnapshotSet(SET, made), host.instance.host.now())
    after = local_snapshot.read(host.instance, SET)
    assert after is not None
    assert after.sequence == 8
    assert in_order([after, stored]) == [stored, after]


def test_local_set_is_found_under_the_new_name_of_its_datasets(
    host: PlanningHost, local: dict[str, Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = {name.replace("tank/", "tonk/", 1): one for name, one in local.items()}
    places = {name.partition("@")[0] for name in moved}
    points = {
        place: SendPoints({one.guid: name for name, one in moved.items() if name.startswith(f"{place}@")}, {})
        for place in places
    }
    monkeypatch.setattr(
        snapshots, "send_points_there", lambda asked: {one: points[one] for one in asked if one in points}
    )
    monkeypatch.setattr(snapshots, "send_points", lambda asked: {one: points[one] for one in asked})
    monkeypatch.setattr(datasets, "pools", lambda: ["tonk"])
    monkeypatch.setattr(
        datasets, "children", lambda _pool, keys: {one: dict.fromkeys(keys, Property("-", "-")) for one in places}
    )
    for createtxg, expected in ((9, sorted(places)), (10, [])):
        monkeypatch.setattr(
            snapshots,
            "describe",
            lambda names, txg=createtxg: [
                replace(moved[name], dataset=name.partition("@")[0], createtxg=txg) for name in names
            ],
        )
        found = [volume.dataset for one in local_snapshot.load(host.instance) for volume in one.volumes]
        assert sorted(found) == expected


@pytest.mark.parametrize("to", [SET, "latest", "0-1-77"])
@pytest.mark.parametrize("origin", [RestoreOrigin.AUTO, RestoreOrigin.LOCAL])
def test_a_set_that_was_named_or_is_the_newest_before_the_point_is_cloned(
    host: PlanningHost, local: dict[str, Snapshot], to: str, origin: RestoreOrigin
) -> None:
    plan = host.plan(to, origin=origin)
    assert (plan.backup_id, recovered(plan), plan.receives) == (SET, ["0-1-77"], ())
    assert {step.origin for step in plan.clones} == set(local)
    assert any("is a local set" in note for note in plan.point.notes)


def test_a_stored_backup_whose_store_is_away_is_not_called_a_local_set(
    host: PlanningHost, local: dict[str, Snapshot]
) -> None:
    stored = host.instance.open_repository().manifest("main", BACKUPS[0])
    note_stored(host.instance, host.instance.open_repository(), stored.model_copy(update={"backup_id": SET}))
    notes = host.plan(SET, origin=RestoreOrigin.LOCAL).point.notes
    assert f"{SET} is a backup that this host stored; this restore begins with its snapshots on this host" in notes
    assert not any("local set" in note for note in notes)
    for file in (host.instance.host.records / "main").rglob("backups.json"):
        file.write_text("{")
    (note,) = [
        note for note in host.plan(SET, origin=RestoreOrigin.LOCAL).point.notes if SET in note and "whether" in note
    ]
    assert "is not known" in note


def test_the_steps_of_the_plan_read_the_description_of_the_set(host: PlanningHost, local: dict[str, Snapshot]) -> None:
    plan = host.plan(SET, origin=RestoreOrigin.LOCAL)
    work = ServerWork(host.settings, host.instance, host.instance.open_repository(), plan)
    assert work.manifest(SET).repository_id == local_snapshot.IN_NO_REPOSITORY
    assert work.manifest(BACKUPS[0]).repository_id != local_snapshot.IN_NO_REPOSITORY


def test_the_repository_and_the_newest_backup_are_never_a_local_set(
    host: PlanningHost, local: dict[str, Snapshot]
) -> None:
    assert host.plan("latest-backup").backup_id == BACKUPS[0]
    assert host.plan("latest-backup", origin=RestoreOrigin.AUTO).backup_id == BACKUPS[0]
    assert host.plan("latest").backup_id == BACKUPS[0]
    with pytest.raises(NotFound):
        host.plan(SET)
    assert host.plan("latest", origin=RestoreOrigin.AUTO).backup_id == SET


def test_a_set_that_lost_a_snapshot_has_another_pool_or_server_or_no_description_starts_nothing(
    host: PlanningHost, local: dict[str, Snapshot]
) -> None:
    host.datasets.add("other")
    assert host.plan("latest", origin=RestoreOrigin.AUTO, top="other/near").backup_id == BACKUPS[0]
    file = local_snapshot.folder(host.instance) / SET
    whole = file.read_bytes()
    for broken in (b"", whole[:-40], whole.replace(SET.encode(), BACKUPS[1].encode())):
        file.write_bytes(broken)
        assert host.plan("latest", origin=RestoreOrigin.AUTO).backup_id == BACKUPS[0]
    file.write_bytes(whole)
    assert host.plan("latest", origin=RestoreOrigin.AUTO).backup_id == SET
    name, _ = local.popitem()
    assert host.plan("latest", origin=RestoreOrigin.AUTO).backup_id == BACKUPS[0]
    local_snapshot.remove_stale(host.instance, [SET], {SET})
    assert file.exists()
    local_snapshot.remove_stale(host.instance, [], {BACKUPS[0]})
    assert file.exists(), "it was made after the snapshots were listed"
    host.datasets.add(name)
    local_snapshot.remove_stale(host.instance, [SET], {BACKUPS[0]})
    assert file.exists(), "a snapshot of it is there, on a volume that is none of the instance now"
    host.datasets.remove(name)
    local_snapshot.remove_stale(host.instance, [SET], {BACKUPS[0]})
    assert not file.exists()


def test_of_sets_with_ids_of_one_second_the_one_that_zfs_made_last_is_the_newest(
    host: PlanningHost, local: dict[str, Snapshot]
) -> None:
    """Only the time in an id says something, and the clock may have been set back."""
    first = local_snapshot.read(host.instance, SET)
    assert first is not None
    for later in (f"{SET[:-4]}0001", "20261120T092959Z-ffff"):
        volumes = [
            one.model_copy(update={"guid": one.guid + 7, "snapshot": f"zsnapdb-{later}"}) for one in first.volumes
        ]
        for one in volumes:
            made = Snapshot(one.dataset, one.snapshot, one.guid, first.createtxg + 1)
            local[made.full_name] = made
        second = first.model_copy(update={"backup_id": later, "createtxg": first.createtxg + 1, "volumes": (*volumes,)})
        file = local_snapshot.folder(host.instance) / later
        file.write_bytes(second.encode())
        assert host.plan("latest", origin=RestoreOrigin.AUTO).backup_id == later
        file.unlink()


def test_a_clone_at_a_point_begins_with_the_set(host: PlanningHost, local: dict[str, Snapshot]) -> None:
    repository = host.instance.open_repository()
    plan = source_fetch.point_plan(host.settings, host.instance, repository, "tank/zsnapdb/clones", "0-1-77")
    assert {step.origin for step in plan.clones} == set(local)
    assert first_manifest(host.instance, repository, plan).backup_id == SET


@pytest.fixture
def away(host: PlanningHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store cannot be reached."""

    def unreachable(instance: Instance) -> None:
        raise UnreachableError("no route to host")

    monkeypatch.setattr(Instance, "open_repository", unreachable)


def test_without_a_store_a_restore_begins_with_a_set_of_the_host(
    host: PlanningHost, local: dict[str, Snapshot], away: None
) -> None:
    repository = offline_repository.open_for_restore(host.instance, RestoreOrigin.AUTO)
    for to in (SET, "latest", "0-1-77"):
        plan = restore_plan.make(
            host.settings, host.instance, repository, RestoreRequest(to, origin=RestoreOrigin.AUTO)
        )
        assert (plan.backup_id, plan.repository) == (SET, local_snapshot.IN_NO_REPOSITORY)
        assert {step.origin for step in plan.clones} == set(local)
    assert offline_repository.reopen(host.instance, plan).id == repository.id
    work = ServerWork(host.settings, host.instance, repository, plan)
    assert work.manifest(SET).backup_id == SET


def test_without_a_store_the_repository_is_not_replaced_if_it_was_requested_or_no_set_is_here(
    host: PlanningHost, local: dict[str, Snapshot], away: None
) -> None:
    with pytest.raises(UnreachableError):
        offline_repository.open_for_restore(host.instance, RestoreOrigin.REPOSITORY)
    local.clear()
    with pytest.raises(UnreachableError):
        offline_repository.open_for_restore(host.instance, RestoreOrigin.LOCAL)


def test_without_a_store_a_server_of_mariadb_takes_no_place_under_its_old_server_id(
    host: PlanningHost, local: dict[str, Snapshot], away: None
) -> None:
    repository = offline_repository.open_for_restore(host.instance, RestoreOrigin.LOCAL)
    request = RestoreRequest(SET, origin=RestoreOrigin.LOCAL, handover=Handover("promote"))
    with pytest.raises(PreflightError, match="GTIDs of the old server are unknown"):
        restore_plan.make(host.settings, host.instance, repository, request)


def test_a_stored_backup_is_known_to_the_host_when_the_store_is_away(
    host: PlanningHost, local: dict[str, Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = host.instance.open_repository().manifest("main", BACKUPS[0])
    for volume in stored.volumes:
        made = Snapshot(volume.dataset, volume.snapshot, volume.guid, 2)
        local[made.full_name] = made
    local_snapshot.keep(host.instance, stored)
    assert host.plan("latest-backup", origin=RestoreOrigin.AUTO).clones
    known = local_snapshot.read(host.instance, BACKUPS[0])
    assert known is not None
    assert (known.is_full, known.source, [volume.chunks for volume in known.volumes]) == (
        True,
        stored.source,
        [()] * len(stored.volumes),
    )
    assert [manifest.backup_id for manifest in local_snapshot.load(host.instance)] == sorted([BACKUPS[0], SET])


def test_without_a_store_the_binlogs_of_the_server_lead_to_any_transaction(
    host: PlanningHost, local: dict[str, Snapshot], away: None, tmp_path: Path
) -> None:
    known = local_snapshot.read(host.instance, SET)
    assert known is not None
    assert isinstance(known.source, ServerSourcePart)
    file = File(version=b"11.8.6-MariaDB-log", when=1_795_170_000).gtid_list((0, 1, 77)).mark("head")
    for number in (78, 79, 80):
        file.mariadb_transaction(number).mark(str(number))
    server = tmp_path / "server"
    server.mkdir()
    (server / "binlog.000001").write_bytes(bytes(file.data))
    (server / "binlog.index").write_text("./binlog.000001\n")
    variables = {**VARIABLES, "datadir": f"{server}/", "log_bin_basename": f"{server}/binlog"}
    position = known.source.position.model_copy(
        update={
            "binlog_file": "binlog.000001",
            "binlog_offset": file.marks["head"],
            "binlog_fingerprint": None,
            "last_gtid": None,
        }
    )
    part = known.source.server.model_copy(update={"variables": variables})
    source = known.source.model_copy(update={"server": part, "position": position})
    (volume,) = known.volumes
    volumes = (volume.model_copy(update={"type": volume.type.model_copy(update={"mountpoint": str(server)})}),)
    local_snapshot._write(host.instance, known.model_copy(update={"source": source, "volumes": volumes}))
    repository = offline_repository.open_for_restore(host.instance, RestoreOrigin.LOCAL)
    for to, end in (("before-0-1-80", "79"), ("0-1-78", "78"), ("latest", "80")):
        plan = restore_plan.make(
            host.settings, host.instance, repository, RestoreRequest(to, origin=RestoreOrigin.LOCAL)
        )
        ((log,),) = (step.logs for step in plan.replays)
        assert (log.file, log.start, log.stop, log.is_local) == (
            "binlog.000001",
            file.marks["head"],
            file.marks[end],
            True,
        )
        assert plan.point.gtids == f"0-1-{end}"
        # What is copied later ends where the plan does, whatever the server has written since, and not before.
        planned = offline_repository.archive_of(host.instance, repository, only={log.file: log.size}).load()
        (copied,) = planned.files
        archive = offline_repository.archive_of(host.instance, repository)
        assert LocalBinlogs.of(variables, ()).copy(archive, copied, tmp_path / to)
        # The head is copied as the server leaves it when it closes the file.
        assert (tmp_path / to).read_bytes()[file.marks["head"] :] == file.data[file.marks["head"] : file.marks[end]]
    longer = offline_repository.archive_of(host.instance, repository, only={"binlog.000001": len(file.data) + 1}).load()
    assert longer.files == ()
