"""The owner of the bucket makes no host remove what is real, or call met what is not."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.unit.support.pruning import forge, manifests, plan, prune
from tests.unit.support.stored_backups import Site, guid_of, id_of, store_backup
from zsnapdb.base.errors import DamagedError, PreflightError
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.repository import copy, inventory, protection_status, verify
from zsnapdb.jobs.repository import prune as job
from zsnapdb.jobs.repository.prune_facts import LocalLeftovers
from zsnapdb.jobs.restore import restore_inputs as restore_known
from zsnapdb.planning.repository import local_snapshot_sets
from zsnapdb.planning.repository.host_backup_record import StoredKind
from zsnapdb.planning.repository.local_snapshot_sets import LocalLimits, LocalSnapshot
from zsnapdb.planning.repository.retention import Unrestorable
from zsnapdb.planning.restore.point_forms import AtBackup
from zsnapdb.repository import layout, stored_document, verifications
from zsnapdb.repository.backup_marks import Unfinished
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.marker import Marker
from zsnapdb.repository.verifications import Depth
from zsnapdb.store.local import LocalStore
from zsnapdb.zfs import datasets, destruction

SUFFIXES = ("aaaa", "bbbb", "cccc")


@pytest.fixture(autouse=True)
def _no_zfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host has none of the datasets."""
    monkeypatch.setattr(datasets, "exists", lambda name: False)


@pytest.mark.parametrize("keep", ["last = 3", "daily = 3", "hourly = 3\ndaily = 2\nlast = 1"])
def test_made_up_backups_let_no_real_one_go(site: Site, keep: str) -> None:
    site.keep = keep
    names = site.fill([None] * 3)
    made_up = [forge(site, names[-1], suffix) for suffix in SUFFIXES]
    assert prune(site).removed == ()
    assert manifests(site) == sorted((*names, *made_up))
    listed = inventory.inventory(site.instance())
    assert set(listed.foreign) == set(made_up)
    decided = {d.backup_id: d for d in plan(site).retention.decisions}
    assert all(decided[name].keep and decided[name].reasons[0].startswith("foreign: ") for name in made_up)


@pytest.mark.parametrize("is_signed", [False, True])
@pytest.mark.parametrize("made_up", ["19700101T000000Z-aaaa", "20251120T100000Z-bbbb", "20991231T235959Z-cccc"])
def test_unreadable_made_up_backup_stops_no_work(site: Site, made_up: str, is_signed: bool) -> None:
    """It is an altered copy of a real backup."""
    if is_signed:
        site.begin_to_sign()
    site.keep = "last = 1"
    names = site.fill([None, 0, None])
    key = layout.manifest("main", made_up)
    LocalStore(site.folder).put(key, b"{" + LocalStore(site.folder).get(layout.manifest("main", names[0])))
    result = prune(site)
    assert set(result.removed) == set(names[:2])
    assert key in site.objects()
    (decided,) = [d for d in result.plan.retention.decisions if d.backup_id == made_up]
    assert (decided.keep, decided.reasons[0].startswith("foreign: its manifest cannot be read")) == (True, True)
    (finding,) = [one for one in result.plan.missing if one.kind is StoredKind.FOREIGN]
    assert finding.backups == (made_up,)
    instance = site.instance()
    assert restore_known.newest_backup(instance, instance.open_repository(), accepts_older=False) == names[2]


def test_made_up_increments_and_bases_change_no_chain(site: Site) -> None:
    site.keep = "last = 1"
    names = site.fill([None, 0, None, 2, 3])
    for number, suffix in ((2, "aaaa"), (3, "bbbb"), (4, "cccc")):
        forge(site, names[number], suffix)
    assert set(prune(site).removed) == set(names[:2])
    assert set(names[2:]) < set(manifests(site))
    assert [link.backup_id for link in inventory.detail(site.instance(), "latest").chain] == names[2:]


