"""An interrupted receive goes on only with the stream that it was of."""

from __future__ import annotations

from zsnapdb.planning.restore.steps import Receive, full_receive_reason


def step(from_guid: int | None = None, key_location: str | None = None) -> Receive:
    return Receive("b", "data", "tank/new/data", "/m", "zsnapdb-b", 11, from_guid, 100, 50, key_location)


def test_the_same_stream_goes_on() -> None:
    assert full_receive_reason(step(), to_guid=11, from_guid=0, records=True) is None
    assert full_receive_reason(step(7), to_guid=11, from_guid=7, records=True) is None


def test_another_stream_a_raw_one_and_nothing_at_all_begin_again() -> None:
    for to_guid, from_guid in ((12, 0), (11, 7)):
        why = full_receive_reason(step(), to_guid=to_guid, from_guid=from_guid, records=True)
        assert why is not None
        assert f"with GUID {to_guid}, not of zsnapdb-b" in why
    assert "encrypted" in (
        full_receive_reason(step(key_location="prompt"), to_guid=11, from_guid=0, records=True) or ""
    )
    assert full_receive_reason(step(), to_guid=11, from_guid=0, records=False) == "nothing of it was received"
