"""What becomes of a repeated command follows from what is recorded of its run alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.run_context import is_run_id
from zsnapdb.planning.idempotency import KEPT_DAYS, Action, RunState, RunVerdict, decide

RUN = "20261127T080000Z-0123abcd"
NOW = datetime(2026, 11, 27, 9, tzinfo=UTC)
ACTION = Action("clone reset", "web", ("7",))


def verdict(action: Action, known: Action | None, state: RunState = RunState.BEGUN, now: datetime = NOW) -> RunVerdict:
    return decide(RUN, action, known, state, now).verdict


def test_a_new_run_begins_one_that_is_done_answers_and_one_that_was_interrupted_goes_on() -> None:
    assert verdict(ACTION, None) is RunVerdict.BEGIN
    assert verdict(ACTION, ACTION, RunState.DONE) is RunVerdict.ANSWER
    assert verdict(ACTION, ACTION) is RunVerdict.GO_ON


def test_a_run_that_is_done_answers_also_if_another_thing_has_the_name_now() -> None:
    assert verdict(Action("clone reset", "web", ("8",)), ACTION, RunState.DONE) is RunVerdict.ANSWER


def test_a_thing_that_has_the_name_since_is_left_alone() -> None:
    assert verdict(Action("clone reset", "web", ("8",)), ACTION) is RunVerdict.GONE
    assert verdict(Action("clone reset", "web"), ACTION) is RunVerdict.GONE
    two = Action("clone destroy", "web", ("7", "8"))
    assert verdict(Action("clone destroy", "web", ("8",)), two) is RunVerdict.GO_ON


def test_what_was_given_up_is_not_begun_again_and_another_command_is_refused() -> None:
    assert verdict(ACTION, ACTION, RunState.GIVEN_UP) is RunVerdict.REFUSE
    for other in (Action("clone destroy", "web", ("7",)), Action("clone reset", "shop", ("7",))):
        refused = decide(RUN, other, ACTION, RunState.DONE, NOW)
        assert (refused.verdict, "choose another id" in refused.hint) == (RunVerdict.REFUSE, True)


def test_an_id_that_is_older_than_the_records_is_refused() -> None:
    assert verdict(ACTION, None, now=NOW + timedelta(days=KEPT_DAYS)) is RunVerdict.BEGIN
    assert verdict(ACTION, None, now=NOW + timedelta(days=KEPT_DAYS + 1)) is RunVerdict.REFUSE


def test_new_run_of_the_future_is_refused_if_the_clock_is_sure() -> None:
    """Its record is removed a month after the clock is right, so a repeated run would begin again."""
    for days, wanted in ((-1, RunVerdict.BEGIN), (-2, RunVerdict.REFUSE)):
        now = NOW + timedelta(days=days)
        assert decide(RUN, ACTION, None, RunState.BEGUN, now, is_sure=True).verdict is wanted
        assert decide(RUN, ACTION, None, RunState.BEGUN, now).verdict is RunVerdict.BEGIN
        assert decide(RUN, ACTION, ACTION, RunState.DONE, now, is_sure=True).verdict is RunVerdict.ANSWER


@given(st.from_regex(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}", fullmatch=True))
def test_any_id_is_decided_also_one_that_is_no_date(run: str) -> None:
    assert is_run_id(run)
    assert decide(run, ACTION, None, RunState.BEGUN, NOW).verdict in (RunVerdict.BEGIN, RunVerdict.REFUSE)
