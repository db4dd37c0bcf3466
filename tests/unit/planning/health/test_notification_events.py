"""Who hears of what, and how often."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from zsnapdb.config.notifications import NotificationEvent, NotificationTarget, NotifiedJob
from zsnapdb.planning.health.facts import HealthFacts
from zsnapdb.planning.health.notification_events import (
    READABLE,
    JudgedInstance,
    Occasion,
    TargetMemory,
    concerns,
    is_news,
    judgement_occasions,
    overall,
)
from zsnapdb.planning.health.objectives import Health, Judgement, Objective, Verdict

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
HOOK = NotificationTarget(webhook="https://example.net/hook", repeat="6h")
PING = NotificationTarget(ping="https://example.net/p", of=NotifiedJob.BACKUP, instances=("main",))
BOARD = NotificationTarget(ping="https://example.net/o", of=NotifiedJob.OBJECTIVES)
FAILED = Occasion(NotificationEvent.FAILURE, "main", "backup", NOW, "it failed")
ENDED = replace(FAILED, event=NotificationEvent.SUCCESS)


def sent(target: NotificationTarget, *occasions: Occasion) -> list[bool]:
    """Return which of the occasions, all of which arrive, are sent to the target."""
    memory, result = TargetMemory(), []
    for occasion in occasions:
        is_sent = concerns(target, occasion) and is_news(target, memory, occasion)
        memory = memory.arrived(occasion) if is_sent else memory
        result.append(is_sent)
    return result


def later(occasion: Occasion, **time: float) -> Occasion:
    return replace(occasion, at=occasion.at + timedelta(**time))


def test_a_failure_is_sent_once_and_again_after_a_while_and_its_end_once() -> None:
    failures = [later(FAILED, hours=hours) for hours in (0, 1, 5.9, 6.1, 7)]
    ends = [later(ENDED, hours=hours) for hours in (8, 9)]
    assert sent(HOOK, *failures, *ends) == [True, False, False, True, False, True, False]


def test_another_job_or_instance_or_repository_is_another_problem() -> None:
    others = [replace(FAILED, subject="drill"), replace(FAILED, instance="other"), replace(FAILED, repository="b")]
    assert sent(HOOK, FAILED, *others, FAILED) == [True, True, True, True, False]


def test_a_failure_whose_notification_did_not_arrive_is_sent_by_the_next_run() -> None:
    memory = TargetMemory().not_arrived(FAILED, "no route")
    assert memory.failed is not None
    assert is_news(HOOK, memory, later(FAILED, minutes=1))
    assert memory.arrived(FAILED).failed is None


def test_the_end_of_a_problem_that_did_not_arrive_is_sent_by_the_next_judgement() -> None:
    broken = replace(FAILED, event=NotificationEvent.BROKEN, subject="rpo")
    memory = TargetMemory().arrived(broken).not_arrived(replace(broken, event=NotificationEvent.MET), "no route")
    assert is_news(HOOK, memory, replace(broken, event=NotificationEvent.MET))


def test_starts_and_successes_are_sent_to_who_wants_them() -> None:
    start = replace(FAILED, event=NotificationEvent.START)
    assert sent(HOOK, start, ENDED) == [False, False]
    keen = HOOK.model_copy(update={"events": tuple(NotificationEvent)})
    assert sent(keen, start, ENDED, start, ENDED) == [True, True, True, True]


def test_an_objective_that_stays_met_is_sent_to_nobody() -> None:
    met = replace(FAILED, event=NotificationEvent.MET, subject="rpo")
    assert sent(HOOK.model_copy(update={"events": tuple(NotificationEvent)}), met, met) == [False, False]


def test_a_ping_hears_of_each_run_of_its_job_and_of_nothing_else() -> None:
    start = replace(FAILED, event=NotificationEvent.START)
    assert sent(PING, start, FAILED, FAILED, ENDED, ENDED) == [True] * 5
    others = (replace(ENDED, subject="verify"), replace(ENDED, instance="other"), replace(ENDED, subject="rpo"))
    assert sent(PING, *others) == [False] * 3


DRILL = replace(FAILED, subject="drill")
BROKEN, MET, PASSED = (
    replace(DRILL, event=event)
    for event in (NotificationEvent.BROKEN, NotificationEvent.MET, NotificationEvent.SUCCESS)
)


def test_a_drill_that_failed_hides_no_broken_objective_of_drills_and_a_met_one_ends_no_failure() -> None:
    assert sent(HOOK, DRILL, MET, BROKEN, DRILL, MET, PASSED) == [True, False, True, False, True, True]


def test_the_ping_of_drills_stays_silent_without_drills_though_their_objective_is_judged() -> None:
    ping = PING.model_copy(update={"of": NotifiedJob.DRILL})
    assert sent(ping, MET, BROKEN, PASSED, DRILL) == [False, False, True, True]


def test_a_target_of_some_instances_hears_of_no_other() -> None:
    assert sent(HOOK.model_copy(update={"instances": ("other",)}), FAILED) == [False]


def test_a_clock_that_was_set_back_hides_no_failure() -> None:
    assert sent(HOOK, later(FAILED, days=30), FAILED) == [True, True]


def judged(name: str, verdict: Verdict | None) -> JudgedInstance:
    if verdict is None:
        return JudgedInstance(name, "s3", None, "the repository does not answer")
    facts = HealthFacts(name, "s3", NOW, None, None, None, None)
    return JudgedInstance(name, "s3", Health(facts, (Judgement(Objective.RPO, verdict, "because", "do"),)))


def test_each_objective_is_broken_or_met_and_a_warning_is_met() -> None:
    states = [judged("a", Verdict.BROKEN), judged("b", Verdict.WARNING), judged("c", None)]
    assert [(one.instance, one.subject, one.event) for one in judgement_occasions(states, NOW)] == [
        ("a", READABLE, NotificationEvent.MET),
        ("a", "rpo", NotificationEvent.BROKEN),
        ("a", "server", NotificationEvent.MET),
        ("b", READABLE, NotificationEvent.MET),
        ("b", "rpo", NotificationEvent.MET),
        ("b", "server", NotificationEvent.MET),
        ("c", READABLE, NotificationEvent.BROKEN),
    ]


@pytest.mark.parametrize(
    ("verdicts", "event"),
    [
        ((Verdict.MET, Verdict.WARNING), NotificationEvent.MET),
        ((Verdict.MET, Verdict.BROKEN), NotificationEvent.BROKEN),
        ((Verdict.MET, None), NotificationEvent.BROKEN),
    ],
)
def test_the_ping_of_objectives_is_green_only_if_nothing_of_any_instance_is_broken(
    verdicts: tuple[Verdict | None, ...], event: NotificationEvent
) -> None:
    states = [judged(name, verdict) for name, verdict in zip("ab", verdicts, strict=True)]
    whole = overall(BOARD, states, "ab", NOW)
    assert whole is not None
    assert whole.event is event
    assert (concerns(BOARD, whole), is_news(BOARD, TargetMemory(), whole)) == (True, True)


def test_the_ping_of_objectives_is_silent_unless_all_its_instances_were_judged() -> None:
    assert overall(BOARD, [judged("a", Verdict.MET)], "ab", NOW) is None
    assert overall(BOARD, [], "", NOW) == Occasion(
        NotificationEvent.BROKEN, "", "objectives", NOW, "no instance is configured"
    )
    assert overall(PING, [judged("a", Verdict.MET)], "a", NOW) is None


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"webhook": "https://a/", "script": ("/x",)},
        {"webhook": "file:///etc/passwd"},
        {"ping": "https://a/"},
        {"ping": "https://a/", "of": "backup"},
        {"ping": "https://a/", "of": "backup", "instances": ("a", "b")},
        {"webhook": "https://a/", "of": "backup"},
        {"email": ("a@b",), "secret_file": "/x"},
        {"email": ("-oQ/tmp@b",)},
        {"script": ("relative",)},
    ],
)
def test_a_target_that_is_ambiguous_or_unsafe_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NotificationTarget(**fields)


def test_the_end_of_a_rewind_that_left_its_server_down_is_told_although_nothing_is_judged_any_more() -> None:
    left = Judgement(Objective.SERVER, Verdict.BROKEN, "because", "do")
    during = JudgedInstance("a", "s3", Health(HealthFacts("a", "s3", NOW, None, None, None, None), (left,)))
    told = [one for state in (during, judged("a", Verdict.MET)) for one in judgement_occasions([state], NOW)]
    heard = [occasion for occasion, is_sent in zip(told, sent(HOOK, *told), strict=True) if is_sent]
    assert [(one.subject, one.event) for one in heard] == [
        ("server", NotificationEvent.BROKEN),
        ("server", NotificationEvent.MET),
    ]
