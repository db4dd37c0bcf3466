"""What commands did is in the repository, and whoever changes it there is found out."""

from __future__ import annotations

import json
import os
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
from zsnapdb.base.errors import ConfigError, RepositoryError
from zsnapdb.cli import repository
from zsnapdb.cli.commands import COMMANDS, Command
from zsnapdb.cli.notified_commands import wrap_with_notifications
from zsnapdb.config.repository import EncryptionSettings
from zsnapdb.config.settings import MaskingSettings, parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import masking as clone_masking
from zsnapdb.jobs.health import evidence_records
from zsnapdb.jobs.health.evidence_records import EvidenceLog, note_end, recorded, recorded_keys
from zsnapdb.jobs.repository import evidence_report, init
from zsnapdb.planning.evidence import POLICY, PolicyChange
from zsnapdb.report.repository.evidence import EvidencePageView, EvidenceReportView

COMMAND = ("zsnapdb", "prune", "main")


@pytest.fixture
def new_site(tmp_path: Path) -> Site:
    (tmp_path / "store").mkdir()
    site = Site(tmp_path / "store")
    site.fill([None])
    return site


@pytest.fixture
def site(new_site: Site) -> Site:
    """A site whose policy was recorded before: its log has records of runs alone."""
    with evidence_records.compare_policy(keeping(new_site), keeping(new_site).open_repository().id):
        pass
    return new_site


def keeping(site: Site, **changes: Any) -> Instance:
    """Return the instance with an evidence log, and with these changes of its repository."""
    instance = site.instance()
    return replace(instance, repository=instance.repository.model_copy(update={"evidence": True, **changes}))


def run(site: Site, job: str = "prune", **changes: Any) -> None:
    with recorded(keeping(site, **changes), job, COMMAND):
        pass


def log(site: Site) -> EvidenceLog:
    return evidence_records.read(site.instance())


def file(site: Site, number: int) -> Path:
    return site.folder / "main" / "evidence" / f"{number:08d}.json"


def test_a_record_says_who_did_what_and_how_it_ended(site: Site) -> None:
    run(site)
    with pytest.raises(RepositoryError), recorded(keeping(site), "copy", ("zsnapdb", "copy", "main")):
        raise RepositoryError("no")
    first, second = log(site).believed
    assert (first.number, first.job, first.command, first.exit_code) == (1, "prune", "zsnapdb prune main", 0)
    assert (second.number, second.job, second.exit_code) == (2, "copy", 6)
    assert first.who.account
    assert first.who.host
    assert first.run_id == site.instance().host.run_id()
    assert log(site).findings == ()
    assert log(site).alarm() is None


def test_a_run_that_was_repeated_is_one_backup_in_the_report(site: Site) -> None:
    for _ in range(3):
        run(site, "backup")
    assert len(log(site).believed) == 3
    assert [day.backups for day in evidence_report.report(site.instance(), None, None).days][-1] == 1


@pytest.mark.parametrize(("given", "subject"), [("ci:shop/web", "ci:shop/web"), ("no subject\n", "")])
def test_a_record_names_the_subject_for_whom_a_service_ran_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, given: str, subject: str
) -> None:
    monkeypatch.setenv("ZSNAPDB_SUBJECT", given)
    run(site)
    (record,) = log(site).believed
    assert record.who.subject == subject
    assert ("(ci:shop/web)" in record.by) is bool(subject)


@pytest.mark.parametrize(
    ("subject", "given", "issuer"),
    [
        ("ci:shop/web", "https://issuer.example.org", "https://issuer.example.org"),
        ("ci:shop/web", "x\ny", ""),
        ("", "https://issuer.example.org", ""),
    ],
)
def test_a_record_names_the_issuer_that_vouched_for_the_subject(
    site: Site, monkeypatch: pytest.MonkeyPatch, subject: str, given: str, issuer: str
) -> None:
    monkeypatch.setenv("ZSNAPDB_SUBJECT", subject)
    monkeypatch.setenv("ZSNAPDB_SUBJECT_ISSUER", given)
    run(site)
    (record,) = log(site).believed
    assert record.who.issuer == issuer
    assert ("vouched for by https://issuer.example.org" in record.by) is bool(issuer)
    assert log(site).findings == ()


def test_a_command_line_that_is_not_utf8_is_recorded_all_the_same(site: Site) -> None:
    with recorded(keeping(site), "pin", ("zsnapdb", "pin", "main", "\udcff")):
        pass
    assert log(site).believed[-1].command == "zsnapdb pin main \ufffd"


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


