"""Backup under load, restore and clone have exactly the transactions up to the recorded position."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import ledger
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.zfs import version

from .in_guest import CONFIG, SOCKET, Lab, ask, connect, everything, holds, remove, run, zfs

pytestmark = pytest.mark.usefixtures("first")


def test_backups_under_load_restore_to_exactly_their_position(lab: Lab, load_running: ledger.Load) -> None:
    with ledger.connect(SOCKET) as connection:
        ballast = ledger.read_state(connection).ballast
    load_running.wait_for(60)
    backup = lab.zsnapdb("backup", "--json").json["backup"]
    assert not backup["full"]
    load_running.wait_for(30)
    load_running.stop()
    truth = lab.truth(backup)
    restored = lab.zsnapdb("restore", "main", "--to", backup["backup_id"], "--target", "tank/main-job", "--json").json
    assert restored["gtids"] == backup["position"]["gtids"]
    server = "/opt/mysql/bin/mysqld" if lab.flavour == "mysql" else "/usr/sbin/mariadbd"
    process = subprocess.Popen([server, f"--defaults-file={restored['option_file']}"], stdin=subprocess.DEVNULL)
    try:
        with ledger.connect_when_up(f"{restored['mount']}/.zsnapdb/server.sock", process) as connection:
            checks = ledger.compare("restored", ledger.read_state(connection), truth, ballast)
    finally:
        process.terminate()
        process.wait()
    assert [check for check in checks if not check.ok] == []


def test_the_recorded_settings_are_an_option_file_that_the_server_reads(lab: Lab, tmp_path: Path) -> None:
    """For the server of a lost host. The program ends with an error if it does not know an option or a value."""
    assert lab.zsnapdb("backup").code == 0
    shown = lab.zsnapdb("show", "main", "latest", "--settings")
    assert (shown.code, '\ndatadir="/var/lib/mysql/data' in shown.stdout) == (0, True), shown.stdout
    file = tmp_path / "settings.cnf"
    file.write_text(shown.stdout)
    only = ["--validate-config"] if lab.flavour == "mysql" else ["--help", "--verbose"]
    done = subprocess.run(
        [lab.server, f"--defaults-file={file}", "--user=mysql", *only], capture_output=True, text=True
    )
    assert done.returncode == 0, (shown.stdout, done.stderr)


def test_after_a_backup_no_hold_and_no_lock_is_left(lab: Lab) -> None:
    lab.zsnapdb("backup", "--json").json  # noqa: B018 - asserts success
    assert holds() == []
    lab.sql("CREATE TABLE ledger.after_backup (id INT)")
    lab.sql("DROP TABLE ledger.after_backup")


@pytest.mark.any_server
def test_a_snapshot_set_is_one_transaction_group_and_carries_its_facts(lab: Lab) -> None:
    backup = lab.zsnapdb("backup", "--json").json["backup"]
    names = [f"{dataset}@zsnapdb-{backup['backup_id']}" for dataset in ("tank/mysql", "tank/mysql/data")]
    rows = [
        line.split("\t")
        for line in zfs(
            "list", "-H", "-p", "-t", "snapshot", "-o", "createtxg,zsnapdb:backup,zsnapdb:instance,zsnapdb:lock", *names
        )
    ]
    assert rows[0] == rows[1]
    assert rows[0][1:] == [backup["backup_id"], "main", backup["lock"]["strategy"]]


@pytest.mark.any_server
def test_an_increment_needs_only_the_bookmark_of_its_base(lab: Lab) -> None:
    base = lab.zsnapdb("backup", "--json").json["backup"]
    for dataset in ("tank/mysql", "tank/mysql/data"):
        zfs("destroy", f"{dataset}@zsnapdb-{base['backup_id']}")
    following = lab.zsnapdb("backup", "--json").json["backup"]
    assert [v["from_guid"] for v in following["volumes"]] == [v["guid"] for v in base["volumes"]]
    assert lab.zsnapdb("show", "main", following["backup_id"], "--json").json["chain"][-2:] == [
        base["backup_id"],
        following["backup_id"],
    ]


@pytest.mark.any_server
def test_a_restored_dataset_has_the_properties_that_matter(lab: Lab) -> None:
    zfs("set", "primarycache=metadata", "tank/mysql/data")
    try:
        lab.zsnapdb("backup", "--json").json  # noqa: B018
        lab.zsnapdb("restore", "main", "--target", "tank/properties", "--json").json  # noqa: B018
    finally:
        zfs("inherit", "primarycache", "tank/mysql/data")
    properties = {
        dataset: zfs("get", "-H", "-p", "-o", "value", "recordsize,compression,primarycache,atime", dataset)
        for dataset in ("tank/properties", "tank/properties/data")
    }
    assert properties == {
        "tank/properties": ["131072", "zstd", "all", "off"],
        "tank/properties/data": ["16384", "lz4", "metadata", "off"],
    }


def test_a_plan_changes_nothing(lab: Lab, unchanged: None) -> None:
    plan = lab.zsnapdb("backup", "--plan", "--json").json
    assert plan["lock"]["strategy"] == ("instance" if lab.flavour == "mysql" else "stage")
    assert plan["base"] is not None
    restore = lab.zsnapdb("restore", "main", "--target", "tank/planned", "--plan", "--json").json
    assert restore["datasets"] == {"parent": "tank/planned", "data": "tank/planned/data"}


def test_the_configuration_of_the_lab_is_fit(lab: Lab) -> None:
    assert lab.zsnapdb("config", "check", "--json").json["instances"] == ["main"]
    done = lab.zsnapdb("doctor", "main", "--json")
    (diagnosis,) = json.loads(done.stdout)["instances"]
    remarks = {(f["severity"], f["what"]) for f in diagnosis["findings"] if f["severity"] != "ok"}
    # Whether binlogs are archived depends on the tests before.
    remarks -= {("warning", "objective")}
    # The lab has no doublewrite buffer, without which OpenZFS below 2.2 can leave half a page, and does not sign.
    torn = [("warning", "doublewrite")] if version.kernel_release() < (2, 2) else []
    assert (done.code, sorted(remarks)) == (1, [*torn, ("warning", "signing")]), done.stderr


CRON = Path("/etc/cron.d/zsnapdb-main")


def as_cron_runs(lines: list[str], line: str) -> None:
    """Run a line of a file of /etc/cron.d as cron does (crontab(5)): a bare environment, and `sh -c`."""
    set_there = dict(line.split("=", 1) for line in lines if re.match(r"[A-Z]+=", line))
    environment = {"HOME": "/root", "LOGNAME": "root", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin", **set_there}
    *_, user, command = line.split(maxsplit=6)
    assert user == "root"
    argv = [environment["SHELL"], "-c", command.replace("\\%", "%")]
    done = subprocess.run(argv, env=environment, cwd="/root", capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stderr


def test_setup_leads_from_a_host_without_zsnapdb_to_a_passed_drill(lab: Lab, tmp_path: Path) -> None:
    folder, config = Path("/srv/s3/setup-repository"), tmp_path / "etc" / "zsnapdb.toml"
    folder.mkdir()
    # The guest has programs of both families, and its MySQL starts by a script alone.
    program = ("--binary", "/opt/mysql/bin/mysqld") if lab.flavour == "mysql" else ()
    words = ("setup", f"file://{folder}", "--config", str(config), *program, "--json")
    if lab.flavour == "mysql":
        refused = json.loads(lab.zsnapdb(*words, "--plan").stdout)["refusals"]
        assert "the account zsnapdb@localhost was there before" in refused[0]
    lab.sql("RENAME USER zsnapdb@localhost TO aside@localhost")
    try:
        plan = lab.zsnapdb(*words, "--plan").json
        assert (plan["way"], plan["refusals"]) == ("adopt", [])
        found = {
            name: plan["server"][name] for name in ("flavour", "datadir", "dataset", "page_size", "sockets", "account")
        }
        assert found == {
            "flavour": lab.flavour,
            "datadir": "/var/lib/mysql/data",
            "dataset": "tank/mysql/data",
            "page_size": 16384,
            "sockets": [SOCKET],
            "account": "mysql",
        }
        assert not config.parent.exists()
        document = lab.zsnapdb(*words, "--yes").json
        own = {"identity", "configuration", "signing-key", "repository", "schedule"}
        own |= {"account"} if lab.flavour == "mysql" else set()
        assert set(document["done"]) == own | {"doctor", "backup", "drill"}
        checked, made, tried = document["proof"]
        assert (checked["kind"], checked["instances"][0]["worst"] in ("ok", "warning")) == ("doctor", True)
        assert made["backup"]["backup_id"] == tried["drill"]["backup_id"]
        assert tried["drill"]["outcome"] == "passed"
        assert "archive = true" in config.read_text(), "the server writes binlogs"
        written = {file.name: file.read_bytes() for file in config.parent.iterdir()}
        assert set(lab.zsnapdb(*words, "--yes", "--no-proof").json["done"]) == own
        assert {file.name: file.read_bytes() for file in config.parent.iterdir()} == written
        lines = CRON.read_text().splitlines()
        takes_over(lab, [*words[:2], *program, "--json"], tmp_path / "other" / "zsnapdb.toml")
        for job in ("binlog archive main --once", "reap"):
            (line,) = [line for line in lines if f" {job} " in line]
            as_cron_runs(lines, line)
    finally:
        CRON.unlink(missing_ok=True)
        lab.sql("DROP USER IF EXISTS zsnapdb@localhost")
        lab.sql("RENAME USER aside@localhost TO zsnapdb@localhost")


def takes_over(lab: Lab, words: list[str], config: Path) -> None:
    """Plan the setup of another host, which takes over the repository with a configuration written by hand."""
    config.parent.mkdir()
    keys = config.parents[1] / "etc"
    login = f'socket = "{SOCKET}"\npassword_file = "{keys}/main.password"\n' if lab.flavour == "mysql" else ""
    own = f'[instance.main]\n{login}repository = "r"\n[repository.r]\nurl = "{words[1]}"\n'
    config.write_text(own)
    other = json.loads(lab.zsnapdb(*words, "--config", str(config), "--plan").stdout)
    assert "cron runs the jobs of main with " in other["refusals"][0]
    CRON.unlink()
    encrypted = json.loads(lab.zsnapdb(*words, "--config", str(config), "--plan").stdout)
    assert "no recipients are configured here" in encrypted["refusals"][0]
    recipient = re.search(r"recipients = .*", (keys / "zsnapdb.toml").read_text())
    assert recipient is not None
    own += f'[repository.r.encryption]\n{recipient[0]}\nidentity_file = "{keys}/identity"\n'
    config.write_text(own + f'signing_key_file = "{keys}/signing-key"\n')
    plan = lab.zsnapdb(*words, "--config", str(config), "--plan").json
    assert plan["refusals"] == []
    assert any("already has 1 backup of main" in note for note in plan["notes"])
    (text,) = [step["text"] for step in plan["steps"] if step["action"] == "configuration"]
    assert (" prune " in "".join(step["text"] for step in plan["steps"]), "snapshot = " in text) == (False, True)
    first = (*words, "--config", f"{config}.new", "--instance", "second", "--binary", "/bin/nowhere", "--plan")
    refused = json.loads(lab.zsnapdb(*first).stdout)
    assert any("/bin/nowhere cannot be executed" in why for why in refused["refusals"]), refused
    assert [file.name for file in config.parent.iterdir()] == [config.name]


def a_clone_from_its_making_to_its_end(lab: Lab, config: Path) -> None:
    """One clone is extended and destroyed, another expires. A plan, a look, an unknown name are no deeds."""
    create = ("clone", "create", "main", "--from", "latest", "--no-start", "--name")
    assert lab.zsnapdb(*create, "seen", config=config).code == 0
    # Its server does not run: nobody gets the login.
    assert lab.zsnapdb("clone", "connect", "seen", "--dsn", config=config).code == 4
    assert lab.zsnapdb("clone", "extend", "seen", "--ttl", "3h", "--plan", config=config).code == 0
    assert lab.zsnapdb("clone", "extend", "seen", "--ttl", "3h", config=config).code == 0
    assert lab.zsnapdb("clone", "destroy", "nobody", config=config).code == 0
    assert lab.zsnapdb("clone", "list", config=config).code == 0
    assert lab.zsnapdb("clone", "destroy", "seen", config=config).code == 0
    unseen = lab.zsnapdb(*create, "unseen", "--ttl", "1s", "--json", config=config).json["clone"]
    left = datetime.fromisoformat(unseen["expires"]) - datetime.now(UTC)
    time.sleep(max(0.0, left.total_seconds()) + 0.01)  # Until it has expired, which a create may end before.
    swept = lab.zsnapdb("reap", "--json", config=config).json["swept"]
    assert [item["verdict"] for item in swept if item["name"] == "unseen"] == ["reap"]


@pytest.mark.any_server
def test_a_folder_repository_does_the_same_job(lab: Lab) -> None:
    folder = Path("/srv/s3/folder-repository")
    folder.mkdir()
    config = lab.changed(('url = "s3://backups/lab"', f'url = "file://{folder}"\nevidence = true'))
    backup = lab.zsnapdb("backup", "--json", config=config).json["backup"]
    assert backup["full"]
    restored = lab.zsnapdb("restore", "main", "--target", "tank/from-folder", "--json", config=config).json
    assert restored["gtids"] == backup["position"]["gtids"]
    assert lab.zsnapdb("report", "verify", "main", config=config).code == 0
    a_clone_from_its_making_to_its_end(lab, config)
    records = sorted(folder.rglob("evidence/*.json"))
    shown = [json.loads(record.read_bytes().partition(b"\n")[0]) for record in records]
    assert [record["job"] for record in shown] == ["policy", "backup", "restore", *["clone"] * 6]
    deeds = [(record["command"].split()[1:3], record["about"], record["exit_code"]) for record in shown[3:]]
    assert deeds == [
        (["clone", "create"], "seen", 0),
        (["clone", "connect"], "seen", 4),
        (["clone", "extend"], "seen", 0),
        (["clone", "destroy"], "seen", 0),
        (["clone", "create"], "unseen", 0),
        (["reap", "--json"], f"unseen: {deeds[5][1].partition(': ')[2]}", 0),
    ]
    assert "expired" in deeds[5][1]
    records[1].write_bytes(records[1].read_bytes().replace(b'"backup"', b'"status"'))
    altered = lab.zsnapdb("report", "verify", "main", config=config)
    assert altered.code == 7, altered.stdout


def test_a_server_with_transactions_in_no_binlog_is_backed_up_restored_and_cloned(lab: Lab) -> None:
    """As after the load of a dump: GTIDs that are only in gtid_purged belong to the state."""
    if lab.flavour != "mysql":
        pytest.skip("MariaDB has no gtid_purged: its position has only the heads of its binlog")
    lab.sql("SET GLOBAL gtid_purged = '+aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:1-7'")
    backup = lab.zsnapdb("backup", "--json").json["backup"]
    assert "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:1-7" in backup["position"]["gtids"]
    restored = lab.zsnapdb("restore", "main", "--to", backup["backup_id"], "--target", "tank/purged", "--json").json
    assert restored["gtids"] == backup["position"]["gtids"]
    lab.zsnapdb("clone", "create", "main", "--name", "purged", "--json").json  # noqa: B018
    assert lab.zsnapdb("clone", "destroy", "purged").code == 0


@pytest.mark.any_server
def test_a_set_somebody_else_holds_does_not_stop_the_next_backup(lab: Lab) -> None:
    snapshot = "tank/mysql@zsnapdb-20200101T000000Z-0000"
    properties = [
        "-o",
        "zsnapdb:backup=20200101T000000Z-0000",
        "-o",
        "zsnapdb:instance=main",
        "-o",
        "zsnapdb:state=taken",
    ]
    zfs("snapshot", *properties, snapshot)
    zfs("hold", "foreign", snapshot)
    try:
        done = lab.zsnapdb("backup", "--json").json
        assert "20200101T000000Z-0000 could not be removed" in done["warnings"][0]
    finally:
        zfs("release", "foreign", snapshot)
    lab.zsnapdb("backup", "--json").json  # noqa: B018
    assert snapshot not in zfs("list", "-H", "-t", "snapshot", "-o", "name")


@pytest.mark.any_server
def test_a_restored_instance_is_mounted_again_after_a_reboot(lab: Lab) -> None:
    lab.zsnapdb("restore", "main", "--target", "tank/reboot", "--json").json  # noqa: B018
    assert zfs("get", "-H", "-o", "value", "canmount", "tank/reboot", "tank/reboot/data") == ["on", "on"]


@pytest.mark.any_server
def test_a_host_that_has_the_repository_alone_restores_and_asks(lab: Lab) -> None:
    text = CONFIG.read_text()
    lost = re.sub(r"^(socket|user|password_file|volumes) = .*\n", "", text, flags=re.MULTILINE)
    config = lab.folder / "restore-host.toml"
    config.write_text(lost)
    elsewhere = lab.folder / "other-repository.toml"
    own = lost.replace('\nrepository = "s3"\n', '\nrepository = "gone"\n', 1)
    elsewhere.write_text(own + '\n[repository.gone]\nurl = "file:///srv/s3/not-there"\n')
    newest = lab.zsnapdb("backup", "--json").json["backup"]["backup_id"]
    assert newest in lab.zsnapdb("list", config=config).stdout
    assert newest in lab.zsnapdb("list", "--local", config=config).stdout
    assert lab.zsnapdb("status", config=config).code in (0, 1), "binlogs may be archived or not"
    where = ("--target", "tank/lost")
    started = ("restore", "main", "--to", newest, *where, "--repository", "s3")
    book = lab.zsnapdb("runbook", "main", *started[2:], config=elsewhere).stdout
    assert "--repository s3 --stop-after" in book
    stopped = lab.zsnapdb(*started, "--stop-after", "preflight", "--json", config=elsewhere).json
    assert stopped["next_step"] is not None
    lab.zsnapdb("restore", "main", "--resume", *where, "--stop-after", "recover", config=elsewhere)
    restored = lab.zsnapdb("restore", "main", "--resume", *where, "--json", config=elsewhere).json
    assert (restored["backup_id"], restored["finished"]) == (newest, True)
    question = ("query", "main", "SELECT COUNT(*) FROM ledger.accounts", "--at", newest, "--repository", "s3", "--json")
    assert lab.zsnapdb(*question, config=config).json["rows"] == [[ledger.ACCOUNTS]]
    refused = lab.zsnapdb("backup", config=config)
    assert (refused.code, "set socket or host in [instance.main]" in refused.stderr) == (5, True), refused.stderr
    zfs("destroy", "-r", "tank/lost")


def fresh_run(number: int) -> str:
    """Return an id of a run of today."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{number:08x}"


