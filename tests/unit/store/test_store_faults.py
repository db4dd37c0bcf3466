"""Whatever a store does during a backup, no bad backup is listed, no good one is lost, and the next run succeeds."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest

from tests.unit.support.faulty_store import Fault, FaultyStore
from tests.unit.support.manifests import manifest
from tests.unit.support.streams import stream_of
from zsnapdb.base.errors import ConsistencyError, DamagedError, ZsnapdbError
from zsnapdb.repository.repository import Repository, confirm
from zsnapdb.store.base import Store
from zsnapdb.store.layers import Pauses, RetryingStore
from zsnapdb.store.local import LocalStore
from zsnapdb.stream.chunks import Codec
from zsnapdb.stream.crypto import ChunkCipher
from zsnapdb.stream.download import download
from zsnapdb.stream.upload import UploadSettings, upload

IDS = [f"20261120T10111{n}Z-7f3a" for n in range(3)]
FAULTS = [Fault.UNREACHED, Fault.THROTTLED, Fault.ANSWER_LOST, Fault.DENIED, Fault.CUT, Fault.LIE]
CALLS = ("check", "put", "get", "list", "read_version", "replace", "folders")


SHORT = Pauses(first=0.0005, longest=0.001)


def data_of(number: int) -> bytes:
    return stream_of(30_000, seed=number)


def back_up(store: Store, number: int) -> None:
    """What a backup does with its repository, from opening it to the manifest."""
    repository = Repository.open_or_create(RetryingStore(store, 5, pauses=SHORT), "", "r")
    chunks = repository.chunks("main", IDS[number], "data")
    done = upload(io.BytesIO(data_of(number)), chunks, UploadSettings(4096, Codec.ZSTD, 1, 2), lambda _: None)
    confirm(chunks, done.chunks)
    complete = manifest(IDS[number])
    volume = complete.volumes[0].model_copy(
        update={"plain_size": done.plain_size, "sha256": done.sha256, "chunks": done.chunks}
    )
    repository.commit(complete.model_copy(update={"volumes": (volume,), "repository_id": repository.id}))


def good(store: Store) -> list[int]:
    """Return which backups the repository calls good (one whose manifest cannot be read is not).

    Each must come back byte for byte.
    """
    repository, readable = Repository.open(store, ""), []
    for backup_id in repository.backup_ids("main"):
        try:
            volume = repository.manifest("main", backup_id).volumes[0]
        except DamagedError:
            continue
        number, out = IDS.index(backup_id), io.BytesIO()
        readable.append(number)
        chunks = repository.chunks("main", IDS[number], "data")
        download(chunks, volume.chunks, volume.codec, out, concurrency=2, name=str, on_bytes=lambda _: None)
        assert out.getvalue() == data_of(number)
    return readable


@pytest.mark.parametrize("seed", range(60))
def test_nothing_bad_is_called_good_and_the_next_run_finishes(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    real = LocalStore(tmp_path)
    back_up(real, 0)
    faults = {call: [rng.choice(FAULTS) if rng.random() < 0.25 else Fault.FINE for _ in range(20)] for call in CALLS}
    try:
        back_up(FaultyStore(real, faults, lag=rng.choice((0, 0, 1, 4))), 1)
        assert 1 in good(real), "it was called done"
    except ZsnapdbError:
        # It may have failed after the manifest was there: then it is a good one.
        assert 0 in good(real)
    back_up(real, 2)
    assert {0, 2} <= set(good(real))


@pytest.mark.parametrize("fault", [Fault.LIE, Fault.CUT])
@pytest.mark.parametrize("call", range(1, 9))
def test_a_store_that_did_not_keep_a_chunk_is_found_out_before_the_manifest(
    tmp_path: Path, fault: Fault, call: int
) -> None:
    real = LocalStore(tmp_path)
    back_up(real, 0)
    with pytest.raises(ConsistencyError, match="the store accepted main/chunks/"):
        back_up(FaultyStore(real, {"put": [Fault.FINE] * (call - 1) + [fault]}), 1)
    assert good(real) == [0]


def test_a_listing_that_lags_behind_does_not_make_a_good_backup_a_bad_one(tmp_path: Path) -> None:
    real = LocalStore(tmp_path)
    back_up(FaultyStore(real, lag=5), 0)
    assert good(real) == [0]


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.ALTERED])
@pytest.mark.parametrize("cipher", [None, ChunkCipher(bytes(range(32)), "1")])
@pytest.mark.parametrize("codec", list(Codec))
def test_what_was_damaged_on_its_way_is_read_again(
    tmp_path: Path, fault: Fault, cipher: ChunkCipher | None, codec: Codec
) -> None:
    store = LocalStore(tmp_path)
    chunks = Repository.open_or_create(store, "", "r").chunks("main", IDS[0], "data")
    done = upload(
        io.BytesIO(data_of(0)),
        chunks,
        UploadSettings(4096, codec, 1 if codec is Codec.ZSTD else 0, 2),
        lambda _: None,
        cipher=cipher,
    )
    faulty = FaultyStore(store, {"read_into": [Fault.FINE, fault, Fault.FINE, fault]})
    out = io.BytesIO()
    ciphers = {cipher.key_id: cipher} if cipher else {}
    download(
        Repository.open(faulty, "").chunks("main", IDS[0], "data"),
        done.chunks,
        codec,
        out,
        concurrency=2,
        name=str,
        on_bytes=lambda _: None,
        ciphers=ciphers,
    )
    assert out.getvalue() == data_of(0)


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.ALTERED])
def test_what_is_read_damaged_never_reaches_the_reader(tmp_path: Path, fault: Fault) -> None:
    real = LocalStore(tmp_path)
    back_up(real, 0)
    volume = Repository.open(real, "").manifest("main", IDS[0]).volumes[0]
    faulty = FaultyStore(real, {"read_into": [Fault.FINE] * 3 + [fault], "get": [Fault.FINE, fault]})
    chunks = Repository.open(faulty, "").chunks("main", IDS[0], "data")
    out = io.BytesIO()
    with pytest.raises(DamagedError):
        download(chunks, volume.chunks, volume.codec, out, concurrency=1, name=str, on_bytes=lambda _: None)
    assert data_of(0).startswith(out.getvalue())
    assert faulty.given_up
