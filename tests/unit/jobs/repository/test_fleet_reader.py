"""One view of all instances of all hosts comes from the repositories alone, and what has not changed is not fetched."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.unit.support.command_line import zsnapdb
from tests.unit.support.fleet_yard import NOW, FleetYard
from zsnapdb.base.errors import UsageError
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.planning.health.objectives import Verdict
from zsnapdb.report.fleet import FleetView
from zsnapdb.report.fleet import text as metrics_text
from zsnapdb.repository import crypto_keys
from zsnapdb.repository.drills import Outcome
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.repository import Repository
from zsnapdb.store.layers import open_store

DAILY = ObjectiveSettings(backup_age=86400.0, rpo=30 * 86400.0)
DRILLED = ObjectiveSettings(drill_age=7 * 86400.0, rpo=30 * 86400.0)


@pytest.fixture
def yard(tmp_path: Path) -> FleetYard:
    """Four instances: good, with a backup that is too old, with a drill that failed, and of an older zsnapdb."""
    yard = FleetYard(tmp_path)
    yard.backup("good", 1, objectives=DAILY)
    yard.backup("old", 30, objectives=DAILY, host="db-2")
    yard.backup("drilled", 1, objectives=DRILLED, name="there", host="db-3")
    yard.drill("drilled", 5, Outcome.FAILED, "there")
    yard.backup("plain", 1, name="there")
    return yard


def test_red_comes_first_with_why_and_since_when(yard: FleetYard) -> None:
    state = yard.status()
    assert [(one.instance, one.host, one.verdict) for one in state.rows] == [
        ("old", "db-2", Verdict.BROKEN),
        ("drilled", "db-3", Verdict.BROKEN),
        ("plain", "", Verdict.WARNING),
        ("good", "db-1", Verdict.MET),
    ]
    old, drilled, *_ = state.rows
    assert (old.reasons[0].what, old.since) == ("backup-age", NOW - timedelta(hours=30 - 24))
    assert (drilled.reasons[0].what, drilled.since) == ("drill", NOW - timedelta(hours=5))
    assert state.exit_code == 2
    text = FleetView(state).text()
    assert "4 instances: 2 broken, 1 with a warning, 1 met" in text
    assert "backup-age: the newest restorable backup is 1 d 6 h old, of at most 1 d" in text
    assert "(since 2026-11-27 06:00 UTC)" in text
    assert "its backups name no objectives" in text


def test_what_names_no_objectives_is_judged_by_those_of_the_fleet(yard: FleetYard) -> None:
    yard.more = 'objectives = { backup_age = "30m", rpo = "30d" }'
    assert {one.instance: one.verdict for one in yard.status().rows}["plain"] is Verdict.BROKEN
    assert {one.instance: one.verdict for one in yard.status().rows}["good"] is Verdict.MET


def test_a_host_that_was_not_heard_of_makes_its_instances_red(yard: FleetYard) -> None:
    yard.backup("twin", 20, objectives=DRILLED, host="db-2")
    yard.more = 'heard_within = "12h"'
    state = yard.status()
    assert [(one.host, one.is_silent) for one in state.hosts] == [("db-2", True), ("db-1", False), ("db-3", False)]
    assert "heard" in {reason.what for one in state.rows if one.instance == "twin" for reason in one.reasons}
    silent = "SILENT   host db-2: not heard of since 2026-11-26 16:00:00 UTC, 20 h; 2 instances"
    assert silent in FleetView(state).text()


def test_an_expected_host_that_never_stored_anything_is_silent(tmp_path: Path) -> None:
    yard = FleetYard(tmp_path, names=("here",))
    yard.backup("good", 1, objectives=DAILY)
    assert yard.status().exit_code == 0
    yard.more = 'hosts = ["db-1", "db-9"]'
    state = yard.status()
    assert [(one.host, one.is_silent, one.instances) for one in state.hosts] == [("db-9", True, 0), ("db-1", False, 1)]
    assert "SILENT   host db-9: not heard of ever; 0 instances" in FleetView(state).text()
    assert 'zsnapdb_fleet_host_silent{host="db-9"} 1' in metrics_text(state)
    assert (state.exit_code, yard.status("host=db-1").exit_code) == (2, 2)


@pytest.mark.parametrize(("drilled_on", "is_silent"), [("lab-1", True), ("db-2", False)])
def test_a_drill_on_another_host_says_nothing_about_a_host(yard: FleetYard, drilled_on: str, is_silent: bool) -> None:
    yard.drill("old", 1, Outcome.PASSED, host=drilled_on)
    yard.more = 'heard_within = "12h"'
    assert ("db-2", is_silent) in [(one.host, one.is_silent) for one in yard.status().hosts]


def test_a_sign_of_life_from_the_future_is_none(yard: FleetYard) -> None:
    """A clock that is ahead, or a forger, does not hide that a host is silent."""
    yard.backup("good", -12, objectives=DAILY)
    yard.more = 'heard_within = "30m"'
    (host,) = (one for one in yard.status().hosts if one.host == "db-1")
    assert (host.is_silent, host.heard) == (True, NOW - timedelta(hours=1))


def test_a_backup_from_the_future_counts_when_its_time_has_come(yard: FleetYard) -> None:
    """The clock of a host was wrong for a while, and nothing changed in the repository since."""
    made = yard.backup("good", -72, objectives=DAILY)
    assert {one.instance: one.facts.backups for one in yard.status().rows if one.facts}["good"] == 1
    yard.now += timedelta(days=3)
    (row,) = yard.status("instance=good").rows
    assert row.health is not None
    assert row.health.facts.newest_backup == made.created


@pytest.mark.parametrize(
    ("filters", "shown"),
    [
        (["red"], ["old", "drilled"]),
        (["host=db-[23]", "instance=o*"], ["old"]),
        (["repository=there"], ["drilled", "plain"]),
        (["instance=nothing"], []),
    ],
)
def test_filters_choose_rows_and_the_exit_code_is_theirs(yard: FleetYard, filters: list[str], shown: list[str]) -> None:
    state = yard.status(*filters)
    assert ([one.instance for one in state.rows], state.total) == (shown, 4)
    assert yard.status("instance=good").exit_code == 0


@pytest.mark.parametrize(
    ("filters", "is_known"),
    [
        (["host=nope"], False),
        (["instance=nope", "red"], False),
        (["repository=nope"], False),
        (["instance=old", "repository=there"], False),
        (["instance=db-*", "host=*"], False),
        (["red"], True),
        (["host=db-1", "red"], True),
        (["host=expected"], True),
        (["repository=here"], True),
    ],
)
def test_names_that_match_nothing_in_the_fleet_are_refused(
    yard: FleetYard, tmp_path: Path, filters: list[str], is_known: bool
) -> None:
    yard.more = f'{yard.more}\nhosts = ["expected"]'
    file = tmp_path / "fleet.toml"
    file.write_text(yard.text())
    yard.status()
    assert yard.status(*filters, cached=True).is_known is is_known
    words = [word for one in filters for word in ("--where", one)]
    done = zsnapdb("fleet", "status", "--config", str(file), "--cached", *words)
    assert ("no instance of the fleet matches" in done.stderr) is not is_known
    assert is_known or done.returncode == 2


def test_name_in_an_unread_repository_is_not_refused(yard: FleetYard) -> None:
    assert yard.status("instance=nope", cached=True).is_known


def test_rows_can_have_other_orders(yard: FleetYard) -> None:
    assert [one.instance for one in yard.status(order="instance").rows] == ["drilled", "good", "old", "plain"]
    assert yard.status(order="age").rows[0].instance == "old"


@pytest.mark.parametrize("text", ["blue", "host=", "red=1", "exit=1"])
def test_a_filter_that_is_none_is_refused(yard: FleetYard, text: str) -> None:
    with pytest.raises(UsageError):
        yard.status(text)


def test_the_second_reading_fetches_only_what_is_new(yard: FleetYard) -> None:
    first = yard.status()
    assert sum(one.changed for one in first.repositories) == 4
    second = yard.status()
    assert sum(one.changed for one in second.repositories) == 0
    # Of each repository the marker is read. Everything else was listed and is as it was.
    assert yard.read == ["zsnapdb.json", "zsnapdb.json"]
    assert second.rows == first.rows
    assert b"/manifests/" not in (yard.folder / "cache" / "there" / "objects" / "drilled.json").read_bytes()
    made = yard.backup("good", 0.5, objectives=DAILY)
    yard.backup("drilled", 0.5, objectives=DRILLED, name="there")
    third = yard.status()
    assert [one.changed for one in third.repositories] == [1, 1]
    # The drill, too, comes from this host.
    new = [f"{name}/manifests/{made.backup_id}.json" for name in ("drilled", "good")]
    assert sorted(yard.read) == [*new, "zsnapdb.json", "zsnapdb.json"]
    assert {one.instance: one.facts.backups for one in third.rows if one.facts}["good"] == 2


def test_from_the_cache_nothing_is_asked_and_ages_go_on(yard: FleetYard) -> None:
    yard.status()
    yard.now += timedelta(days=1)
    state = yard.status(cached=True)
    assert not yard.asked
    assert [one.instance for one in state.rows if one.verdict is Verdict.BROKEN] == ["old", "drilled", "good"]
    assert "no repository was read" in FleetView(state).text()


def test_without_anything_read_the_cache_says_so(yard: FleetYard) -> None:
    state = yard.status(cached=True)
    assert (state.rows, state.exit_code) == ((), 6)
    assert "repository here has not been read yet" in FleetView(state).text()


def test_an_unreadable_repository_hides_no_other_and_shows_what_was_read_last(yard: FleetYard) -> None:
    yard.status()
    shutil.move(yard.folder / "there", yard.folder / "away")
    state = yard.status()
    assert [one.error is not None for one in state.repositories] == [False, True]
    assert len(state.rows) == 4
    assert state.exit_code == 6
    assert "UNKNOWN  repository there" in FleetView(state).text()
    assert "what follows was read 2026-11-27 12:00:00 UTC" in FleetView(state).text()


def test_the_cache_says_which_reading_failed_until_one_succeeds(yard: FleetYard) -> None:
    yard.status()
    shutil.move(yard.folder / "there", yard.folder / "away")
    yard.status()
    yard.now += timedelta(hours=1)
    state = yard.status(cached=True)
    assert (state.exit_code, len(state.rows)) == (6, 4)
    text = FleetView(state).text()
    assert "UNKNOWN  repository there: the reading at 2026-11-27 12:00 UTC failed: " in text
    assert "what follows was read 2026-11-27 12:00:00 UTC" in text
    assert "repository here: 2 instances, read 2026-11-27 12:00:00 UTC, 1 h ago" in text
    shutil.move(yard.folder / "away", yard.folder / "there")
    yard.status()
    assert "UNKNOWN" not in FleetView(yard.status(cached=True)).text()


def test_the_cache_too_says_what_could_not_be_read(yard: FleetYard) -> None:
    """Who looks at the cache alone sees no instance as good that the last reading could not read."""
    yard.status()
    manifests, away = yard.folder / "here" / "good" / "manifests", yard.folder / "away"
    manifests.rename(away)
    manifests.symlink_to(away)
    (yard.folder / "here" / "new").mkdir()
    (yard.folder / "here" / "new" / "manifests").symlink_to(away)
    read, cached = (yard.status("repository=here", cached=cached) for cached in (False, True))
    assert cached.rows == read.rows
    assert {one.instance for one in cached.rows if one.problem} == {"good", "new"}
    assert {one.verdict for one in cached.rows} == {Verdict.BROKEN}
    manifests.unlink()
    away.rename(manifests)
    yard.status()
    assert yard.status("instance=good", cached=True).exit_code == 0


def test_the_cache_is_private_and_what_does_not_parse_is_read_anew(yard: FleetYard) -> None:
    yard.status()
    files = [Path(folder) / name for folder, _, names in os.walk(yard.folder / "cache") for name in names]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    folders = [Path(folder) for folder, _, _ in os.walk(yard.folder / "cache")]
    assert {stat.S_IMODE(one.stat().st_mode) for one in folders} == {0o700}
    whole = yard.status().rows
    for file in files:
        body = file.read_bytes()
        for wrong in (b"", body[: len(body) // 2], b"{}", body.replace(b'"backups":', b'"backups":-'), b"\xff"):
            file.write_bytes(wrong)
            assert yard.status().rows == whole


def test_a_cache_that_others_can_change_is_not_used(yard: FleetYard) -> None:
    yard.status()
    (yard.folder / "cache" / "here").chmod(0o777)
    assert yard.status(cached=True).repositories[0].seen is None
    assert yard.status().exit_code == 2
    # The folder is ours, so it was made private again.
    assert yard.status(cached=True).repositories[0].seen is not None


def test_what_two_readings_wrote_in_turn_is_not_taken_for_one(yard: FleetYard) -> None:
    """Two commands read at once, and the older one writes its facts last: they do not hold for the newer listings."""
    yard.status()
    older = (yard.folder / "cache" / "here" / "seen.json").read_bytes()
    yard.backup("old", 1, objectives=DAILY, host="db-2")
    fresh = yard.status().rows
    (yard.folder / "cache" / "here" / "seen.json").write_bytes(older)
    assert yard.status().rows == fresh


def test_damage_is_seen_and_is_gone_when_it_is_mended(yard: FleetYard) -> None:
    yard.status()
    (file,) = (yard.folder / "here" / "good" / "manifests").iterdir()
    body = file.read_bytes()
    file.write_bytes(b"{}")
    state = yard.status()
    assert {one.instance: one.exit_code for one in state.rows}["good"] == 7
    file.write_bytes(body)
    assert {one.instance: one.exit_code for one in yard.status().rows}["good"] == 0


def test_folders_of_others_are_no_instances(yard: FleetYard) -> None:
    (yard.folder / "here" / "Lost+Found").mkdir()
    (yard.folder / "here" / "empty").mkdir()
    state = yard.status()
    assert [one.instance for one in state.rows if one.repository == "here"] == ["old", "good"]
    assert "1 folder with a name that is that of no instance" in FleetView(state).text()


def _without_the_instance(yard: FleetYard) -> None:
    shutil.rmtree(yard.folder / "here" / "good")


def _without_its_backups(yard: FleetYard) -> None:
    shutil.rmtree(yard.folder / "here" / "good" / "manifests")


def _made_anew(yard: FleetYard) -> None:
    shutil.rmtree(yard.folder / "here")
    (yard.folder / "here").mkdir()
    Repository.open_or_create(*open_store(yard.settings.repository["here"]), "id-anew")


@pytest.mark.parametrize("destroy", [_without_the_instance, _without_its_backups, _made_anew])
def test_who_destroys_all_backups_makes_nothing_green(yard: FleetYard, destroy: Callable[[FleetYard], None]) -> None:
    yard.status()
    destroy(yard)
    for cached in (False, False, True):
        (row,) = yard.status("instance=good", cached=cached).rows
        assert (row.verdict, row.exit_code) == (Verdict.BROKEN, 6)
        assert "nothing of it is in the repository any more, which had 1 backup of it at" in row.problem
    # It was wanted. Who says so removes the cache.
    shutil.rmtree(yard.folder / "cache" / "here")
    assert not yard.status("instance=good").rows
    yard.backup("good", 1, objectives=DAILY)
    assert yard.status("instance=good").exit_code == 0


def test_only_what_known_keys_signed_is_believed(yard: FleetYard) -> None:
    key, other = crypto_keys.SigningKey.new(), crypto_keys.SigningKey.new()
    for number, one in enumerate((key, other)):
        crypto_keys.write_secret(yard.folder / f"key-{number}", one.file())
        keyring = Keyring(signing_key_file=yard.folder / f"key-{number}")
        yard.backup(f"signed{number}", 1, objectives=DAILY, keyring=keyring)
    assert yard.status("instance=signed*").exit_code == 0
    yard.keys = f'encryption = {{ signers = ["{key.public}"] }}'
    state = yard.status("instance=signed*")
    assert {one.instance: one.exit_code for one in state.rows} == {"signed0": 0, "signed1": 7}


def test_nobody_without_a_key_shows_that_a_host_lives_of_which_something_is_signed(tmp_path: Path) -> None:
    yard, key = FleetYard(tmp_path), crypto_keys.SigningKey.new()
    crypto_keys.write_secret(tmp_path / "key", key.file())
    yard.backup("main", 60, objectives=DRILLED, keyring=Keyring(signing_key_file=tmp_path / "key"))
    yard.backup("forged", 1, objectives=DAILY, name="there")
    assert {one.host: one.is_silent for one in yard.status().hosts} == {"db-1": False}
    yard.keys_of["here"] = f'encryption = {{ signers = ["{key.public}"] }}'
    state = yard.status()
    assert [(one.host, one.is_silent, one.heard) for one in state.hosts] == [("db-1", True, NOW - timedelta(hours=60))]
    assert {one.instance: one.verdict for one in state.rows}["main"] is Verdict.BROKEN


def test_without_keys_what_is_visible_is_shown_and_the_rest_is_said(tmp_path: Path) -> None:
    yard = FleetYard(tmp_path, ("here",))
    recipient = crypto_keys.AgeIdentity.new().recipient
    # The marker names the recipients. The manifest is as readable as any.
    yard.repository(keyring=Keyring(recipients=(recipient,)))
    keyring = Keyring(recipients=(recipient,), accepts_plain=True)
    yard.backup("main", 1, objectives=DAILY, keyring=keyring)
    state = yard.status()
    assert [(one.instance, one.exit_code) for one in state.rows] == [("main", 0)]
    assert "its backups are encrypted and no key is here" in FleetView(state).text()


def test_metrics_name_the_host_and_what_it_takes(yard: FleetYard) -> None:
    text = metrics_text(yard.status())
    assert 'zsnapdb_verdict{zsnapdb_instance="old",repository="here",host="db-2"} 2' in text
    assert 'zsnapdb_fleet_stored_bytes{zsnapdb_instance="old",repository="here",host="db-2"} 7' in text
    assert 'zsnapdb_fleet_repository_readable{repository="there"} 1' in text


def test_the_command_reads_only_and_ends_as_status_does(yard: FleetYard, tmp_path: Path) -> None:
    file, metrics = tmp_path / "fleet.toml", tmp_path / "fleet.prom"
    file.write_text(yard.text())
    before = sorted(path for path in (tmp_path / "here").rglob("*"))
    done = zsnapdb("fleet", "status", "--config", str(file), "--metrics", str(metrics), "--json")
    document = json.loads(done.stdout)
    assert (document["kind"], document["total"], len(document["instances"])) == ("fleet-status", 4, 4)
    assert "zsnapdb_fleet_host_silent" in metrics.read_text()
    assert sorted(path for path in (tmp_path / "here").rglob("*")) == before
    assert done.returncode == max(one["exit_code"] for one in document["instances"])
    cached = zsnapdb("fleet", "status", "--config", str(file), "--cached", "--where", "instance=old")
    assert "no repository was read" in cached.stdout