def is_locked(file: Path) -> bool:
    """Whether somebody has the lock, by the kernel."""
    return file.exists() and f":{file.stat().st_ino} " in Path("/proc/locks").read_text()


@pytest.mark.any_server
def test_a_backup_that_is_begun_again_while_its_run_is_at_work_is_refused_and_then_answered_by_that(lab: Lab) -> None:
    """As by a worker of a fleet that was killed, whose command goes on."""
    once = ("backup", "main", "--once", fresh_run(9), "--json")
    before = len(lab.zsnapdb("list", "--json").json["backups"])
    first = subprocess.Popen([sys.executable, "-m", "zsnapdb", *once], stdout=subprocess.PIPE, text=True)
    while not is_locked(Path("/run/zsnapdb/backup-main.lock")):
        assert first.poll() is None
    first.send_signal(signal.SIGSTOP)
    second = lab.zsnapdb(*once)
    first.send_signal(signal.SIGCONT)
    assert (second.code, "another zsnapdb" in second.stderr, json.loads(second.stdout)["retry"]) == (75, True, "again")
    made = json.loads(first.communicate(timeout=600)[0])["backup"]["backup_id"]
    assert lab.zsnapdb(*once).json["backup"]["backup_id"] == made
    assert len(lab.zsnapdb("list", "--json").json["backups"]) == before + 1


