"""A host reads a description of an archived binlog once; whether it exists, the store says every time.

Nothing is believed because it is in the cache: bytes are used only with a description whose signature was checked now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.binlog_archive import ID, IDENTITY, INCARNATION, NAME, add, rotated
from zsnapdb.base.errors import DamagedError
from zsnapdb.jobs.repository.verify import check_documents
from zsnapdb.repository import layout
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_description_cache import DescriptionCache
from zsnapdb.repository.binlog_descriptions import UnreadChunks
from zsnapdb.repository.crypto_keys import SigningKey, write_secret
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.repository import Repository
from zsnapdb.store.layers import Layer
from zsnapdb.store.local import LocalStore

BODY = bytes(range(200)) * 5
FILE = layout.rotated_binlog("main", ID, NAME)


class Reads(Layer):
    """Counts what is fetched."""

    def __init__(self, inner: LocalStore) -> None:
        super().__init__(inner)
        self.fetched: list[str] = []

    def get(self, key: str) -> bytes:
        self.fetched.append(key)
        return super().get(key)

    def descriptions(self) -> list[str]:
        """Return the fetched descriptions of binlogs since the last call."""
        fetched = [key for key in self.fetched if "/files/" in key or "/active/" in key]
        self.fetched.clear()
        return fetched


@pytest.fixture
def store(tmp_path: Path) -> Reads:
    (tmp_path / "store").mkdir()
    return Reads(LocalStore(tmp_path / "store"))


@pytest.fixture
def archive(tmp_path: Path, store: Reads) -> BinlogArchive:
    """Return an archive with a cache, a signed description of a rotated binlog, and no active one."""
    (tmp_path / "identity").write_bytes(IDENTITY.file())
    (tmp_path / "identity").chmod(0o600)
    write_secret(tmp_path / "signing.key", SigningKey.new().file())
    keyring = Keyring((IDENTITY.recipient,), tmp_path / "identity", tmp_path / "signing.key", accepts_plain=True)
    repository = Repository.open_or_create(store, "", "0123", keyring)
    new = BinlogArchive(repository, "main", cache=DescriptionCache.of(tmp_path / "cache", repository, "main"))
    new.begin(INCARNATION)
    new.commit(rotated(new, BODY))
    store.fetched.clear()
    return new


def test_cached_archive_equals_the_stored_archive(archive: BinlogArchive, store: Reads) -> None:
    fresh = replace(archive, cache=None).load()
    for _ in range(3):
        known = archive.load()
        assert (known.incarnations, known.state, known.lines) == (fresh.incarnations, fresh.state, fresh.lines)
        assert [file.digest for file in known.files] == [file.digest for file in fresh.files]
        assert [file.stored_size for file in known.files] == [file.stored_size for file in fresh.files]
        assert known.files == fresh.files
        assert known.files[0].encode() == fresh.files[0].encode()


def test_description_is_fetched_once(archive: BinlogArchive, store: Reads) -> None:
    archive.load()
    assert store.descriptions() == [FILE]
    (file,) = archive.load().files
    assert store.descriptions() == []
    assert isinstance(file.chunks, UnreadChunks)
    assert b"".join(bytes(part) for part in archive.plain(file)) == BODY
    assert store.descriptions() == [FILE]


def test_segment_is_fetched_once(archive: BinlogArchive, store: Reads) -> None:
    archive.repository.delete(FILE)
    add(archive, 0, b"a" * 60, number=None)
    add(archive, 60, b"b" * 40, number=6)
    before = archive.load()
    assert len(store.descriptions()) == 2
    assert archive.load().files == before.files
    assert store.descriptions() == []
    add(archive, 100, b"c" * 50, number=7)
    assert archive.load().files[0].end == 150
    assert len(store.descriptions()) == 1


def test_removed_description_is_gone(archive: BinlogArchive, store: Reads) -> None:
    (file,) = archive.load().files
    archive.repository.delete(FILE)
    assert archive.load().files == ()
    with pytest.raises(DamagedError, match="is missing"):
        list(file.chunks)


@pytest.mark.parametrize("use", [len, list, lambda chunks: chunks[0], lambda chunks: chunks == (), hash])
def test_replaced_description_is_not_used(
    archive: BinlogArchive, tmp_path: Path, use: Callable[[object], object]
) -> None:
    """Another signed description in the place of the known one is noticed before its chunks count."""
    archive.load()
    (file,) = archive.load().files
    archive.repository.delete(FILE)
    archive.commit(rotated(archive, BODY[::-1], attempt="00bb"))
    with pytest.raises(DamagedError, match="differs from what this host read before"):
        use(file.chunks)
    with pytest.raises(DamagedError):
        archive.fetch(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert archive.load().files[0].attempt == "00bb"


def test_altered_description_is_damaged_whatever_the_cache_has(archive: BinlogArchive, store: Reads) -> None:
    (file,) = archive.load().files
    body = store.get(FILE)
    store.put(FILE, body.replace(b'"transactions":2', b'"transactions":3'))
    known = archive.load()
    assert (known.files, len(known.damaged)) == ((), 1)
    with pytest.raises(DamagedError, match="the signature does not match"):
        list(file.chunks)


def test_unbelieved_signer_is_read_again_and_refused(archive: BinlogArchive, tmp_path: Path, store: Reads) -> None:
    """After a change of the trusted signers, the earlier cache does not make a document trusted."""
    archive.load()
    write_secret(tmp_path / "other.key", SigningKey.new().file())
    keyring = replace(archive.repository.keyring, signing_key_file=tmp_path / "other.key")
    assert archive.cache is not None
    for trust in (archive.cache.trust, keyring.cache_trust):
        other = replace(
            archive, repository=replace(archive.repository, keyring=keyring), cache=replace(archive.cache, trust=trust)
        )
        known = other.load()
        assert (known.files, known.damaged != ()) == ((), True)


@pytest.mark.parametrize("content", [b"", b"{", b"[]\n[]", b'{"version": 1}'])
def test_unreadable_cache_is_replaced(archive: BinlogArchive, store: Reads, content: bytes) -> None:
    (before,) = archive.load().files
    assert archive.cache is not None
    archive.cache.file.write_bytes(content)
    store.descriptions()
    assert archive.load().files == (before,)
    assert store.descriptions() == [FILE]
    assert archive.load().files == (before,)
    assert store.descriptions() == []


def test_verify_reads_what_the_cache_has(archive: BinlogArchive, store: Reads) -> None:
    archive.load()
    store.descriptions()
    assert not check_documents(archive.repository, "main").damage
    assert FILE in store.descriptions()
