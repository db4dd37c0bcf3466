"""The grade of a snapshot follows from what was seen before and after it."""

from __future__ import annotations

import json

import pytest

from zsnapdb.base.errors import ConsistencyError, DamagedError
from zsnapdb.planning.vm import consistency_level, guest_agent_messages
from zsnapdb.planning.vm.consistency_level import Freeze, Grade, Power

HELD = Freeze(2, 12.0, ("/",))


@pytest.mark.parametrize(
    ("before", "after", "freeze", "expected", "words"),
    [
        (Power.RUNNING, Power.RUNNING, None, Grade.CRASH, "nothing in it was held"),
        (Power.RUNNING, Power.RUNNING, HELD, Grade.FROZEN, "2 file systems"),
        (Power.RUNNING, Power.RUNNING, Freeze(0, 1.0), Grade.CRASH, "froze no file system"),
        (Power.RUNNING, Power.RUNNING, Freeze(2, 1.0, (), "too late"), Grade.CRASH, "too late"),
        (Power.SHUT_DOWN, Power.SHUT_DOWN, None, Grade.QUIESCED, "had shut down"),
        (Power.OFF, Power.OFF, None, Grade.CRASH, "not known to be shut down"),
        (Power.OTHER, Power.OTHER, None, Grade.CRASH, "neither"),
        (Power.SHUT_DOWN, Power.RUNNING, None, Grade.CRASH, "shut down before the snapshot and running after"),
        (Power.RUNNING, Power.SHUT_DOWN, HELD, Grade.CRASH, "running before"),
    ],
)
def test_a_grade_is_no_higher_than_what_was_seen(
    before: Power, after: Power, freeze: Freeze | None, expected: Grade, words: str
) -> None:
    reached = consistency_level.reached(before, after, freeze)
    assert reached.grade is expected
    assert words in reached.reason


def test_a_grade_below_the_minimum_is_refused_with_what_to_do() -> None:
    crash = consistency_level.reached(Power.RUNNING, Power.RUNNING, None)
    consistency_level.refuse_below(crash, Grade.CRASH, "web1")
    for minimum in (Grade.FROZEN, Grade.QUIESCED):
        with pytest.raises(ConsistencyError, match=f"below minimum_grade = {minimum}") as refused:
            consistency_level.refuse_below(crash, minimum, "web1")
        assert "lower minimum_grade" in refused.value.hint
    consistency_level.refuse_below(
        consistency_level.reached(Power.SHUT_DOWN, Power.SHUT_DOWN, None), Grade.FROZEN, "web1"
    )


def test_the_answers_of_an_agent_are_read_by_their_form() -> None:
    assert guest_agent_messages.is_frozen('{"return": "frozen"}')
    assert not guest_agent_messages.is_frozen('{"return": "thawed"}')
    assert guest_agent_messages.count('{"return": 3}') == 3
    listed = '{"return": [{"mountpoint": "/var"}, {"mountpoint": "/"}, {"mountpoint": "a\\nb"}, {"name": "x"}, 7]}'
    assert guest_agent_messages.mount_points(listed) == ("/", "/var")
    found = [{"ip-address": "10.0.0.7"}, {"ip-address": "fe80::1"}, {"ip-address": "10.0.0.7; x"}, {"ip-address": 7}]
    network = [{"ip-addresses": found}, {"ip-addresses": None}, {"name": "lo"}, 7]
    assert guest_agent_messages.addresses(json.dumps({"return": network})) == ("10.0.0.7", "fe80::1")
    many = [{"ip-addresses": [{"ip-address": f"10.0.{one}.1"} for one in range(200)]}]
    assert len(guest_agent_messages.addresses(json.dumps({"return": many}))) == 64
    for strange in ("", "[]", '{"error": 1}', '{"return": true}', '{"return": -1}', "x" * (2 << 20)):
        with pytest.raises(DamagedError, match="cannot be read"):
            guest_agent_messages.count(strange)
    with pytest.raises(DamagedError):
        guest_agent_messages.is_frozen('{"return": "thawing"}')
