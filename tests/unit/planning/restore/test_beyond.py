"""What a restore that goes on replays: exactly what lies between its point and the later one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.errors import NotFound
from zsnapdb.planning.restore.replays import beyond
from zsnapdb.planning.restore.steps import LogPart

HEAD, END = 100, 1000


def logs(start: int, files: int, stop: int) -> list[LogPart]:
    """A replay that begins in the first binlog at `start`, and ends in the last of them at `stop`."""
    ends = [END] * (files - 1) + [stop]
    starts = [start] + [HEAD] * (files - 1)
    return [
        LogPart("i", f"binlog.{n:06d}", end, begin, end)
        for n, (begin, end) in enumerate(zip(starts, ends, strict=True))
    ]


def covered(parts: list[LogPart]) -> set[tuple[str, int]]:
    return {(part.file, at) for part in parts for at in range(part.start, part.stop or 0)}


@given(st.integers(HEAD, 500), st.integers(1, 4), st.integers(501, END), st.integers(0, 3), st.integers(501, END))
def test_both_parts_together_are_the_whole_replay(start: int, files: int, stop: int, more: int, later: int) -> None:
    done, wanted = logs(start, files, stop), logs(start, files + more, later)
    if more == 0 and later < stop:
        with pytest.raises(NotFound, match="is before"):
            beyond(done, wanted)
        return
    rest = list(beyond(done, wanted))
    assert covered(done) | covered(rest) == covered(wanted)
    assert not covered(done) & covered(rest)


@given(st.integers(HEAD + 1, 500), st.integers(501, END), st.integers(0, 3))
def test_a_restore_that_went_on_before_goes_on_again(first: int, second: int, more: int) -> None:
    once, twice, all_of_it = logs(HEAD, 1, first), logs(HEAD, 1, second), logs(HEAD, 1 + more, END)
    done = [*once, *beyond(once, twice)]
    rest = list(beyond(done, all_of_it))
    assert covered(done) | covered(rest) == covered(all_of_it)
    assert not covered(done) & covered(rest)


def test_without_a_replay_so_far_all_is_replayed() -> None:
    wanted = logs(200, 2, 700)
    assert beyond([], wanted) == tuple(wanted)


def test_a_binlog_that_grew_since_goes_on_where_the_restore_ended() -> None:
    done = logs(200, 1, 600)
    assert beyond(done, logs(200, 2, 300)) == (
        replace(logs(200, 1, END)[0], start=600),
        logs(200, 2, 300)[1],
    )


@pytest.mark.parametrize(
    "other",
    [
        logs(200, 1, 700),
        [replace(part, incarnation="j") for part in logs(200, 3, 700)],
        logs(300, 3, 700),
        [replace(part, file=f"other.{n}") for n, part in enumerate(logs(200, 3, 700))],
    ],
)
def test_another_history_or_another_begin_is_refused(other: list[LogPart]) -> None:
    with pytest.raises(NotFound, match="is not after"):
        beyond(logs(200, 2, 600), other)


def test_another_file_of_the_name_does_not_go_on_where_the_restore_ended() -> None:
    done, wanted = ([replace(part, fingerprint=head) for part in logs(200, 1, 600)] for head in "ab")
    with pytest.raises(NotFound, match="is not after"):
        beyond(done, [replace(part, stop=700) for part in wanted])
    of_older_version = [replace(part, fingerprint="") for part in done]
    assert [part.start for part in beyond(of_older_version, [replace(part, stop=700) for part in wanted])] == [600]
