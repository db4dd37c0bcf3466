"""Objectives are judged from the content of repositories, by whoever can read them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.support.command_line import zsnapdb
from tests.unit.support.stored_backups import Site
from zsnapdb.config.settings import Settings, parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.doctor.instance_checks import describe_stored
from zsnapdb.jobs.repository import copy, protection_status, verify
from zsnapdb.planning.backup.fitness import Severity
from zsnapdb.planning.health.objectives import Verdict
from zsnapdb.report.repository.protection import AllStatusView, StatusView
from zsnapdb.repository import drills
from zsnapdb.repository.drills import CheckPart, Evidence, Outcome
from zsnapdb.repository.verifications import Depth
from zsnapdb.store.base import ObjectHold, Store

OBJECTIVES = '[instance.main.objectives]\nrpo = "3d"\nverify_age = "3d"\ndrill_age = "3d"\nwindow = "2d"\n'


def settings(site: Site, objectives: str = OBJECTIVES, other: str = "") -> Settings:
    return parse(f"{site.text()}\n{objectives}\n{other}", "test")


def judged(site: Site, objectives: str = OBJECTIVES, repository: str | None = None) -> dict[str, Verdict]:
    """Return the verdict of each objective, by name."""
    instance = replace(Instance.at(settings(site, objectives), "main", repository), host=site.host)
    return {found.name: found.verdict for found in protection_status.status(instance).health.judgements}


def drilled(site: Site, *outcomes: Outcome) -> None:
    """Store the evidence of drills, one second apart."""
    repository = site.instance().open_repository()
    for number, outcome in enumerate(outcomes):
        at = datetime.now(UTC) - timedelta(hours=1) + timedelta(seconds=number)
        drills.write(
            repository,
            Evidence(
                drill_id=f"{at:%Y%m%dT%H%M%SZ}-{number:04x}",
                instance="main",
                repository_id=repository.id,
                requested="latest",
                backup_id=repository.backup_ids("main")[-1],
                seed=1,
                host="h",
                started=at,
                finished=at,
                tool_version="1",
                zfs_version="z",
                server_version="s",
                position="p",
                steps=(),
                checks=(CheckPart(kind="position", what="b", outcome=outcome),),
            ),
        )


def test_silence_breaks_objectives_though_nothing_else_changes(site: Site) -> None:
    site.fill([None, 0, 1])
    verify.verify(site.instance(), Depth.LISTED)
    drilled(site, Outcome.PASSED)
    assert set(judged(site).values()) == {Verdict.MET}
    site.later(days=31)
    assert {name for name, verdict in judged(site).items() if verdict is Verdict.BROKEN} == {
        "rpo",
        "verify-age",
        "drill",
    }


def test_doctor_reports_the_missing_first_backup_once(site: Site) -> None:
    site.instance().open_or_create_repository()
    instance = Instance.of(settings(site), "main").on_host(site.host)
    (finding,) = [one for one in describe_stored(instance) if one.what == "objective"]
    assert finding.detail.startswith("there is no backup yet: rpo, ")
    assert finding.severity is Severity.WARNING
    assert finding.hint == "run `zsnapdb backup main`"


def test_a_drill_that_failed_after_one_that_passed_breaks_the_objective(site: Site) -> None:
    site.fill([None])
    drilled(site, Outcome.PASSED, Outcome.FAILED)
    assert judged(site)["drill"] is Verdict.BROKEN


@pytest.mark.parametrize(("field", "value"), [("f_bfree", 200), ("f_flag", os.ST_RDONLY)])
def test_a_host_that_cannot_keep_its_records_is_not_intact(
    site: Site, monkeypatch: pytest.MonkeyPatch, field: str, value: int
) -> None:
    site.fill([None])
    assert judged(site, "")["intact"] is Verdict.MET
    real = os.statvfs(site.folder)
    disk = SimpleNamespace(**{name: getattr(real, name) for name in dir(real) if name.startswith("f_")})
    setattr(disk, field, value)
    disk.f_bavail = min(disk.f_bavail, disk.f_bfree)
    monkeypatch.setattr(os, "statvfs", lambda _path: disk)
    assert judged(site, "")["intact"] is Verdict.BROKEN
    assert "cannot keep its records" in StatusView(protection_status.status(site.instance())).text()


def test_another_host_that_only_reads_judges_the_same(site: Site, tmp_path: Path) -> None:
    site.fill([None, 0])
    elsewhere = replace(site.host, records=tmp_path / "other", cache=tmp_path / "none", run=tmp_path / "no")
    here = replace(Instance.of(settings(site), "main"), host=site.host)
    one, other = (protection_status.status(instance).health for instance in (here, replace(here, host=elsewhere)))
    assert [(f.name, f.verdict) for f in one.judgements] == [(f.name, f.verdict) for f in other.judgements]


def test_a_copy_is_judged_by_what_the_other_repository_holds(site: Site) -> None:
    objectives = '[instance.main.objectives.copies]\nthere = "2d"\n'
    site.fill([None, 0])
    (site.folder.parent / f"{site.folder.name}-there").mkdir()
    assert judged(site, objectives)["copy there"] is Verdict.BROKEN
    copy.copy(site.instance(), site.instance("there"))
    assert judged(site, objectives)["copy there"] is Verdict.MET
    site.later(days=5)
    assert judged(site, objectives)["copy there"] is Verdict.BROKEN


def test_the_objectives_of_another_repository_come_before_those_of_the_instance(site: Site) -> None:
    site.fill([None])
    there = f'{site.text()}\n{OBJECTIVES}\n[repository.there.objectives]\nbackup_age = "1d"\n'
    objectives = Instance.at(parse(there, "test"), "main", "there").settings.objectives
    assert (objectives.rpo, objectives.backup_age) == (None, 86400.0)
    assert Instance.at(settings(site), "main", "there").settings.objectives.rpo == 3 * 86400.0


class Locking:
    """A store that locks objects for a time."""

    def __init__(self, inner: Store, until: datetime, free: str) -> None:
        self.inner, self.until, self.free = inner, until, free

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def hold(self, key: str) -> ObjectHold | None:
        return None if self.free in key else ObjectHold(self.until)


@pytest.mark.parametrize(("days", "verdict"), [(9, Verdict.MET), (5, Verdict.BROKEN)])
def test_a_backup_is_immutable_as_long_as_the_store_locks_its_chain(site: Site, days: int, verdict: Verdict) -> None:
    first, *_ = site.fill([None, 0])
    objectives = '[instance.main.objectives]\nimmutable_for = "7d"\n'
    until = datetime.now(UTC) + timedelta(days=days)
    with site.opening(lambda store: Locking(store, until, "no such object")):  # type: ignore[type-var]
        assert judged(site, objectives)["immutable"] is verdict
    with site.opening(lambda store: Locking(store, until, first)):  # type: ignore[type-var]
        assert judged(site, objectives)["immutable"] is Verdict.BROKEN


def test_a_configuration_whose_copies_name_no_other_repository_is_refused(site: Site) -> None:
    for name in ("here", "nowhere"):
        with pytest.raises(Exception, match="which is no other configured repository"):
            settings(site, f'[instance.main.objectives.copies]\n{name} = "1d"\n')


@pytest.mark.parametrize(
    ("objectives", "code"),
    [("", 1), ('rpo = "3d"', 0), ('rpo = "25h"', 1), ('rpo = "1h"', 2), ('rpo = "3d"\nbackup_age = "3d"', 0)],
)
def test_status_ends_with_the_worst_verdict(site: Site, objectives: str, code: int, tmp_path: Path) -> None:
    site.fill([None])
    config = tmp_path / "zsnapdb.toml"
    config.write_text(f"{site.text()}\n[instance.main.objectives]\n{objectives}\n")
    done = zsnapdb("status", "main", "--json", config=str(config))
    assert done.returncode == code, done.stderr
    shown = json.loads(done.stdout)
    assert shown["verdict"] == ("met", "warning", "broken")[code]
    assert {row["objective"] for row in shown["objectives"]} >= {"restorable", "intact"}


def test_all_instances_are_shown_though_one_cannot_be_read(site: Site) -> None:
    site.fill([None])
    other = (
        f'[instance.other]\nsocket = "/x"\nrepository = "gone"\n[repository.gone]\nurl = "file://{site.folder}-gone"\n'
    )
    states = protection_status.statuses(settings(site, '[instance.main.objectives]\nrpo = "3d"\n', other), None)
    assert [(state.instance, state.exit_code) for state in states] == [("main", 0), ("other", 6)]
    view = AllStatusView(states)
    assert "UNKNOWN" in view.text()
    assert [row["error"] is None for row in view.fields()["instances"]] == [True, False]


def test_a_person_sees_each_objective_with_its_reason_and_hint(site: Site) -> None:
    site.fill([None])
    instance = replace(Instance.of(settings(site, '[instance.main.objectives]\nrpo = "1h"\n'), "main"), host=site.host)
    text = StatusView(protection_status.status(instance)).text()
    assert "BROKEN        rpo: the newest restorable point is 1 d old, of at most 1 h" in text
    assert f"{'':<13} hint: run `zsnapdb backup main`" in text
