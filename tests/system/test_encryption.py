"""What is stored encrypted is written without an identity, read with one, and readable without zsnapdb."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .in_guest import Lab, run, zfs

pytestmark = pytest.mark.any_server

READER = Path(__file__).parents[1] / "independent_reader.py"
S3 = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:7070",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_SHARED_CREDENTIALS_FILE": "/etc/zsnapdb/credentials",
}


@dataclass(frozen=True)
class Sealed:
    """A full and an incremental backup, signed and encrypted to two identities; the host has neither identity."""

    writer: Path
    readers: tuple[Path, Path]
    identities: tuple[Path, Path]
    signer: str
    backups: tuple[dict[str, Any], dict[str, Any]]


def keys(lab: Lab, *words: str) -> dict[str, Any]:
    (key,) = lab.zsnapdb("key", "generate", *words, "--json").json["keys"]
    return dict(key)


@pytest.fixture(scope="module")
def sealed(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Sealed:
    folder = tmp_path_factory.mktemp("keys")
    one = keys(lab, "--identity", str(folder / "one"), "--signing-key", str(folder / "sign"))
    two = keys(lab, "--identity", str(folder / "two"))
    common = f'recipients = ["{one["recipients"][0]}", "{two["recipients"][0]}"]\nsigners = ["{one["signer"]}"]\n'

    def config(more: str) -> Path:
        section = f'addressing = "path" }}\n[repository.s3.encryption]\n{common}{more}\n'
        return lab.changed(
            ('url = "s3://backups/lab"', 'url = "s3://backups/sealed"'),
            ('addressing = "path" }', section),
            ("[repository.s3]", '[instance.main.objectives]\nrpo = "31h"\n\n[repository.s3]'),
        )

    writer = config(f'signing_key_file = "{folder / "sign"}"')
    assert lab.zsnapdb("init", "--new", "--json", config=writer).json["step"] == "create"
    full = lab.zsnapdb("backup", "--json", config=writer).json["backup"]
    lab.sql("UPDATE ledger.accounts SET balance = balance + 0 WHERE id = 1")
    increment = lab.zsnapdb("backup", "--json", config=writer).json["backup"]
    assert (full["full"], increment["full"]) == (True, False)
    readers = (config(f'identity_file = "{folder / "one"}"'), config(f'identity_file = "{folder / "two"}"'))
    return Sealed(writer, readers, (folder / "one", folder / "two"), one["signer"], (full, increment))


def objects(lab: Lab) -> dict[str, bytes]:
    store, _ = lab.store()
    return {item.key: store.get(item.key) for item in store.list("sealed/")}


def test_each_identity_alone_restores_and_none_of_it_is_stored_in_the_clear(lab: Lab, sealed: Sealed) -> None:
    for number, reader in enumerate(sealed.readers):
        restored = lab.zsnapdb("restore", "main", "--target", f"tank/unsealed{number}", "--json", config=reader).json
        assert restored["gtids"] == sealed.backups[1]["position"]["gtids"]
    zstd = b"\x28\xb5\x2f\xfd"
    assert not [key for key, body in objects(lab).items() if "/chunks/" in key and body.startswith(zstd)]
    secrets = [
        line.encode() for file in sealed.identities for line in file.read_text().splitlines() if "SECRET" in line
    ]
    assert not [key for key, body in objects(lab).items() for secret in secrets if secret in body]


def test_without_an_identity_a_restore_is_refused_before_anything_is_made(lab: Lab, sealed: Sealed) -> None:
    done = lab.zsnapdb("restore", "main", "--target", "tank/unreadable", config=sealed.writer)
    assert (done.code, "no identity is configured" in done.stderr) == (3, True)
    assert run("zfs", "list", "tank/unreadable").code != 0


def test_the_doctor_says_who_can_read_and_finds_a_host_that_would_not_encrypt_unfit(lab: Lab, sealed: Sealed) -> None:
    (diagnosis,) = lab.zsnapdb("doctor", "main", "--json", config=sealed.writer).json["instances"]
    (detail,) = [f["detail"] for f in diagnosis["findings"] if f["what"] == "repository"]
    assert "2 backups, encrypted to 2 recipients" in detail
    careless = lab.changed(('url = "s3://backups/lab"', 'url = "s3://backups/sealed"'))
    done = lab.zsnapdb("doctor", "main", config=careless)
    assert (done.code, "no recipients are configured here" in done.stdout) == (2, True)
    assert lab.zsnapdb("backup", config=careless).code == 3


def test_an_independent_reader_gives_zfs_receive_exactly_what_was_sent(lab: Lab, sealed: Sealed) -> None:
    assert "zsnapdb" not in {
        line.split()[1].split(".")[0]
        for line in READER.read_text().splitlines()
        if line.startswith(("import ", "from "))
    }
    for backup in sealed.backups:
        argv = [
            sys.executable,
            str(READER),
            "s3://backups/sealed",
            "main",
            backup["backup_id"],
            "data",
            str(sealed.identities[1]),
            sealed.signer,
        ]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, **S3}) as reader:
            received = subprocess.run(
                ["zfs", "receive", "-u", "tank/independent"], stdin=reader.stdout, capture_output=True, text=True
            )
        assert (reader.returncode, received.returncode) == (0, 0), received.stderr
        (volume,) = (v for v in backup["volumes"] if v["role"] == "data")
        name = f"@zsnapdb-{backup['backup_id']}"
        assert zfs("get", "-H", "-p", "-o", "value", "guid", f"tank/independent{name}") == [str(volume["guid"])]
    # GUIDs are what the stream says; the files are compared as well.
    zfs("set", "mountpoint=/independent", "tank/independent")
    source = Path(f"/var/lib/mysql/data/.zfs/snapshot/zsnapdb-{sealed.backups[1]['backup_id']}")
    compared = run("diff", "-r", "--no-dereference", str(source), "/independent")
    assert (compared.code, compared.stdout) == (0, "")


def test_a_lost_marker_is_told_and_written_again(lab: Lab, sealed: Sealed) -> None:
    store, _ = lab.store()
    before = store.get("sealed/zsnapdb.json")
    store.delete("sealed/zsnapdb.json")
    listed = lab.zsnapdb("list", config=sealed.readers[0])
    assert listed.code == 0
    assert "sealed/zsnapdb.json is missing" in listed.stderr
    restored = lab.zsnapdb("restore", "main", "--target", "tank/unmarked", config=sealed.readers[0])
    assert restored.code == 0
    assert "run `zsnapdb init` to write the marker again" in restored.stderr
    assert lab.zsnapdb("init", "--json", config=sealed.writer).json["step"] == "rebuild"
    assert store.get("sealed/zsnapdb.json") == before


def test_a_manifest_that_was_altered_is_named_and_the_others_go_on(lab: Lab, sealed: Sealed) -> None:
    store, _ = lab.store()
    key = f"sealed/main/manifests/{sealed.backups[1]['backup_id']}.json"
    before = store.get(key)
    store.put(key, before.replace(b'"held_ms":', b'"held_ms":1'))
    try:
        listed = lab.zsnapdb("list", "--json", config=sealed.writer)
        assert listed.code == 7
        assert "the signature does not match the content" in listed.stderr
        done = lab.zsnapdb(
            "restore",
            "main",
            "--to",
            sealed.backups[1]["backup_id"],
            "--target",
            "tank/altered",
            config=sealed.readers[0],
        )
        assert done.code == 7
        assert run("zfs", "list", "tank/altered").code != 0
    finally:
        store.put(key, before)
