"""Whether a receive into a dataset runs is told by processes of this account alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zsnapdb.zfs.streams import is_being_received


@pytest.mark.parametrize(
    ("uid", "words", "runs"),
    [
        (os.getuid(), "zfs receive -s -u tank/x", True),
        (os.getuid(), "zfs receive -s -u tank/y", False),
        (os.getuid(), "zfs send tank/x", False),
        (os.getuid() + 1, "zfs receive -s -u tank/x", False),
    ],
)
def test_a_receive_runs_if_a_process_of_this_account_does_it(tmp_path: Path, uid: int, words: str, runs: bool) -> None:
    process = tmp_path / "77"
    process.mkdir()
    (process / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words.split()))
    # As proc(5) has it: real, effective, saved and filesystem uid.
    (process / "status").write_text(f"Name:\tzfs\nUid:\t{uid}\t0\t0\t0\nGid:\t0\t0\t0\t0\n")
    assert is_being_received("tank/x", tmp_path) is runs
