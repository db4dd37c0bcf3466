"""What a zfs command says when it fails becomes an error of the right kind, with a hint."""

from __future__ import annotations

import pytest

from zsnapdb.errors import CommandError, ExistsError, NotThere, PreflightError
from zsnapdb.zfs.command import failure


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("cannot open 'tank/x': dataset does not exist", NotThere),
        ("cannot receive new filesystem stream: destination 'tank/x' exists", ExistsError),
        ("cannot create snapshot 'tank/x@y': permission denied", PreflightError),
        ("cannot destroy 'tank/x': dataset is busy", CommandError),
        ("cannot receive: out of space", PreflightError),
        ("something nobody has seen", CommandError),
    ],
)
def test_what_zfs_says_is_classified_and_kept(text: str, error: type) -> None:
    classified = failure(["zfs", "x"], 1, text)
    assert type(classified) is error
    assert text in classified.message
    assert classified.hint
