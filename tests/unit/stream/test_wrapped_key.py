"""The first record of a raw stream says whether a key opens what the stream makes; nothing in it leads elsewhere.

The streams were recorded from `zfs send -L -w` of OpenZFS 2.3.9, each of an empty dataset with a key that is known.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.streams import begin
from zsnapdb.base.errors import DamagedError
from zsnapdb.stream.raw_stream_key import wrapped_key
from zsnapdb.stream.send_stream_checks import RECORD_BYTES

RECORDED = json.loads(Path(__file__).with_name("raw-streams.json").read_text())
STREAMS = {name: base64.b64decode(text) for name, text in RECORDED.items()}
KEYS = {
    "passphrase": b"correct horse\n",
    "hex": b"%064x\n" % 4711,
    "raw": b"0123456789abcdef0123456789ABCDEF",
}


@pytest.mark.parametrize("name", STREAMS)
def test_the_right_key_opens_and_no_other_does(name: str) -> None:
    wrapped = wrapped_key(STREAMS[name] + bytes(500))
    assert wrapped is not None
    right = KEYS[name.rpartition("-")[2]]
    assert wrapped.is_opened_by(right)
    assert wrapped.is_opened_by(right.rstrip(b"\n"))
    for wrong in (b"", b"correct horsf\n", b"%064x\n" % 4712, b"%063x\n" % 4711, bytes(32), right[1:], b"x" + right):
        assert not wrapped.is_opened_by(wrong), wrong


@pytest.mark.parametrize("name", STREAMS)
def test_no_key_is_shown(name: str) -> None:
    wrapped = wrapped_key(STREAMS[name])
    assert wrapped is not None
    assert repr(wrapped.sealed) not in repr(wrapped)


@given(st.sampled_from(sorted(STREAMS)), st.integers(RECORD_BYTES, 1300), st.binary(min_size=1, max_size=40))
def test_whatever_the_record_says_is_a_key_or_is_not_known(name: str, at: int, other: bytes) -> None:
    altered = bytearray(STREAMS[name])
    altered[at : at + len(other)] = other
    wrapped_key(bytes(altered))
    wrapped_key(STREAMS[name][:at])


@given(st.binary(max_size=400))
def test_a_payload_of_anything_is_not_known(payload: bytes) -> None:
    assert wrapped_key(begin(payload=b"\0\1" + payload)) is None


def test_what_is_no_stream_is_refused() -> None:
    with pytest.raises(DamagedError, match="BEGIN"):
        wrapped_key(bytes(2000))
