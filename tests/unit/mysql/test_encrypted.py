"""Binlogs that a server encrypted are read as if they were plain."""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.errors import PreflightError
from zsnapdb.mysql.binlog.binlog_files import key_of, open_binlog
from zsnapdb.mysql.binlog.binlog_keys import BinlogKeys
from zsnapdb.mysql.binlog.encrypted_events import HEADER_BYTES, Algorithm
from zsnapdb.mysql.binlog.events import ENCRYPTED_MAGIC, FORMAT, HEADER, MAGIC, MARIADB_ENCRYPTION, decisive_events
from zsnapdb.mysql.process.written_paths import keyring_paths

NAME = "MySQLReplicationKey_3b539809-e55b-11f1-8822-4e3318db0587_1"
KEY, PASSWORD, IV = bytes(range(32)), bytes(range(100, 132)), bytes(range(200, 216))


def encrypted(plain: bytes, name: str = NAME, key: bytes = KEY) -> bytes:
    """Return the file of a binlog as MySQL writes it."""
    closing = Cipher(algorithms.AES(key), modes.CBC(IV)).encryptor()
    digest = hashlib.sha512(PASSWORD).digest()
    stream = Cipher(algorithms.AES(digest[:32]), modes.CTR(digest[32:40] + bytes(8))).encryptor()
    fields = bytes((1, len(name))) + name.encode() + b"\2" + closing.update(PASSWORD) + b"\3" + IV
    return (ENCRYPTED_MAGIC + b"\1" + fields).ljust(HEADER_BYTES, b"\0") + stream.update(plain)


def keyring(folder: Path, **keys: bytes) -> BinlogKeys:
    """Return the keys of a keyring file with these."""
    elements = [{"user": "", "data_id": name, "data_type": "AES", "data": key.hex()} for name, key in keys.items()]
    file = folder / "keyring"
    file.write_text(json.dumps({"version": "1.0", "elements": elements}))
    return BinlogKeys((file,))


def written(folder: Path, body: bytes) -> Path:
    path = folder / "binlog.000001"
    path.write_bytes(body)
    return path


@given(body=st.binary(max_size=300), reads=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 200)), max_size=8))
def test_each_range_of_an_encrypted_binlog_is_that_of_the_plain_one(
    tmp_path_factory: pytest.TempPathFactory, body: bytes, reads: list[tuple[int, int]]
) -> None:
    folder, plain = tmp_path_factory.mktemp("binlog"), MAGIC + body
    path, keys = written(folder, encrypted(plain)), keyring(folder, **{NAME: KEY})
    with open_binlog(path, keys) as file:
        assert key_of(file) == NAME
        assert file.read() == plain
        assert file.seek(0, 2) == len(plain)
        for at, count in reads:
            file.seek(at)
            assert file.read(count) == plain[at : at + count]


def test_what_the_server_adds_while_the_file_is_open_is_read(tmp_path: Path) -> None:
    path, keys = written(tmp_path, encrypted(MAGIC + b"first")), keyring(tmp_path, **{NAME: KEY})
    with open_binlog(path, keys) as file:
        assert file.seek(0, 2) == 9
        path.write_bytes(encrypted(MAGIC + b"first and second"))
        assert file.seek(0, 2) == 20
        file.seek(4)
        assert file.read() == b"first and second"


def test_a_plain_binlog_is_read_as_it_is_and_a_part_of_a_header_as_nothing(tmp_path: Path) -> None:
    with open_binlog(written(tmp_path, MAGIC + b"plain")) as file:
        assert (key_of(file), file.read()) == (None, MAGIC + b"plain")
    with open_binlog(written(tmp_path, encrypted(MAGIC)[:300])) as file:
        assert (file.seek(0, 2), file.read(), file.fileno() > 2) == (0, b"", True)


def _no_file(folder: Path) -> BinlogKeys:
    return BinlogKeys((folder / "nothing",))


@pytest.mark.parametrize(
    "keys",
    [
        lambda folder: BinlogKeys(),
        _no_file,
        lambda folder: keyring(folder, other=KEY),
        lambda folder: keyring(folder, **{NAME: bytes(32)}),
        lambda folder: keyring(folder, **{NAME: bytes(8)}),
    ],
)
def test_a_key_that_is_missing_or_wrong_is_named_and_its_bytes_are_not(
    tmp_path: Path, keys: Callable[[Path], BinlogKeys]
) -> None:
    with pytest.raises(PreflightError, match=f"is encrypted with the key '{NAME}', which cannot be read") as error:
        open_binlog(written(tmp_path, encrypted(MAGIC + b"x")), keys(tmp_path))
    assert KEY.hex() not in str(error.value)
    assert KEY.hex() not in repr(keyring(tmp_path, **{NAME: KEY}).remembered())


