"""The truth of the campaign of histories: which states a server had at a time, and behind a GTID."""

from __future__ import annotations

from tests.campaigns.support.live_states import Entry, LiveStates


def committed(states: LiveStates, low: float, number: int, gtid: str) -> None:
    states.commit(Entry(low, low + 0.2, (*states.last.rows, number), states.last.epoch, gtid, "b.1", number, True))


def set_back(*, whole_seconds: bool) -> LiveStates:
    """Rows 1 and 2 at 10.0 and 20.5; set back to row 1 between 30 and 32; row 3 at 40.0 with the GTID of row 2."""
    states = LiveStates(whole_seconds)
    committed(states, 10.0, 1, "0-1-1")
    committed(states, 20.5, 2, "0-1-2")
    states.split((1,), 30.0, 32.0)
    committed(states, 40.0, 3, "0-1-2")
    return states


def test_a_time_stands_for_the_state_that_the_server_had_then() -> None:
    states = set_back(whole_seconds=False)
    assert [states.at_time(at) for at in (5, 15, 25, 35, 45)] == [{()}, {(1,)}, {(1, 2)}, {(1,)}, {(1, 3)}]
    assert (states.at_time(20.6), states.at_time(31.0)) == ({(1,), (1, 2)}, {(1, 2), (1,)})
    assert (states.at_time(20.4), set_back(whole_seconds=True).at_time(20.4)) == ({(1,)}, {(1, 2)})


def test_a_gtid_that_came_again_stands_for_several_states_and_a_plan_for_the_one_of_its_time() -> None:
    states = set_back(whole_seconds=False)
    assert states.with_gtid("0-1-2") == {(1, 2), (1, 3)}
    assert states.before_gtid("0-1-2") == {(1,)}
    assert states.planned("0-1-2", 40.1, "b.1", 3) == {(1, 3)}
    assert states.planned("0-1-1", 99.0, "b.1", 1) == {(1,)}
