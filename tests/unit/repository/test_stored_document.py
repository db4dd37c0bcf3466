"""Each flipped byte of a stored document is found by whoever reads it, whether the host signs or not."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.kept_repositories import KEPT, unpack
from zsnapdb.base import untrusted_text
from zsnapdb.base.errors import DamagedError
from zsnapdb.jobs.base.own_document_digests import OwnDocumentFiles
from zsnapdb.repository import crypto_keys, stored_document
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.marker import Marker

LINE = b'{"format":1,"instance":"main","path":"/var/lib/mysql"}'
SIGNER = crypto_keys.SigningKey.new()
FLIPS = (0x01, 0x20, 0x80)


def is_found(body: bytes, line: bytes, keyring: Keyring) -> bool:
    """Whether a reader, which parses the line as JSON, refuses the object or reads the same line."""
    try:
        read = keyring.verified(body, "it")
        untrusted_text.parsed(read)
    except (DamagedError, ValueError):
        return True
    return read == line


@pytest.fixture(params=[False, True], ids=["unsigned", "signed"])
def keyring(request: pytest.FixtureRequest, tmp_path: Path) -> Keyring:
    if not request.param:
        return Keyring()
    crypto_keys.write_secret(tmp_path / "signing", SIGNER.file())
    return Keyring(signing_key_file=tmp_path / "signing")


def test_document_with_any_flipped_byte_is_refused_or_the_same(keyring: Keyring) -> None:
    body = keyring.signed(LINE)
    for reader in (keyring, Keyring()):
        assert reader.verified(body, "it") == LINE
        for at in range(len(body)):
            for flip in FLIPS:
                flipped = body[:at] + bytes([body[at] ^ flip]) + body[at + 1 :]
                assert is_found(flipped, LINE, reader), (at, flip)


@given(st.integers(0, 10_000), st.integers(1, 255), st.sampled_from(KEPT["mariadb"]))
def test_every_document_of_a_repository_shows_a_flipped_byte(
    kept_lines: list[bytes], at: int, flip: int, name: str
) -> None:
    for line in kept_lines:
        body = Keyring().signed(line)
        place = at % len(body)
        flipped = body[:place] + bytes([body[place] ^ flip]) + body[place + 1 :]
        assert is_found(flipped, line, Keyring()), (name, place, flip)


@pytest.fixture(scope="module")
def kept_lines(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The lines of one document of each kind that earlier versions stored."""
    folder = tmp_path_factory.mktemp("kept")
    unpack("mariadb", folder)
    kinds: dict[tuple[str, ...], bytes] = {}
    for name in KEPT["mariadb"]:
        for file in sorted([*(folder / name).rglob("*.json"), *(folder / name).rglob("*.lock")]):
            parts = file.relative_to(folder / name).parts
            line = file.read_bytes().partition(b"\n")[0]
            if line.startswith(b"{") and len(line) > 1:
                kinds.setdefault(parts[:-1][:3], line)
    assert len(kinds) > 5
    return list(kinds.values())


def test_document_without_second_line_is_read_as_before() -> None:
    document = stored_document.open_document(LINE + b"\n", "it")
    assert (document.line, document.signature, document.has_digest) == (LINE, None, False)
    assert document.digest == hashlib.sha256(LINE).hexdigest()


@pytest.mark.parametrize("second", [b"{}", b"{", b"[]", b'{"sha256":1}', b'{"sha256":"00","x":1}', b"x" * 4096])
def test_unknown_second_line_is_damage(second: bytes) -> None:
    with pytest.raises(DamagedError, match=r"second line|digest"):
        stored_document.open_document(LINE + b"\n" + second + b"\n", "it")


def test_accepted_document_is_believed_and_no_other(tmp_path: Path) -> None:
    crypto_keys.write_secret(tmp_path / "signing", SIGNER.file())
    own = OwnDocumentFiles(tmp_path)
    own.note("drills", stored_document.digest_of(LINE))
    keyring = Keyring(signing_key_file=tmp_path / "signing", own=own)
    for body in (LINE + b"\n", stored_document.with_digest(LINE)):
        assert keyring.verified(body, "it") == LINE
    with pytest.raises(DamagedError, match="is not signed"):
        keyring.verified(stored_document.with_digest(LINE.replace(b"main", b"other")), "it")


def test_marker_with_any_flipped_byte_is_refused_or_the_same() -> None:
    marker = Marker(id="0123456789abcdef", recipients=("age1abc",))
    body = marker.encode()
    for at in range(len(body)):
        for flip in FLIPS:
            try:
                assert Marker.parse(body[:at] + bytes([body[at] ^ flip]) + body[at + 1 :], "it") == marker, (at, flip)
            except DamagedError:
                continue


def test_marker_of_an_earlier_version_is_read() -> None:
    marker = Marker(id="0123456789abcdef")
    assert Marker.parse(marker.model_dump_json(indent=1).encode(), "it") == marker