def test_rewritten_manifests_are_named_and_count_for_nothing(site: Site) -> None:
    site.keep = "last = 2"
    names = site.fill([None] * 4)
    repository = site.instance().open_repository()
    for name in names[2:]:
        fields = json.loads(repository.get(layout.manifest("main", name)).partition(b"\n")[0]) | {
            "zfs_version": "rewritten"
        }
        repository.overwrite(layout.manifest("main", name), json.dumps(fields).encode() + b"\n")
    result = prune(site)
    assert result.removed == ()
    (finding,) = [one for one in result.plan.missing if one.kind is StoredKind.REWRITTEN]
    assert (finding.is_alarming, finding.backups) == (True, tuple(names[2:]))
    assert inventory.detail(site.instance(), "latest").entry.manifest.backup_id == names[1]


def test_made_up_backups_in_place_of_deleted_ones_make_no_loss_expected(site: Site) -> None:
    names = site.fill([None] * 6)
    repository = site.instance().open_repository()
    for name, suffix in zip(names[3:], SUFFIXES, strict=True):
        repository.delete(layout.manifest("main", name))
        forge(site, names[2], suffix, created=datetime.now(UTC).isoformat())
    result = prune(site)
    (finding,) = [one for one in result.plan.missing if one.kind is StoredKind.BACKUPS_MISSING]
    assert finding.backups == tuple(names[3:])
    assert (result.removed, result.swept) == ((), ())
    state = protection_status.status(site.instance())
    assert {StoredKind.BACKUPS_MISSING, StoredKind.FOREIGN} <= {one.kind for one in state.missing}
    assert state.newest is not None
    assert state.newest.backup_id == names[2]


def test_chunks_of_a_backup_whose_manifest_is_deleted_are_no_leftovers(site: Site) -> None:
    names = site.fill([None] * 3)
    site.instance().open_repository().delete(layout.manifest("main", names[1]))
    site.later(days=60)
    assert prune(site).swept == ()
    assert any(names[1] in key for key in site.objects("main/chunks/"))


def test_backups_whose_chunks_are_deleted_take_no_place_of_whole_ones(site: Site) -> None:
    site.keep = "last = 2"
    names = site.fill([None] * 4)
    repository = site.instance().open_repository()
    for name in names[2:]:
        repository.delete_many([*repository.sizes(layout.chunks_of_backup("main", name))])
    with pytest.raises(DamagedError, match=f"backup {names[2]}, which would stay, is damaged"):
        prune(site)
    verify.verify(site.instance(), Depth.LISTED)
    assert prune(site).removed == ()
    assert manifests(site) == names


def test_missing_marker_is_reported_by_every_check(site: Site) -> None:
    site.fill([None])
    site.instance().open_repository().delete(layout.MARKER)
    (finding,) = verify.verify(site.instance(), Depth.LISTED).missing
    assert (finding.kind, finding.is_warning) == (StoredKind.MARKER_MISSING, True)
    assert "zsnapdb init" in finding.hint


def test_marker_is_written_again_with_the_id_of_own_manifests(site: Site) -> None:
    names = site.fill([None] * 2)
    repository = site.instance().open_repository()
    repository.delete(layout.MARKER)
    forged = forge(site, names[-1], "aaaa", repository_id="ffffffffffffffff")
    assert site.instance().open_repository().id == repository.id
    assert site.instance().open_or_create_repository().id == repository.id
    assert site.instance().open_repository().id == repository.id
    assert set(inventory.inventory(site.instance()).foreign) <= {forged}
    assert [entry.manifest.backup_id for entry in inventory.inventory(site.instance()).entries] == names


@pytest.mark.parametrize("signs", [False, True], ids=["unsigned", "signs"])
@pytest.mark.parametrize("marker", [Marker(id="ffffffffffffffff").encode(), b"?"], ids=["other", "unreadable"])
def test_replaced_marker_makes_no_other_repository(site: Site, marker: bytes, signs: bool) -> None:
    if signs:
        site.begin_to_sign()
    names = site.fill([None] * 3)
    repository = site.instance().open_repository()
    repository.overwrite(layout.MARKER, marker)
    forge(site, names[-1], "aaaa", repository_id="ffffffffffffffff")
    again = site.instance().open_or_create_repository()
    assert (again.id, site.instance().open_repository().id) == (repository.id, repository.id)
    assert restore_known.newest_backup(site.instance(), again, accepts_older=True) == names[-1]
    missing = protection_status.status(site.instance()).missing
    assert StoredKind.MARKER_MISSING in [one.kind for one in missing]
    assert again.get(layout.MARKER) == marker


