"""The real commands with the credentials of each role, and who stole those of a host, at a bucket with locks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.system.in_guest import Done, Lab, run
from tests.unit.support.s3_server import BUCKET, PREFIX, S3Server, s3_server, statements
from zsnapdb.repository import stored_document

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
    lab.elsewhere(
        ('url = "s3://backups/lab"', f'url = "s3://{BUCKET}/{PREFIX[:-1]}"'),
        ("http://127.0.0.1:7070", s3.endpoint),
        ("/etc/zsnapdb/credentials", str(s3.settings().s3.credentials_file)),
    )
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


@pytest.fixture(scope="module")
def owned(lab: Lab, s3: S3Server) -> Path:
    """The configuration of the lab without a signing key, in a bucket of whose owner it knows nothing."""
    lab.forget_old_binlogs()
    return lab.elsewhere(
        ('url = "s3://backups/lab"', f'url = "s3://{BUCKET}/owned"'),
        ("http://127.0.0.1:7070", s3.endpoint),
        ("/etc/zsnapdb/credentials", str(s3.settings().s3.credentials_file)),
        ('addressing = "path" }', 'addressing = "path" }\nkeep = { last = 2, local = 1, local_minimum = 1 }'),
    )


def snapshots() -> set[str]:
    return set(run("zfs", "list", "-H", "-t", "snapshot", "-o", "name").stdout.split())


def made_up(s3: S3Server, original: str, names: list[str], prefix: str = "owned") -> None:
    """Put copies of a manifest under other ids, without data."""
    client, key = s3.client(), f"{prefix}/main/manifests/{{}}.json"
    fields = json.loads(client.get_object(Bucket=BUCKET, Key=key.format(original))["Body"].read().splitlines()[0])
    for name in names:
        body = json.dumps(fields | {"backup_id": name}, separators=(",", ":")).encode() + b"\n"
        client.put_object(Bucket=BUCKET, Key=key.format(name), Body=body)


def test_owner_of_the_bucket_makes_no_host_without_keys_remove_what_is_real(
    lab: Lab, s3: S3Server, owned: Path
) -> None:
    def act(*words: str) -> Done:
        return lab.zsnapdb(*words, config=owned)

    names = [act("backup", "--full", "--json").json["backup"]["backup_id"] for _ in range(2)]
    archived = act("binlog", "archive", "--once")
    assert archived.code == 0, archived.stderr
    day = names[-1][:9]
    forged = [f"{day}235959Z-{number:04x}" for number in (1, 2, 3)]
    made_up(s3, names[-1], forged)
    before = snapshots()
    pruned = act("prune", "--json", "--trust-clock").json
    assert (pruned["removed"], pruned["swept"]) == ([], [])
    assert {name for name in before if names[-1] in name} <= snapshots()
    listed = {backup["backup_id"]: backup["foreign"] for backup in act("list", "--json").json["backups"]}
    assert [name for name, why in listed.items() if why] == forged
    planned = act("restore", "main", "--to", "latest-backup", "--target", "tank/owned", "--plan", "--json")
    assert planned.json["backup_id"] == names[-1], planned.stderr
    assert all(name in planned.stdout for name in forged)

    s3.client().delete_object(Bucket=BUCKET, Key=f"owned/main/manifests/{names[-1]}.json")
    status = act("status", "--json")
    assert status.code == 7
    assert names[-1] in status.stdout
    done = act("prune", "--json", "--trust-clock")
    assert (done.code, names[-1] in done.stderr) == (7, True)
    pruned = json.loads(done.stdout)
    assert (pruned["removed"], pruned["swept"], pruned["destroyed"]) == ([], [], [])
    client = s3.client()
    assert client.list_objects_v2(Bucket=BUCKET, Prefix=f"owned/main/chunks/{names[-1]}/")["KeyCount"] > 0


def test_owner_of_the_bucket_makes_no_purge_remove_the_binlogs_of_the_server(
    lab: Lab, s3: S3Server, owned: Path
) -> None:
    # After a backup, this host distinguishes its own documents from foreign ones.
    assert lab.zsnapdb("backup", config=owned).code == 0
    lab.sql("FLUSH BINARY LOGS")
    assert lab.zsnapdb("binlog", "archive", "--once", config=owned).code == 0
    config = owned.with_suffix(".purge.toml")
    config.write_text(owned.read_text().replace("[instance.main]", "[instance.main.binlog]\nkeep = 0\n[instance.main]"))
    files = [row[0] for row in lab.sql("SHOW BINARY LOGS")]
    client = s3.client()
    listed = client.list_objects_v2(Bucket=BUCKET, Prefix="owned/main/binlogs/")["Contents"]
    for item in listed:
        if "/chunks/" in item["Key"]:
            client.put_object(Bucket=BUCKET, Key=item["Key"], Body=bytes(item["Size"]))
    purged = lab.zsnapdb("binlog", "purge", config=config)
    assert (purged.code, "is damaged" in purged.stderr) == (7, True), purged.stderr
    for key in [item["Key"] for item in listed if "/files/" in item["Key"]]:
        body = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        fields = json.loads(body.splitlines()[0])
        fields["head"]["created"] -= 1
        client.put_object(Bucket=BUCKET, Key=key, Body=json.dumps(fields, separators=(",", ":")).encode() + b"\n")
    purged = lab.zsnapdb("binlog", "purge", config=config)
    assert (purged.code, "does not have the description of" in purged.stderr) == (7, True), purged.stderr
    assert [row[0] for row in lab.sql("SHOW BINARY LOGS")][: len(files)] == files


@pytest.fixture(scope="module")
def later(lab: Lab, s3: S3Server) -> Path:
    """The configuration of the lab without a signing key, with an objective that its archive soon breaks."""
    objectives = '[instance.main.objectives]\narchive_lag = "2s"\ndrill_age = "1d"\nverify_age = "1d"\n[instance.main]'
    return lab.elsewhere(
        ('url = "s3://backups/lab"', f'url = "s3://{BUCKET}/later"'),
        ("http://127.0.0.1:7070", s3.endpoint),
        ("/etc/zsnapdb/credentials", str(s3.settings().s3.credentials_file)),
        ("[instance.main]", objectives),
        ('addressing = "path" }', 'addressing = "path" }\nkeep = { last = 2, local = 1, local_minimum = 1 }'),
    )


def verdicts(done: Done) -> dict[str, str]:
    return {one["objective"]: one["verdict"] for one in json.loads(done.stdout)["objectives"]}


def test_forged_archive_meets_no_objective_and_a_host_that_begins_to_sign_goes_on(
    lab: Lab, s3: S3Server, later: Path, tmp_path: Path
) -> None:
    def act(*words: str, config: Path = later) -> Done:
        return lab.zsnapdb(*words, config=config)

    names = [act("backup", *full, "--json").json["backup"]["backup_id"] for full in (("--full",), (), ("--full",))]
    lab.sql("FLUSH BINARY LOGS")
    assert act("binlog", "archive", "--once").code == 0
    deadline = time.monotonic() + 60
    while verdicts(act("status", "main", "--json"))["archive-lag"] != "broken":
        assert time.monotonic() < deadline
    before = verdicts(act("status", "main", "--json"))
    client, ahead = s3.client(), round((time.time() + 200) * 1_000_000)
    listed = [item["Key"] for item in client.list_objects_v2(Bucket=BUCKET, Prefix="later/main/binlogs/")["Contents"]]
    descriptions = [name for name in listed if name.endswith(".json")]
    originals = {name: client.get_object(Bucket=BUCKET, Key=name)["Body"].read() for name in descriptions}
    for name, body in originals.items():
        fields = json.loads(body.splitlines()[0])
        if "span" in fields:
            fields["span"]["last_commit"] = fields["seen"] = ahead
        fields |= {"until": ahead} if "until" in fields else {}
        line = json.dumps(fields, separators=(",", ":")).encode()
        client.put_object(Bucket=BUCKET, Key=name, Body=stored_document.with_digest(line))
    forged = act("status", "main", "--json")
    assert verdicts(forged)["archive-lag"] == before["archive-lag"] == "broken", forged.stdout
    for name, body in originals.items():
        client.put_object(Bucket=BUCKET, Key=name, Body=body)

    key = tmp_path / "signing-key"
    assert act("key", "generate", "--signing-key", str(key)).code == 0
    signing = later.with_suffix(".signing.toml")
    section = f'local_minimum = 1 }}\n[repository.s3.encryption]\nsigning_key_file = "{key}"\n'
    signing.write_text(later.read_text().replace("local_minimum = 1 }\n", section))
    made_up_names = [f"{names[-1][:9]}235959Z-{number:04x}" for number in (1, 2)]
    made_up(s3, names[-1], made_up_names, "later")
    assert [backup["backup_id"] for backup in act("list", "--json", config=signing).json["backups"]] == names
    status = act("status", "main", "--json", config=signing)
    assert status.code in (1, 2), status.stderr
    assert all(name in status.stdout for name in made_up_names)
    lab.sql("CREATE DATABASE begun_to_sign")
    assert act("binlog", "archive", "--once", config=signing).code == 0
    to_latest = act("restore", "main", "--to", "latest", "--target", "tank/later", "--json", config=signing)
    assert to_latest.code == 0, to_latest.stderr
    increment = act("backup", "--json", config=signing)
    assert increment.code == 0, increment.stderr
    pruned = act("prune", "--json", config=signing)
    assert pruned.code == 0, pruned.stderr
    assert set(pruned.json["removed"]) == set(names[:2])
    left = client.list_objects_v2(Bucket=BUCKET, Prefix="later/main/manifests/")["Contents"]
    assert {Path(item["Key"]).stem for item in left} >= {names[-1], *made_up_names}
    assert act("verify", "--deep", config=signing).code == 0
