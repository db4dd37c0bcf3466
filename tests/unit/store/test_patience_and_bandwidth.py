"""Patience: a call that may succeed later is repeated for the configured time; a refusal is raised at once.

Bandwidth: kept on average.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.faulty_store import Fault, FaultyStore
from zsnapdb.base.errors import ChangedError, ExistsError, NotFound, RepositoryError, UnreachableError
from zsnapdb.store.base import Store
from zsnapdb.store.layers import Pauses, RetryingStore, ThrottledStore
from zsnapdb.store.local import LocalStore

SHORT = Pauses(first=0.001, longest=0.01)


def patient(
    folder: Path, faults: dict[str, list[Fault]], patience: float = 60, pauses: Pauses = SHORT
) -> tuple[RetryingStore, FaultyStore]:
    faulty = FaultyStore(LocalStore(folder), faults)
    return RetryingStore(faulty, patience, pauses=pauses), faulty


@pytest.mark.parametrize("fault", [Fault.UNREACHED, Fault.THROTTLED, Fault.ANSWER_LOST])
def test_what_may_succeed_later_is_tried_again(tmp_path: Path, fault: Fault) -> None:
    store, faulty = patient(tmp_path, {"put": [fault] * 5, "get": [fault] * 5})
    store.put("k", b"body")
    assert store.get("k") == b"body"
    assert len(faulty.calls) == 12


def test_it_ends_when_the_patience_does_with_the_error_of_the_last_attempt(tmp_path: Path) -> None:
    store, faulty = patient(tmp_path, {"put": [Fault.UNREACHED] * 100_000}, patience=0.2)
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="connection reset"):
        store.put("k", b"")
    assert 0.2 <= time.monotonic() - began < 60
    assert len(faulty.calls) > 3


def test_the_calls_of_a_run_do_not_add_up_their_waits(tmp_path: Path) -> None:
    store, faulty = patient(tmp_path, {"get": [Fault.UNREACHED] * 100_000}, patience=0.2)
    store.put("k", b"body")
    with pytest.raises(UnreachableError):
        store.get("k")
    waited = len(faulty.calls)
    for _ in range(3):
        with pytest.raises(UnreachableError):
            store.get("k")
    assert len(faulty.calls) == waited + 3
    faulty.faults["get"] = [Fault.UNREACHED] * 5
    with pytest.raises(UnreachableError):
        store.get("k")
    store.put("k", b"body")
    assert store.get("k") == b"body"


def test_without_patience_there_is_one_attempt(tmp_path: Path) -> None:
    store, faulty = patient(tmp_path, {"get": [Fault.UNREACHED]}, patience=0)
    with pytest.raises(UnreachableError):
        store.get("k")
    assert len(faulty.calls) == 1


def test_the_first_question_is_not_asked_for_hours(tmp_path: Path) -> None:
    store, _ = patient(tmp_path, {"check": [Fault.UNREACHED] * 100_000}, 3600, replace(SHORT, check=0.05))
    with pytest.raises(UnreachableError):
        store.check()


ASKS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get("k"),
    "list": lambda store: list(store.list("")),
    "read_version": lambda store: store.read_version("k"),
    "put": lambda store: store.put("k", b""),
}


@pytest.mark.parametrize("call", ASKS)
def test_a_refusal_is_told_at_once_and_is_never_absence(tmp_path: Path, call: str) -> None:
    store, faulty = patient(tmp_path, {call: [Fault.DENIED] * 9})
    faulty.inner.put("k", b"")
    with pytest.raises(RepositoryError, match="denied") as caught:
        ASKS[call](store)
    assert not isinstance(caught.value, NotFound | UnreachableError)
    assert len(faulty.calls) == 1


def test_a_conditional_write_whose_answer_was_lost_is_done_once_and_not_taken_for_anothers(tmp_path: Path) -> None:
    store, _ = patient(tmp_path, {"put": [Fault.ANSWER_LOST], "replace": [Fault.ANSWER_LOST]})
    store.put("lock", b"mine", only_if_absent=True)
    tag = store.read_version("lock").tag
    store.replace("lock", b"mine still", tag=tag)
    assert store.get("lock") == b"mine still"


def test_a_conditional_write_that_another_was_quicker_with_fails(tmp_path: Path) -> None:
    store, faulty = patient(tmp_path, {"put": [Fault.UNREACHED], "replace": [Fault.UNREACHED]})
    faulty.inner.put("lock", b"another's")
    with pytest.raises(ExistsError):
        store.put("lock", b"mine", only_if_absent=True)
    with pytest.raises(ChangedError):
        store.replace("lock", b"mine", tag="what it was before")
    assert store.get("lock") == b"another's"


def test_a_listing_that_breaks_off_tells_everything_once(tmp_path: Path) -> None:
    store, faulty = patient(
        tmp_path, {"list": [Fault.UNREACHED, Fault.FINE, Fault.UNREACHED, Fault.FINE, Fault.ANSWER_LOST]}
    )
    for number in range(7):
        faulty.inner.put(f"p/{number}", b"")
    assert [item.key for item in store.list("p/")] == [f"p/{number}" for number in range(7)]


def test_giving_up_wakes_those_who_wait(tmp_path: Path) -> None:
    store, faulty = patient(tmp_path, {"get": [Fault.UNREACHED] * 9}, 3600, Pauses(first=600.0, longest=600.0))
    threading.Timer(0.1, store.give_up).start()
    began = time.monotonic()
    with pytest.raises(UnreachableError):
        store.get("k")
    assert time.monotonic() - began < 60
    with pytest.raises(UnreachableError):
        store.get("k")
    assert (len(faulty.calls), faulty.given_up) == (2, True)


def test_a_long_wait_is_reported(tmp_path: Path) -> None:
    lines: list[str] = []
    faulty = FaultyStore(LocalStore(tmp_path), {"put": [Fault.UNREACHED] * 3})
    store = RetryingStore(faulty, 60, lines.append, replace(SHORT, reported=0.002))
    store.put("k", b"")
    assert len(lines) == 2
    assert "put k: connection reset; trying again in" in lines[0]


def test_a_bandwidth_is_kept_by_all_threads_together(tmp_path: Path) -> None:
    store = ThrottledStore(LocalStore(tmp_path), 1_000_000)
    began = time.monotonic()
    threads = [threading.Thread(target=store.put, args=(f"k{n}", bytes(50_000))) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The first goes at once, the sixth when five have had their time.
    assert 0.25 <= time.monotonic() - began < 60
    began = time.monotonic()
    for number in range(6):
        store.get(f"k{number}")
    assert 0.25 <= time.monotonic() - began < 60


def test_waiting_for_the_bandwidth_ends_when_nobody_waits_any_more(tmp_path: Path) -> None:
    store = ThrottledStore(LocalStore(tmp_path), 10)
    store.put("k1", bytes(1000))
    threading.Timer(0.1, store.give_up).start()
    began = time.monotonic()
    with pytest.raises(RepositoryError, match="given up"):
        store.put("k2", bytes(1000))
    assert time.monotonic() - began < 60
