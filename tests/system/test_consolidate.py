"""A chain becomes one full backup without the server, and the server's next increment builds on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import ledger

from .in_guest import SOCKET, Done, Lab, everything, run, zfs

pytestmark = pytest.mark.any_server

READER = Path(__file__).parents[1] / "independent_reader.py"
STORE = Path("/srv/s3/consolidated")
MOUNTS = {"parent": Path("/var/lib/mysql"), "data": Path("/var/lib/mysql/data")}
POLICY = """
[instance.main.chain]
longest = 3
[instance.main.keep]
last = 1
minimum = 1
"""
PROBE = """
[[instance.main.drill.probe]]
name = "no money is lost"
sql = "SELECT SUM(balance) FROM ledger.accounts"
expect = 200000000
"""
ENCRYPTION = 'addressing = "path" }\n[repository.s3.encryption]\n'
AS_IT_LIES = '[repository.s3.stream]\nsend = "compressed"\n'
"""A chain of blocks as they lie. That of a machine in tests/faults/test_machines.py is plain."""
KILLER = """#!/bin/sh
case "$*" in
  {words}) if rm /run/consolidate-shim/armed 2>/dev/null; then kill -9 $PPID; exit 1; fi ;;
esac
exec /usr/sbin/zfs "$@"
"""


@dataclass(frozen=True)
class Chain:
    """A full backup and two increments in an encrypted and signed repository of their own, made under load."""

    lab: Lab
    config: Path
    identity: Path
    signer: str
    backups: tuple[dict[str, Any], ...]

    @property
    def ids(self) -> list[str]:
        return [backup["backup_id"] for backup in self.backups]

    def zsnapdb(self, *words: str) -> Done:
        return self.lab.zsnapdb(*words, config=self.config)

    def listed(self) -> list[str]:
        return [backup["backup_id"] for backup in self.zsnapdb("list", "main", "--json").json["backups"]]

    def chunk_folders(self) -> list[str]:
        return sorted(path.name for path in (STORE / "main/chunks").iterdir())

    def stream(self, backup_id: str, role: str, into: str) -> None:
        """Receive one volume of a backup by the reader that knows nothing of zsnapdb."""
        argv = [sys.executable, str(READER), str(STORE), "main", backup_id, role, str(self.identity), self.signer]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as reader:
            received = run_receive(into, reader)
        assert (reader.returncode, received.returncode) == (0, 0), received.stderr


def run_receive(into: str, reader: subprocess.Popen[bytes]) -> subprocess.CompletedProcess[str]:
    argv = ["zfs", "receive", "-u", "-o", "canmount=noauto", into]
    return subprocess.run(argv, stdin=reader.stdout, capture_output=True, text=True)


def scratch() -> list[str]:
    return [line for line in everything() if line.startswith("tank/zsnapdb/scratch/main/consolidate/")]


@pytest.fixture(scope="module")
def chain(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    STORE.mkdir(parents=True)
    folder = tmp_path_factory.mktemp("keys")
    identity, signing = folder / "identity", folder / "signing"
    words = ("--identity", str(identity), "--signing-key", str(signing), "--json")
    (key,) = lab.zsnapdb("key", "generate", *words).json["keys"]
    keys = (
        f'recipients = ["{key["recipients"][0]}"]\nsigners = ["{key["signer"]}"]\n'
        f'identity_file = "{identity}"\nsigning_key_file = "{signing}"\n'
    )
    config = lab.changed(
        ("[instance.main.server]", f"{POLICY}{PROBE}\n[instance.main.server]"),
        ('url = "s3://backups/lab"', f'url = "file://{STORE}"'),
        ('addressing = "path" }', f"{ENCRYPTION}{keys}{AS_IT_LIES}"),
    )
    workers = {row[0]: row[1] for row in lab.sql("SELECT worker, MAX(number) FROM ledger.journal GROUP BY worker")}
    load = ledger.Load(SOCKET, rate=7.0, first_number=workers)
    load.start()
    backups = []
    for number in range(3):
        load.wait_for(20)
        lab.sql(f"CREATE TABLE ledger.made{number} (id INT PRIMARY KEY, filler VARBINARY(9000))")
        if number:
            lab.sql(f"DROP TABLE ledger.made{number - 1}")
        backups.append(lab.zsnapdb("backup", "--json", config=config).json["backup"])
    load.stop()
    assert load.failures == []
    assert [backup["full"] for backup in backups] == [True, False, False]
    return Chain(lab, config, identity, key["signer"], tuple(backups))


@pytest.fixture
def killing(tmp_path: Path) -> Iterator[Any]:
    """Arm a `zfs` that kills its caller at the first command with these words."""
    armed = Path("/run/consolidate-shim/armed")
    armed.parent.mkdir(exist_ok=True)

    def arm(words: str) -> dict[str, str]:
        shim = tmp_path / "zfs"
        shim.write_text(KILLER.format(words=words))
        shim.chmod(0o755)
        armed.touch()
        return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    yield arm
    armed.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def consolidated(chain: Chain) -> dict[str, Any]:
    return chain.zsnapdb("consolidate", "main", "--json").json


@pytest.mark.parametrize("words", ["destroy*consolidate*", "receive*/data"])
def test_a_killed_run_adds_no_backup_and_leaves_nothing_that_stays(chain: Chain, killing: Any, words: str) -> None:
    """With all streams stored, before the scratch datasets go; and in the middle of the chain."""
    before = chain.chunk_folders()
    plan = chain.zsnapdb("consolidate", "main", "--plan", "--json").json
    assert (plan["chain"], plan["original"]) == (chain.ids, chain.ids[-1])
    environment = {**killing(words), "ZSNAPDB_CONFIG": str(chain.config)}
    died = run("zsnapdb", "consolidate", "main", env=environment)
    assert died.code == -9, died.stderr
    assert scratch()
    assert chain.listed() == chain.ids
    assert bool(set(chain.chunk_folders()) - set(before)) is words.startswith("destroy")


def test_the_next_run_tidies_up_and_stores_a_full_backup_of_the_same_snapshots(
    chain: Chain, consolidated: dict[str, Any]
) -> None:
    assert scratch() == []
    made, original = consolidated["backup"], chain.backups[-1]
    manifest = json.loads((STORE / f"main/manifests/{made['backup_id']}.json").read_text().splitlines()[0])
    assert [volume["send_flags"] for volume in manifest["volumes"]] == [["-L", "-c"]] * 2
    assert (made["full"], consolidated["chain"], consolidated["original"]) == (True, chain.ids, chain.ids[-1])
    assert made["position"] == original["position"]
    assert [v["guid"] for v in made["volumes"]] == [v["guid"] for v in original["volumes"]]
    assert [v["dataset"] for v in made["volumes"]] == [v["dataset"] for v in original["volumes"]]
    assert chain.listed() == [*chain.ids, made["backup_id"]]
    assert chain.zsnapdb("verify", "main", "--deep").code == 0
    again = chain.zsnapdb("consolidate", "main")
    assert (again.code, "nothing to consolidate" in again.stderr, scratch()) == (4, True, [])


@pytest.fixture(scope="module")
def next_backup(chain: Chain, consolidated: dict[str, Any]) -> dict[str, Any]:
    """The backup after the consolidation and a prune that leaves the consolidated backup alone."""
    pruned = chain.zsnapdb("prune", "main", "--json").json
    assert sorted(pruned["removed"]) == chain.ids
    assert chain.listed() == [consolidated["backup"]["backup_id"]]
    chain.lab.sql("INSERT INTO ledger.made2 VALUES (1, REPEAT('x', 9000))")
    made: dict[str, Any] = chain.zsnapdb("backup", "main", "--json").json["backup"]
    return made


def test_the_next_backup_is_an_increment_of_it_though_its_chain_would_have_been_too_long(
    chain: Chain, consolidated: dict[str, Any], next_backup: dict[str, Any]
) -> None:
    guids = {v["role"]: v["guid"] for v in consolidated["backup"]["volumes"]}
    assert {v["role"]: v["from_guid"] for v in next_backup["volumes"]} == guids
    assert next_backup["full"] is False
    shown = chain.zsnapdb("show", "main", next_backup["backup_id"], "--json").json
    assert shown["chain"] == [consolidated["backup"]["backup_id"], next_backup["backup_id"]]
    assert chain.zsnapdb("status", "main").code == 1, "no binlog is archived"


def test_its_streams_and_the_increment_on_top_give_exactly_the_files_of_the_source(
    chain: Chain, consolidated: dict[str, Any], next_backup: dict[str, Any]
) -> None:
    """Received by a reader that knows nothing of zsnapdb, and compared with the snapshots on the source."""
    for backup, source in ((consolidated["backup"], chain.ids[-1]), (next_backup, next_backup["backup_id"])):
        for role, mount in MOUNTS.items():
            copy, folder = f"tank/consolidated-{role}", f"/consolidated-{role}"
            chain.stream(backup["backup_id"], role, copy)
            guid = next(v["guid"] for v in backup["volumes"] if v["role"] == role)
            assert zfs("get", "-H", "-p", "-o", "value", "guid", f"{copy}@zsnapdb-{source}") == [str(guid)]
            zfs("set", f"mountpoint={folder}", "readonly=on", copy)
            zfs("mount", copy)
            compared = run("diff", "-r", "--no-dereference", f"{mount}/.zfs/snapshot/zsnapdb-{source}", folder)
            assert (compared.code, compared.stdout) == (0, "")
            zfs("unmount", copy)


def test_a_drill_of_the_increment_on_the_consolidated_backup_passes(chain: Chain, next_backup: dict[str, Any]) -> None:
    evidence = chain.zsnapdb("drill", "main", "--to", next_backup["backup_id"], "--all", "--json").json["drill"]
    assert (evidence["outcome"], evidence["backup_id"]) == ("passed", next_backup["backup_id"])