def test_a_key_that_was_rotated_away_since_is_remembered(tmp_path: Path) -> None:
    keys = keyring(tmp_path, **{NAME: KEY}).remembered()
    later = keyring(tmp_path, later=bytes(32))
    path = written(tmp_path, encrypted(MAGIC + b"x"))
    with open_binlog(path, keys) as file:
        assert file.read() == MAGIC + b"x"
    with pytest.raises(PreflightError, match="cannot be read"):
        open_binlog(path, later)
    assert later.key("later") == bytes(32)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_header_without_one_of_its_fields_is_refused(tmp_path: Path, missing: int) -> None:
    fields = {1: bytes((1, len(NAME))) + NAME.encode(), 2: b"\2" + PASSWORD, 3: b"\3" + IV, 4: b"\4\1x"}
    header = ENCRYPTED_MAGIC + b"\1" + b"".join(field for kind, field in fields.items() if kind != missing)
    with pytest.raises(PreflightError, match="in an unknown form"):
        open_binlog(written(tmp_path, header.ljust(HEADER_BYTES, b"\0")), keyring(tmp_path, **{NAME: KEY}))


@given(header=st.binary(max_size=HEADER_BYTES), key=st.binary(max_size=64), text=st.text(max_size=80))
def test_whatever_the_header_and_the_keyring_say_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, header: bytes, key: bytes, text: str
) -> None:
    folder = tmp_path_factory.mktemp("binlog")
    path = written(folder, (ENCRYPTED_MAGIC + header).ljust(HEADER_BYTES, b"\0") + b"rest")
    known = keyring(folder, **{NAME: key, "": key})
    known.files[0].with_name("text").write_text(text, errors="replace")
    for keys in (known, BinlogKeys((folder / "text",))):
        with contextlib.suppress(PreflightError):
            open_binlog(path, keys).close()


NONCE = bytes(range(50, 62))


def _event(kind: int, body: bytes, at: int) -> bytes:
    head = HEADER.pack(1_700_000_000, kind, 1, HEADER.size + len(body) + 4, at + HEADER.size + len(body) + 4, 0)
    return head + body + struct.pack("<I", zlib.crc32(head + body))


def mariadb(bodies: Sequence[bytes], algorithm: Algorithm, key: bytes = KEY) -> tuple[bytes, bytes]:
    """Return a binlog with these events behind the start of encryption: encrypted as MariaDB does it, and plain."""
    head = MAGIC + _event(FORMAT, bytes(80), 4)
    plain = head + _event(MARIADB_ENCRYPTION, b"\1\1\0\0\0" + NONCE, len(head))
    hidden = plain
    for body in bodies:
        at, event = len(plain), bytearray(_event(2, body, len(plain)))
        plain += event
        vector, length = NONCE + struct.pack("<I", at), bytes(event[9:13])
        event[9:13] = event[:4]
        stream = bytes(event[4:])
        if algorithm is Algorithm.CTR:
            stream = Cipher(algorithms.AES(key), modes.CTR(vector)).encryptor().update(stream)
        else:
            whole = len(stream) // 16 * 16
            mask = Cipher(algorithms.AES(key), modes.CBC(bytes(16))).encryptor().update(vector)
            tail = bytes(one ^ other for one, other in zip(stream[whole:], mask, strict=False))
            stream = Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor().update(stream[:whole]) + tail
        hidden += stream[5:9] + stream[:5] + length + stream[9:]
    return hidden, plain


def lines(folder: Path, *keys: str) -> BinlogKeys:
    file = folder / "keys"
    file.write_text("# keys\n" + "\n".join(keys) + "\n")
    return BinlogKeys((file,))


BODIES = st.lists(st.binary(max_size=120), max_size=6)


