"""Two servers under one instance name: each keeps its own backups, and each is told of the other."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.unit.support.manifests import manifest, stored_manifests
from tests.unit.support.stored_backups import Site
from zsnapdb.base.domain_types import Flavour, new_backup_id
from zsnapdb.base.errors import HistoryError
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record import host_backup_record, production_restores
from zsnapdb.jobs.repository import prune
from zsnapdb.jobs.repository.prune_facts import NOTHING_LOCAL
from zsnapdb.jobs.restore.restore_inputs import newest_backup, read_known
from zsnapdb.planning.repository.host_backup_record import StoredKind
from zsnapdb.planning.repository.production_restores import ProductionRestore
from zsnapdb.planning.restore.point_forms import AtBackup
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.manifest import Manifest
from zsnapdb.repository.manifest_source import ServerSourcePart
from zsnapdb.zfs import datasets

NOW = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)


def backup(
    instance: Instance,
    days: int,
    host: int,
    *,
    uuid: str | None = None,
    base: int | None = None,
    is_noted: bool = False,
) -> Manifest:
    """Store a backup of the server of a host, made so many days ago; an increment of the one of `base` days ago.

    `is_noted`: this host knows the backup.
    """
    repository = instance.open_or_create_repository()
    made = manifest(new_backup_id(NOW - timedelta(days=days, hours=host), host))
    assert isinstance(made.source, ServerSourcePart)
    flavour = Flavour.MARIADB if uuid is None else Flavour.MYSQL
    update = {"server_uuid": uuid, "flavour": flavour}
    gtids = "0-1-2" if uuid is None else f"{uuid}:1-{100 - days}"
    source = made.source.model_copy(
        update={
            "server": made.source.server.model_copy(update=update),
            "position": made.source.position.model_copy(update={"gtids": gtids}),
        }
    )
    guids = {"guid": host * 1000 + days + 1, "from_guid": None if base is None else host * 1000 + base + 1}
    made = made.model_copy(
        update={
            "repository_id": repository.id,
            "pool_guid": host,
            "createtxg": 100 - days,
            "source": source,
            "volumes": (made.volumes[0].model_copy(update=guids),),
        }
    )
    digest = repository.commit(made)
    if is_noted:
        host_backup_record.note_stored(instance, repository, made, digest)
    return made


def site(folder: Path, keep: str = "daily = 7") -> Site:
    for name in ("store", "run"):
        (folder / name).mkdir()
    return Site(folder / "store", keep=keep)


UUIDS = ("3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562")


@pytest.mark.parametrize("is_mysql", [False, True])
def test_daily_7_keeps_seven_backups_of_each_of_two_servers(tmp_path: Path, is_mysql: bool) -> None:
    two = site(tmp_path)
    instance = two.instance()
    for host in (1, 2):
        for days in reversed(range(10)):
            backup(instance, days, host, uuid=UUIDS[host - 1] if is_mysql else None, is_noted=True)
    decided = prune.plan(instance, local=NOTHING_LOCAL).retention
    for host in (1, 2):
        assert len([name for name in decided.kept if name.endswith(f"-{host:04x}")]) == 7
    assert any("of " in reason for decision in decided.decisions for reason in decision.reasons)


def test_a_server_that_got_a_new_uuid_on_the_same_datasets_goes_on(tmp_path: Path) -> None:
    one = site(tmp_path)
    for days in reversed(range(10)):
        uuid = UUIDS[0] if days > 4 else UUIDS[1]
        backup(one.instance(), days, 1, uuid=uuid, base=None if days == 9 else days + 1)
    repository = one.instance().open_repository()
    checked = host_backup_record.check(one.instance(), repository, stored_manifests(repository), ())
    assert checked.findings == ()


def test_a_server_that_was_replaced_long_ago_counts_with_its_successor(tmp_path: Path) -> None:
    one = site(tmp_path, keep="last = 7")
    for days in (30, 29, 28):
        backup(one.instance(), days, 1, is_noted=True)
    for days in reversed(range(7)):
        backup(one.instance(), days, 2, is_noted=True)
    decided = prune.plan(one.instance(), local=NOTHING_LOCAL).retention
    assert len(decided.kept) == 7


def test_a_host_is_told_of_the_other_server_and_its_latest_is_its_own(tmp_path: Path) -> None:
    two = site(tmp_path)
    instance = two.instance()
    own = [backup(instance, days, 2) for days in (3, 2)]
    other = [backup(instance, days, 1) for days in (3, 2, 1)]
    repository = instance.open_repository()
    with pytest.raises(HistoryError) as unknown:
        newest_backup(instance, repository, accepts_older=False)
    assert own[-1].backup_id in unknown.value.message
    assert other[-1].backup_id in unknown.value.message
    for made in own:
        host_backup_record.note_stored(instance, repository, made)
    (finding,) = host_backup_record.check(instance, repository, stored_manifests(repository), ()).findings
    assert finding.kind is StoredKind.OTHER_WRITER
    assert "another server writes backups under the name main" in finding.text
    assert (finding.is_alarming, finding.is_warning) == (False, True)
    assert newest_backup(instance, repository, accepts_older=False) == own[-1].backup_id


def test_a_first_backup_into_the_place_of_another_server_is_told(tmp_path: Path) -> None:
    instance = site(tmp_path).instance()
    made = backup(instance, 1, 1)
    there = [Summary.of(made, hashlib.sha256(made.encode()).hexdigest())]
    repository = instance.open_repository()
    assert host_backup_record.check(instance, repository, there, ()).findings == ()
    (finding,) = host_backup_record.check(instance, repository, there, (), is_writing=True).findings
    assert finding.kind is StoredKind.OTHER_WRITER


@pytest.mark.parametrize("later", [False, True])
def test_a_first_backup_after_a_promote_is_told_only_of_a_server_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    monkeypatch.setattr(datasets, "exists", lambda name: False)
    instance = site(tmp_path).instance()
    backup(instance, 3, 1)
    base = backup(instance, 2, 1)
    made = ProductionRestore(
        restore_id="20261122T000000Z-0001", base_pool=base.pool_guid, base_group=base.createtxg, pool=7, group=99
    )
    production_restores.note_production_restore(instance, made)
    if later:
        backup(instance, 1, 1)
    repository = instance.open_repository()

    def is_told(is_writing: bool) -> bool:
        there = sorted(stored_manifests(repository), key=lambda one: one.createtxg)
        findings = host_backup_record.check(instance, repository, there, (), is_writing=is_writing).findings
        return StoredKind.OTHER_WRITER in [one.kind for one in findings]

    assert is_told(is_writing=True) == later
    backup(instance, 0, 2, is_noted=True)
    assert not is_told(is_writing=False)
    backup(instance, -1, 1)
    assert is_told(is_writing=False), "the lost host came back"


def test_after_a_failover_the_newest_is_that_of_the_server_that_has_everything(tmp_path: Path) -> None:
    instance = site(tmp_path).instance()
    backup(instance, 3, 1, uuid=UUIDS[0])
    taken_over = backup(instance, 2, 2, uuid=UUIDS[1])
    assert isinstance(taken_over.source, ServerSourcePart)
    repository = instance.open_repository()
    known = list(stored_manifests(repository))
    with pytest.raises(HistoryError):
        newest_backup(instance, repository, accepts_older=False)
    position = taken_over.source.position
    position = position.model_copy(update={"gtids": f"{UUIDS[0]}:1-97,{UUIDS[1]}:1-5"})
    known[-1] = taken_over.model_copy(update={"source": taken_over.source.model_copy(update={"position": position})})
    read = read_known(instance, repository, AtBackup(None), "latest-backup")
    chosen = replace(read, checked=host_backup_record.StoredCheck()).of_one_server(known)
    assert [made.backup_id for made in chosen] == [taken_over.backup_id]


@pytest.mark.parametrize("ahead", [timedelta(), timedelta(days=15), timedelta(days=400)])
def test_a_clock_that_jumped_ahead_makes_no_other_server_the_successor(tmp_path: Path, ahead: timedelta) -> None:
    """The silence that makes the next server a successor is counted by the time that the host can prove."""
    two, began = site(tmp_path), datetime.now(UTC)
    host = replace(two.host, steady=lambda: ("boot", (datetime.now(UTC) - began).total_seconds() + 100))
    assert removal_time(host).doubt == ""
    host = replace(host, now=lambda: datetime.now(UTC) + ahead)
    instance = replace(two.instance(), host=host)
    backup(instance, 3, 1)
    backup(instance, 1, 2)
    with pytest.raises(HistoryError):
        newest_backup(instance, instance.open_repository(), accepts_older=False)
    repository = instance.open_repository()
    findings = host_backup_record.check(
        instance, repository, stored_manifests(repository), (), is_writing=True
    ).findings
    assert StoredKind.OTHER_WRITER in {finding.kind for finding in findings}
