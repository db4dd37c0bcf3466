"""What commands did is in the repository, and whoever changes it there is found out."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support.command_line import zsnapdb
from tests.unit.support.events import Recorder
from tests.unit.support.stored_backups import Site
from zsnapdb.cli.evidencing import evidencing
from zsnapdb.errors import RepositoryError
from zsnapdb.jobs import evidence
from zsnapdb.jobs.evidence import EvidenceLog, recorded

COMMAND = ("zsnapdb", "prune", "main")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "store").mkdir()
    site = Site(tmp_path / "store")
    site.fill([None])
    return site


def run(site: Site, job: str = "prune") -> None:
    with recorded(site.instance(), job, COMMAND):
        pass


def log(site: Site) -> EvidenceLog:
    return evidence.read(site.instance())


def file(site: Site, number: int) -> Path:
    return site.folder / "main" / "evidence" / f"{number:08d}.json"


def test_a_record_says_who_did_what_and_how_it_ended(site: Site) -> None:
    run(site)
    with pytest.raises(RepositoryError), recorded(site.instance(), "copy", ("zsnapdb", "copy", "main")):
        raise RepositoryError("no")
    first, second = log(site).believed
    assert (first.number, first.job, first.command, first.exit_code) == (1, "prune", "zsnapdb prune main", 0)
    assert (second.number, second.job, second.exit_code) == (2, "copy", 6)
    assert first.who.account
    assert first.who.host
    assert first.run_id == site.instance().host.run_id()
    assert log(site).findings == ()
    assert log(site).alarm() is None


def test_runs_that_end_at_once_have_records_of_their_own(site: Site) -> None:
    run(site)
    threads = [threading.Thread(target=run, args=(site, f"job {number}")) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(record.job for record in log(site).believed) == ["job 0", "job 1", "job 2", "job 3", "prune"]
    assert log(site).findings == ()


def alter(site: Site) -> None:
    file(site, 2).write_text(file(site, 2).read_text().replace('"exit_code":0', '"exit_code":1'))


def remove_the_last(site: Site) -> None:
    file(site, 3).unlink()


def remove_the_first(site: Site) -> None:
    file(site, 1).unlink()


def change_places(site: Site) -> None:
    first, second = file(site, 1).read_bytes(), file(site, 2).read_bytes()
    file(site, 1).write_bytes(second)
    file(site, 2).write_bytes(first)


def alter_the_last(site: Site) -> None:
    file(site, 3).write_text(file(site, 3).read_text().replace('"prune"', '"drill"'))


def destroy(site: Site) -> None:
    file(site, 1).write_bytes(b"{")


@pytest.mark.parametrize(
    "change",
    [alter, remove_the_last, remove_the_first, change_places, alter_the_last, destroy],
    ids=lambda c: c.__name__,
)
def test_whoever_changes_the_log_in_the_repository_is_found_out(site: Site, change: Callable[[Site], None]) -> None:
    for _ in range(3):
        run(site)
    change(site)
    assert log(site).findings
    assert log(site).alarm() is not None


def test_a_log_that_cannot_be_written_is_a_warning(site: Site) -> None:
    said: list[str] = []
    (site.folder / "main" / "evidence").write_text("no folder")
    with recorded(site.instance().with_events(Recorder(said)), "prune", COMMAND):
        pass
    assert any("is not in the evidence log" in line for line in said)


def test_the_report_shows_days_and_runs_and_verify_ends_with_7_after_a_change(site: Site, tmp_path: Path) -> None:
    run(site, "backup")
    run(site)
    config = tmp_path / "zsnapdb.toml"
    config.write_text(site.text())
    shown = zsnapdb("report", "show", "main", config=str(config))
    assert shown.returncode == 0, shown.stderr
    assert "2 records: every record is as it was written" in shown.stdout
    assert "\nrecoverable " in shown.stdout
    document = json.loads(zsnapdb("report", "show", "--json", config=str(config)).stdout)
    assert document["is_whole"]
    assert (len(document["days"]), document["days"][-1]["good"], document["days"][-1]["backups"]) == (31, 2, 1)
    assert [record["job"] for record in document["records"]] == ["backup", "prune"]
    assert document["protection"]["retention"] == "last = 3"
    page = zsnapdb("report", "show", "--format", "html", config=str(config)).stdout
    assert page.startswith("<!DOCTYPE html>")
    assert all(f"<h2>{title}</h2>" in page for title in ("Objectives now", "Drills", "Exceptions", "Runs"))
    assert zsnapdb("report", "verify", config=str(config)).returncode == 0
    file(site, 1).write_text(file(site, 1).read_text().replace('"exit_code":0', '"exit_code":1'))
    changed = zsnapdb("report", "verify", config=str(config))
    assert (changed.returncode, "record 1 was altered" in changed.stdout) == (7, True)
    assert zsnapdb("report", "show", "--from", "yesterday", config=str(config)).returncode == 2


def test_only_a_repository_that_keeps_evidence_gets_it_and_no_plan_is_evidence(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []

    @contextmanager
    def spy(instance: Any, job: str, command: Any) -> Any:
        seen.append((instance.name, job))
        yield

    monkeypatch.setattr(evidence, "recorded", spy)
    done: list[dict[str, Any]] = []

    def prune(**options: Any) -> None:
        done.append(options)

    command = evidencing("prune", prune)
    config = tmp_path / "zsnapdb.toml"
    config.write_text(site.text())
    command(instance="main", config=config, plan=False)
    assert seen == []
    config.write_text(site.text().replace("[repository.here]\n", "[repository.here]\nevidence = true\n"))
    command(instance="main", config=config, plan=True)
    assert seen == []
    command(instance=None, config=config, plan=False)
    assert (seen, len(done)) == ([("main", "prune")], 3)
    assert replace(site.instance()).repository.evidence is False
