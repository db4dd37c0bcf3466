"""Pins, findings, evidence and marks of somebody without a known key decide nothing where this host signs."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.unit.support.manifests import manifest
from zsnapdb.base.errors import ConfigError, DamagedError
from zsnapdb.repository import backup_marks, crypto_keys, drills, layout, verifications, writer_lease
from zsnapdb.repository.backup_marks import SnapshotMark, Unfinished
from zsnapdb.repository.drills import CheckPart, Evidence, Outcome
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.layout import Key
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import Checks, Depth, VerificationRecord, known_damage
from zsnapdb.store.local import LocalStore

BACKUP = "20261120T101112Z-7f3a"
OTHER = "20261121T101112Z-7f3a"
NOW = datetime(2026, 11, 21, tzinfo=UTC)
GOOD = Checks({BACKUP: {Depth.READ: VerificationRecord(when=NOW)}})
BAD = Checks({BACKUP: {Depth.READ: VerificationRecord(when=NOW + timedelta(hours=1), damage=("gone",))}})


def evidence(outcome: Outcome = Outcome.PASSED) -> Evidence:
    return Evidence(
        drill_id=BACKUP,
        instance="main",
        repository_id="id-1",
        requested="latest",
        backup_id=BACKUP,
        seed=1,
        host="h",
        started=NOW,
        finished=NOW,
        tool_version="0",
        zfs_version="2.3.9",
        server_version="11.8",
        position="0-1-2",
        steps=(),
        checks=(CheckPart(kind="pages", what="t", outcome=outcome, finding="torn"),),
        sequence=1,
    )


def mark(backup_id: str = BACKUP) -> Unfinished:
    return Unfinished(
        backup_id, "main", "db1", "2026", {"data": SnapshotMark(name="tank/data@zsnapdb-x", guid=5, from_guid=4)}
    )


@pytest.fixture
def forger(tmp_path: Path) -> Repository:
    """The repository for somebody who can write to the bucket and has no key."""
    (tmp_path / "store").mkdir()
    return Repository(LocalStore(tmp_path / "store"), "", "id-1", Keyring())


@pytest.fixture
def signing(forger: Repository, tmp_path: Path) -> Repository:
    """The same repository for a host that signs, with a backup of that host."""
    crypto_keys.write_secret(tmp_path / "signing", crypto_keys.SigningKey.new().file())
    repository = replace(forger, keyring=Keyring(signing_key_file=tmp_path / "signing"))
    repository.commit(manifest(BACKUP))
    return repository


def write_all(repository: Repository) -> None:
    backup_marks.pin(repository, "main", BACKUP, "audit")
    verifications.write(repository, "main", verifications.new_key("main", NOW), GOOD)
    drills.write(repository, evidence())
    mark().write(repository)


def test_a_host_that_signs_believes_what_it_wrote_itself(signing: Repository) -> None:
    write_all(signing)
    assert backup_marks.pins(signing, "main")[BACKUP].reason == "audit"
    assert verifications.read(signing, "main").whole_since(BACKUP, Depth.READ) == NOW
    assert drills.read(signing, "main", BACKUP) == evidence()
    assert [found.host for found in backup_marks.unfinished(signing, "main")] == ["db1"]
    names: list[Key] = [
        layout.pin("main", BACKUP),
        *(listed.key for listed in signing.list(layout.verifications("main"))),
        layout.drill("main", BACKUP, 1),
        layout.unfinished_backup("main", BACKUP),
    ]
    assert len(names) == 4
    for name in names:
        assert json.loads(signing.get(name).splitlines()[1])["signature"]["value"]


def test_a_forged_check_neither_hides_damage_nor_calls_a_backup_damaged(
    signing: Repository, forger: Repository
) -> None:
    verifications.write(forger, "main", verifications.new_key("main", NOW), GOOD)
    assert verifications.read(signing, "main").whole_since(BACKUP, Depth.READ) is None
    verifications.write(forger, "main", verifications.new_key("main", NOW), BAD)
    assert known_damage(signing, "main").known == ()
    assert known_damage(forger, "main").known != ()


def test_forged_evidence_of_a_drill_neither_hides_damage_nor_counts_as_a_drill(
    signing: Repository, forger: Repository
) -> None:
    drills.write(forger, evidence(Outcome.DAMAGED))
    assert known_damage(signing, "main").known == ()
    assert drills.newest(signing, "main", 1) == []
    with pytest.raises(DamagedError, match="is not signed"):
        drills.read(signing, "main", BACKUP)


def test_a_forged_pin_protects_its_backup_and_says_that_nobody_known_signed_it(
    signing: Repository, forger: Repository
) -> None:
    backup_marks.pin(forger, "main", BACKUP, "a reason of somebody else")
    assert "not signed by a key that this host believes" in backup_marks.pins(signing, "main")[BACKUP].reason
    backup_marks.unpin(signing, "main", BACKUP)
    assert backup_marks.pins(signing, "main") == {}


def test_a_forged_mark_of_an_unfinished_backup_says_nothing_and_protects_every_base(
    signing: Repository, forger: Repository
) -> None:
    mark().write(forger)
    (found,) = backup_marks.unfinished(signing, "main")
    assert (found.host, found.snapshots) == ("an unknown host", {})
    assert found.may_build_on({99})


@pytest.mark.parametrize("target", [layout.unfinished_backup("main", OTHER), layout.unfinished_backup("other", BACKUP)])
def test_a_signed_mark_under_the_key_of_another_backup_says_nothing(
    signing: Repository, target: layout.UnfinishedKey
) -> None:
    mark().write(signing)
    _move(signing, layout.unfinished_backup("main", BACKUP), target)
    (found,) = backup_marks.unfinished(signing, target.split("/")[0])
    assert found.host == "an unknown host"


def test_signed_findings_of_another_instance_or_repository_are_not_believed(signing: Repository) -> None:
    key = verifications.new_key("other", NOW)
    verifications.write(signing, "other", key, GOOD)
    _move(signing, key, verifications.new_key("main", NOW))
    elsewhere = replace(signing, id="id-2")
    verifications.write(elsewhere, "main", verifications.new_key("main", NOW), GOOD)
    assert verifications.read(signing, "main").findings == {}


def test_signed_evidence_of_another_repository_is_not_believed(signing: Repository) -> None:
    drills.write(signing, evidence())
    with pytest.raises(DamagedError, match="repository id-1"):
        drills.read(replace(signing, id="id-2"), "main", BACKUP)


def test_a_host_that_believes_signers_and_does_not_sign_records_no_finding(signing: Repository, tmp_path: Path) -> None:
    reader = replace(signing, keyring=Keyring(signers=(crypto_keys.SigningKey.read(tmp_path / "signing").public,)))
    with pytest.raises(ConfigError, match="does not sign"):
        verifications.write(reader, "main", verifications.new_key("main", NOW), GOOD)
    verifications.add(reader, "main", NOW, {BACKUP: ()}, "binlog purge")
    assert list(signing.list(layout.verifications("main"))) == []


def test_a_host_whose_signing_key_is_missing_reads_with_its_signers_and_cannot_sign(
    signing: Repository, tmp_path: Path
) -> None:
    key = verifications.new_key("main", NOW)
    verifications.write(signing, "main", key, GOOD)
    public = crypto_keys.SigningKey.read(tmp_path / "signing").public
    keyring = Keyring(signing_key_file=tmp_path / "of-the-lost-host", signers=(public,))
    reader = replace(signing, keyring=keyring)
    assert verifications.read(reader, "main").findings == verifications.read(signing, "main").findings
    drills.write(reader, evidence())
    verifications.add(reader, "main", NOW, {BACKUP: ()}, "binlog purge")
    assert [listed.key for listed in signing.list(layout.verifications("main"))] == [key]
    with pytest.raises(ConfigError, match="of-the-lost-host"):
        keyring.check_signing()
    with pytest.raises(ConfigError, match="of-the-lost-host"):
        mark().write(reader)
    without = replace(keyring, signers=())
    with pytest.raises(ConfigError, match="of-the-lost-host does not exist") as caught:
        replace(signing, keyring=without).verified(key)
    assert "set signers under encryption" in caught.value.hint


def _move(repository: Repository, source: Key, target: Key) -> None:
    repository.put(target, repository.get(source))
    repository.delete(source)


@pytest.mark.parametrize("elsewhere", [{"repository_id": "id-2"}, {"instance": "other"}, {"backup_id": OTHER}])
def test_a_signed_pin_of_another_place_protects_and_its_reason_is_not_shown(
    signing: Repository, elsewhere: dict[str, str]
) -> None:
    place = {"repository_id": "id-1", "instance": "main", "backup_id": BACKUP, **elsewhere}
    body = json.dumps({"format": 1, **place, "reason": "a reason of elsewhere", "since": "2026"}).encode()
    signing.put(layout.pin("main", BACKUP), signing.keyring.signed(body))
    assert (
        backup_marks.pins(signing, "main")[BACKUP].reason == "(the pin was made for another backup, and copied by hand)"
    )


def test_a_signed_mark_of_another_repository_says_nothing_and_protects_every_base(signing: Repository) -> None:
    mark().write(replace(signing, id="id-2"))
    (found,) = backup_marks.unfinished(signing, "main")
    assert (found.host, found.snapshots) == ("an unknown host", {})
    assert found.may_build_on({99})


LEASE = layout.lease("main/writer")


def stored_lease(repository: Repository) -> bytes:
    """Return a lease that its owner gave back in this repository."""
    with writer_lease.lease(repository, "main/writer", doing="backing up", tell=print):
        pass
    body = repository.get(LEASE)
    repository.delete(LEASE)
    return body


def seconds_until_taken(repository: Repository) -> float:
    """Return how long a new owner watches the lease that is stored there, by its clock."""
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    with writer_lease.lease(
        repository, "main/writer", doing="mine", tell=print, steady=lambda: clock[0], sleep=sleep
    ) as owned:
        owned.confirm()
    return clock[0]


def test_a_lease_that_a_believed_owner_gave_back_is_taken_at_once(signing: Repository) -> None:
    signing.put(LEASE, stored_lease(signing))
    assert seconds_until_taken(signing) == 0


def test_nobody_unknown_can_say_that_the_owner_of_a_lease_is_gone(signing: Repository, forger: Repository) -> None:
    """Two hosts would write at once. A living owner is seen within the time of the lease."""
    signing.put(LEASE, stored_lease(forger))
    assert seconds_until_taken(signing) >= writer_lease.SECONDS


@pytest.mark.parametrize("elsewhere", ["repository", "name"])
def test_a_signed_lease_of_another_place_does_not_say_that_its_owner_is_gone(
    signing: Repository, elsewhere: str
) -> None:
    if elsewhere == "repository":
        body = stored_lease(replace(signing, id="id-2"))
    else:
        with writer_lease.lease(signing, "other/writer", doing="backing up", tell=print):
            pass
        body = signing.get(layout.lease("other/writer"))
    signing.put(LEASE, body)
    assert seconds_until_taken(signing) >= writer_lease.SECONDS


def test_a_host_that_signs_nothing_keeps_the_lease_that_it_wrote(signing: Repository, tmp_path: Path) -> None:
    """It believes signers alone. The bytes that it wrote itself are its own lease all the same."""
    reader = replace(signing, keyring=Keyring(signers=(crypto_keys.SigningKey.read(tmp_path / "signing").public,)))
    with writer_lease.lease(reader, "main/writer", doing="mine", tell=print) as owned:
        owned.confirm()
        owned.check()
