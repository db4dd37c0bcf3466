"""What ZFS encrypts is stored encrypted or not at all, and takes only names that ZFS lets it take and give back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.planning.backup.dataset_encryption import (
    CLEAR,
    DatasetEncryption,
    NameChange,
    judge_archiving,
    judge_key,
    judge_raw_drills,
    judge_raw_keys,
    judge_receiving,
    judge_sending,
    judge_sent,
    judge_storing,
    objection_to,
)
from zsnapdb.planning.backup.fitness import Severity

CIPHER = "aes-256-gcm"
NAMES = st.sampled_from(["tank", "tank/a", "tank/a/b", "tank/c", "tank/c/d"])
STATES = st.one_of(st.just(CLEAR), NAMES.map(lambda root: DatasetEncryption(CIPHER, root)))


def of(root: str) -> DatasetEncryption:
    return DatasetEncryption(CIPHER, root)


def test_encrypted_binlogs_are_archived_only_where_the_repository_encrypts() -> None:
    assert judge_archiving(False, is_encrypting=False) == judge_archiving(True, is_encrypting=True) == []
    (finding,) = judge_archiving(True, is_encrypting=False)
    assert finding.severity is Severity.WARNING


def test_what_zfs_encrypts_is_stored_only_where_the_repository_encrypts() -> None:
    assert judge_storing({"tank/a": CIPHER}, is_encrypting=True) == []
    assert judge_storing({}, is_encrypting=False) == []
    (finding,) = judge_storing({"tank/a": CIPHER}, is_encrypting=False)
    assert finding.severity is Severity.UNFIT
    assert "tank/a is encrypted (aes-256-gcm)" in finding.detail


def test_what_zfs_encrypts_may_be_sent_raw_without_recipients_and_nothing_else_may() -> None:
    assert judge_sent(["tank/a"], {"tank/a": CIPHER}, "raw", is_encrypting=False) == []
    for is_encrypting in (False, True):
        (finding,) = judge_sent(["tank/a", "tank/b"], {"tank/a": CIPHER}, "raw", is_encrypting=is_encrypting)
        assert (finding.severity, "tank/b is not encrypted" in finding.detail) == (Severity.UNFIT, True)
    (finding,) = judge_sent(["tank/a"], {"tank/a": CIPHER}, "plain", is_encrypting=False)
    assert "unencrypted" in finding.detail


def test_a_raw_backup_needs_a_key_file_that_can_be_read() -> None:
    assert judge_raw_keys((), None, None) == []
    severities = [
        judge_raw_keys(("tank/a",), file, trouble)[0].severity
        for file, trouble in ((None, None), ("/etc/key", "gone"), ("/etc/key", None))
    ]
    assert severities == [Severity.UNFIT, Severity.UNFIT, Severity.OK]


@pytest.mark.parametrize(
    ("release", "is_warned"),
    [
        *(((2, 1, 11), True), ((2, 2, 7), True), ((2, 2, 8), False), ((2, 3, 0), True), ((2, 3, 2), True)),
        *(((2, 3, 3), False), ((2, 3, 9), False), ((2, 4, 0), False), ((), False)),
    ],
)
def test_a_release_that_damages_sent_snapshots_of_encrypted_datasets_is_named(
    release: tuple[int, ...], is_warned: bool
) -> None:
    assert bool(judge_sending({"tank/a": CIPHER}, release)) == is_warned
    assert judge_sending({}, release) == []


def test_what_was_encrypted_is_received_in_the_clear_only_with_a_word() -> None:
    assert judge_receiving((), "tank", CLEAR) == []
    assert judge_receiving(("tank/a",), "tank/safe", DatasetEncryption(CIPHER, "tank/safe")) == []
    (locked,) = judge_receiving((), "tank/safe/x", DatasetEncryption(CIPHER, "tank/safe", is_unlocked=False))
    assert (locked.severity, locked.hint) == (Severity.UNFIT, "load it: zfs load-key tank/safe")
    (finding,) = judge_receiving(("tank/a",), "tank", CLEAR)
    assert finding.severity is Severity.WARNING
    assert "below tank it is unencrypted" in finding.detail


def test_raw_backups_that_nobody_drills_are_warned_of() -> None:
    assert judge_raw_drills(is_drilled=True) == []
    (finding,) = judge_raw_drills(is_drilled=False)
    assert (finding.severity, "openzfs#16351" in finding.detail) == (Severity.WARNING, True)


@pytest.mark.parametrize(
    ("move", "words"),
    [
        # Each was tried with OpenZFS 2.3.9 (`tests/campaigns/at_rest.py`).
        (NameChange("tank/x", "tank/e", of("tank/e"), CLEAR, CLEAR, of("tank/e")), ""),
        (NameChange("tank/z/x", "tank/e", of("tank/e"), CLEAR, CLEAR, of("tank/e")), "encryption root tank/e"),
        (NameChange("tank/s/x", "tank/s/m", of("tank/s"), of("tank/s"), of("tank/s"), of("tank/s")), ""),
        (NameChange("tank/z/x", "tank/s/m", of("tank/s"), CLEAR, of("tank/s"), of("tank/s")), "not back again"),
        (NameChange("tank/z/x", "tank/s/m", CLEAR, CLEAR, of("tank/s"), of("tank/s")), "would replace it, is not"),
        (NameChange("tank/z/x", "tank/p", CLEAR, CLEAR, CLEAR, CLEAR), ""),
        (NameChange("tank/s/x", "tank/p", of("tank/s"), of("tank/s"), CLEAR, CLEAR), "encryption root tank/s"),
    ],
)
def test_a_dataset_takes_only_a_name_that_it_can_take_and_give_back(move: NameChange, words: str) -> None:
    objection = objection_to(move)
    assert words in (objection.reason if objection else "")
    assert (objection is None) == (words == "")


def zfs_renames(source: str, own: DatasetEncryption, around: DatasetEncryption, *, is_moved: bool) -> bool:
    """Whether ZFS renames: within one parent and a root always, else only within one encryption root (dsl_dir.c)."""
    return own.cipher is None or not is_moved or own.root in (source, around.root)


@given(NAMES, NAMES, STATES, STATES, STATES, STATES)
def test_no_exchange_begins_that_could_not_be_ended_or_undone(
    source: str,
    place: str,
    own: DatasetEncryption,
    home: DatasetEncryption,
    around: DatasetEncryption,
    replaced: DatasetEncryption,
) -> None:
    is_moved = source.rpartition("/")[0] != place.rpartition("/")[0]
    if objection_to(NameChange(source, place, own, home, around, replaced)) is None:
        assert zfs_renames(source, own, around, is_moved=is_moved)
        assert zfs_renames(source, own, home, is_moved=is_moved)
        assert own.cipher is not None or replaced.cipher is None, "ciphertext becomes no plaintext"


def test_a_key_that_must_be_typed_again_is_named_before() -> None:
    typed = DatasetEncryption(CIPHER, "tank/e", is_typed=True)
    assert judge_key("tank/e", of("tank/e")) == judge_key("tank/e/data", typed) == judge_key("tank/p", CLEAR) == []
    (finding,) = judge_key("tank/e", typed)
    assert finding.hint.endswith("zfs load-key tank/e")
