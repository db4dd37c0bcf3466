"""The estimate of a stream's size is best effort."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zsnapdb.base.errors import CommandError, CommandTimeout, NotFound
from zsnapdb.zfs import command, streams


def _answer(text: str) -> Callable[..., str]:
    return lambda argv, *, timeout: text


def _failure(error: type[CommandError | NotFound]) -> Callable[..., str]:
    def fail(argv: list[str], *, timeout: float) -> str:
        raise error("`zfs send -n` failed", hint="see `zpool status`")

    return fail


@pytest.mark.parametrize(
    ("run", "size"),
    [
        (_answer("full\ttank/a@b\t123\nsize\t4711\n"), 4711),
        (_answer("full\ttank/a@b\t123\n"), None),
        (_answer("size\tmany\n"), None),
        (_answer("size\n"), None),
        (_failure(CommandTimeout), None),
        (_failure(CommandError), None),
        (_failure(NotFound), None),
    ],
)
def test_a_size_that_zfs_does_not_say_in_time_is_unknown_and_no_error(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., str], size: int | None
) -> None:
    monkeypatch.setattr(command, "run", run)
    assert streams.estimate("tank/a@b", "#base", ()) == size
