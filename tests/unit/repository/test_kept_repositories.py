"""Repositories and records of earlier versions are read, verified, planned from and pruned as those versions did it.

A change of the format adds archives to `kept` and keeps these: what is stored once must be restorable for ever.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import zsnapdb
from tests.unit.support.kept_repositories import FOLDER, HOSTS, KEPT, KeptRepository, differences, unpack
from tests.unit.support.manifests import stored_manifests
from zsnapdb.base.errors import DamagedError
from zsnapdb.jobs.record.host_backup_record import check
from zsnapdb.jobs.record.record_file import HostRecord
from zsnapdb.jobs.repository import prune, verify
from zsnapdb.jobs.repository.prune_facts import NOTHING_LOCAL
from zsnapdb.jobs.restore import machine_restore, plan
from zsnapdb.jobs.restore.machine_restore import MachineRestoreRequest
from zsnapdb.jobs.restore.plan import RestoreRequest
from zsnapdb.mysql.process import server as programs
from zsnapdb.planning.backup_chain import restore_chain
from zsnapdb.planning.restore.steps import CheckVolumes, Receive
from zsnapdb.planning.server_copy.source_facts import ORIGIN_PROPERTY, decode
from zsnapdb.repository import layout
from zsnapdb.repository.manifest import expected_stream
from zsnapdb.repository.verifications import Depth
from zsnapdb.stream.download import download
from zsnapdb.zfs import datasets

NAMES = [(flavour, name) for flavour, names in KEPT.items() for name in names]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {flavour: tmp_path_factory.mktemp(flavour) for flavour in KEPT}
    for flavour, folder in folders.items():
        unpack(flavour, folder)
    return folders


@pytest.fixture
def kept(unpacked: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> KeptRepository:
    flavour, name = request.param
    shutil.copytree(unpacked[flavour], tmp_path / "kept")
    return KeptRepository(tmp_path / "kept", name)


def documents_before(flavour: str, name: str) -> Any:
    return json.loads((FOLDER / f"{flavour}.json").read_text())[name]


@pytest.mark.parametrize(("kept", "flavour", "name"), [(one, *one) for one in NAMES], indirect=["kept"])
def test_a_kept_repository_says_what_it_said_when_it_was_written(kept: KeptRepository, flavour: str, name: str) -> None:
    before = documents_before(flavour, name)
    assert before["list"]["backups"]
    assert differences(before, kept.documents()) == []


@pytest.mark.parametrize("kept", NAMES, indirect=True)
def test_the_streams_of_a_kept_repository_are_read_to_their_end(kept: KeptRepository) -> None:
    instance, repository = kept.instance, kept.instance.open_repository()
    damaged = []
    for backup_id in repository.backup_ids("main"):
        manifest = repository.manifest("main", backup_id)
        ciphers = repository.ciphers(manifest)
        for volume in manifest.volumes:
            out = io.BytesIO()
            chunks = repository.chunks("main", backup_id, volume.role)
            try:
                download(
                    chunks,
                    volume.chunks,
                    volume.codec,
                    out,
                    concurrency=1,
                    name=str,
                    on_bytes=lambda _: None,
                    ciphers=ciphers,
                    expected=expected_stream(volume, volume.features),
                )
            except DamagedError:
                damaged.append((backup_id, volume.role))
                continue
            assert len(out.getvalue()) == volume.plain_size
    assert len(damaged) == (1 if kept.name == "damaged" else 0)
    assert verify.verify(instance, Depth.READ).is_whole is (kept.name != "damaged")


@pytest.mark.parametrize("kept", NAMES, indirect=True)
def test_a_kept_repository_is_pruned_to_what_its_policy_keeps(kept: KeptRepository) -> None:
    instance = kept.instance
    planned = prune.plan(instance, local=NOTHING_LOCAL)
    # The folder's clock is later than that of the kept host.
    prune.prune(instance, local=NOTHING_LOCAL, trusts_clock=True)
    left = set(instance.open_repository().backup_ids("main"))
    assert left == planned.retention.kept
    assert verify.verify(instance, Depth.READ).is_whole is (kept.name != "damaged")


@pytest.mark.parametrize("kept", [("mariadb", "plain"), ("mysql", "plain")], indirect=True)
def test_the_record_of_a_kept_host_misses_what_is_removed_from_its_repository(kept: KeptRepository) -> None:
    instance, repository = kept.instance, kept.instance.open_repository()
    record = HostRecord.of(instance, repository)
    assert record is not None
    known = [backup.backup_id for backup in record.backups().stored]
    summaries = instance.summaries(repository)
    assert {*known} <= {backup.backup_id for backup in summaries.backups}
    assert check(instance, repository, summaries.backups, ()).missing == ()
    gone = known[-1]
    for backup in summaries.backups:
        # A consolidated backup has the time and the snapshots of the increment.
        if backup.backup_id.startswith(gone.partition("-")[0]):
            repository.delete(layout.manifest("main", backup.backup_id))
    missing = check(instance, repository, instance.summaries(repository).backups, ()).missing
    assert [backup.backup_id for backup in missing] == [gone]


def properties(folder: Path) -> list[tuple[str, str, str]]:
    rows = json.loads((folder / "host/properties.json").read_text())["properties"]
    return [(name, key, value) for name, key, value in rows]


@pytest.mark.parametrize("flavour", HOSTS)
def test_each_property_of_a_kept_host_still_has_a_meaning(unpacked: dict[str, Path], flavour: str) -> None:
    package = Path(zsnapdb.__file__).parent
    source = "".join(file.read_text() for file in package.rglob("*.py"))
    known = {f"zsnapdb:{name}" for name in re.findall(r"(?:\{PROPERTY\}|zsnapdb):([a-z-]+)", source)}
    assert {key for _, key, _ in properties(unpacked[flavour])} - known == set()


@pytest.mark.parametrize("flavour", HOSTS)
def test_where_the_sets_of_a_kept_host_come_from_is_still_understood(unpacked: dict[str, Path], flavour: str) -> None:
    origins = [(name, value) for name, key, value in properties(unpacked[flavour]) if key == ORIGIN_PROPERTY]
    assert origins
    for name, value in origins:
        origin = decode(value, name)
        assert origin.flavour.value == flavour
        assert json.loads(value).items() <= json.loads(origin.encode()).items()


@pytest.mark.parametrize("kept", [one for one in NAMES if one[1] != "machine"], indirect=True)
def test_restore_of_each_backup_of_a_kept_repository_is_planned(
    kept: KeptRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "pools", lambda: ["tank"])
    monkeypatch.setattr(datasets, "exists", lambda dataset: dataset == "tank")
    monkeypatch.setattr(programs, "find_binary", lambda *_: Path("/usr/sbin/mysqld"))
    monkeypatch.setattr(programs, "account", lambda *_: None)
    repository = kept.instance.open_repository()
    for backup_id in repository.backup_ids("main"):
        request = RestoreRequest(to=backup_id, top="tank/restored")
        planned = plan.make(kept.settings, kept.instance, repository, request)
        assert planned.backup_id == backup_id
        chain = restore_chain(stored_manifests(repository), repository.manifest("main", backup_id))
        assert {step.backup_id for step in planned.receives} == {link.backup_id for link in chain}


@pytest.mark.parametrize("kept", [("mariadb", "machine")], indirect=True)
def test_restore_of_each_backup_of_a_kept_machine_is_planned(
    kept: KeptRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "pools", lambda: ["tank"])
    monkeypatch.setattr(datasets, "exists", lambda dataset: dataset == "tank")
    repository = kept.instance.open_repository()
    ids = repository.backup_ids("main")
    for backup_id in ids:
        request = MachineRestoreRequest(to=backup_id, top="tank/web-back")
        planned = machine_restore.make(kept.settings, kept.instance, repository, request)
        assert (planned.backup_id, planned.original, planned.grade) == (backup_id, "web1", "crash")
        received = [step for step in planned.steps if isinstance(step, Receive)]
        assert [step.backup_id for step in received] == ids[: ids.index(backup_id) + 1]
        assert {step.dataset for step in received} == {"tank/web-back/vda"}
        (checks,) = [step for step in planned.steps if isinstance(step, CheckVolumes)]
        (volume,) = repository.manifest("main", backup_id).volumes
        assert [(part.guid, part.size) for part in checks.parts] == [(volume.guid, 1 << 20)]
        # The kept description has a disk more than the backup, so no domain is defined.
        assert planned.define is None
        assert [note for note in planned.notes if "set by the site" in note] == []
