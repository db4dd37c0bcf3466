"""A backup of a time to come is chosen for nothing, is named everywhere, and can be used by its id."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.unit.support.manifests import after_the_examples, manifest
from tests.unit.support.planning_host import PlanningHost
from zsnapdb.base.domain_types import new_backup_id
from zsnapdb.base.errors import DamagedError
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.repository import inventory, protection_status, verify
from zsnapdb.jobs.restore.restore_inputs import newest_backup
from zsnapdb.jobs.trial import scratch_datasets
from zsnapdb.planning.repository.host_backup_record import StoredKind

POINTS = ["latest", "latest-backup"]
SOON = after_the_examples()
HONEST = new_backup_id(SOON - timedelta(hours=1), 1)
FORGED = new_backup_id(SOON + timedelta(days=27000), 2)


@pytest.fixture
def attacked(host: PlanningHost) -> PlanningHost:
    """A host whose repository got a manifest of the year 2100, made after the backup of the host."""
    host.store(HONEST)
    host.store(FORGED, createtxg=9)
    return host


@pytest.mark.parametrize("to", POINTS)
def test_a_backup_from_the_future_is_never_the_latest(attacked: PlanningHost, to: str) -> None:
    with pytest.raises(DamagedError) as refused:
        attacked.plan(to)
    assert f"{to} would be backup {HONEST}, but something newer" in refused.value.message
    assert f"backup {FORGED}: it is from the future" in refused.value.message
    assert attacked.plan(to, accepts_older=True).backup_id == HONEST


@pytest.mark.parametrize("to", POINTS)
def test_a_backup_from_the_future_that_a_later_one_of_its_pool_followed_stops_nothing(
    host: PlanningHost, to: str
) -> None:
    host.store(FORGED, createtxg=3)
    host.store(HONEST, createtxg=4)
    assert host.plan(to).backup_id == HONEST


def test_a_backup_from_the_future_is_restored_by_its_id(attacked: PlanningHost) -> None:
    assert attacked.plan(FORGED).backup_id == FORGED


def test_a_repository_with_nothing_but_the_future_has_no_latest(host: PlanningHost) -> None:
    for name in host.instance.open_repository().backup_ids("main"):
        host.remove(name)
    host.store(FORGED)
    with pytest.raises(DamagedError, match="from the future"):
        host.plan("latest")


@pytest.mark.parametrize("to", POINTS)
def test_a_backup_that_this_host_stored_while_its_clock_was_ahead_stays_the_latest(
    attacked: PlanningHost, to: str
) -> None:
    repository = attacked.instance.open_repository()
    host_backup_record.note_stored(attacked.instance, repository, repository.manifest("main", FORGED))
    assert attacked.plan(to).backup_id == FORGED


def test_drills_and_clones_do_not_choose_a_backup_from_the_future(attacked: PlanningHost) -> None:
    repository = attacked.instance.open_repository()
    with pytest.raises(DamagedError, match="from the future"):
        newest_backup(attacked.instance, repository, accepts_older=False)
    assert newest_backup(attacked.instance, repository, accepts_older=True) == HONEST
    assert scratch_datasets.datasets_of_newest(attacked.instance, repository)


def test_status_list_and_verify_name_the_backup_and_end_as_with_damage(attacked: PlanningHost) -> None:
    seen = protection_status.status(attacked.instance)
    assert seen.newest is not None
    assert seen.newest.backup_id == HONEST
    assert FORGED not in str(seen.window)
    assert isinstance(protection_status.alarm(seen), DamagedError)
    verified = verify.verify(attacked.instance, verify.Depth.LISTED)
    assert isinstance(verified.alarm(), DamagedError)
    for findings in (seen.missing, verified.missing, inventory.inventory(attacked.instance).missing):
        (finding,) = [finding for finding in findings if finding.kind is StoredKind.FROM_FUTURE]
        assert finding.is_alarming
        assert finding.backups == (FORGED,)
        assert "from the future" in finding.text
        assert f"--to {FORGED}" in finding.hint


def test_show_of_the_latest_names_the_backup_from_the_future(attacked: PlanningHost) -> None:
    with pytest.raises(DamagedError, match="from the future"):
        inventory.detail(attacked.instance, "latest")
    assert inventory.detail(attacked.instance, FORGED).entry.manifest.backup_id == FORGED


def test_a_clock_that_differs_by_less_than_a_day_makes_no_backup_one_of_the_future(host: PlanningHost) -> None:
    name = new_backup_id(SOON + timedelta(hours=20), 3)
    host.store(name, createtxg=9)
    assert host.plan("latest").backup_id == name
    assert manifest(name).backup_id == name
