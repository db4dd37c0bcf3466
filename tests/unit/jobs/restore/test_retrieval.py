"""`zsnapdb retrieve` starts each missing retrieval of a restore once, waits for it, and starts nothing else."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
from click import Context, Group
from moto.moto_api import state_manager
from typer.main import get_command

from tests.unit.support.archived_backups import ProtectedServer
from tests.unit.support.s3 import bucket
from tests.unit.support.stored_backups import Killed, Site
from zsnapdb.base.errors import ArchivedError, DamagedError, RepositoryError
from zsnapdb.cli.app import app
from zsnapdb.config.repository import ARCHIVE_CLASSES
from zsnapdb.jobs.restore import chain_checks, retrieval
from zsnapdb.jobs.restore.retrieval import RetrievalPlan, RetrievalRequest, RetrievalResult
from zsnapdb.planning.backup.fitness import Severity
from zsnapdb.planning.repository.archive_classes import parse_tier
from zsnapdb.report.restore import RetrievalPlanView, RetrievalView
from zsnapdb.repository import layout
from zsnapdb.store.base import Retrieval, Store
from zsnapdb.store.layers import Layer

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.literals import StorageClassType

PREFIX = "some/prefix/"


@pytest.fixture
def client() -> Iterator[S3Client]:
    with bucket() as made:
        yield made


@pytest.fixture
def site(tmp_path: Path, client: S3Client) -> Site:
    return Site(tmp_path / "store", url=f"s3://backups/{PREFIX}")


@pytest.fixture
def slow() -> Iterator[None]:
    """Let each retrieval run until its object was looked at twice."""
    state_manager.set_transition("s3::keyrestore", {"progression": "manual", "times": 2})
    yield
    state_manager.unset_transition("s3::keyrestore")


def chunks(site: Site, name: str) -> list[str]:
    return sorted(site.instance().open_repository().sizes(layout.chunks_of_backup("main", name)))


def archive(client: S3Client, keys: list[str], kind: StorageClassType = "DEEP_ARCHIVE") -> None:
    for key in keys:
        body = client.get_object(Bucket="backups", Key=PREFIX + key)["Body"].read()
        client.put_object(Bucket="backups", Key=PREFIX + key, Body=body, StorageClass=kind)


def plan(site: Site, to: str) -> RetrievalPlan:
    return retrieval.plan(site.instance(), RetrievalRequest(to))


def retrieve(site: Site, to: str, wait: float = 0.0) -> RetrievalResult:
    """Retrieve without pauses."""
    return retrieval.retrieve(site.instance(), RetrievalRequest(to), wait, lambda _: None)


def are_readable(site: Site, *names: str) -> bool:
    """Return whether the check of a restore accepts the backups."""
    instance, repository = site.instance(), site.instance().open_repository()
    found = [chain_checks.judge_chunks(instance, repository, repository.manifest("main", name)) for name in names]
    return all(finding.severity is Severity.OK for findings in found for finding in findings)


@dataclass
class Requests(Layer):
    """A store that notes each start of a retrieval. It dies at the n-th, before or after the request."""

    inner: Store
    dies_at: int | None = None
    is_done: bool = False
    keys: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def retrieve(self, key: str, tier: str, days: int) -> None:
        with self.lock:
            if self.dies_at is not None and len(self.keys) >= self.dies_at:
                if self.is_done:
                    self.inner.retrieve(key, tier, days)
                raise Killed
            self.inner.retrieve(key, tier, days)
            self.keys.append(key.removeprefix(PREFIX))


@pytest.mark.parametrize("kind", ARCHIVE_CLASSES)
@pytest.mark.parametrize("readable", [0, 1, 5])
def test_retrieval_starts_exactly_the_unreadable_objects(
    site: Site, client: S3Client, kind: StorageClassType, readable: int
) -> None:
    full, name, other = site.fill([None, 0, None])
    needed = [*chunks(site, full), *chunks(site, name)]
    archive(client, [*needed[1:], *chunks(site, other)], kind)
    for key in needed[1 : 1 + readable]:
        client.restore_object(Bucket="backups", Key=PREFIX + key, RestoreRequest={"Days": 1})
    assert not are_readable(site, full, name)
    planned = plan(site, name)
    assert (planned.backups, planned.missing, planned.running) == ((full, name), tuple(needed[1 + readable :]), ())
    with site.opening(Requests) as opened:
        result = retrieve(site, name, wait=60)
    assert sorted(key for one in opened for key in one.keys) == sorted(planned.missing)
    assert (result.plan.missing, result.started, result.left) == (planned.missing, len(planned.missing), 0)
    assert (are_readable(site, full, name), are_readable(site, other)) == (True, False)
    assert plan(site, name).archived == ()
    assert result.alarm() is None
    assert "all objects" in RetrievalView(result).text()


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("dies_at", [0, 1, 3])
def test_killed_retrieval_continues_from_the_store(site: Site, client: S3Client, dies_at: int, is_done: bool) -> None:
    (name,) = site.fill([None])
    keys = chunks(site, name)
    archive(client, keys)
    with site.opening(lambda store: Requests(store, dies_at, is_done)), pytest.raises(Killed):
        retrieve(site, name)
    left = plan(site, name)
    assert len(left.running) >= dies_at
    assert sorted((*left.missing, *left.running)) == keys
    with site.opening(Requests) as opened:
        result = retrieve(site, name, wait=60)
    assert sorted(key for one in opened for key in one.keys) == sorted(left.missing)
    assert (result.left, are_readable(site, name)) == (0, True)


def test_object_that_is_archived_during_the_wait_is_retrieved(site: Site, client: S3Client) -> None:
    (name,) = site.fill([None])
    first, second, *_ = chunks(site, name)
    archive(client, [first])
    pauses = iter([[second]])
    instance, request = site.instance(), RetrievalRequest(name)
    result = retrieval.retrieve(instance, request, 60, lambda _: archive(client, next(pauses, [])))
    assert (result.plan.missing, result.started, result.left) == ((first,), 2, 0)
    assert are_readable(site, name)


def test_running_retrieval_is_shown_and_not_started_again(
    site: Site, client: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = site.fill([None])
    archive(client, chunks(site, name))
    monkeypatch.setattr("zsnapdb.store.s3.retrieval_of", Mock(return_value=Retrieval.RUNNING))
    with site.opening(Requests) as opened:
        result = retrieve(site, name, wait=0.001)
    assert [key for one in opened for key in one.keys] == []
    alarm = result.alarm()
    assert isinstance(alarm, ArchivedError)
    assert f"{len(chunks(site, name))} objects still cannot be read" in alarm.message
    assert "cannot be read yet" in RetrievalView(result).text()
    assert "0 objects of 8 (" in RetrievalPlanView(result.plan).text()


def test_printed_command_continues_the_same_retrieval(site: Site, client: S3Client) -> None:
    (name,) = site.fill([None])
    archive(client, chunks(site, name))
    request = RetrievalRequest("latest-backup", "Bulk", 3, accepts_older=True, history=None)
    result = retrieval.retrieve(replace(site.instance(), is_own_repository=False), request)
    words = shlex.split(RetrievalView(result).text().splitlines()[-1].partition("wait for it")[2])
    command = get_command(app).get_command(Context(Group()), "retrieve")  # type: ignore[attr-defined]
    given = command.make_context("retrieve", words[2:]).params
    assert (words[:2], given["instance"], given["repository"]) == (["zsnapdb", "retrieve"], "main", "here")
    assert request == RetrievalRequest(
        given["to"], parse_tier(given["tier"]), given["days"], given["accepts_older"], given["history"]
    )


def test_retrieval_of_a_damaged_chain_starts_nothing(site: Site, client: S3Client) -> None:
    (name,) = site.fill([None])
    first, *rest = chunks(site, name)
    archive(client, rest)
    client.delete_object(Bucket="backups", Key=PREFIX + first)
    with site.opening(Requests) as opened, pytest.raises(DamagedError, match="is missing"):
        retrieve(site, name)
    assert [key for one in opened for key in one.keys] == []


def test_retrieval_from_another_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    site = Site(tmp_path / "store")
    (name,) = site.fill([None])
    with pytest.raises(RepositoryError, match="only in S3 buckets"):
        plan(site, name)


@pytest.mark.parametrize("to", ["latest", "before-GTID"])
def test_archived_binlogs_are_retrieved_before_the_point_is_known(
    tmp_path: Path, client: S3Client, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    source = ProtectedServer.make(tmp_path, monkeypatch)
    source.site.url = f"s3://backups/{PREFIX}"
    site, server = source.site, source.server
    server.commit(2)
    name = source.back_up_from_here()
    for _ in range(3):
        server.commit(2)
        server.rotate()
    server.commit(1)
    source.look()
    source.instance()  # sets the clock of the site
    for volume in site.instance().open_repository().manifest("main", name).volumes:
        for index, chunk in enumerate(volume.chunks, 1):
            key = layout.chunk("main", name, volume.role, index)
            client.put_object(Bucket="backups", Key=PREFIX + key, Body=bytes(chunk.stored_size))
    to = f"before-{server.uuid}:5" if to != "latest" else to
    exact = plan(site, to)
    archive(client, [key for key in keys_in(client) if "/binlogs/" in key and not key.endswith(".json")])
    planned = plan(site, to)
    assert (exact.is_exact, exact.archived) == (True, ())
    assert planned.is_exact is (to == "latest")
    assert set(planned.binlogs) >= set(exact.binlogs) != set()
    assert len(planned.missing) >= len(planned.binlogs)
    assert ("an archived binlog decides" in RetrievalPlanView(planned).text()) is not planned.is_exact
    result = retrieve(site, to, wait=60)
    assert (result.left, plan(site, to)) == (0, replace(exact, request=planned.request))
    assert source.plan(to).replays


def keys_in(client: S3Client) -> list[str]:
    page = client.list_objects_v2(Bucket="backups", Prefix=PREFIX)
    return [one["Key"].removeprefix(PREFIX) for one in page["Contents"]]