@pytest.mark.any_server
def test_a_command_that_is_repeated_with_the_id_of_its_run_does_nothing_twice(lab: Lab) -> None:
    def repeated(number: int, *words: str) -> dict[str, Any]:
        once = (*words, "--once", fresh_run(number), "--json")
        first = lab.zsnapdb(*once).json
        before = everything()
        assert lab.zsnapdb(*once).json == first
        assert everything() == before
        return first

    made = repeated(1, "snapshot", "main")
    clone = repeated(2, "clone", "create", "main", "--name", "repeated", "--from", made["backup_id"])
    with connect(clone) as here:
        ask(here, "CREATE TABLE ledger.twice (id INT)")
    assert repeated(3, "clone", "commit", "repeated", "-m", "twice")["clone"] == "repeated"
    (committed,) = THIS_HOST.runs.rglob("*-00000003.json")
    assert lab.zsnapdb("clone", "commit", "repeated", "-m", "other", "--once", committed.stem).code == 2
    reset = repeated(4, "clone", "reset", "repeated")
    with connect(clone) as here:
        ask(here, "CREATE TABLE ledger.since (id INT)")
        # As if it was killed after the reset, before that was recorded.
        (recorded,) = THIS_HOST.runs.rglob("*-00000004.json")
        recorded.unlink()
        again = lab.zsnapdb("clone", "reset", "repeated", "--once", recorded.stem, "--json").json
        assert (again["way"], again["reason"]) == (reset["way"], reset["reason"])
        assert len(ask(here, "SHOW TABLES FROM ledger LIKE 'since'")) == 1
    gone = ("clone", "destroy", "repeated", "--once", fresh_run(5), "--json")
    assert len(lab.zsnapdb(*gone).json["clones"]) == 1
    # Somebody else takes the name, and then the lost answer is asked for again.
    assert lab.zsnapdb("clone", "create", "main", "--name", "repeated", "--from", made["backup_id"]).code == 0
    assert len(lab.zsnapdb(*gone).json["clones"]) == 1
    assert lab.zsnapdb("clone", "show", "repeated").code == 0
    refused = lab.zsnapdb("clone", "reset", "repeated", *gone[3:])
    assert (refused.code, json.loads(refused.stdout)["retry"]) == (2, "never")
    lab.zsnapdb("clone", "destroy", "repeated", "--json").json  # noqa: B018
    repeated(6, "verify", "main")


