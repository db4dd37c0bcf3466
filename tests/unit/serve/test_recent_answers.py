"""An answer that is a little old is given at once and read anew; an older one is given to nobody."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from zsnapdb.base.errors import UnreachableError
from zsnapdb.base.patterns import is_subject
from zsnapdb.serve.command_processes import CommandCall
from zsnapdb.serve.helper_messages import FailureAnswer, RefusedRequest, ResultAnswer, failure_of
from zsnapdb.serve.protection import ProtectionReader, RecentAnswers
from zsnapdb.verbs.requests import InstancePointsVerb, ListObjectivesVerb


@dataclass
class Reading:
    """Counts readings. `gate` holds them up."""

    times: int = 0
    fails: bool = False
    gate: threading.Event = field(default_factory=threading.Event)
    began: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __post_init__(self) -> None:
        self.gate.set()

    def __call__(self) -> ResultAnswer:
        self.began.release()
        assert self.gate.wait(20)
        if self.fails:
            raise RefusedRequest(failure_of(UnreachableError("away", hint="wait")))
        self.times += 1
        return ResultAnswer(document={"number": self.times})


@dataclass
class Clock:
    seconds: float = 1000.0
    looks: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self) -> float:
        with self.lock:
            self.looks += 1
        return self.seconds


def number(answers: RecentAnswers, reading: Reading, asked: str = "main") -> object:
    return answers.answer(asked, reading).document["number"]


def test_a_fresh_answer_is_read_once_for_all_who_ask_at_once() -> None:
    answers, reading = RecentAnswers(now=Clock()), Reading()
    reading.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(number, answers, reading) for _ in range(8)]
        assert reading.began.acquire(timeout=20)
        reading.gate.set()
        assert [one.result() for one in asked] == [1] * 8
    assert number(answers, reading, "other") == 2


def test_an_answer_that_is_a_little_old_is_given_while_it_is_read_anew() -> None:
    clock, reading = Clock(), Reading()
    answers = RecentAnswers(now=clock)
    assert number(answers, reading) == 1
    clock.seconds += 11
    reading.gate.clear()
    assert reading.began.acquire(timeout=20)
    assert [number(answers, reading) for _ in range(5)] == [1] * 5, "nobody waits"
    assert reading.began.acquire(timeout=20)
    reading.gate.set()
    while reading.times < 2:
        pass
    assert number(answers, reading) == 2
    assert not reading.began.acquire(blocking=False), "one reads for all"


def test_an_answer_that_is_too_old_is_given_to_nobody() -> None:
    clock, reading = Clock(), Reading()
    answers = RecentAnswers(now=clock)
    assert number(answers, reading) == 1
    clock.seconds += 61
    assert number(answers, reading) == 2
    clock.seconds += 61
    reading.fails = True
    with pytest.raises(RefusedRequest, match="away"):
        number(answers, reading)
    reading.fails = False
    assert number(answers, reading) == 3, "an error is kept for nobody"


def test_what_somebody_asked_for_lately_is_kept_warm_and_other_things_are_forgotten() -> None:
    clock, reading = Clock(), Reading()
    answers = RecentAnswers(now=clock)
    assert number(answers, reading) == 1
    for _ in range(20):
        clock.seconds += 31
        answers.refresh_due()
    assert reading.times == 21
    assert number(answers, reading) == 21
    clock.seconds += 901
    answers.refresh_due()
    assert reading.times == 21
    assert number(answers, reading) == 22


def test_a_reading_that_fails_in_the_background_leaves_the_answer_until_it_is_too_old() -> None:
    clock, reading = Clock(), Reading()
    answers = RecentAnswers(now=clock)
    assert number(answers, reading) == 1
    reading.fails = True
    clock.seconds += 31
    answers.refresh_due()
    assert number(answers, reading) == 1


def test_who_waits_for_a_reading_that_fails_shares_its_error() -> None:
    clock, reading = Clock(), Reading(fails=True)
    answers = RecentAnswers(now=clock)
    reading.gate.clear()
    attempts = 0

    def ask() -> str:
        with pytest.raises(RefusedRequest) as raised:
            number(answers, reading)
        return raised.value.failure.message

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask) for _ in range(8)]
        assert reading.began.acquire(timeout=20)
        while clock.looks < 8 * 3:  # all have begun to ask
            time.sleep(0.001)
        reading.gate.set()
        assert {one.result() for one in asked} == {"away"}
    while reading.began.acquire(blocking=False):
        attempts += 1
    assert attempts == 0, "one reading for all"
    reading.fails = False
    assert number(answers, reading) == 1, "an error is kept for nobody"


def test_a_reading_that_fails_is_tried_again_no_more_often_than_one_that_does_not() -> None:
    clock, reading = Clock(), Reading()
    answers = RecentAnswers(now=clock)
    assert number(answers, reading) == 1
    reading.fails = True
    for _ in range(120):
        clock.seconds += 1
        answers.refresh_due()
    attempts = 0
    while reading.began.acquire(blocking=False):
        attempts += 1
    assert 1 < attempts <= 5


def test_shared_answer_is_read_for_an_audience_that_owns_nothing() -> None:
    """An error that names clones of the first subject would otherwise be the answer to all who wait for it."""
    calls = list[CommandCall]()

    def run(call: CommandCall) -> FailureAnswer:
        calls.append(call)
        return FailureAnswer(code="x", message="m", exit_code=1)

    reader = ProtectionReader(run, RecentAnswers())
    for verb in (InstancePointsVerb(name="main"), ListObjectivesVerb()):
        with pytest.raises(RefusedRequest):
            reader.read(verb, "user:ann@example.org")
    assert {(call.subject, call.audience) for call in calls} == {("user:ann@example.org", "all subjects")}
    assert all(not is_subject(call.audience) for call in calls)
