"""An objective is met only if the facts prove it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.planning.health.facts import (
    CheckFact,
    CopyFact,
    DrillFact,
    ExchangedServer,
    ExchangeFact,
    HealthFacts,
    LockFact,
    MissingReason,
    MissingVolume,
    StoppedServer,
)
from zsnapdb.planning.health.objectives import Judgement, Objective, Verdict, judge, restore_seconds
from zsnapdb.planning.server_space import FullVolume
from zsnapdb.planning.trial.drill import Timing

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
HOUR = 3600.0
DAY = 24 * HOUR
ID = "20261120T101112Z-7f3a"


def ago(**time: float) -> datetime:
    return NOW - timedelta(**time)


def drill(finished: datetime, passed: bool) -> DrillFact:
    return DrillFact(ID, ID, finished, passed)


GOOD = HealthFacts(
    instance="main",
    repository="here",
    at=NOW,
    newest_point=ago(minutes=1),
    window_start=ago(days=20),
    newest_backup=ago(hours=1),
    archived_until=ago(minutes=1),
    newest_drill=drill(ago(days=1), True),
    newest_passed_drill=drill(ago(days=1), True),
    listed=CheckFact(ID, ago(hours=2), True),
    read=CheckFact(ID, ago(days=2), True),
    copies=(CopyFact("there", ago(hours=3)),),
    lock=LockFact(ID, ago(hours=1), ago(hours=1) + timedelta(days=8)),
    restore_seconds=600.0,
)
ALL = ObjectiveSettings(
    rpo="10m",
    backup_age="2h",
    archive_lag="10m",
    drill_age="7d",
    verify_age="1d",
    deep_verify_age="7d",
    window="14d",
    copies={"there": "1d"},
    immutable_for="7d",
    restore_time="1h",
)


ONLY_IN_TROUBLE = (Objective.SERVER, Objective.AGENT)


def judged(objective: Objective, facts: HealthFacts = GOOD, settings: ObjectiveSettings = ALL) -> Judgement:
    (judgement,) = [found for found in judge(facts, settings).judgements if found.objective is objective]
    return judgement


def test_every_objective_is_judged_and_met_by_good_facts() -> None:
    health = judge(GOOD, ALL)
    assert [found.objective for found in health.judgements] == [o for o in Objective if o not in ONLY_IN_TROUBLE]
    assert {found.verdict for found in health.judgements} == {Verdict.MET}
    assert not [found.hint for found in health.judgements if found.hint]


def test_without_objectives_only_what_every_instance_needs_is_judged() -> None:
    health = judge(GOOD, ObjectiveSettings())
    assert [found.objective for found in health.judgements] == [Objective.RESTORABLE, Objective.INTACT]


def test_instance_without_archived_binlogs_warns_until_an_rpo_accepts_it() -> None:
    without = replace(GOOD, archived_until=None)
    health = judge(without, ObjectiveSettings())
    assert health.verdict is Verdict.WARNING
    warning = judged(Objective.RPO, without, ObjectiveSettings())
    assert (warning.verdict, warning.limit) == (Verdict.WARNING, None)
    assert "[instance.main.objectives]" in warning.hint
    assert judge(without, ObjectiveSettings(rpo="31h")).verdict is Verdict.MET
    assert judge(replace(without, is_machine=True), ObjectiveSettings()).verdict is Verdict.MET


CAUSES = [
    (None, (), "`journalctl -u mariadb.service -n 50` shows the cause"),
    (None, ("unknown variable 'sync_binlgo'",), "correct the option files"),
    (MissingVolume("tank/mysql", MissingReason.POOL), (), "`zpool import tank`"),
    (MissingVolume("tank/mysql", MissingReason.KEY), (), "`zfs load-key tank/mysql; zfs mount tank/mysql`"),
    (MissingVolume("tank/mysql", MissingReason.UNMOUNTED), (), "`zfs mount tank/mysql`"),
    (MissingVolume("tank/mysql", MissingReason.ABSENT), (), "find its new name with `zfs list -r tank`"),
]


@pytest.mark.parametrize("has_failed", [True, False])
@pytest.mark.parametrize(("missing", "refused", "first"), CAUSES)
def test_stopped_server_names_its_cause_before_a_rewind(
    has_failed: bool, missing: MissingVolume | None, refused: tuple[str, ...], first: str
) -> None:
    stopped = StoppedServer("mariadb.service", has_failed, missing=missing, refused=refused)
    down = replace(GOOD, stopped=stopped)
    found, is_known = judged(Objective.SERVER, down), missing is not None or bool(refused)
    assert found.verdict is (Verdict.BROKEN if has_failed or missing is not None else Verdict.WARNING)
    assert "`systemctl start mariadb.service`" in found.hint
    assert found.hint.startswith(first if has_failed or is_known else "`systemctl start mariadb.service`")
    assert ("rewind" in found.hint) == (has_failed and not is_known)
    is_lost = missing is not None and missing.reason in (MissingReason.POOL, MissingReason.ABSENT)
    assert ("`zsnapdb restore main --handover promote --plan`" in found.hint) == is_lost
    if missing is not None:
        assert f"tank/mysql, but {missing.reason.value}" in found.reason
    assert all(text in found.reason for text in refused)


def test_stopped_server_is_not_reported_beside_an_exchange() -> None:
    down = replace(GOOD, stopped=StoppedServer("mariadb.service", has_failed=True))
    exchange = ExchangeFact(ago(minutes=9), ago(minutes=9), "on", "back", ExchangedServer.AWAY)
    replaced = [one.reason for one in judge(replace(down, exchanges=(exchange,)), ALL).judgements]
    assert not any("mariadb.service" in reason for reason in replaced)


UNIT_STATES = {
    "active running": None,
    "reloading reload": None,
    "deactivating stop-sigterm": None,
    "inactive dead": (False, False, Verdict.WARNING),
    "activating start": (False, True, Verdict.WARNING),
    "activating start-pre": (False, True, Verdict.WARNING),
    "activating auto-restart": (True, False, Verdict.BROKEN),
    "activating auto-restart-queued": (True, False, Verdict.BROKEN),
    "failed failed": (True, False, Verdict.BROKEN),
}
"""The states of a unit without a server process (systemd.unit(5)), and the judged server with its verdict."""


@pytest.mark.parametrize("states", UNIT_STATES)
def test_unit_state_without_a_server_is_judged(states: str) -> None:
    active, sub = states.split()
    shown = ["LoadState=loaded", f"ActiveState={active}", f"SubState={sub}"]
    stopped, expected = StoppedServer.from_states("mariadb.service", shown), UNIT_STATES[states]
    assert (None if stopped is None else (stopped.has_failed, stopped.is_starting)) == (expected and expected[:2])
    assert StoppedServer.from_states("mariadb.service", ["LoadState=not-found", *shown[1:]]) is None
    if expected is not None:
        assert judged(Objective.SERVER, replace(GOOD, stopped=stopped)).verdict is expected[2]


MIB = 1 << 20


@pytest.mark.parametrize("stopped", [None, StoppedServer("mariadb.service", has_failed=True)])
@pytest.mark.parametrize("pool_free", [None, 0, MIB, 1 << 40])
def test_full_volume_breaks_the_server_and_names_its_use(stopped: StoppedServer | None, pool_free: int | None) -> None:
    used = {"tank": 0, "tank/mysql": 3 * MIB, "tank/other": 900 * MIB, "tank/small": MIB, "tank/two": 2 * MIB}
    found = judged(Objective.SERVER, replace(GOOD, stopped=stopped, full=FullVolume("tank/mysql", 0, pool_free, used)))
    assert found.verdict is Verdict.BROKEN
    is_limited = pool_free == 1 << 40
    assert ("a quota or a reservation" in found.reason) == is_limited
    assert ("tank/other (900.0 MiB), tank/mysql (3.0 MiB), tank/two (2.0 MiB)" in found.reason) == (not is_limited)
    assert ("tank/mysql has 0 B free" if is_limited else "the pool tank has 0 B free") in found.reason
    assert "`zfs list -o space -r tank`" in found.hint
    assert "rewind" not in found.hint
    assert ("reset-failed mariadb.service; systemctl start mariadb.service" in found.hint) == (stopped is not None)


def test_after_a_month_of_silence_every_objective_about_time_is_broken() -> None:
    health = judge(replace(GOOD, at=NOW + timedelta(days=31)), ALL)
    met = {found.objective for found in health.judgements if found.verdict is not Verdict.BROKEN}
    assert met == {
        Objective.RESTORABLE,
        Objective.INTACT,
        Objective.WINDOW,
        Objective.IMMUTABLE,
        Objective.RESTORE_TIME,
    }
    assert health.verdict is Verdict.BROKEN


NOTHING = HealthFacts("main", "here", NOW, None, None, None, None)


@pytest.mark.parametrize("objective", [one for one in Objective if one not in (Objective.INTACT, *ONLY_IN_TROUBLE)])
def test_an_objective_without_a_fact_is_broken(objective: Objective) -> None:
    judgement = judged(objective, NOTHING)
    assert judgement.verdict is Verdict.BROKEN
    assert judgement.reason


def test_stopped_agent_is_a_warning_that_every_late_job_names() -> None:
    judgement = judged(Objective.AGENT, replace(GOOD, lacks_agent=True))
    assert judgement.verdict is Verdict.WARNING
    assert "`systemctl start zsnapdb-agent`" in judgement.hint
    late = replace(GOOD, archived_until=ago(hours=3))
    assert "zsnapdb binlog archive main --once" in judged(Objective.ARCHIVE_LAG, late).hint
    assert "systemctl start zsnapdb-agent" in judged(Objective.ARCHIVE_LAG, replace(late, lacks_agent=True)).hint


WAYS = ("zsnapdb rewind main --resume", "zsnapdb restore main --abandon --target tank/z")


def test_a_server_that_a_rewind_stopped_breaks_an_objective_which_names_both_ways_out() -> None:
    stopped = replace(GOOD, exchanges=(ExchangeFact(ago(hours=1), ago(seconds=20), *WAYS, ExchangedServer.LEFT),))
    judgement = judged(Objective.SERVER, stopped)
    assert (judgement.verdict, judge(stopped, ALL).verdict) == (Verdict.BROKEN, Verdict.BROKEN)
    assert "stopped the server of main 20 s ago" in judgement.reason
    assert all(f"`{way}`" in judgement.hint for way in WAYS)


def test_a_rewind_under_way_whose_server_runs_is_a_warning() -> None:
    judgement = judged(
        Objective.SERVER, replace(GOOD, exchanges=(ExchangeFact(ago(hours=1), None, *WAYS, ExchangedServer.RUNS),))
    )
    assert (judgement.verdict, "was started 1 h ago" in judgement.reason) == (Verdict.WARNING, True)


@pytest.mark.parametrize("stopped", [ago(seconds=20), None])
def test_a_server_that_is_down_while_a_command_replaces_it_is_no_alarm(stopped: datetime | None) -> None:
    away = replace(GOOD, exchanges=(ExchangeFact(ago(hours=1), stopped, *WAYS, ExchangedServer.AWAY),))
    judgement = judged(Objective.SERVER, away)
    assert (judgement.verdict, judgement.hint) == (Verdict.WARNING, "wait until it ends")
    assert "is running" in judgement.reason


@pytest.mark.parametrize("server", [ExchangedServer.AWAY, ExchangedServer.LEFT])
def test_what_grows_old_while_the_server_is_being_replaced_is_no_second_alarm(server: ExchangedServer) -> None:
    exchange = ExchangeFact(ago(hours=9), ago(hours=8), *WAYS, server)
    old = replace(
        GOOD, newest_point=ago(hours=9), newest_backup=ago(hours=9), archived_until=ago(hours=9), exchanges=(exchange,)
    )
    for kind in (Objective.RPO, Objective.BACKUP_AGE, Objective.ARCHIVE_LAG):
        judgement = judged(kind, old)
        assert (judgement.verdict, judgement.deadline) == (Verdict.WARNING, None)
        assert "the server is being replaced and is down" in judgement.reason
    broken = {one.objective for one in judge(old, ALL).judgements if one.verdict is Verdict.BROKEN}
    assert broken == ({Objective.SERVER} if server is ExchangedServer.LEFT else set())
    runs = replace(old, exchanges=(replace(exchange, stopped=None, server=ExchangedServer.RUNS),))
    assert judged(Objective.RPO, runs).verdict is Verdict.BROKEN


BY_AGE = [
    (Objective.RPO, "newest_point", 600.0),
    (Objective.BACKUP_AGE, "newest_backup", 2 * HOUR),
    (Objective.ARCHIVE_LAG, "archived_until", 600.0),
]


@pytest.mark.parametrize(("objective", "name", "limit"), BY_AGE)
@pytest.mark.parametrize(
    ("part", "verdict"),
    [(0.8, Verdict.MET), (0.81, Verdict.WARNING), (1.0, Verdict.WARNING), (1.01, Verdict.BROKEN)],
)
def test_an_age_is_met_then_a_warning_then_broken(
    objective: Objective, name: str, limit: float, part: float, verdict: Verdict
) -> None:
    fact = ago(seconds=limit * part)
    judgement = judged(objective, replace(GOOD, **{name: fact}))  # type: ignore[arg-type]
    assert (judgement.verdict, judgement.fact, judgement.limit) == (verdict, fact, limit)
    assert judgement.seconds == pytest.approx(limit * part)
    assert bool(judgement.hint) == (verdict is not Verdict.MET)


def test_a_fact_from_the_future_is_not_taken_for_fresh() -> None:
    judgement = judged(Objective.RPO, replace(GOOD, newest_point=NOW + timedelta(hours=20)))
    assert judgement.verdict is Verdict.WARNING
    assert "20 h in the future" in judgement.reason


def test_a_drill_that_failed_breaks_the_objective_however_young_the_last_one_is_that_passed() -> None:
    judgement = judged(Objective.DRILL, replace(GOOD, newest_drill=drill(ago(hours=1), False)))
    assert judgement.verdict is Verdict.BROKEN
    assert "did not pass" in judgement.reason


def test_drills_that_passed_long_ago_do_not_meet_the_objective() -> None:
    old = drill(ago(days=8), True)
    assert judged(Objective.DRILL, replace(GOOD, newest_drill=old, newest_passed_drill=old)).verdict is Verdict.BROKEN


def test_a_backup_that_was_never_checked_counts_from_its_own_time() -> None:
    judgement = judged(Objective.VERIFY_AGE, replace(GOOD, listed=CheckFact(ID, ago(days=2), False)))
    assert judgement.verdict is Verdict.BROKEN
    assert judgement.reason.startswith(f"backup {ID}, which was never checked, is 2 d old, of at most ")


@pytest.mark.parametrize(
    ("copies", "words"),
    [
        ((CopyFact("there", None, "no route to host"),), "cannot be read: no route to host"),
        ((CopyFact("there", None),), "there is none"),
        ((), "there is none"),
        ((CopyFact("there", ago(days=2)),), "2 d old"),
    ],
)
def test_a_copy_that_is_unreadable_absent_or_old_breaks_its_objective(copies: Any, words: str) -> None:
    judgement = judged(Objective.COPY, replace(GOOD, copies=copies))
    assert (judgement.verdict, judgement.subject) == (Verdict.BROKEN, "there")
    assert words in judgement.reason


@pytest.mark.parametrize(
    ("lock", "verdict"),
    [
        (LockFact(ID, ago(hours=1), None, "main/manifests/x.json"), Verdict.BROKEN),
        (LockFact(ID, ago(hours=1), ago(hours=1) + timedelta(days=6)), Verdict.BROKEN),
        (LockFact(ID, ago(hours=1), None), Verdict.MET),
    ],
)
def test_a_backup_is_immutable_only_if_every_object_is(lock: LockFact, verdict: Verdict) -> None:
    assert judged(Objective.IMMUTABLE, replace(GOOD, lock=lock)).verdict is verdict


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({"damage": ("a", "b", "c")}, Verdict.BROKEN, "a, and 2 more"),
        ({"doubts": ("a",)}, Verdict.WARNING, "a"),
    ],
)
def test_damage_breaks_and_doubts_warn(changes: dict[str, Any], verdict: Verdict, words: str) -> None:
    judgement = judged(Objective.INTACT, replace(GOOD, **changes))
    assert (judgement.verdict, judgement.reason) == (verdict, words)


def test_a_server_whose_newest_writes_are_unprotected_is_a_warning() -> None:
    assert judged(Objective.RESTORABLE, replace(GOOD, unprotected="a reset")).verdict is Verdict.WARNING


@pytest.mark.parametrize(
    ("seconds", "verdict"), [(2800.0, Verdict.MET), (3000.0, Verdict.WARNING), (3700.0, Verdict.BROKEN)]
)
def test_a_restore_that_takes_too_long_breaks_its_objective(seconds: float, verdict: Verdict) -> None:
    assert judged(Objective.RESTORE_TIME, replace(GOOD, restore_seconds=seconds)).verdict is verdict


HISTORY = [Timing("receive", 10.0, 100), Timing("recover", 5.0, 0), Timing("pages", 99.0, 100), Timing("start", 2.0, 0)]


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [
        ({"receive": 1000, "replay": 0}, 107.0),
        ({"receive": 1000, "replay": 10}, None),
        ({}, None),
    ],
)
def test_a_restore_takes_as_long_as_the_steps_of_past_drills_for_its_bytes(
    sizes: dict[str, int], seconds: float | None
) -> None:
    assert restore_seconds(HISTORY, sizes) == seconds


def test_a_fact_of_the_last_year_of_dates_has_no_deadline() -> None:
    """Such a time is forged. It is judged as every one from the future, and hides no other instance by an error."""
    facts = replace(GOOD, archived_until=datetime(9999, 12, 31, 23, tzinfo=UTC))
    judged = judge(facts, ObjectiveSettings(archive_lag=DAY)).judgements[-1]
    assert (judged.objective, judged.verdict, judged.deadline) == (Objective.ARCHIVE_LAG, Verdict.BROKEN, None)


def test_newest_backup_that_this_host_cannot_start_breaks_restorable() -> None:
    found = judged(Objective.RESTORABLE, replace(GOOD, no_copy="engine ROCKSDB is not installed"))
    assert found.verdict is Verdict.BROKEN
    assert "this host cannot restore the newest backup: engine ROCKSDB is not installed" in found.reason


AGES = {
    Objective.RPO: "newest_point",
    Objective.BACKUP_AGE: "newest_backup",
    Objective.ARCHIVE_LAG: "archived_until",
    Objective.DRILL: "newest_passed_drill",
    Objective.VERIFY_AGE: "listed",
    Objective.DEEP_VERIFY_AGE: "read",
    Objective.COPY: "copies",
}


def _facts(name: str, at: datetime) -> HealthFacts:
    facts: dict[str, Any] = {
        "newest_passed_drill": drill(at, True),
        "listed": CheckFact(ID, at, True),
        "read": CheckFact(ID, at, True),
        "copies": (CopyFact("there", at),),
    }
    return replace(GOOD, **{name: facts.get(name, at)})


@given(objective=st.sampled_from(list(AGES)), ahead=st.floats(301, 400 * DAY), passed=st.floats(0, 800 * DAY))
def test_work_that_stopped_under_a_clock_ahead_breaks_its_objective(
    objective: Objective, ahead: float, passed: float
) -> None:
    """The time of the last fact is `ahead` of the real one, and `passed` seconds have gone by since."""
    made = _facts(AGES[objective], NOW + timedelta(seconds=ahead))
    judgement = judged(objective, replace(made, at=NOW + timedelta(seconds=passed)))
    assert judgement.limit is not None
    most = max(judgement.limit, DAY)
    if ahead - passed > most + 1:
        assert judgement.verdict is Verdict.BROKEN
        assert "a clock is wrong" in judgement.reason
    elif passed - ahead > judgement.limit + 1:
        assert judgement.verdict is Verdict.BROKEN
    elif ahead - passed > 301:
        assert judgement.verdict is Verdict.WARNING