def test_pages_follow_each_other_and_name_what_cannot_be_believed(site: Site) -> None:
    for number in range(5):
        run(site, f"job {number}")
    file(site, 3).write_bytes(b"{")
    after: int | None = 0
    seen, wrong = [], []
    while after is not None:
        page: Any = EvidencePageView(evidence_records.read_page(site.instance(), after, 2)).fields()
        seen += [record["job"] for record in page["records"]]
        wrong += [one["number"] for one in page["not_believed"]]
        after = page["next"]
    assert (seen, wrong) == (["job 0", "job 1", "job 3", "job 4"], [3])
    assert evidence_records.read_page(site.instance(), 5, 2).records == ()


def test_a_log_that_cannot_be_written_is_a_warning(site: Site) -> None:
    said: list[str] = []
    (site.folder / "main" / "evidence").write_text("no folder")
    with recorded(keeping(site).with_events(Recorder(said)), "prune", COMMAND):
        pass
    assert any("is not in the evidence log" in line for line in said)


def test_the_report_shows_days_and_runs_and_verify_ends_with_7_after_a_change(site: Site, tmp_path: Path) -> None:
    run(site, "backup")
    run(site)
    config = tmp_path / "zsnapdb.toml"
    config.write_text(site.text())
    shown = zsnapdb("report", "show", "main", config=str(config))
    assert shown.returncode == 0, shown.stderr
    assert "2 records: no record was changed" in shown.stdout
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


@pytest.mark.parametrize("ahead", [-400, 0, 400])
def test_report_names_failed_runs_that_a_wrong_clock_put_outside_of_its_days(site: Site, ahead: int) -> None:
    run(site)
    site.later(days=ahead)
    with pytest.raises(RepositoryError), recorded(keeping(site), "copy", ("zsnapdb", "copy", "main")):
        raise RepositoryError("no")
    site.later()
    run(site)
    made = EvidenceReportView(evidence_report.report(site.instance(), None, None))
    named = [what for when, what in made.exceptions if "zsnapdb copy main FAILED with 6" in what]
    assert len(named) == 1
    doubts = [what for _, what in made.exceptions if "a clock was wrong" in what]
    assert bool(doubts) == bool(ahead)


