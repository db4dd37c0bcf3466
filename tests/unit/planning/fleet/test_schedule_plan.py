"""What a fleet's jobs want of the engine, and what is changed there, is decided from both alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.config.fleet_jobs import FleetJobsSettings, parse_jobs
from zsnapdb.planning.fleet.schedule_plan import PresentLimit, PresentSchedule, changes, wanted_schedules

ENGINE = '[engine]\nserver = "127.0.0.1:7233"\n'
JOBS = (
    'rollout = ["canary*"]\n'
    + ENGINE
    + """
[defaults]
backup = { every = "1h", jitter = "5m" }
verify = { cron = "0 4 * * sun", timezone = "Europe/Berlin" }
[drills]
every = "7d"
[bucket.store]
limit = 3
[[window]]
hosts = ["db*"]
days = ["sat"]
start = "22:00"
end = "04:00"
[instance.shop]
host = "db1"
bucket = "store"
[instance.wiki]
host = "canary1"
backup = { every = "6h" }
skip = ["drill", "verify"]
"""
)


def settings(text: str = JOBS) -> FleetJobsSettings:
    return parse_jobs(text, "fleet-jobs.toml")


def present(known: FleetJobsSettings) -> list[PresentSchedule]:
    """Return an engine to which the jobs were applied."""
    return [PresentSchedule(one.schedule_id, one.model_dump_json(), False) for one in wanted_schedules(known)]


LIMITS = [PresentLimit("store", 3)]


def test_each_instance_has_its_schedules_or_those_of_all() -> None:
    known = {one.name: one for one in wanted_schedules(settings())}
    assert list(known) == [f"zsnapdb/{name}" for name in ("backup/shop", "backup/wiki", "drill/shop", "verify/shop")]
    assert (known["zsnapdb/backup/shop"].every, known["zsnapdb/backup/wiki"].every) == (3600.0, 6 * 3600.0)
    assert known["zsnapdb/backup/shop"].job.queue == "host.db1"
    assert len(known["zsnapdb/backup/shop"].job.windows) == 1
    drill = known["zsnapdb/drill/shop"].job
    assert (drill.queue, drill.host, drill.bucket, drill.windows) == ("drill", None, "store", ())
    anywhere = {one.name: one.job.queue for one in wanted_schedules(settings(f"verify_anywhere = true\n{JOBS}"))}
    assert (anywhere["zsnapdb/verify/shop"], anywhere["zsnapdb/backup/shop"]) == ("any", "host.db1")


def test_an_empty_engine_gets_everything_canaries_first() -> None:
    found = changes(settings(), [], [])
    assert [(one.kind, one.name, one.wave) for one in found] == [
        ("create", "store", 1),
        ("create", "zsnapdb/backup/wiki", 1),
        ("create", "zsnapdb/backup/shop", 2),
        ("create", "zsnapdb/drill/shop", 2),
        ("create", "zsnapdb/verify/shop", 2),
    ]


def test_what_is_applied_is_changed_no_more() -> None:
    assert changes(settings(), present(settings()), LIMITS) == ()


def test_a_change_names_what_is_other_and_what_is_gone() -> None:
    other = settings(JOBS.replace('every = "1h"', 'every = "2h"').replace("limit = 3", "limit = 4"))
    found = {one.name: one.reason for one in changes(other, present(settings()), LIMITS)}
    assert found["zsnapdb/backup/shop"] == "other than before: every, limit"
    assert found["store"] == "at most 4 jobs at once, before 3"
    fewer = settings(JOBS.replace('[drills]\nevery = "7d"', ""))
    assert [(one.kind, one.name) for one in changes(fewer, present(settings()), LIMITS)] == [
        ("delete", "zsnapdb/drill/shop")
    ]


def test_what_cannot_be_read_is_replaced() -> None:
    spoiled = [PresentSchedule(f"{one.name}/0", "{", True) for one in present(settings())]
    found = changes(settings(), spoiled, LIMITS)
    assert {(one.kind, one.reason) for one in found} == {("update", "what the engine has cannot be read")}
    assert [one.stale for one in found] == [(f"{one.name}/0",) for one in found]


def test_what_an_interrupted_change_left_is_removed() -> None:
    old = present(settings(JOBS.replace('every = "1h"', 'every = "2h"')))
    found = changes(settings(), [*present(settings()), *old], LIMITS)
    assert [(one.kind, one.name, one.reason) for one in found] == [
        ("delete", "zsnapdb/backup/shop", "an older form of it is still there")
    ]
    assert found[0].stale == (old[0].schedule_id,)


@given(st.lists(st.sampled_from(present(settings())), unique=True), st.sampled_from([[], LIMITS]))
def test_whatever_part_an_engine_lost_is_all_that_is_made_again(
    kept: list[PresentSchedule], limits: list[PresentLimit]
) -> None:
    lost = {one.name for one in present(settings())} - {one.name for one in kept}
    found = changes(settings(), kept, limits)
    assert {one.name for one in found} == lost | (set() if limits else {"store"})
    assert {one.kind for one in found} <= {"create"}