@pytest.mark.any_server
def test_a_killed_restore_that_is_repeated_with_the_id_of_its_run_is_one_restore(lab: Lab) -> None:
    once = ("restore", "main", "--target", "tank/once", "--once", fresh_run(8), "--json")
    killed = subprocess.Popen([sys.executable, "-m", "zsnapdb", *once], cwd="/", start_new_session=True)
    while not zfs_has("tank/once"):
        assert killed.poll() is None
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    first = lab.zsnapdb(*once).json
    before = everything()
    assert (first["finished"], first["top"]) == (True, "tank/once")
    assert lab.zsnapdb(*once).json == first
    assert everything() == before
    remove("tank/once")
    # Also when it is gone: whoever removed it does not want it again.
    assert lab.zsnapdb(*once).json == first
    assert not zfs_has("tank/once")


def zfs_has(dataset: str) -> bool:
    return run("zfs", "list", "-H", dataset).code == 0


@pytest.mark.any_server
def test_the_view_of_a_fleet_has_every_host_of_a_bucket_and_says_which_is_silent(lab: Lab, tmp_path: Path) -> None:
    settings = tomllib.loads(CONFIG.read_text())["repository"]["s3"]
    file = tmp_path / "fleet.toml"

    def configured(within: float) -> Path:
        s3 = ", ".join(f'{key} = "{value}"' for key, value in settings["s3"].items())
        lines = [f'cache = "{tmp_path / "cache"}"', f'heard_within = "{within}s"', "[repository.s3]"]
        file.write_text("\n".join([*lines, f'url = "{settings["url"]}"', f"s3 = {{ {s3} }}\n"]))
        return file

    def look(*words: str, within: float = 864000.0) -> dict[str, Any]:
        done = lab.zsnapdb("fleet", "status", *words, "--config", str(configured(within)), "--json")
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    named = lab.changed(("[instance.main", "[instance.other"))
    script = f"hostname db-2 && exec {sys.executable} -m zsnapdb backup other --config {named}"
    assert run("unshare", "--uts", "sh", "-c", script).code == 0
    first = look()
    assert {one["instance"] for one in first["instances"]} >= {"main", "other"}
    lab.zsnapdb("backup", "--json").json  # noqa: B018 - asserts success
    second = look()
    assert second["repositories"][0]["changed"] == 1
    (other,) = [one for one in second["instances"] if one["instance"] == "other"]
    assert (other["host"], other["backups"] >= 1) == ("db-2", True)
    since = (datetime.now(UTC) - datetime.fromisoformat(other["heard"])).total_seconds()
    last = look("--cached", "--where", "host=db-2", within=since)
    assert next((one["host"], one["silent"]) for one in last["hosts"]) == ("db-2", True)
    assert [one["silent"] for one in last["hosts"]].count(False) == 1
    (row,) = last["instances"]
    assert (row["verdict"], [one["what"] for one in row["reasons"] if one["verdict"] == "broken"][-1]) == (
        "broken",
        "heard",
    )
