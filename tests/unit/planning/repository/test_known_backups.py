"""A backup is known by a signature, by the record of its manifest, or by snapshots on this host; else it is foreign."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.planning.repository.host_backup_record import (
    BackupRecord,
    LocalBackup,
    RecordedBackup,
    RecordedVolume,
    RemovedBackup,
)
from zsnapdb.planning.repository.known_backups import KnownBy, Provenance, judge

A, B = "20261120T100000Z-0001", "20261121T100000Z-0002"
FORGED = "20261122T100000Z-0003"
DIGESTS = {A: "a" * 64, B: "b" * 64, FORGED: "f" * 64}


@dataclass(frozen=True)
class Volume:
    guid: int
    from_guid: int | None = None
    role: str = "data"
    dataset: str = "tank/data"
    send_flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Backup:
    backup_id: str
    volumes: tuple[Volume, ...]
    sequence: int | None = None
    pool_guid: int = 1
    createtxg: int = 1


def recorded(backup_id: str, guid: int, from_guid: int | None = None, digest: str | None = None) -> RecordedBackup:
    volume = RecordedVolume(role="data", dataset="tank/data", guid=guid, from_guid=from_guid, send_flags=())
    return RecordedBackup(backup_id=backup_id, volumes=(volume,), writer="w", manifest=digest)


def record(*stored: RecordedBackup, removed: tuple[RemovedBackup, ...] = ()) -> BackupRecord:
    return BackupRecord(instance="main", repository_id="r", url="file:///r", stored=stored, removed=removed)


def judged(
    *there: Backup, known: BackupRecord, local: tuple[LocalBackup, ...] = (), consolidated: tuple[str, ...] = ()
) -> Provenance:
    return judge(there, DIGESTS, known, local, is_signed=False, consolidated=consolidated)


def test_copy_under_another_id_is_foreign_and_no_base() -> None:
    found = judged(Backup(A, (Volume(1),)), Backup(FORGED, (Volume(1),)), known=record(recorded(A, 1, digest="a" * 64)))
    assert (dict(found.proofs), set(found.foreign)) == ({A: KnownBy.RECORD}, {FORGED})
    assert f"names the snapshots of {A}" in found.foreign[FORGED]
    assert found.untrusted == {FORGED}


@pytest.mark.parametrize("guid", [1, 9])
def test_rewritten_manifest_is_foreign(guid: int) -> None:
    found = judged(Backup(A, (Volume(guid),)), known=record(recorded(A, 1, digest="0" * 64)))
    assert (len(found.proofs), found.rewritten, set(found.untrusted)) == (0, (A,), {A})


def test_record_of_an_earlier_version_gets_its_digest_if_the_guids_agree() -> None:
    found = judged(Backup(A, (Volume(1),)), Backup(B, (Volume(9),)), known=record(recorded(A, 1), recorded(B, 2)))
    assert (dict(found.unsealed), found.rewritten) == ({A: "a" * 64}, (B,))


def test_snapshots_of_this_host_prove_a_backup_without_a_record() -> None:
    local = (LocalBackup(A, {"data": 1}), LocalBackup(B, {"data": 2}))
    found = judged(Backup(A, (Volume(1),)), Backup(B, (Volume(9),)), known=record(), local=local)
    assert dict(found.proofs) == {A: KnownBy.SNAPSHOTS}
    assert set(found.foreign) == {B}
    going = found.for_removal
    assert (going.knows_any, dict(going.proofs), set(going.foreign)) == (False, {}, {A, B})
    recorded_one = judged(Backup(A, (Volume(1),)), known=record(recorded(B, 2)), local=local).for_removal
    assert (recorded_one.knows_any, dict(recorded_one.proofs), set(recorded_one.foreign)) == (True, {}, {A})


def test_consolidated_backup_of_an_earlier_version_is_inherited_once() -> None:
    there = Backup(A, (Volume(1),)), Backup(B, (Volume(2, 1),)), Backup(FORGED, (Volume(2),))
    before = record(recorded(A, 1), recorded(B, 2, 1))
    assert judged(*there, known=before, consolidated=(FORGED,)).inherited == (FORGED,)
    assert judged(*there, known=before).foreign.keys() == {FORGED}
    sealed = record(recorded(A, 1, digest="a" * 64), recorded(B, 2, 1))
    assert judged(*there, known=sealed, consolidated=(FORGED,)).foreign.keys() == {FORGED}


def test_removed_backup_that_is_there_again_is_known_unless_a_person_acknowledged_it() -> None:
    removed = RemovedBackup(backup_id=A, guids=(1,))
    known = record(recorded(B, 2), removed=(removed,))
    assert judged(Backup(A, (Volume(1),)), known=known).begun == {A}
    acknowledged = removed.model_copy(update={"acknowledged": True})
    found = judged(Backup(A, (Volume(1),)), known=record(recorded(B, 2), removed=(acknowledged,)))
    assert set(found.foreign) == {A}


def test_host_that_knows_nothing_chooses_among_all_and_proves_none() -> None:
    found = judged(Backup(A, (Volume(1),)), known=record())
    assert (found.knows_any, dict(found.unchosen), dict(found.proofs)) == (False, {}, {})
    signed = judge((Backup(A, (Volume(1),)),), DIGESTS, record(), (), is_signed=True)
    assert dict(signed.proofs) == {A: KnownBy.SIGNATURE}


@given(
    removed=st.dictionaries(st.integers(1, 30), st.booleans(), max_size=20),
    kept=st.sets(st.integers(1, 30), min_size=1),
    local=st.sets(st.integers(1, 30)),
)
def test_signed_backup_that_is_put_back_is_not_counted(
    removed: dict[int, bool], kept: set[int], local: set[int]
) -> None:
    """Even after the record lists the removal no more. Only an unfinished removal is continued."""
    names = {number: f"20261120T100000Z-{number:04x}" for number in range(1, 31)}
    gone = {number: acknowledged for number, acknowledged in removed.items() if number not in kept}
    known = record().with_removed(
        [
            RemovedBackup(backup_id=names[number], guids=(number,), sequence=number, acknowledged=acknowledged)
            for number, acknowledged in gone.items()
        ]
    )
    known = known.only_removed({names[number] for number in local}, sorted(kept))
    assert all(one.backup_id in {names[n] for n in local} or (one.sequence or 0) > max(kept) for one in known.removed)
    there = [Backup(name, (Volume(number),), number) for number, name in names.items()]
    judged = judge(there, {}, known, (), is_signed=True)
    assert set(judged.for_removal.proofs) - judged.begun == {names[number] for number in names if number not in gone}
    assert judged.begun | judged.foreign.keys() == {names[number] for number in gone}
    adopted = known.with_adopted([recorded(names[number], number) for number in gone], [*names.values()])
    assert not judge(there, {}, adopted, (), is_signed=True).foreign


def test_adopted_backups_take_their_places_in_the_record() -> None:
    known = record(recorded(A, 1), recorded(FORGED, 3), removed=(RemovedBackup(backup_id=B, guids=(2,)),))
    adopted = known.with_adopted([recorded(B, 2)], [A, B, FORGED])
    assert [backup.backup_id for backup in adopted.stored] == [A, B, FORGED]
    assert adopted.removed == ()
