"""A month of a fleet in simulated time: at every hour the view of it says what is true, and no more than faults is red.

The truth is computed here, of the list of what was made, by code of its own.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support.fleet_month import Event, FleetMonth
from tests.unit.support.fleet_yard import FleetYard
from zsnapdb.config import fleet_jobs
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.config.settings import Settings
from zsnapdb.fleet import host_job
from zsnapdb.planning.health.objectives import Verdict

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NIGHTLY = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}
LIMITS = {"shop": 26 * HOUR, "ledger": 26 * HOUR, "wiki": 8 * HOUR, "mail": 8 * HOUR}
DRILLED = 9 * DAY
HEARD = 27 * HOUR
JOBS = """
[engine]
server = "127.0.0.1:7233"
[drills]
every = "7d"
jitter = 0
[instance.shop]
host = "db-1"
backup = { cron = "30 2 * * *", timezone = "Europe/Berlin" }
[instance.ledger]
host = "db-2"
backup = { cron = "30 2 * * *", timezone = "Europe/Berlin" }
[instance.wiki]
host = "db-3"
backup = { cron = "0 */6 * * *", timezone = "Europe/Berlin" }
[instance.mail]
host = "db-4"
backup = { every = "6h" }
[[window]]
hosts = ["db-3"]
days = ["tue"]
start = "11:00"
end = "13:00"
timezone = "Europe/Berlin"
"""
OF_AGENTS: dict[str, dict[str, Any]] = {
    "shop": {"agent": {"backup": NIGHTLY}},
    "ledger": {},
    "wiki": {"agent": {"backup": {"cron": "0 */6 * * *", "timezone": "Europe/Berlin"}}},
    "mail": {"agent": {"backup": {"every": "6h"}}},
}


def settings(host: str, *instances: str, **fleet: object) -> Settings:
    # A host that drills has the instances of others, and no schedule of them.
    own = {name: {"repository": "here", **({} if "drills" in fleet else OF_AGENTS[name])} for name in instances}
    return Settings.model_validate(
        {
            "instance": own,
            "repository": {"here": {"url": "file:///backups"}},
            "agent": {"state": f"/nonexistent/{host}"},
            "fleet": {"server": "127.0.0.1:7233", "host": host, "spacing": 0, **fleet},
        }
    )


@dataclass
class Truth:
    """What is true of a fleet, by what was made until a reading."""

    events: list[Event] = field(default_factory=list)
    read: datetime = datetime(1970, 1, 1, tzinfo=UTC)

    def newest(self, instance: str) -> Event:
        """Return the backup that was made last, whatever its clock said. One from more than a day ahead is none."""
        known = [one for one in self.events if (one.verb, one.instance) == ("backup", instance)]
        return [one for one in known if one.at <= self.read + DAY][-1]

    def heard(self, host: str) -> datetime:
        """Return the newest sign of life of a host, of those that are not from the future."""
        return max(one.at for one in self.events if one.host == host and one.at <= self.read + timedelta(minutes=5))

    def broken(self, instance: str, at: datetime) -> dict[str, datetime]:
        """Return what is not met of an instance, and since when."""
        newest = self.newest(instance)
        deadlines = {"backup-age": newest.at + LIMITS[instance], "heard": self.heard(newest.host) + HEARD}
        drills = [one for one in self.events if (one.verb, one.instance) == ("drill", instance)]
        if drills:
            passed = max((one.at for one in drills if one.passed), default=None)
            last = max(drills, key=lambda one: one.at)
            deadlines["drill"] = last.at if not last.passed else (passed or last.at) + DRILLED
        found = {what: time for what, time in deadlines.items() if at > time or (what == "drill" and at >= time)}
        if not drills:
            found["drill"] = at
        if any(one.at > self.read + DAY for one in self.events if (one.verb, one.instance) == ("backup", instance)):
            found["intact"] = at
        return found


@dataclass
class Watch:
    """Reads every three hours, looks at the cache every hour, and compares with the truth."""

    month: FleetMonth
    truth: Truth = field(default_factory=Truth)
    red: dict[tuple[str, str], list[datetime]] = field(default_factory=lambda: defaultdict(list))

    def look(self) -> None:
        """Compare."""
        yard, at = self.month.yard, self.month.now
        yard.now = at
        if at.hour % 3 == 0 and not yard.status().repositories[0].error:
            self.truth = Truth(list(self.month.events), at)
        state = yard.status(cached=True)
        assert (state.repositories[0].error is not None) == self.month.store_is_away or at.hour % 3
        seen = {one.instance: one for one in state.rows}
        assert set(seen) == set(LIMITS)
        for name, one in seen.items():
            told = {reason.what: reason.since for reason in one.reasons if reason.verdict is Verdict.BROKEN}
            expected = self.truth.broken(name, at)
            assert set(told) == set(expected), (at, name, told, expected)
            for what in set(told) & {"backup-age", "drill"} - ({"drill"} if expected.get("drill") == at else set()):
                assert told[what] == expected[what], (at, name, what)
            if expected:
                for what in expected:
                    self.red[name, what].append(at)
        for host in state.hosts:
            assert host.heard == self.truth.heard(host.host), (at, host, self.truth.heard(host.host))


def live(watch: Watch, days: float) -> None:
    """Let days pass, and look at each hour."""
    month = watch.month
    end = month.now + days * DAY
    while month.now < end:
        month.tick()
        if month.now.minute == 0:
            watch.look()


MENDED = 5 * HOUR
"""How long after a fault all is well and read: the agent waits two hours for the fleet, a reading comes after three."""
EXPECTED = {
    ("shop", "backup-age"): ("engine", "store", "clocks", "future"),
    ("ledger", "backup-age"): ("engine", "store", "clocks"),
    ("ledger", "heard"): ("engine", "store", "clocks"),
    ("shop", "heard"): ("engine", "store", "clocks", "future"),
    ("wiki", "backup-age"): ("engine", "off", "store"),
    ("wiki", "heard"): ("off",),
    ("mail", "backup-age"): ("store", "renamed"),
    ("shop", "intact"): ("future",),
    **{(name, "drill"): ("drill",) for name in LIMITS},
}
"""Which fault may make what red."""


def hours(watch: Watch, instance: str, fault: tuple[datetime, datetime]) -> int:
    """Return for how many hours of a fault the age of the backups was red."""
    return sum(fault[0] <= at <= fault[1] + MENDED for at in watch.red[instance, "backup-age"])


@pytest.fixture
def month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FleetMonth:
    (tmp_path / "yard").mkdir()
    yard = FleetYard(tmp_path / "yard", names=("here",), more='heard_within = "27h"\nreaders = 1')
    objectives = {
        name: ObjectiveSettings(backup_age=limit.total_seconds(), drill_age=DRILLED.total_seconds())
        for name, limit in LIMITS.items()
    }
    made = FleetMonth(yard, fleet_jobs.parse_jobs(JOBS, "jobs"), objectives, random.Random(41), folder=tmp_path)
    monkeypatch.setattr(host_job, "Records", made.records)
    return made


@pytest.mark.parametrize("begins", [datetime(2027, 3, 10, tzinfo=UTC), datetime(2026, 10, 7, tzinfo=UTC)])
def test_at_every_hour_of_a_month_of_faults_the_view_of_the_fleet_says_what_is_true(
    month: FleetMonth, begins: datetime
) -> None:
    month.now = begins
    watch = Watch(month)
    hosts = {
        "db-1": month.host("db-1", settings("db-1", "shop")),
        "db-2": month.host("db-2", settings("db-2", "ledger", fallback="none")),
        "db-3": month.host("db-3", settings("db-3", "wiki")),
        "db-4": month.host("db-4", settings("db-4", "mail")),
        "lab": month.host("lab", settings("lab", *LIMITS, drills=True, verbs=["drill"])),
    }
    for name in LIMITS:
        for verb in ("backup", "drill"):
            month.command(hosts["lab" if verb == "drill" else month.jobs.instance[name].host], (verb, name))
    watch.look()
    faults: dict[str, tuple[datetime, datetime]] = {}

    def fault(name: str, days: float) -> None:
        began = month.now
        live(watch, days)
        faults[name] = (began, month.now)

    live(watch, 4)
    month.engine_is_away = True
    fault("engine", 1)
    month.engine_is_away = False
    live(watch, 2)
    hosts["db-3"].turn_off()
    fault("off", 1)
    hosts["db-3"].turn_on()
    live(watch, 2)
    store, away = month.yard.folder / "here", month.yard.folder / "away"
    store.rename(away)
    fault("store", 10 / 24)
    away.rename(store)
    live(watch, 2 + 14 / 24)
    hosts["db-4"].turn_off()
    fault("renamed", 15 / 24)
    hosts["db-4"].rename("db-9", settings("db-9", "mail"))
    hosts["db-4"].turn_on()
    live(watch, 12 / 24)
    month.jobs = fleet_jobs.parse_jobs(JOBS.replace("db-4", "db-9"), "jobs")
    # The clocks of Berlin change meanwhile.
    live(watch, 7 - 3 / 24)
    month.drill_fails = True
    for name, error in (("db-1", 3 * DAY), ("db-3", 5 * HOUR), ("db-2", -2 * DAY)):
        hosts[name].agent.clock_error = error
    fault("clocks", 12 / 24)
    for name in ("db-1", "db-2", "db-3"):
        hosts[name].agent.clock_error = timedelta()
    fault("drill", 2)
    month.drill_fails = False
    live(watch, 7)
    # The backups of a clock that was three days ahead are no doubt any more when they are a day ahead.
    faults["future"] = (faults["clocks"][0], faults["clocks"][1] + 2 * DAY)
    faults["drill"] = (faults["drill"][0], faults["drill"][0] + 8 * DAY)
    for red, times in watch.red.items():
        spans = [faults[name] for name in EXPECTED[red]]
        late = [at for at in times if not any(begin <= at <= end + MENDED for begin, end in spans)]
        assert not late, (red, late)
    # Without the agent's fallback a fleet that is away for a day costs a backup; with it three hours at most.
    assert hours(watch, "ledger", faults["engine"]) > 20
    assert max(hours(watch, name, faults["engine"]) for name in ("shop", "wiki", "mail")) <= 3
    assert watch.red["shop", "drill"]