def test_repository_that_was_replaced_on_purpose_has_the_id_in_its_marker(site: Site) -> None:
    names = site.fill([None] * 2)
    repository = site.instance().open_repository()
    repository.delete_many([layout.manifest("main", name) for name in names])
    repository.overwrite(layout.MARKER, Marker(id="ffffffffffffffff").encode())
    assert site.instance().open_or_create_repository().id == "ffffffffffffffff"


def test_forged_check_makes_prune_remove_no_whole_backup(site: Site) -> None:
    site.keep = "last = 1"
    names = site.fill([None] * 3)
    repository = site.instance().open_repository()
    verifications.add(repository, "main", datetime.now(UTC), {names[2]: ("a lie",)}, "somebody")
    with pytest.raises(PreflightError, match="but it is intact"):
        prune(site, Unrestorable.REMOVE)
    assert manifests(site) == names


def test_latest_is_the_newest_known_one_and_names_the_foreign_ones(site: Site) -> None:
    names = site.fill([None] * 2)
    made_up = forge(site, names[-1], "aaaa")
    instance, repository = site.instance(), site.instance().open_repository()
    assert restore_known.newest_backup(instance, repository, accepts_older=False) == names[-1]
    known = restore_known.read_known(instance, repository, AtBackup(None), "latest-backup")
    notes = known.notes_beside(names[-1])
    assert [note.partition(": ")[2].partition(":")[0] for note in notes] == [made_up]
    assert "adopt" in notes[0]


@pytest.mark.parametrize("sequence", [1, 3, 2**53 - 1])
def test_made_up_places_change_no_order_of_known_backups(site: Site, sequence: int) -> None:
    moved = [(1, 900, 1), (2, 40, 2), (2, 50, 3)]
    repository, names = site.instance().open_or_create_repository(), list[str]()
    for number, (pool, createtxg, own) in enumerate(moved):
        place = {"pool_guid": pool, "createtxg": createtxg, "sequence": own}
        made = store_backup(repository, f"2026112{9 - number}T100000Z-000{number}", number, None, place=place)
        site.record(made)
        names.append(made.backup_id)
    forge(site, names[-1], "aaaa", pool_guid=2, createtxg=2**60, sequence=sequence)
    forge(site, names[0], "bbbb", pool_guid=1, createtxg=2**60, sequence=sequence)
    instance, repository = site.instance(), site.instance().open_repository()
    known, checked = host_backup_record.checked_backups(instance, repository)
    assert [one.backup_id for one in known.backups if one.backup_id in names] == names
    assert [name for name in checked.order if name in names] == names
    assert restore_known.newest_backup(instance, repository, accepts_older=False) == names[-1]
    assert host_backup_record.next_sequence(instance, repository, checked.numbers(known.backups)) == 4


def test_rewritten_place_of_a_known_backup_changes_no_order(site: Site) -> None:
    names = site.fill([None] * 3)
    repository = site.instance().open_repository()
    key = layout.manifest("main", names[0])
    fields = json.loads(repository.get(key).partition(b"\n")[0]) | {"createtxg": 2**60}
    repository.overwrite(key, json.dumps(fields).encode() + b"\n")
    assert host_backup_record.checked_backups(site.instance(), repository)[1].order == tuple(names)


