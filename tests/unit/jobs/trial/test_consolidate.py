"""A consolidation adds a full backup of the same snapshots, or nothing, at whatever moment it ends."""

from __future__ import annotations

import base64
import contextlib
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support.stored_backups import DyingStore, Killed, Site, guid_of, stream
from tests.unit.support.streams import renamed
from zsnapdb.base.errors import ConfigError, LeaseError, NotFound, PreflightError
from zsnapdb.config.settings import parse
from zsnapdb.jobs.backup import send as backup_send
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.repository import inventory
from zsnapdb.jobs.restore import chain_checks, volume_receive
from zsnapdb.jobs.trial import consolidate as job
from zsnapdb.jobs.trial import scratch_datasets
from zsnapdb.planning.backup.fitness import unfit
from zsnapdb.planning.backup_chain import restore_chain
from zsnapdb.planning.restore.steps import Receive
from zsnapdb.report.repository.list import BackupDetailView
from zsnapdb.repository import layout
from zsnapdb.repository.manifest import Manifest
from zsnapdb.repository.writer_lease import WriterLease
from zsnapdb.stream.upload import Uploaded
from zsnapdb.zfs import datasets, version


class Pool:
    """Scratch datasets that receive and send synthetic streams."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.site = Site(folder)
        self.received: list[Receive] = []
        self.made: list[str] = []
        self.guids: dict[str, int] = {}
        patch.setattr(volume_receive, "receive", self.receive)
        patch.setattr(scratch_datasets, "home", lambda instance, volumes: "tank/zsnapdb/scratch/main")
        patch.setattr(scratch_datasets, "ephemeral", self.ephemeral)
        patch.setattr(datasets, "guid", lambda name: self.guids[name])
        patch.setattr(version, "userland", lambda: "zfs-2.3.9")
        patch.setattr(job, "judge_pool", lambda needs, elsewhere: [])
        patch.setattr(backup_send, "estimate", lambda name, base, flags: None)
        patch.setattr(backup_send, "SendStream", self.send)

    @contextlib.contextmanager
    def ephemeral(self, instance: object, place: scratch_datasets.Scratch, root: object) -> Iterator[None]:
        self.made.append(place.container)
        try:
            yield
        finally:
            self.made.remove(place.container)

    def receive(self, work: object, step: Receive) -> None:
        assert step.dataset.rpartition("/")[0] in self.made
        assert step.from_guid in (None, *self.guids.values())
        self.received.append(step)
        self.guids[f"{step.dataset}@{step.snapshot}"] = step.guid

    @contextlib.contextmanager
    def send(self, name: str, base: str | None, flags: object) -> Iterator[object]:
        assert base is None
        plain = renamed(stream(self.guids[name], None, self.guids[name]), name)

        class Sent:
            pipe = io.BytesIO(plain)

            def finish(self) -> None:
                return

        yield Sent()

    def consolidate(self, requested: str = "latest", instance: Instance | None = None) -> Manifest:
        chosen = instance or self.site.instance()
        return job.consolidate(parse(self.site.text(), "test"), chosen, requested).manifest

    def listed(self) -> list[str]:
        instance = self.site.instance()
        return [backup.backup_id for backup in instance.summaries(instance.open_repository()).backups]

    def chunk_ids(self) -> set[str]:
        return {key.split("/")[2] for key in self.site.objects("main/chunks/")}


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    (tmp_path / "store").mkdir()
    return Pool(tmp_path / "store", monkeypatch)


def test_the_new_backup_is_full_and_is_the_original_in_all_else(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    names = pool.site.fill([None, 0, 1])
    made = pool.consolidate()
    original = pool.site.instance().open_repository().manifest("main", names[2])
    assert [step.backup_id for step in pool.received] == [name for name in names for _ in range(2)]
    assert (made.is_full, pool.made) == (True, [])
    assert pool.listed() == [*names, made.backup_id]
    for volume in made.volumes:
        before = original.volume(volume.role)
        assert before is not None
        assert (volume.guid, volume.dataset, volume.snapshot) == (before.guid, before.dataset, before.snapshot)
        assert (volume.type, volume.send_flags) == (before.type, before.send_flags)
        assert volume.full_name.startswith("tank/zsnapdb/scratch/main/consolidate/")
    kept = {"source", "created", "createtxg", "pool_guid", "repository_id", "instance"}
    assert {name: getattr(made, name) for name in kept} == {name: getattr(original, name) for name in kept}
    instance = pool.site.instance()
    monkeypatch.setattr(datasets, "exists", lambda name: False)
    detail = inventory.detail(pool.site.instance(), made.backup_id)
    assert "consolidated from a chain" in BackupDetailView(detail).text()
    assert "consolidated" not in BackupDetailView(inventory.detail(pool.site.instance(), names[2])).text()
    (damage,) = {chain_checks.judge_chunks(instance, instance.open_repository(), made)[0].severity}
    assert damage == "ok"


def test_a_plan_changes_nothing(pool: Pool) -> None:
    pool.site.fill([None, 0])
    before = pool.site.objects()
    instance = pool.site.instance()
    planned = job.plan(instance, instance.open_repository(), "latest")
    assert len(planned.receives) == 4
    assert (pool.site.objects(), pool.received) == (before, [])


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_change_it_adds_a_whole_backup_or_none_and_the_next_run_succeeds(pool: Pool, after: bool) -> None:
    names = pool.site.fill([None, 0])
    with pool.site.opening(DyingStore) as made:
        done = pool.consolidate()
        changes = list(made[-1].changes)
    pool.site.instance().open_repository().delete(layout.manifest("main", done.backup_id))
    assert len(changes) == 3
    for moment in range(1, len(changes) + 1):

        def dying(store: object, moment: int = moment) -> DyingStore:
            wrapped = DyingStore(store)  # type: ignore[arg-type]
            wrapped.die_at, wrapped.die_after = moment, after
            return wrapped

        with pool.site.opening(dying), pytest.raises(Killed):
            pool.consolidate()
        for key in ("main/writer.lock", "main/consolidate.lock"):
            (pool.site.folder / key).unlink(missing_ok=True)
        added = set(pool.listed()) - set(names)
        assert bool(added) is (after and moment == len(changes))
        if not added:
            added = {pool.consolidate().backup_id}
        for name in added:
            manifest = pool.site.instance().open_repository().manifest("main", name)
            instance = pool.site.instance()
            chain_checks.judge_chunks(instance, instance.open_repository(), manifest)
            instance.open_repository().delete(layout.manifest("main", name))
    assert pool.listed() == names


def test_a_run_that_fails_leaves_no_chunks(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    names = pool.site.fill([None, 0])

    def lost(lease: WriterLease) -> None:
        raise LeaseError("another run has the lease")

    monkeypatch.setattr(WriterLease, "confirm", lost)
    with pytest.raises(LeaseError):
        pool.consolidate()
    assert (pool.listed(), pool.chunk_ids(), pool.made) == (names, set(names), [])


def test_a_backup_that_was_removed_meanwhile_does_not_come_back(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    names = pool.site.fill([None, 0])
    store = backup_send.store_stream

    def removing(*words: Any) -> Uploaded:
        stored = store(*words)
        pool.site.instance().open_repository().delete(layout.manifest("main", names[1]))
        return stored

    monkeypatch.setattr(job, "store_stream", removing)
    with pytest.raises(NotFound, match="was removed from the repository meanwhile"):
        pool.consolidate()
    assert pool.listed() == names[:1]


def test_a_pool_without_space_is_refused_before_anything_is_made(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    pool.site.fill([None, 0])
    full = unfit("space", "tank has 1 MiB free, at least 9 MiB are needed", "free space")
    monkeypatch.setattr(job, "judge_pool", lambda needs, elsewhere: [full])
    before = pool.site.objects()
    with pytest.raises(PreflightError, match="at least 9 MiB are needed"):
        pool.consolidate()
    assert (pool.site.objects(), pool.received) == (before, [])


def test_a_host_that_could_not_write_the_backup_is_refused_first(pool: Pool) -> None:
    """It has signers and no signing key."""
    pool.site.fill([None, 0])
    instance = pool.site.instance()
    signer = base64.b64encode(bytes(32)).decode()
    encryption = instance.repository.encryption.model_copy(update={"signers": (signer,)})
    instance = replace(instance, repository=instance.repository.model_copy(update={"encryption": encryption}))
    with pytest.raises(ConfigError, match="this host does not sign"):
        pool.consolidate(instance=instance)
    assert pool.received == []


def test_increments_after_the_original_are_restored_from_the_new_backup(pool: Pool) -> None:
    names = pool.site.fill([None, 0, 1])
    made = pool.consolidate(names[1])
    backups = pool.site.instance().summaries(pool.site.instance().open_repository()).backups
    assert [backup.backup_id for backup in backups] == [*names[:2], made.backup_id, names[2]]
    assert [volume.guid for volume in backups[2].volumes] == [guid_of(1, 0), guid_of(1, 1)]
    assert [link.backup_id for link in restore_chain(backups, backups[3])] == [made.backup_id, names[2]]