def test_only_a_repository_that_keeps_evidence_gets_it_and_no_plan_is_evidence(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []

    @contextmanager
    def spy(instance: Any, job: str, command: Any, about: str) -> Any:
        seen.append((instance.name, job))
        yield

    monkeypatch.setattr(evidence_records, "recorded", spy)
    done: list[dict[str, Any]] = []

    def prune(**options: Any) -> None:
        done.append(options)

    declared = COMMANDS["prune"]
    assert isinstance(declared, Command)
    command = wrap_with_notifications("prune", declared, prune)
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


def changes(site: Site, job: str = POLICY) -> list[tuple[str, str, str]]:
    """Return what the newest record of the job says was changed."""
    newest = [record for record in log(site).believed if record.job == job][-1]
    return [(change.what, change.before, change.after) for change in newest.changes]


def test_the_first_run_records_the_policy_and_the_next_ones_what_differs_from_it(new_site: Site) -> None:
    run(new_site)
    assert ("retention, last", "", "3") in changes(new_site)
    assert ("evidence", "", "kept") in changes(new_site)
    run(new_site)
    assert [record.job for record in log(new_site).believed] == [POLICY, "prune", "prune"]
    new_site.keep = "last = 1\ndaily = 7"
    run(new_site)
    assert changes(new_site) == [("retention, daily", "", "7"), ("retention, last", "3", "1")]
    *_, found, done = log(new_site).believed
    assert (found.job, found.command, found.run_id, done.job) == (POLICY, done.command, done.run_id, "prune")
    assert found.who == done.who
    assert log(new_site).findings == ()


def test_keys_that_come_and_go_are_recorded(site: Site, tmp_path: Path) -> None:
    made = init.generate_keys(tmp_path / "identity", tmp_path / "signing")
    (recipient,) = made.recipients
    encryption = EncryptionSettings(
        recipients=made.recipients, identity_file=tmp_path / "identity", signing_key_file=tmp_path / "signing"
    )
    run(site, encryption=encryption)
    assert changes(site) == [
        (f"identity {recipient}", "", "on this host"),
        (f"recipient {recipient}", "", "can read new backups"),
        (f"signing key {made.signer}", "", "on this host"),
    ]
    (tmp_path / "identity").unlink()
    run(site, encryption=encryption)
    gone = f"identity in {tmp_path}/identity, which cannot be read"
    assert changes(site) == [(f"identity {recipient}", "on this host", ""), (gone, "", "on this host")]


def test_a_change_of_what_masks_clones_is_recorded_also_if_the_configuration_stays(site: Site, tmp_path: Path) -> None:
    script = tmp_path / "mask.sql"
    script.write_text("UPDATE people SET name = 'x'")
    masked = keeping(site)
    masked = replace(
        masked, settings=masked.settings.model_copy(update={"masking": MaskingSettings(run=((str(script),),))})
    )
    seen = []
    for text in ("UPDATE people SET name = 'x'", "SELECT 1"):
        script.write_text(text)
        with recorded(masked, "clone", COMMAND):
            pass
        seen.append(next(change for change in changes(site) if change[0] == "masking, step 1"))
    assert (seen[0][1], seen[1][1]) == ("", seen[0][2])
    assert seen[1][2].startswith(f"{script} (sha256 ")


def test_a_masking_file_that_is_a_pipe_is_recorded_as_such_and_not_waited_for(site: Site, tmp_path: Path) -> None:
    pipe = tmp_path / "mask.sql"
    os.mkfifo(pipe)
    masking = MaskingSettings(run=((str(pipe),),))
    masked = keeping(site)
    with recorded(replace(masked, settings=masked.settings.model_copy(update={"masking": masking})), "clone", COMMAND):
        pass
    assert ("masking, step 1", "", f"{pipe} (it cannot be read: it is not a regular file)") in changes(site)
    with pytest.raises(ConfigError, match="not a readable SQL file"):
        clone_masking.check(masking)


def test_a_policy_that_could_not_be_written_is_written_by_the_next_run(new_site: Site) -> None:
    folder = new_site.folder / "main" / "evidence"
    folder.write_text("no folder")
    run(new_site)
    folder.unlink()
    run(new_site)
    assert [record.job for record in log(new_site).believed] == [POLICY, "prune"]


def test_a_log_that_is_kept_no_more_says_so_once(site: Site) -> None:
    run(site)
    for _ in range(2):
        note_end(site.instance(), COMMAND)
    assert [record.job for record in log(site).believed] == ["prune", POLICY]
    assert changes(site) == [("evidence", "kept", "not kept")]
    run(site)
    assert ("evidence", "", "kept") in changes(site)


def test_changes_of_keys_by_a_command_are_in_the_log_and_in_the_report(site: Site, tmp_path: Path) -> None:
    with recorded_keys((keeping(site),), "key", ("zsnapdb", "key", "generate")) as noted:
        made = init.generate_keys(tmp_path / "identity", None)
        noted += made.changes
    (recipient,) = made.recipients
    assert changes(site, "key") == [(f"identity {recipient}", "", f"made, in {tmp_path}/identity")]
    listed = f'[repository.here.encryption]\nrecipients = ["{recipient}"]\n[repository.there]'
    settings = parse(site.text().replace("[repository.there]", listed), "test")
    assert init.init(settings, "here").changes == (
        PolicyChange(what=f"recipient {recipient} in the marker", after="listed"),
    )
    shown = EvidenceReportView(evidence_report.report(keeping(site), None, None))
    assert f"identity {recipient}" in shown.text().partition("Changes of keys and policy")[2]
    fields: Any = shown.fields()
    (reported,) = fields["changes"]
    assert (reported["what"], reported["before"], reported["exit_code"]) == (f"identity {recipient}", None, 0)
    assert reported["who"]


def test_keys_are_made_without_a_configuration_and_with_one_its_logs_hear_of_them(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[list[str], str, list[PolicyChange]]] = []

    @contextmanager
    def spy(instances: Any, job: str, command: Any) -> Any:
        seen.append(([instance.name for instance in instances], job, []))
        yield seen[-1][2]

    monkeypatch.setattr(evidence_records, "recorded_keys", spy)
    monkeypatch.setenv("ZSNAPDB_CONFIG", str(tmp_path / "none.toml"))
    repository.generate_key(identity=tmp_path / "first")
    assert seen == []
    config = tmp_path / "zsnapdb.toml"
    config.write_text(site.text().replace("[repository.here]\n", "[repository.here]\nevidence = true\n"))
    repository.generate_key(identity=tmp_path / "second", config=config)
    ((names, job, noted),) = seen
    assert (names, job, [change.after for change in noted]) == (["main"], "key", [f"made, in {tmp_path}/second"])
