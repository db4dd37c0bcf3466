"""A server with readers is not put back unless they will be rebuilt, and its readers are named until they are."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.domain_types import Flavour
from zsnapdb.planning.restore.replica_checks import (
    REBUILT_OPTION,
    NotedReader,
    ObservedReaders,
    QueriedReader,
    ReaderNote,
    ReaderNotes,
    RegisteredReplica,
    beyond,
    judge,
    readers_to_record,
    sentence,
)

UUID, OTHER = "bc4d710e-e87a-11f1-9a7c-618471ac0a2b", "0e862285-e87b-11f1-a9c5-618472af196d"
REPLICA = RegisteredReplica(2, UUID, "db2", 3306)
NOW = datetime(2026, 11, 25, 3, 0, tzinfo=UTC)
FIRST, SECOND = "20261125T024854Z-b594", "20261125T034854Z-b595"

READERS = [
    ObservedReaders(connections=("replica@db2",)),
    ObservedReaders(replicas=(REPLICA,)),
    ObservedReaders(members=("db3:3306 (ONLINE)",)),
    ObservedReaders(counted=1),
    ObservedReaders(connections=("replica@db2",), may_read=("'replica'@'%'",), unknown=("who they are",)),
]


@pytest.mark.parametrize("seen", READERS)
def test_a_server_that_somebody_reads_is_not_put_back_unless_all_will_be_rebuilt(seen: ObservedReaders) -> None:
    (refusal,) = [finding for finding in judge(seen, will_be_rebuilt=False) if finding.refuses]
    assert seen.describe() in refusal.text
    assert REBUILT_OPTION in refusal.hint
    allowed = judge(seen, will_be_rebuilt=True)
    assert not [finding for finding in allowed if finding.refuses]
    assert any(seen.describe() in finding.text for finding in allowed)


def test_a_reader_is_named_by_account_host_and_identity() -> None:
    seen = ObservedReaders(connections=("replica@db2",), replicas=(REPLICA,), members=("db3:3306 (ONLINE)",))
    (refusal,) = judge(seen, will_be_rebuilt=False)
    for word in ("2 reader(s)", "replica@db2", f"server_id 2 server_uuid {UUID} at db2:3306", "db3:3306 (ONLINE)"):
        assert word in refusal.text


def test_that_nobody_reads_is_not_believed_of_an_account_that_cannot_see_it() -> None:
    seen = ObservedReaders(hidden="the account sees its own connections alone")
    (refusal,) = judge(seen, will_be_rebuilt=False)
    assert refusal.refuses
    assert seen.hidden in refusal.text
    assert not judge(seen, will_be_rebuilt=True)[0].refuses


def test_an_account_that_may_read_and_a_server_that_is_down_refuse_nothing_and_are_told() -> None:
    (told,) = judge(ObservedReaders(may_read=("'replica'@'%'",)), will_be_rebuilt=False)
    assert (told.refuses, "'replica'@'%'" in told.text) == (False, True)
    (told,) = judge(None, will_be_rebuilt=False)
    assert (told.refuses, "does not answer" in told.text) == (False, True)
    assert judge(ObservedReaders(), will_be_rebuilt=False) == ()


NAMES = st.lists(st.text(min_size=1, max_size=8), max_size=3).map(tuple)
SEEN = st.builds(
    ObservedReaders,
    connections=NAMES,
    replicas=st.lists(st.builds(RegisteredReplica, st.integers(1, 5)), max_size=3).map(tuple),
    members=NAMES,
    counted=st.integers(0, 3),
    may_read=NAMES,
    hidden=st.sampled_from(["", "denied"]),
    unknown=NAMES,
)


@given(SEEN)
def test_whoever_is_seen_refuses_and_leaves_a_note(seen: ObservedReaders) -> None:
    refused = any(finding.refuses for finding in judge(seen, will_be_rebuilt=False))
    assert refused == bool(seen.count or seen.hidden)
    assert bool(readers_to_record(seen)) == bool(seen.count)
    assert not any(finding.refuses for finding in judge(seen, will_be_rebuilt=True))


def note(restore: str, *readers: NotedReader) -> ReaderNote:
    return ReaderNote(incarnation=restore, at=NOW, readers=readers, left_out=f"{OTHER}:13-14")


KNOWN, NAMELESS = NotedReader(server_uuid=UUID, server_id=2, who="server_id 2"), NotedReader(who="replica@db3")


def test_a_note_counts_only_while_its_restore_is_in_place() -> None:
    notes = ReaderNotes().with_note(note(FIRST, KNOWN), None)
    assert notes.of(FIRST) == note(FIRST, KNOWN)
    assert notes.of(SECOND) is None
    assert notes.of(None) is None


def test_readers_of_an_earlier_rewind_stay_named_after_the_next_one() -> None:
    notes = ReaderNotes().with_note(note(FIRST, KNOWN), None).with_note(note(SECOND, NAMELESS), FIRST)
    second = notes.of(SECOND)
    assert second is not None
    assert set(second.readers) == {KNOWN, NAMELESS}
    # The second one was given up: the first is in place still.
    assert notes.of(FIRST) == note(FIRST, KNOWN)


def test_a_reader_that_lost_its_connection_before_the_stop_is_noted_all_the_same() -> None:
    notes = ReaderNotes().with_note(note(FIRST, KNOWN), None).with_note(note(FIRST), None)
    assert notes.of(FIRST) == note(FIRST, KNOWN)


def test_many_rewinds_that_were_given_up_do_not_push_out_the_note_that_counts() -> None:
    notes = ReaderNotes().with_note(note(FIRST, KNOWN), None)
    for number in range(30):
        notes = notes.with_note(note(f"20261125T04{number:02}54Z-b595", NAMELESS), FIRST)
    assert notes.of(FIRST) == note(FIRST, KNOWN)
    assert len(notes.notes) < 15


def test_a_noted_reader_is_named_with_what_it_has_until_it_has_nothing_more() -> None:
    made = note(FIRST, KNOWN)
    unasked = sentence(made, KNOWN, ObservedReaders(), None)
    assert unasked is not None
    assert f"may have {OTHER}:13-14" in unasked
    again = sentence(made, KNOWN, ObservedReaders(replicas=(replace(REPLICA, host=""),)), None)
    assert again is not None
    assert "reads them again" in again
    ahead = sentence(made, KNOWN, None, QueriedReader("second", f"{OTHER}:13"))
    assert ahead is not None
    assert f"has transactions that the server lacks: {OTHER}:13" in ahead
    assert sentence(made, KNOWN, None, QueriedReader("second", "")) is None


@pytest.mark.parametrize(
    ("flavour", "more", "less", "rest"),
    [
        (Flavour.MYSQL, f"{UUID}:1-14", f"{UUID}:1-12,{OTHER}:1-4", f"{UUID}:13-14"),
        (Flavour.MYSQL, f"{UUID}:1-12", f"{UUID}:1-12", ""),
        (Flavour.MARIADB, "0-1-18,5-2-9", "0-1-16,5-2-9", "0-1-18"),
        (Flavour.MARIADB, "0-1-18", "0-4711-20", ""),
        (Flavour.MARIADB, "7-1-1", "", "7-1-1"),
    ],
)
def test_what_one_server_has_and_the_other_lacks(flavour: Flavour, more: str, less: str, rest: str) -> None:
    assert beyond(flavour, more, less) == rest
