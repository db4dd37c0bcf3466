"""The real commands with the credentials of each role, and who stole those of a host, at a bucket with locks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.system.in_guest import Lab
from tests.unit.support.s3_server import BUCKET, PREFIX, S3Server, s3_server, statements

pytestmark = pytest.mark.any_server

POLICIES = {
    "writer": "iam-policy-write-only.json",
    "pruner": "iam-policy-prune.json",
    "restorer": "iam-policy-restore.json",
    "monitor": "iam-policy-monitoring.json",
}


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        for user in POLICIES:
            server.add_user(user)
        yield server


@pytest.fixture(scope="module")
def configs(lab: Lab, s3: S3Server) -> dict[str, Path]:
    """The configuration of the lab with each user's credentials, and locks."""
    more = 'addressing = "path" }\nobject_lock = { mode = "governance", for = "2h" }\nkeep = { last = 1 }'
    return {
        user: lab.changed(
            ('url = "s3://backups/lab"', f'url = "s3://{BUCKET}/{PREFIX[:-1]}"'),
            ("http://127.0.0.1:7070", s3.endpoint),
            ("/etc/zsnapdb/credentials", str(s3.settings(user).s3.credentials_file)),
            ('addressing = "path" }', more),
        )
        for user in POLICIES
    }


@pytest.fixture
def act(lab: Lab, s3: S3Server, configs: dict[str, Path]) -> Any:
    def run(user: str, *words: str) -> Any:
        s3.allow(statements(POLICIES[user], user=user))
        return lab.zsnapdb(*words, config=configs[user])

    return run


def versions(s3: S3Server) -> list[tuple[str, str]]:
    """Return every version of what a restore needs."""
    listed = s3.client().list_object_versions(Bucket=BUCKET, Prefix=PREFIX)["Versions"]
    return [(v["Key"], v["VersionId"]) for v in listed if "/manifests/" in v["Key"] or "/chunks/" in v["Key"]]


def test_each_role_does_its_work_with_the_real_commands_and_a_thief_destroys_nothing(s3: S3Server, act: Any) -> None:
    names = [act("writer", "backup", "--json").json["backup"]["backup_id"] for _ in range(2)]
    archived = act("writer", "binlog", "archive", "--once")
    assert archived.code == 0, archived.stderr
    assert [b["backup_id"] for b in act("monitor", "list", "--json").json["backups"]][-2:] == names
    assert act("monitor", "show", "main", names[1]).code == 0
    planned = act("pruner", "prune", "--plan", "--json")
    assert planned.code == 0, planned.stderr
    assert act("restorer", "restore", "main", "--to", names[1], "--target", "tank/stolen", "--json").code == 0
    for user, words in (("monitor", ("backup",)), ("restorer", ("backup",)), ("writer", ("restore", "main"))):
        denied = act(user, *words, *(("--to", names[1], "--target", "tank/no") if user == "writer" else ()))
        assert denied.code != 0
        assert "AccessDenied" in denied.stderr

    s3.allow(statements(POLICIES["writer"], user="writer"))
    thief = s3.client("writer")
    stored = versions(s3)
    assert len(stored) > 4
    for key, version in stored:
        with pytest.raises(ClientError, match="AccessDenied"):
            thief.delete_object(Bucket=BUCKET, Key=key, VersionId=version, BypassGovernanceRetention=True)
        with pytest.raises(ClientError, match="AccessDenied"):
            thief.delete_object(Bucket=BUCKET, Key=key)
    replaced = next(key for key, _ in stored if f"/chunks/{names[0]}/data/" in key)
    size = s3.client().head_object(Bucket=BUCKET, Key=replaced)["ContentLength"]
    forged = thief.put_object(Bucket=BUCKET, Key=replaced, Body=bytes(size))["VersionId"]
    assert set(stored) < set(versions(s3))
    noticed = act("restorer", "restore", "main", "--to", names[1], "--target", "tank/forged")
    assert noticed.code == 7, noticed.stderr
    s3.client().delete_object(Bucket=BUCKET, Key=replaced, VersionId=forged)
    assert act("restorer", "restore", "main", "--to", names[1], "--target", "tank/again").code == 0
