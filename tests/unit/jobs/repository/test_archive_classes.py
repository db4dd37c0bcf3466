"""Each command that reads objects in an archive class of the bucket says so before it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from tests.unit.support.s3 import bucket
from tests.unit.support.stored_backups import Site
from zsnapdb.base.errors import ArchivedError, PreflightError, RetryClass, retry_class
from zsnapdb.config.repository import ARCHIVE_CLASSES
from zsnapdb.config.settings import parse
from zsnapdb.jobs.doctor import instance_checks
from zsnapdb.jobs.repository import copy, init, verify
from zsnapdb.jobs.restore import chain_checks
from zsnapdb.planning.backup.fitness import FitnessFinding, Severity, require_fit
from zsnapdb.planning.restore.steps import LogPart
from zsnapdb.report.repository.init import InitPlanView
from zsnapdb.repository import layout
from zsnapdb.repository.verifications import Depth
from zsnapdb.store.base import Retrieval

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.literals import StorageClassType
    from mypy_boto3_s3.type_defs import LifecycleRuleTypeDef


@pytest.fixture
def client() -> Iterator[S3Client]:
    with bucket() as made:
        yield made


@pytest.fixture
def site(tmp_path: Path, client: S3Client) -> Site:
    (tmp_path / "store-there").mkdir()
    return Site(tmp_path / "store", url="s3://backups/some/prefix")


def chunks_of(site: Site, name: str) -> list[str]:
    return [
        f"some/prefix/{key}" for key in site.instance().open_repository().sizes(layout.chunks_of_backup("main", name))
    ]


def archive(client: S3Client, keys: list[str], kind: StorageClassType = "DEEP_ARCHIVE") -> None:
    """Move the objects to an archive class, as a lifecycle rule does."""
    for key in keys:
        body = client.get_object(Bucket="backups", Key=key)["Body"].read()
        client.put_object(Bucket="backups", Key=key, Body=body, StorageClass=kind)


def judge(site: Site, name: str) -> FitnessFinding:
    instance = site.instance()
    repository = instance.open_repository()
    (finding,) = chain_checks.judge_chunks(instance, repository, repository.manifest("main", name))
    return finding


@pytest.mark.parametrize("kind", ARCHIVE_CLASSES)
def test_a_restore_of_archived_chunks_is_refused_before_it_begins(
    site: Site, client: S3Client, kind: StorageClassType
) -> None:
    base, name = site.fill([None, 0])
    keys = chunks_of(site, name)
    archive(client, keys[:3], kind)
    finding = judge(site, name)
    assert (finding.what, finding.severity) == (chain_checks.ARCHIVED, Severity.UNFIT)
    assert f"backup {name}: 3 objects (" in finding.detail
    assert f"archive class {kind} cannot be read before a retrieval (Standard up to " in finding.detail
    assert "restore-object" in finding.hint
    assert judge(site, base).severity is Severity.OK
    with pytest.raises(PreflightError):
        require_fit([finding])


def test_a_retrieved_chunk_can_be_restored_although_its_class_stays(site: Site, client: S3Client) -> None:
    (name,) = site.fill([None])
    keys = chunks_of(site, name)
    archive(client, keys)
    for key in keys:
        client.restore_object(Bucket="backups", Key=key, RestoreRequest={"Days": 1})
    assert judge(site, name).severity is Severity.OK
    assert verify.verify(site.instance(), Depth.READ).is_whole


def test_a_running_retrieval_is_told_and_not_paid_again(
    site: Site, client: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = site.fill([None])
    keys = chunks_of(site, name)
    archive(client, keys)
    monkeypatch.setattr("zsnapdb.store.s3.retrieval_of", Mock(return_value=Retrieval.RUNNING))
    assert judge(site, name).detail.endswith(f"before a retrieval ({len(keys)} of them running)")


def test_verification_reads_what_it_can_and_names_archived_backups(site: Site, client: S3Client) -> None:
    names = site.fill([None, None, None])
    archive(client, chunks_of(site, names[1])[:1])
    assert verify.verify(site.instance(), Depth.LISTED).alarm() is None
    result = verify.verify(site.instance(), Depth.READ)
    assert sorted(result.last_reads) == [names[0], names[2]]
    alarm = result.alarm()
    assert isinstance(alarm, ArchivedError)
    assert alarm.message.startswith(f"backup {names[1]}: 1 object")
    assert "restore-object" in alarm.hint
    client.restore_object(Bucket="backups", Key=chunks_of(site, names[1])[0], RestoreRequest={"Days": 1})
    again = verify.verify(site.instance(), Depth.READ)
    assert (again.alarm(), sorted(again.last_reads)) == (None, names)


def test_a_copy_leaves_out_archived_backups_and_says_why(site: Site, client: S3Client) -> None:
    names = site.fill([None, None])
    archive(client, chunks_of(site, names[0])[-1:])
    copied = copy.copy(site.instance(), site.instance("there"))
    assert copied.copied == (names[1],)
    assert copied.failed[names[0]].startswith(f"backup {names[0]}: 1 object (")
    assert not (site.folder.parent / "store-there/main/chunks" / names[0]).exists()


def test_a_document_in_an_archive_class_is_an_error_of_its_own(site: Site, client: S3Client) -> None:
    (name,) = site.fill([None])
    key = layout.manifest("main", name)
    archive(client, [f"some/prefix/{key}"])
    with pytest.raises(ArchivedError) as caught:
        site.instance().open_repository().get(key)
    assert retry_class(caught.value.exit_code, caught.value.code) is RetryClass.NEVER


def test_archived_binlogs_are_told_before_the_restore(site: Site, client: S3Client) -> None:
    site.fill([None])
    instance = site.instance()
    repository = instance.open_repository()
    here, there = "19710102T000000Z-0000", "19710102T000000Z-0001"
    body = layout.binlog_chunk("main", here, "binlog.000001", "0a0a0a0a", 1)
    segment = layout.segment_body("main", here, "binlog.000002", 4, 90, "0a0a0a0a")
    for key in (body, segment, layout.binlog_chunk("main", there, "binlog.000001", "0a0a0a0a", 1)):
        client.put_object(Bucket="backups", Key=f"some/prefix/{key}", Body=b"bytes", StorageClass="GLACIER")

    def judged(*names: str, is_local: bool = False) -> list[FitnessFinding]:
        logs = [LogPart(here, name, 90, 4, None, is_local) for name in names]
        return chain_checks.judge_binlogs(instance, repository, logs)

    (finding,) = judged("binlog.000001", "binlog.000002", "binlog.000003")
    assert finding.severity is Severity.UNFIT
    assert finding.detail.startswith("binlogs to replay: 2 objects (10 B) in the archive class GLACIER")
    assert judged("binlog.000003") == []
    assert judged("binlog.000001", is_local=True) == []


ACTIONS: dict[str, LifecycleRuleTypeDef] = {
    "archive class": {"Status": "Enabled", "Transitions": [{"Days": 30, "StorageClass": "DEEP_ARCHIVE"}]},
    "lifecycle rule": {"Status": "Enabled", "Expiration": {"Days": 30}},
}


def doctor_findings(site: Site) -> list[FitnessFinding]:
    return instance_checks._repository(site.instance())[0]


def init_findings(site: Site) -> list[FitnessFinding]:
    return list(init.init(parse(site.text(), "test"), "here").lifecycle)


def plan_findings(site: Site) -> list[FitnessFinding]:
    return list(init.plan(parse(site.text(), "test"), "here").lifecycle)


@pytest.mark.parametrize("what", ACTIONS)
@pytest.mark.parametrize("command", [doctor_findings, init_findings, plan_findings])
@pytest.mark.parametrize("is_new", [False, True])
def test_rule_of_the_bucket_that_changes_objects_is_named(
    site: Site, client: S3Client, what: str, command: Callable[[Site], list[FitnessFinding]], is_new: bool
) -> None:
    if not is_new or command is doctor_findings:
        site.fill([None])
        assert not [one for one in command(site) if one.what in ACTIONS]
    rule: LifecycleRuleTypeDef = {**ACTIONS[what], "ID": "cold", "Filter": {"Prefix": "some/"}}
    client.put_bucket_lifecycle_configuration(Bucket="backups", LifecycleConfiguration={"Rules": [rule]})
    (finding,) = [one for one in command(site) if one.what in ACTIONS]
    assert (finding.what, finding.severity) == (what, Severity.WARNING)
    assert "the lifecycle rule 'cold' of the bucket" in finding.detail
    assert finding.detail in InitPlanView(init.plan(parse(site.text(), "test"), "here")).text()
