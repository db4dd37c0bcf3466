"""Short work that nobody waits for gives way to the server where it has few processors, if it can come back."""

from __future__ import annotations

import pytest

from zsnapdb.planning.backup.scheduling import SchedulingClass, SchedulingFacts, choose_class

NORMAL, IDLE = SchedulingClass.NORMAL, SchedulingClass.IDLE


@pytest.mark.parametrize(
    ("facts", "chosen", "reason"),
    [
        (SchedulingFacts(1, NORMAL, True), IDLE, "with one processor the server comes first"),
        (SchedulingFacts(2, NORMAL, True), IDLE, "with two processors the server comes first"),
        (SchedulingFacts(3, NORMAL, True), NORMAL, "there are 3 processors"),
        (SchedulingFacts(64, IDLE, False), NORMAL, "there are 64 processors"),
        (SchedulingFacts(1, NORMAL, False), NORMAL, "may not leave the idle class"),
        (SchedulingFacts(1, IDLE, True), NORMAL, "stays as it was set"),
        (SchedulingFacts(1, None, True), NORMAL, "stays as it was set"),
    ],
)
def test_the_class_follows_the_processors_and_what_the_account_may(
    facts: SchedulingFacts, chosen: SchedulingClass, reason: str
) -> None:
    choice = choose_class(facts)
    assert choice.chosen is chosen
    assert reason in choice.reason