def test_made_up_backups_let_no_snapshot_of_this_host_go(site: Site) -> None:
    site.keep = "last = 3\nlocal = 2"
    names = site.fill([None] * 3)
    for suffix in SUFFIXES:
        forge(site, names[-1], suffix)
    planned = plan(site)
    here = [
        LocalSnapshot(f"{dataset}@zsnapdb-{name}", name, guid_of(number, volume), planned_id(site), 0, (), 1, number)
        for number, name in enumerate(names)
        for volume, dataset in enumerate(("tank/data", "tank"))
    ]
    kept = planned.retention.kept & planned.provenance.proofs.keys()
    staying = {v.guid: b.backup_id for b in planned.counted for v in b.volumes}
    there = local_snapshot_sets.RepositoryAfterPrune(planned_id(site), kept, {}, "", {}, staying)
    decided = local_snapshot_sets.decide(here, [], there, LocalLimits(2, 1))
    assert {one.backup_id for one in decided if one.remove} == set(names[:1])


def test_snapshots_of_backups_whose_chunks_are_deleted_stay(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be the only whole copy, and the manifests say nothing of that."""
    destroyed: list[str] = []
    monkeypatch.setattr(destruction, "destroy_stored", lambda name, guid, backup_id: destroyed.append(name))
    site.keep = "last = 3\nlocal = 1\nlocal_minimum = 1"
    names = site.fill([None] * 3)
    repository = site.instance().open_repository()
    here = LocalLeftovers(
        tuple(
            LocalSnapshot(f"{dataset}@zsnapdb-{name}", name, guid_of(number, volume), repository.id, 0, (), 1, number)
            for number, name in enumerate(names)
            for volume, dataset in enumerate(("tank/data", "tank"))
        ),
        (),
        {},
    )
    repository.delete_many([*repository.sizes(layout.chunks_of_backup("main", names[1]))])
    with pytest.raises(DamagedError, match=f"backup {names[1]}, which would stay, is damaged"):
        job.prune(site.instance(), local=here)
    assert destroyed == []
    verify.verify(site.instance(), Depth.LISTED)
    job.prune(site.instance(), local=here)
    assert set(destroyed) == {f"tank/data@zsnapdb-{names[0]}", f"tank@zsnapdb-{names[0]}"}


def planned_id(site: Site) -> str:
    return site.instance().open_repository().id


def test_made_up_backups_keep_no_real_one_out_of_a_copy(site: Site) -> None:
    names = site.fill([None] * 3)
    (site.folder.parent / "store-there").mkdir()
    made_up = [forge(site, names[-1], suffix) for suffix in SUFFIXES]
    done = copy.copy(site.instance(), site.instance("there"))
    assert sorted(done.copied) == names
    assert set(done.plan.left_out) == set(made_up)
    there = site.instance("there")
    known = there.summaries(there.open_repository())
    checked = host_backup_record.check(there, there.open_repository(), known.backups, ())
    assert set(checked.provenance.proofs) == set(names)


def test_signed_host_counts_what_believed_keys_signed(site: Site) -> None:
    site.begin_to_sign()
    names = site.fill([None] * 4)
    made_up = [forge(site, names[-1], suffix) for suffix in SUFFIXES]
    assert set(plan(site).provenance.foreign) == set(made_up)
    # The keys do not believe these: they need nothing, and are no reason to remove anything.
    assert prune(site).removed == (names[0],)
    assert set(made_up) < set(manifests(site))


def leftover(site: Site, name: str) -> None:
    """Leave a chunk of a backup without a manifest, that was written long ago."""
    repository = site.instance().open_repository()
    repository.overwrite(layout.chunk("main", name, "data", 1), b"stored")


@pytest.mark.parametrize("signs", [False, True], ids=["unsigned", "signs"])
def test_unfinished_backup_of_another_host_is_not_swept_and_a_planted_mark_ends_no_own_one(
    site: Site, signs: bool
) -> None:
    names = site.fill([None])
    if signs:
        site.begin_to_sign()
    day = names[-1][:9]
    own, planted, others = (f"{day}000000Z-{suffix}" for suffix in SUFFIXES)
    repository = site.instance().open_repository()
    stranger = replace(repository, keyring=Keyring())
    for name, writer in ((own, repository), (planted, repository), (planted, stranger), (others, stranger)):
        leftover(site, name)
        Unfinished(name, "main", "db1" if writer is repository else "db2", "2026", {}).write(writer)
    site.later(days=60)
    swept = {one.leftover.backup_id: one.remove for one in plan(site).leftovers}
    assert swept == {own: True, planted: False, others: False}


@pytest.mark.parametrize(("is_altered", "signs"), [(False, False), (True, False), (False, True)])
def test_removed_backup_that_is_put_back_counts_for_nothing(site: Site, is_altered: bool, signs: bool) -> None:
    if signs:
        site.begin_to_sign()
    site.keep = "last = 2"
    names = site.fill([None] * 4)
    instance, repository = site.instance(), site.instance().open_repository()
    key = layout.manifest("main", names[0])
    body = repository.get(key)
    assert names[0] in prune(site).removed
    before = protection_status.status(instance).health.facts.window_start
    if is_altered:
        fields = json.loads(body.partition(b"\n")[0]) | {"createtxg": 2**60, "sequence": 99}
        body = stored_document.with_digest(json.dumps(fields).encode())
    repository.overwrite(key, body)
    assert restore_known.newest_backup(instance, repository, accepts_older=False) == names[-1]
    assert protection_status.status(instance).health.facts.window_start == before
    provenance = host_backup_record.checked_backups(instance, repository)[1].provenance
    assert (names[0] in provenance.foreign, names[0] in provenance.begun) == (is_altered, not is_altered)
    assert prune(site).removed == (() if is_altered else (names[0],))


@pytest.mark.parametrize("signs", [False, True], ids=["unsigned", "signs"])
def test_forgotten_backup_that_is_put_back_stays_foreign(site: Site, signs: bool) -> None:
    if signs:
        site.begin_to_sign()
    site.keep = "last = 2"
    site.fill([])
    instance, repository = site.instance(), site.instance().open_repository()
    names = [id_of(number, datetime.now(UTC), 4, timedelta(days=1)) for number in range(4)]
    for number, name in enumerate(names):
        place = {"createtxg": number, "sequence": number + 1}
        site.record(store_backup(repository, name, number, None, place=place))
    kept = {layout.manifest("main", name): repository.get(layout.manifest("main", name)) for name in names[:2]}
    here = LocalSnapshot(f"tank@zsnapdb-{names[3]}", names[3], guid_of(3, 1), repository.id, 0, (), 1, 3)
    done = job.prune(instance, local=LocalLeftovers((here,), (), {}))
    record = host_backup_record.checked_backups(instance, repository)[1].record
    assert record is not None
    assert (set(done.removed), record.removed_guids()) == (set(names[:2]), {})
    for key, body in kept.items():
        repository.overwrite(key, body)
    checked = host_backup_record.checked_backups(instance, repository)[1].provenance.for_removal
    assert (set(checked.foreign), set(checked.proofs)) == (set(names[:2]), set(names[2:]))
    assert prune(site).removed == ()


@pytest.mark.parametrize("signs", [False, True], ids=["unsigned", "signs"])
def test_found_damage_stays_known_if_its_record_is_removed(site: Site, signs: bool) -> None:
    if signs:
        site.begin_to_sign()
    site.keep = "last = 1"
    names = site.fill([None] * 3)
    repository = site.instance().open_repository()
    key = next(iter(repository.sizes(layout.chunks_of_backup("main", names[2]))))
    body = repository.get(key)
    repository.overwrite(key, body[:-1] + bytes([body[-1] ^ 1]))
    verify.verify(site.instance(), Depth.READ)
    assert prune(site).removed == (names[0],)
    repository.delete_many([listed.key for listed in repository.list(layout.verifications("main"))])
    assert prune(site).removed == ()
    assert [one.name for one in protection_status.status(site.instance()).known_damage] == [names[2]]
    repository.overwrite(key, body)
    verify.verify(site.instance(), Depth.READ)
    assert prune(site).removed == (names[1],)
