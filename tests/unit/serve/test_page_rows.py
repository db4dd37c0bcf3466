"""What pages say of documents: states, times, and what needs somebody."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import JsonValue

from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.serve.fleet_pages import fleet_of
from zsnapdb.serve.page_requests import RefusedPage
from zsnapdb.serve.page_rows import CloneRow, clock_time, clones_of, concerns_of, person_of, result_of
from zsnapdb.verbs.requests import FleetQuery

NOW = datetime(2026, 11, 27, 8, 0, tzinfo=UTC)
PERSON = person_of(
    {
        "subject": "unix:anna",
        "role": "developer",
        "expires": "2026-12-01T00:00:00+00:00",
        "clones": {"most": 5, "ttl": 28800.0, "longest_lease": 604800.0},
    }
)


def stamp(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def row(**fields: object) -> CloneRow:
    whole = {"name": "mine", "id": "c1", "owner": "anna", "phase": "ready", "pid": 7, "expires": stamp(7200), **fields}
    return clones_of({"clones": [whole]}, PERSON, NOW)[0]  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("phase", "pid", "state"),
    [
        (CopyPhase.MAKING, None, "making"),
        (CopyPhase.CHANGING, 7, "changing"),
        (CopyPhase.DESTROYING, 7, "destroying"),
        (CopyPhase.NEW, None, "never started"),
        (CopyPhase.READY, None, "stopped"),
        (CopyPhase.READY, 7, "running"),
    ],
)
def test_the_state_is_that_of_the_list_of_clones(phase: CopyPhase, pid: int | None, state: str) -> None:
    assert row(phase=phase.value, pid=pid).state == state


FULL = "its quota is full (449.0 MiB of 460.0 MiB); reset the clone, or ask an administrator for a larger quota"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"expires": stamp(3600)}, ""),
        ({"expires": stamp(1800)}, "The lease of mine ends in 30 min."),
        ({"created": stamp(-5), "expires": stamp(3595)}, ""),
        ({"created": stamp(-1860), "expires": stamp(1740)}, "The lease of mine ends in 29 min."),
        ({"expires": stamp(-1)}, "The lease of mine is over: it will be removed."),
        ({"expires": stamp(-1), "protected_until": stamp(60)}, ""),
        ({"expires": "unreadable"}, ""),
        ({"pid": None}, "The server of mine does not run: it is stopped."),
        ({"pid": None, "phase": "making"}, ""),
        ({"pid": None, "own_bytes": 449 << 20, "quota": 460 << 20}, f"The server of mine does not run: {FULL}."),
        ({"own_bytes": 449 << 20, "quota": 460 << 20}, ""),
        (
            {"pid": None, "expires": stamp(1800)},
            "The lease of mine ends in 30 min. The server of mine does not run: it is stopped.",
        ),
    ],
)
def test_what_needs_somebody(fields: dict[str, object], said: str) -> None:
    assert concerns_of([row(**fields)]) == ((said,) if said else ())


@pytest.mark.parametrize(
    ("fields", "expired"),
    [
        ({}, False),
        ({"expires": stamp(-1)}, True),
        ({"expires": stamp(-1), "protected_until": stamp(60)}, False),
        ({"expires": stamp(-9), "protected_until": stamp(-1)}, True),
        ({"expires": "unreadable"}, False),
    ],
)
def test_clone_expires_with_its_lease_and_protection(fields: dict[str, object], expired: bool) -> None:
    assert row(**fields).is_expired == expired


@pytest.mark.parametrize(
    ("requested", "backup_id", "expected"),
    [
        ("latest", "20261127T073137Z-45b2", "2026-11-27 07:31 UTC"),
        ("20261127T073137Z-45b2", "20261127T073137Z-45b2", "2026-11-27 07:31 UTC"),
        ("2h", "20261127T073137Z-45b2", ""),
        ("latest", "", ""),
        ("latest", "99999999T999999Z-45b2", ""),
    ],
)
def test_data_time_is_shown_unless_point_says_it(requested: str, backup_id: str, expected: str) -> None:
    assert clock_time(row(requested=requested, backup_id=backup_id).data_time) == expected


def test_times_and_bytes_are_for_people_and_what_is_none_stays() -> None:
    one = row(created=stamp(-90_000), own_bytes=3 << 20, quota=1 << 30)
    assert (one.age, one.left, one.own_bytes, one.most_bytes) == ("1 d 1 h", "in 2 h", "3.0 MiB", "1.0 GiB")
    other = row(created="1", expires="")
    assert (other.age, other.left, other.own_bytes, other.most_bytes) == ("unknown", "unknown", "unknown", "")
    assert row(created=stamp(60)).age == "0 s", "a clock that was set back"
    assert clock_time("2026-11-27T09:30:00+01:00") == "2026-11-27 08:30 UTC"
    assert [clock_time(text) for text in ("", "now", "2026-11-27T09:30:00")] == ["", "now", "2026-11-27T09:30:00"]


def test_ones_own_come_first_and_then_those_that_end_first() -> None:
    listed: list[JsonValue] = [
        {"name": "b", "id": "b", "owner": "ci:x", "expires": stamp(1)},
        {"name": "c", "id": "c", "owner": "anna", "expires": stamp(9)},
        {"name": "a", "id": "a", "owner": "anna", "expires": stamp(5)},
    ]
    rows = clones_of({"clones": listed}, PERSON, NOW)
    assert [(one.facts.name, one.is_mine) for one in rows] == [("a", True), ("c", True), ("b", False)]


@pytest.mark.parametrize(
    ("address", "host"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("*", "127.0.0.1"), ("10.0.0.7", "10.0.0.7")],
)
def test_a_login_has_a_line_for_a_shell_and_a_url(address: str, host: str) -> None:
    clone: dict[str, JsonValue] = {"name": "mine", "id": "c1", "port": 33061, "bind_address": address}
    login = result_of({"clone": clone, "user": "z", "password": "it's $(id)"}, PERSON, NOW).login
    assert login is not None
    assert login.command == f"""MYSQL_PWD='it'"'"'s $(id)' mysql --host={host} --port=33061 --user=z"""
    assert login.url == f"mysql://z:it%27s%20%24%28id%29@{host}:33061/"
    assert "it's" not in repr(login)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"undone": 0}, "No row was changed."),
        ({"undone": 3}, "3 changes of rows were undone."),
        ({"undone": None, "reason": "a table was altered"}, "Its data was replaced: a table was altered"),
        ({}, ""),
    ],
)
def test_a_reset_says_how(document: dict[str, object], said: str) -> None:
    result = result_of(document, PERSON, NOW)  # type: ignore[arg-type]
    assert (result.sentence, result.clone, result.login) == (said, None, None)


@pytest.mark.parametrize(
    "document", [{}, {"clones": 1}, {"clones": [1]}, {"clones": [{"name": "x"}]}, {"clones": [None]}]
)
def test_a_document_of_another_form_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(RefusedPage, match="an unknown form"):
        clones_of(document, PERSON, NOW)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [None, 1, [1], ["x"], [None], [[]], [{}], {}])
def test_a_fleet_of_another_form_is_refused(rows: JsonValue) -> None:
    with pytest.raises(RefusedPage, match="an unknown form"):
        fleet_of({"instances": rows, "counts": rows}, FleetQuery(), NOW)