@given(BODIES, st.sampled_from(Algorithm), st.lists(st.tuples(st.integers(0, 900), st.integers(0, 300)), max_size=8))
def test_each_range_of_events_that_mariadb_encrypted_is_that_of_the_plain_ones(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes], algorithm: Algorithm, reads: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("binlog")
    hidden, plain = mariadb(bodies, algorithm)
    with open_binlog(written(folder, hidden), lines(folder, f"1;{KEY.hex()}", "2;00")) as file:
        seen = file.read()
        start = plain.index(NONCE) - 24
        end = start + 40
        assert (seen[:start], seen[end:]) == (plain[:start], plain[end:])
        ignored = HEADER.unpack_from(seen, start)
        assert (ignored[1], ignored[3:5], ignored[5]) == (MARIADB_ENCRYPTION, (40, end), 0x80)
        assert zlib.crc32(seen[start : end - 4]) == struct.unpack_from("<I", seen, end - 4)[0]
        assert (key_of(file), file.seek(0, 2)) == ("file_key_management 1", len(plain))
        assert MARIADB_ENCRYPTION not in [event.kind for event in decisive_events(file, "binlog", len(plain))]
        for at, count in reads:
            file.seek(at)
            assert file.read(count) == seen[at : at + count]


@given(BODIES, st.sampled_from(Algorithm), st.integers(0, 1000))
def test_an_event_that_is_not_whole_yet_is_read_as_cut_and_whole_afterwards(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes], algorithm: Algorithm, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("binlog")
    hidden, plain = mariadb(bodies, algorithm)
    first = plain.index(NONCE) + 16
    there = min(len(hidden), first + cut)
    path = written(folder, hidden[:there])
    with open_binlog(path, lines(folder, f"1;{KEY.hex()}")) as file:
        events = list(decisive_events(file, "binlog", file.seek(0, 2)))
        assert all(event.end <= there for event in events)
        path.write_bytes(hidden)
        assert file.seek(first) == first
        assert file.read() == (plain[first:] if there >= first + 20 else b"")


@pytest.mark.parametrize("keys", [("2;00",), (f"1;{'ab' * 32}",), ("1;ab",), ("1;xyz", "")])
def test_a_key_of_file_key_management_that_is_missing_or_wrong_is_named(tmp_path: Path, keys: tuple[str, ...]) -> None:
    hidden, _ = mariadb([b"body of an event"], Algorithm.CBC)
    with pytest.raises(PreflightError, match="is encrypted with the key 'file_key_management 1'"):
        open_binlog(written(tmp_path, hidden), lines(tmp_path, *keys))


def salted(text: str, passphrase: bytes) -> bytes:
    """Return a key file as `openssl enc -aes-256-cbc -md sha1` encrypts it."""
    salt, made, digest = b"8 bytes.", b"", b""
    while len(made) < 48:
        digest = hashlib.sha1(digest + passphrase + salt).digest()
        made += digest
    padding = 16 - len(text) % 16
    closing = Cipher(algorithms.AES(made[:32]), modes.CBC(made[32:48])).encryptor()
    return b"Salted__" + salt + closing.update(text.encode() + bytes([padding]) * padding)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(
    ("typed", "is_right"), [(b"a secret", True), (b"a secret\r\n", True), (b"another", False), (b"x" * 300, False)]
)
def test_a_key_file_that_is_encrypted_is_opened_by_its_passphrase_alone(
    tmp_path: Path, order: int, typed: bytes, is_right: bool
) -> None:
    hidden, plain = mariadb([b"body of an event"], Algorithm.CBC)
    files = [tmp_path / "keys", tmp_path / "passphrase"]
    files[0].write_bytes(salted(f"1;{KEY.hex()}\n", b"a secret"))
    files[1].write_bytes(typed)
    keys = BinlogKeys(tuple(files[::-1] if order else files))
    if is_right:
        with open_binlog(written(tmp_path, hidden), keys) as file:
            assert len(file.read()) == len(plain)
    else:
        with pytest.raises(PreflightError, match="is encrypted with the key 'file_key_management 1'") as refusal:
            open_binlog(written(tmp_path, hidden), keys)
        assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(("value", "path"), [("FILE:/etc/k", "/etc/k"), ("FILE:k", "/d/k"), ("a secret", None)])
def test_a_passphrase_of_a_key_file_is_a_path_only_if_it_names_one(value: str, path: str | None) -> None:
    found = keyring_paths({"datadir": "/d", "file_key_management_filekey": value})
    assert [one.path for one in found] == ([] if path is None else [path])
