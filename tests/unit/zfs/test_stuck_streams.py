"""A stream of which nothing moves is given up, however long a stream may take that moves."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from zsnapdb.base.errors import CommandError
from zsnapdb.zfs import streams
from zsnapdb.zfs.streams import ReceiveStream, SendStream

QUIET = 0.5
Program = Callable[[str], None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Let `zfs` be this shell script."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(streams, "ZFS", str(tmp_path / "zfs"))
    monkeypatch.setattr(streams, "QUIET_SECONDS", QUIET)

    def write(text: str) -> None:
        (tmp_path / "zfs").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "zfs").chmod(0o755)

    return write


def read(stream: SendStream) -> bytes:
    return b"".join(iter(lambda: stream.pipe.read(65536), b""))


@pytest.mark.parametrize("text", ["exec sleep 30", "echo begun; exec sleep 30"])
def test_send_that_is_silent_is_stuck(program: Program, text: str) -> None:
    program(text)
    began = time.monotonic()
    with pytest.raises(CommandError, match="has moved no byte"), SendStream("t@a", None, ()) as stream:
        read(stream)
    assert time.monotonic() - began < 5


def test_send_that_drips_is_not_stuck(program: Program) -> None:
    program("for i in 1 2 3 4 5 6 7 8; do printf x; sleep 0.15; done")
    with SendStream("t@a", None, ()) as stream:
        assert read(stream) == b"x" * 8
        stream.finish()


def test_send_that_does_not_end_after_its_last_byte_is_stuck(program: Program) -> None:
    program("exec 1>&-; exec sleep 30")
    with SendStream("t@a", None, ()) as stream:
        assert read(stream) == b""
        with pytest.raises(CommandError, match="has moved no byte"):
            stream.finish()


def write_all(stream: ReceiveStream, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[stream.pipe.write(rest) :]


def test_receive_that_reads_nothing_is_stuck(program: Program) -> None:
    program("exec sleep 30")
    began = time.monotonic()
    with pytest.raises(CommandError, match="has moved no byte"), ReceiveStream("t/x", {}) as stream:
        write_all(stream, bytes(8 << 20))
    assert time.monotonic() - began < 5


def test_receive_gets_every_byte_however_slowly_it_reads(program: Program, tmp_path: Path) -> None:
    slowly = "for i in 1 2 3 4 5 6 7 8; do head -c 1048576; sleep 0.2; done; cat"
    program(f"exec > '{tmp_path}/got'; {slowly}")
    body = bytes(range(256)) * (40 << 10)
    with ReceiveStream("t/x", {}) as stream:
        write_all(stream, body)
        stream.finish()
    assert (tmp_path / "got").read_bytes() == body
