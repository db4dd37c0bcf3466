"""Binlogs that MySQL encrypted are read as if they were plain."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.errors import PreflightError
from zsnapdb.mysql.binlog.encrypted import HEADER_BYTES, BinlogKeys, key_of, open_binlog
from zsnapdb.mysql.binlog.events import ENCRYPTED_MAGIC, MAGIC

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
