"""What the binlog archive holds comes back byte for byte, or is refused; descriptions and bodies cannot be mixed up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.binlog_archive import ID, IDENTITY, INCARNATION, KEY, NAME, UUID, add, rotated
from tests.unit.support.rewritten import rewritten
from zsnapdb.base.errors import ConfigError, ConsistencyError, DamagedError, ExistsError
from zsnapdb.jobs.base.events import SILENT
from zsnapdb.jobs.repository.verify import observe_binlogs
from zsnapdb.planning.binlog.route_elements import CompleteUntil
from zsnapdb.repository import layout
from zsnapdb.repository.binlog_archive import BinlogArchive, remove, remove_unneeded, sweep, undescribed
from zsnapdb.repository.binlog_descriptions import covering
from zsnapdb.repository.crypto_keys import SigningKey, write_secret
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import Depth
from zsnapdb.store.base import StoredObject
from zsnapdb.store.layers import Layer
from zsnapdb.store.local import LocalStore
from zsnapdb.stream.chunks import stream_hash
from zsnapdb.stream.crypto import ChunkCipher


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    (tmp_path / "store").mkdir()
    return LocalStore(tmp_path / "store")


@pytest.fixture
def archive(tmp_path: Path, store: LocalStore) -> BinlogArchive:
    (tmp_path / "identity").write_bytes(IDENTITY.file())
    (tmp_path / "identity").chmod(0o600)
    keyring = Keyring((IDENTITY.recipient,), tmp_path / "identity", accepts_plain=True)
    new_archive = BinlogArchive(Repository.open_or_create(store, "", "0123", keyring), "main")
    new_archive.begin(INCARNATION)
    return new_archive


@pytest.mark.parametrize("cipher", [None, ChunkCipher(KEY, "1")])
def test_the_segments_of_an_active_file_are_one_file_again(
    archive: BinlogArchive, tmp_path: Path, cipher: ChunkCipher | None
) -> None:
    add(archive, 0, b"a" * 60, number=None, cipher=cipher)
    add(archive, 60, b"b" * 40, number=6, cipher=cipher)
    add(archive, 100, b"c" * 50, number=7, cipher=cipher)
    (file,) = archive.load().files
    assert (file.is_rotated, file.end, file.span.transactions, str(file.gtids), str(file.reached)) == (
        False,
        150,
        2,
        f"{UUID}:6-7",
        f"{UUID}:1-7",
    )
    assert (file.span.first_gtid, file.span.last_gtid, file.span.first_commit, file.span.last_commit) == (
        f"{UUID}:6",
        f"{UUID}:7",
        6,
        7,
    )
    archive.fetch(file, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"a" * 60 + b"b" * 40 + b"c" * 50


def test_a_segment_behind_a_missing_one_does_not_count(archive: BinlogArchive) -> None:
    add(archive, 0, b"a" * 60, number=None)
    add(archive, 100, b"c" * 50, number=7)
    (file,) = archive.load().files
    assert (file.end, file.gtids) == (60, None)


def test_a_longer_segment_takes_the_place_of_shorter_ones(archive: BinlogArchive, tmp_path: Path) -> None:
    add(archive, 0, b"a" * 60, number=None)
    add(archive, 60, b"b" * 40, number=6)
    add(archive, 100, b"c" * 50, number=7)
    add(archive, 60, b"b" * 40 + b"c" * 50, number=6)
    (file,) = archive.load().files
    assert [(s.start, s.end) for s in file.segments] == [(0, 60), (60, 150)]
    archive.fetch(file, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"a" * 60 + b"b" * 40 + b"c" * 50


def test_a_rotated_file_takes_the_place_of_its_segments(archive: BinlogArchive, tmp_path: Path) -> None:
    add(archive, 0, b"a" * 60, number=None)
    add(archive, 60, b"b" * 40, number=6)
    archive.put_chunk(ID, NAME, "0bad", 1, b"of an attempt that was killed")
    file = rotated(archive, b"a" * 60 + b"b" * 90)
    archive.commit(file)
    assert archive.load().files == (file,)
    assert remove_unneeded(archive, file) == 5
    assert archive.load().files == (file,)
    archive.fetch(file, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"a" * 60 + b"b" * 90


def test_a_described_segment_or_file_is_never_written_over(archive: BinlogArchive) -> None:
    add(archive, 0, b"a" * 60, number=None)
    with pytest.raises(ExistsError):
        add(archive, 0, b"x" * 60, number=None, attempt="0002")
    archive.commit(rotated(archive, b"a" * 150))
    archive.commit(
        rotated(archive, b"a" * 150).model_copy(
            update={"chunks": archive.load().files[0].chunks, "sha256": archive.load().files[0].sha256}
        )
    )
    with pytest.raises(ConsistencyError):
        archive.commit(rotated(archive, b"x" * 150, attempt="00bb"))


def test_an_altered_or_missing_body_is_refused_and_nothing_is_left(archive: BinlogArchive, tmp_path: Path) -> None:
    file = rotated(archive, b"a" * 150)
    archive.commit(file)
    key = tmp_path / "store" / archive.chunk_key(ID, NAME, file.attempt, 2)
    original = key.read_bytes()
    for body in (
        original[:-1],
        bytes([original[0] ^ 1]) + original[1:],
        (tmp_path / "store" / archive.chunk_key(ID, NAME, file.attempt, 1)).read_bytes(),
        None,
    ):
        key.write_bytes(body) if body is not None else key.unlink()
        with pytest.raises(DamagedError):
            archive.fetch(file, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_chunks_that_were_swapped_do_not_open(archive: BinlogArchive, tmp_path: Path) -> None:
    file = rotated(archive, b"ab" * 60)
    one, two = (tmp_path / "store" / archive.chunk_key(ID, NAME, file.attempt, index) for index in (1, 2))
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    rows = (file.chunks[1], file.chunks[0])
    forged = file.model_copy(update={"chunks": rows, "sha256": stream_hash(tuple(rows))})
    with pytest.raises(DamagedError, match="decrypt"):
        archive.fetch(forged, tmp_path / "out")


def test_encrypted_binlogs_need_an_identity(archive: BinlogArchive, tmp_path: Path) -> None:
    file = rotated(archive, b"a" * 150)
    with pytest.raises(ConfigError, match="no identity"):
        BinlogArchive(replace(archive.repository, keyring=Keyring((IDENTITY.recipient,))), "main").fetch(
            file, tmp_path / "out"
        )


def test_a_description_that_nobody_trusted_has_signed_is_refused(archive: BinlogArchive) -> None:
    archive.commit(rotated(archive, b"a" * 150))
    strict = BinlogArchive(replace(archive.repository, keyring=Keyring(signers=(SigningKey.new().public,))), "main")
    assert strict.load().files == ()
    assert "not signed" in str(strict.load().damaged[0])


def test_a_target_that_exists_is_not_overwritten(archive: BinlogArchive, tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"mine")
    with pytest.raises(ExistsError):
        archive.fetch(rotated(archive, b"a" * 150), tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"mine"


def test_a_damaged_description_does_not_hide_the_others(archive: BinlogArchive, tmp_path: Path) -> None:
    file = rotated(archive, b"a" * 150)
    archive.commit(file)
    folder = tmp_path / "store" / "main" / "binlogs" / ID / "files"
    (folder / "binlog.000008.json").write_bytes(b"{}")
    contents = archive.load()
    assert contents.files == (file,)
    assert ["binlog.000008" in str(error) for error in contents.damaged] == [True]


def test_files_and_incarnations_are_in_order(archive: BinlogArchive) -> None:
    later = INCARNATION.model_copy(update={"id": "20261122T101112Z-0000"})
    archive.begin(later)
    for incarnation, name in ((later.id, "binlog.000001"), (ID, "binlog.1000000"), (ID, "binlog.999999")):
        archive.commit(rotated(archive, b"a" * 150).model_copy(update={"name": name, "incarnation": incarnation}))
    contents = archive.load()
    assert [i.id for i in contents.incarnations] == [ID, later.id]
    assert [file.name for file in contents.files] == ["binlog.999999", "binlog.1000000", "binlog.000001"]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))))
def test_segments_cover_without_overlap_from_the_first_byte_on(segments: list[tuple[int, int]]) -> None:
    chosen = covering(segments)
    assert set(chosen) <= set(segments)
    at = 0
    for start, end in chosen:
        assert start == at < end
        at = end
    assert not any(start == at < end for start, end in segments)


class _Killed(Exception):
    pass


class _Dying(LocalStore):
    """A folder that dies before its nth removal."""

    left = 0

    def delete(self, key: str) -> None:
        if type(self).left == 0:
            raise _Killed
        type(self).left -= 1
        super().delete(key)


def dying_before_a_removal(archive: BinlogArchive, folder: Path) -> BinlogArchive:
    return BinlogArchive(Repository(_Dying(folder / "store"), "", "0123", archive.repository.keyring), "main")


@pytest.mark.parametrize("kind", ["rotated", "active", "rotated with segments left"])
def test_a_removal_ended_anywhere_leaves_the_whole_file_or_none_of_it(
    store: LocalStore, archive: BinlogArchive, tmp_path: Path, kind: str
) -> None:
    body = bytes(range(200)) * 5
    if kind != "rotated":
        add(archive, 0, body[:500], number=6)
        add(archive, 500, body[500:], number=7)
    if kind != "active":
        archive.commit(rotated(archive, body))
    (before,) = archive.load().files
    dying = dying_before_a_removal(archive, tmp_path)
    for removals in range(20):
        _Dying.left = removals
        try:
            remove(dying, before)
            break
        except _Killed:
            for file in archive.load().files:
                assert b"".join(bytes(part) for part in archive.plain(file))[: len(body)] == body
    else:
        raise AssertionError("it never came to its end")
    assert removals > 1
    remove(archive, before)
    assert archive.load().files == ()
    assert [item.key for item in store.list("main/binlogs/") if NAME in item.key] == []


@pytest.mark.parametrize("removals", range(5))
@pytest.mark.parametrize("kind", ["rotated", "active", "rotated with segments left"])
def test_what_a_killed_removal_leaves_is_found_and_swept_and_a_whole_file_is_not(
    store: LocalStore, archive: BinlogArchive, tmp_path: Path, kind: str, removals: int
) -> None:
    body = bytes(range(200)) * 5
    if kind != "rotated":
        add(archive, 0, body[:500], number=6)
        add(archive, 500, body[500:], number=7)
    if kind != "active":
        archive.commit(rotated(archive, body))
    (before,) = archive.load().files
    assert undescribed(archive) == {}
    _Dying.left = removals
    with contextlib.suppress(_Killed):
        remove(dying_before_a_removal(archive, tmp_path), before)
    there = bool(archive.load().files)
    assert list(undescribed(archive)) in ([], [(ID, NAME)])
    assert not (there and undescribed(archive))
    swept = sweep(archive, ID, NAME, {item.key for item in undescribed(archive).get((ID, NAME), [])})
    assert bool(archive.load().files) == there
    assert there == any(NAME in item.key for item in store.list("main/binlogs/"))
    assert not (there and swept)


def test_a_file_whose_description_cannot_be_read_is_no_leftover(store: LocalStore, archive: BinlogArchive) -> None:
    file = rotated(archive, bytes(range(200)) * 5)
    archive.commit(file)
    store.put(archive.file_key(file), b"?")
    assert undescribed(archive) == {}
    assert sweep(archive, ID, NAME, {item.key for item in store.list("")}) == 0


def test_undescribed_lists_no_chunk_of_described_binlogs(archive: BinlogArchive) -> None:
    """The bodies of a described binlog are many, and say nothing about what is left behind."""
    archive.commit(rotated(archive, bytes(range(200)) * 5))
    listed: list[str] = []

    class Listing(Layer):
        def list(self, prefix: str) -> Iterator[StoredObject]:
            listed.append(prefix)
            return super().list(prefix)

    seen = replace(archive, repository=archive.repository.through(Listing))
    assert undescribed(seen) == {}
    assert not [prefix for prefix in listed if "/chunks/" in prefix or "/segments/" in prefix]
    archive.put_chunk(ID, "binlog.000009", "0bad", 1, b"of an attempt that was killed")
    assert [(name, [item.size for item in parts]) for (_, name), parts in undescribed(seen).items()] == [
        ("binlog.000009", [29])
    ]


def test_parts_that_somebody_goes_on_with_are_not_swept(archive: BinlogArchive) -> None:
    body = bytes(range(200)) * 5
    rotated(archive, body, attempt="00aa")
    planned = {item.key for item in undescribed(archive)[ID, NAME]}
    file = rotated(archive, body, attempt="00bb")
    assert sweep(archive, ID, NAME, planned) == 0
    archive.confirm(ID, NAME, "00bb", file.chunks)
    archive.commit(file)
    assert sweep(archive, ID, NAME, planned) == 0
    assert b"".join(bytes(part) for part in archive.plain(file)) == body


def test_a_file_whose_chunks_were_swept_meanwhile_is_not_described(archive: BinlogArchive) -> None:
    file = rotated(archive, bytes(range(200)) * 5)
    assert sweep(archive, ID, NAME, {item.key for item in undescribed(archive)[ID, NAME]}) == 2
    with pytest.raises(DamagedError, match="is missing or incomplete"):
        archive.confirm(ID, NAME, file.attempt, file.chunks)


@pytest.mark.parametrize("depth", list(Depth))
def test_a_rotated_file_is_verified_chunk_by_chunk(store: LocalStore, archive: BinlogArchive, depth: Depth) -> None:
    archive.commit(rotated(archive, bytes(range(200)) * 5))
    (file,) = archive.load().files

    def damage() -> tuple[str, ...] | None:
        ((_, finding, _),) = observe_binlogs(archive, [file], depth, 2, SILENT)
        return finding

    # Its bytes are as they were written, and they are no binlog.
    assert (damage() == ()) is (depth is Depth.LISTED)
    key = archive.chunk_key(ID, NAME, file.attempt, 2)
    body = store.get(key)
    store.put(key, body[:-1])
    assert damage() == (f"{key} has {len(body) - 1} bytes, {len(body)} were written",)
    store.put(key, body[:-1] + bytes([body[-1] ^ 1]))
    assert any(key in text for text in damage() or ()) is (depth is Depth.READ)


COMPLETE = CompleteUntil(ID, NAME, 100, 1_700_000_000_000_000)


def test_until_when_an_incarnation_is_complete_is_replaced_and_read_back(archive: BinlogArchive) -> None:
    add(archive, 0, b"a" * 60, number=None)
    for until in (5, COMPLETE.until):
        archive.note_complete(replace(COMPLETE, until=until))
    loaded = archive.load()
    assert (loaded.state.complete, loaded.damaged) == ((COMPLETE,), ())


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b'"until":1', b'"until":-1', "until"),
        (b'"until":1', b'"until":999999', "until"),
        (NAME.encode(), b"../up.000007", "name"),
        (ID.encode(), b"20261121T101112Z-0000", "describes"),
        (b'"repository_id":"0123"', b'"repository_id":"4567"', "belongs to repository 4567"),
        (b'"format":1', b'"format":2', "format"),
        (b"{", b"", "cannot be read"),
    ],
)
def test_a_record_of_completeness_that_was_altered_is_told_and_says_nothing(
    store: LocalStore, archive: BinlogArchive, old: bytes, new: bytes, why: str
) -> None:
    add(archive, 0, b"a" * 60, number=None)
    archive.note_complete(COMPLETE)
    key = layout.complete("main", ID)
    store.put(key, rewritten(store.get(key), (old, new)))
    loaded = archive.load()
    assert (len(loaded.files), loaded.state.complete, loaded.state.unreadable) == (1, (), ())
    (error,) = loaded.damaged
    assert (key in error.message, why in error.message) == (True, True)


def test_a_host_that_signs_believes_no_record_of_completeness_without_its_signature(
    store: LocalStore, tmp_path: Path
) -> None:
    write_secret(tmp_path / "signing", SigningKey.new().file())
    signer = SigningKey.read(tmp_path / "signing").public
    signing = BinlogArchive(
        Repository.open_or_create(store, "", "0123", Keyring(signing_key_file=tmp_path / "signing", signers=(signer,))),
        "main",
    )
    signing.begin(INCARNATION)
    signing.note_complete(COMPLETE)
    assert signing.load().state.complete == (COMPLETE,)
    unsigned = BinlogArchive(replace(signing.repository, keyring=Keyring()), "main")
    unsigned.note_complete(replace(COMPLETE, until=COMPLETE.until + 5))
    loaded = signing.load()
    assert (loaded.state.complete, ["is not signed" in error.message for error in loaded.damaged]) == ((), [True])


def test_the_record_of_completeness_goes_with_the_binlog_that_it_names(
    store: LocalStore, archive: BinlogArchive
) -> None:
    add(archive, 0, b"a" * 60, number=6)
    (file,) = archive.load().files
    archive.note_complete(replace(COMPLETE, name="binlog.000008"))
    remove(archive, file)
    assert len(archive.load().state.complete) == 1
    archive.note_complete(COMPLETE)
    remove(archive, file)
    assert [item.key for item in store.list("main/binlogs/")] == [layout.incarnation("main", ID)]
