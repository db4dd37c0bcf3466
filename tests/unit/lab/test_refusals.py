"""A campaign makes a snapshot again that was refused because the machine was too slow, and no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.campaigns.support.refusals import Refusals
from zsnapdb.base.errors import ConsistencyError, LockError, ZsnapdbError


def attempts(*answers: ZsnapdbError | str) -> Callable[[], str]:
    left = list(answers)

    def attempt() -> str:
        answer = left.pop(0)
        if isinstance(answer, ZsnapdbError):
            raise answer
        return answer

    return attempt


def test_a_refused_snapshot_is_made_again_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    refusals = Refusals(most=2)
    late = LockError("not made within lock.deadline", hint="h")
    assert refusals.until_made(attempts(late, late, "made")) == "made"
    assert refusals.messages == ["not made within lock.deadline"] * 2
    assert "refused: not made within lock.deadline; 0 attempts left" in capsys.readouterr().out


def test_too_many_refusals_in_a_row_end_the_campaign() -> None:
    late = LockError("late", hint="h")
    with pytest.raises(LockError):
        Refusals(most=2).until_made(attempts(late, late, late, "made"))


def test_a_wrong_snapshot_is_not_made_again() -> None:
    with pytest.raises(ConsistencyError):
        Refusals().until_made(attempts(ConsistencyError("another position", hint="h"), "made"))
