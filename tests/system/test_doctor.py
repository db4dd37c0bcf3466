"""The doctor finds what is planted on the real host, says how to mend it, and mends what is safe."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import ledger
from zsnapdb.planning.advice.catalogue import RULES

from . import poor_server
from .in_guest import SOCKET, Lab, clock_ahead, run, zfs

pytestmark = pytest.mark.usefixtures("first")

DATA, LOGS = "tank/mysql/data", "tank/mysql"
PARAMETERS = Path("/sys/module/zfs/parameters")
MEMORY_LOG = Path("/dev/ram7")
TWO_MONTHS = 60 * 86400
BAD_PROPERTIES = {
    "recordsize-data": (DATA, "recordsize", "128K", "16K"),
    "recordsize-logs": (LOGS, "recordsize", "16K", "128K"),
    "compression": (DATA, "compression", "off", "lz4"),
    "primarycache": (DATA, "primarycache", "metadata", "all"),
    "logbias": (DATA, "logbias", "throughput", "latency"),
    "sync-disabled": (DATA, "sync", "disabled", "standard"),
    "atime": (DATA, "atime", "on", "off"),
    "xattr": (DATA, "xattr", "dir", "sa"),
    "redundant-metadata": (DATA, "redundant_metadata", "most", "all"),
    "checksum": (DATA, "checksum", "off", "on"),
    "dedup": (DATA, "dedup", "on", "off"),
}
"""A rule of the doctor; the dataset, the property and the value that it finds; the value that mends it."""
HELPERS = ("relatime=off", "acltype=posix")
"""Without these, atime=on and xattr=dir do no harm."""
LEFT_TO_PEOPLE = ("primarycache", "sync-disabled")
"""Properties that `--fix` does not set: memory is taken, or commits wait."""
BAD_VARIABLES = {
    "sync-binlog": ("sync_binlog", "7", "set sync_binlog = 1"),
    "server-checksums": ("binlog_checksum", "NONE", "set binlog_checksum = CRC32"),
    "flush-at-commit": ("innodb_flush_log_at_trx_commit", "2", "set innodb_flush_log_at_trx_commit = 1"),
    "binlog-expiry": ("binlog_expire_logs_seconds", "3600", "set binlog_expire_logs_seconds = 604800"),
    "binlog-row-metadata": ("binlog_row_metadata", "MINIMAL", "set binlog_row_metadata = FULL"),
}
BAD_VARIABLES_OF_MARIADB = {
    "gtid-strict": ("gtid_strict_mode", "OFF", "set gtid_strict_mode = ON"),
    "page-compression": ("innodb_compression_default", "ON", "PAGE_COMPRESSED = 0"),
}
"""MySQL refuses both: statements without GTIDs under gtid_mode, and compressed pages where a record is a page."""


@dataclass(frozen=True)
class Consultation:
    """What the doctor says: what `--fix --plan` answers, `--format nagios`, and `--fix --yes`."""

    code: int
    planned: dict[str, Any]
    spoken: str
    fixed: dict[str, Any]


def objections(document: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the findings of rules that are not ok, by the id of the rule."""
    (diagnosis,) = document["instances"]
    return {f["rule"]: f for f in diagnosis["findings"] if "rule" in f and f["severity"] != "ok"}


def set_back(dataset: str, name: str) -> Callable[[], object]:
    """Return what gives a property its present value back."""
    (row,) = zfs("get", "-H", "-p", "-o", "value,source", name, dataset)
    value, source = row.split("\t")
    return lambda: zfs("set", f"{name}={value}", dataset) if source == "local" else zfs("inherit", name, dataset)


@contextlib.contextmanager
def bad_properties() -> Iterator[None]:
    """Set every bad property for the block."""
    with contextlib.ExitStack() as after:
        for dataset, name, bad, _ in BAD_PROPERTIES.values():
            after.callback(set_back(dataset, name))
            zfs("set", f"{name}={bad}", dataset)
        for helper in HELPERS:
            after.callback(set_back(DATA, helper.partition("=")[0]))
            zfs("set", helper, DATA)
        yield


@contextlib.contextmanager
def bad_parameters() -> Iterator[None]:
    """Set what the module should not have for the block: also an ARC that leaves nothing to the server."""
    total = next(line for line in Path("/proc/meminfo").read_text().split("\n") if line.startswith("MemTotal:"))
    most = next(line for line in Path("/proc/spl/kstat/zfs/arcstats").read_text().split("\n") if "c_max " in line)
    values = {
        "zfs_nocacheflush": ("1", "0"),
        "zfs_send_corrupt_data": ("1", "0"),
        "zfs_arc_max": (str(int(total.split()[1]) * 1024 * 19 // 20), most.split()[2]),
    }
    try:
        for name, (bad, _) in values.items():
            (PARAMETERS / name).write_text(bad)
        yield
    finally:
        for name, (_, good) in values.items():
            (PARAMETERS / name).write_text(good)


@contextlib.contextmanager
def bad_devices(folder: Path) -> Iterator[Path]:
    """Add log devices for the block: one in memory, a mirror that lost a disk, and one alone with small sectors."""
    single, first, second = (folder / name for name in ("single", "first", "second"))
    for file in (single, first, second, MEMORY_LOG):
        file.write_bytes(b"")
        os.truncate(file, 128 << 20)
    with contextlib.ExitStack() as after:
        after.callback(MEMORY_LOG.unlink)
        for words, last in (
            (("-o", "ashift=9", "tank", "log", str(single)), single),
            (("tank", "log", str(MEMORY_LOG)), MEMORY_LOG),
            (("tank", "log", "mirror", str(first), str(second)), first),
        ):
            done = run("zpool", "add", "-f", *words)
            assert done.code == 0, done.stderr
            after.callback(run, "zpool", "remove", "tank", str(last))
        after.callback(run, "zpool", "detach", "tank", str(second))
        assert run("zpool", "offline", "tank", str(second)).code == 0
        yield single


@contextlib.contextmanager
def bad_server(lab: Lab) -> Iterator[None]:
    """Set bad variables, take a right from the account, and make a table in small blocks, for the block."""
    bad = {**BAD_VARIABLES, **(BAD_VARIABLES_OF_MARIADB if lab.flavour == "mariadb" else {})}
    with contextlib.ExitStack() as after:
        zfs("set", "recordsize=4K", DATA)
        lab.sql("CREATE DATABASE planted")
        after.callback(lab.sql, "DROP DATABASE planted")
        lab.sql("CREATE TABLE planted.small (id INT PRIMARY KEY) ENGINE = InnoDB")
        zfs("set", "recordsize=16K", DATA)
        after.callback(lab.sql, f"GRANT {lock_privilege(lab)} ON *.* TO zsnapdb@localhost")
        lab.sql(f"REVOKE {lock_privilege(lab)} ON *.* FROM zsnapdb@localhost")
        for name, value, _ in bad.values():
            good = lab.sql(f"SELECT @@GLOBAL.{name}")[0][0]
            after.callback(lab.sql, f"SET GLOBAL {name} = {good}")
            lab.sql(f"SET GLOBAL {name} = {value}")
        yield


def lock_privilege(lab: Lab) -> str:
    return "BACKUP_ADMIN" if lab.flavour == "mysql" else "RELOAD"


@pytest.fixture(scope="module")
def loud(lab: Lab) -> Path:
    """The configuration of the lab, with no rule silenced."""
    quiet = lab.changed()
    text = quiet.read_text()
    quiet.write_text(text.partition("[[doctor.silenced]]")[0])
    return quiet


@pytest.fixture(scope="module")
def planted(lab: Lab, loud: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Consultation]:
    """What the doctor says while everything is planted, and the log device that is alone."""
    fixing = ("doctor", "main", "--fix", "--json")
    folder = tmp_path_factory.mktemp("logs")
    with bad_server(lab), bad_properties(), bad_parameters(), bad_devices(folder) as single, clock_ahead(TWO_MONTHS):
        planned = lab.zsnapdb(*fixing, "--plan", config=loud)
        spoken = lab.zsnapdb("doctor", "main", "--format", "nagios", config=loud)
        fixed = lab.zsnapdb(*fixing, "--yes", config=loud)
    documents = (json.loads(planned.stdout), json.loads(fixed.stdout))
    assert (planned.code, spoken.code) == (2, 2)
    return single, Consultation(planned.code, documents[0], spoken.stdout, documents[1])


@pytest.fixture(scope="module")
def poor(lab: Lab) -> poor_server.PoorServer:
    """What the doctor says of a server on a small pool of its own."""
    return poor_server.consulted(lab)


def right_fixes(lab: Lab, single: Path) -> dict[str, str]:
    """Return what mends each planted fault, by the rule that finds it."""
    properties = {rule: f"zfs set {name}={good} {dataset}" for rule, (dataset, name, _, good) in BAD_PROPERTIES.items()}
    of_flavour = BAD_VARIABLES_OF_MARIADB if lab.flavour == "mariadb" else {}
    variables = {rule: fix for rule, (_, _, fix) in {**BAD_VARIABLES, **of_flavour}.items()}
    return {
        **properties,
        **variables,
        "pool-health": "zpool status -v tank",
        "pool-scrub": "zpool scrub tank",
        "pool-trim": "zpool trim tank",
        "ashift": f"zpool remove tank {single}, then add it again: zpool add -o ashift=12 tank log",
        "slog-mirror": f"zpool attach tank {single} SECOND_DEVICE",
        "slog-in-memory": f"zpool remove tank {MEMORY_LOG}",
        "memory": "options zfs zfs_arc_max=",
        "zfs-nocacheflush": "set zfs_nocacheflush = 0",
        "zfs-send-corrupt-data": "set zfs_send_corrupt_data = 0",
        "doublewrite": "set innodb_doublewrite = ON",
        "rewind-control": "set control.unit" if lab.flavour == "mysql" else "set control.server_id_file",
        "lock-privileges": f"GRANT {lock_privilege(lab)} ON *.* TO the account",
    }


def test_the_doctor_finds_what_is_planted_and_says_how_to_mend_it(lab: Lab, planted: tuple[Path, Consultation]) -> None:
    single, said = planted
    found, fixes = objections(said.planned), right_fixes(lab, single)
    assert set(found) == set(fixes)
    assert len(fixes) >= 25
    assert {rule: found[rule]["hint"] for rule, fix in fixes.items() if fix not in found[rule]["hint"]} == {}
    assert lock_privilege(lab) in found["lock-privileges"]["detail"]
    assert str(MEMORY_LOG) not in found["slog-mirror"]["detail"]
    assert said.spoken.startswith("ZSNAPDB CRITICAL - ")


def test_the_doctor_finds_what_is_planted_in_a_pool_that_is_full_and_in_the_options_of_its_server(
    lab: Lab, poor: poor_server.PoorServer
) -> None:
    found, fixes = objections(poor.full), poor_server.right_fixes(lab.flavour)
    assert set(found) == set(fixes)
    assert {rule: found[rule]["hint"] for rule, fix in fixes.items() if fix not in found[rule]["hint"]} == {}


def test_the_doctor_finds_free_space_that_is_fragmented(poor: poor_server.PoorServer) -> None:
    found = objections(poor.fragmented)
    assert "pool-space" not in found
    # Whether its binlogs are many for what is free now depends on how much the guest's server has written.
    assert set(found) - poor_server.OF_SPACE == (set(objections(poor.full)) - poor_server.OF_SPACE) | {
        "pool-fragmentation"
    }
    assert "remove snapshots and clones" in found["pool-fragmentation"]["hint"]


def test_each_rule_is_planted(lab: Lab, planted: tuple[Path, Consultation], poor: poor_server.PoorServer) -> None:
    found = {*objections(planted[1].planned), *objections(poor.full), *objections(poor.fragmented)}
    of_the_other = {*BAD_VARIABLES_OF_MARIADB, "encrypted-tables"} if lab.flavour == "mysql" else set()
    assert found == {rule.id for rule in RULES} - of_the_other - {"recovery-account", "repository-place"}


def test_an_account_that_may_write_is_missed_where_root_is_not_let_in(lab: Lab) -> None:
    lab.sql("CREATE USER other@localhost IDENTIFIED BY 'Other-1'")
    lab.sql("GRANT ALL ON *.* TO other@localhost WITH GRANT OPTION")
    lab.sql("REVOKE TRIGGER ON *.* FROM zsnapdb@localhost")
    with ledger.connect(SOCKET, "other", "Other-1") as connection:
        cursor = connection.cursor()
        cursor.execute("RENAME USER root@localhost TO aside@localhost")
        try:
            done = lab.zsnapdb("doctor", "main", "--json")
        finally:
            cursor.execute("RENAME USER aside@localhost TO root@localhost")
            cursor.execute("GRANT TRIGGER ON *.* TO zsnapdb@localhost")
    lab.sql("DROP USER other@localhost")
    (diagnosis,) = json.loads(done.stdout)["instances"]
    hints = [finding["hint"] for finding in diagnosis["findings"] if finding["what"] == "recovery-account"]
    assert "GRANT TRIGGER ON *.* TO `zsnapdb`@`localhost`" in hints
    (said,) = [finding["detail"] for finding in diagnosis["findings"] if finding["what"] == "recovery"]
    assert "not possible now: undo, rescue into the server (recovery-account: " in said


def test_fix_mends_what_is_safe_as_its_plan_says_and_the_doctor_agrees(
    lab: Lab, planted: tuple[Path, Consultation]
) -> None:
    single, said = planted
    safe = {rule: fix for rule, fix in right_fixes(lab, single).items() if fix.startswith("zfs set")}
    for rule in LEFT_TO_PEOPLE:
        del safe[rule]
    assert set(said.planned["planned"]) == set(safe.values())
    assert said.fixed["fixed"] == said.planned["planned"]
    assert set(objections(said.fixed)) == set(objections(said.planned)) - set(safe)


def test_the_doctor_says_nothing_when_all_is_mended(lab: Lab, planted: tuple[Path, Consultation]) -> None:
    done = lab.zsnapdb("doctor", "main", "--json")
    (healthy,) = json.loads(done.stdout)["instances"]
    assert done.code == 1
    # A host of the lab does not sign. Whether it archives binlogs depends on the tests before.
    assert {f["what"] for f in healthy["findings"] if f["severity"] != "ok"} - {"objective"} == {"signing"}
    assert not [f["detail"] for f in healthy["findings"] if "not judged" in f["detail"]]


def test_an_account_that_may_not_see_the_files_of_tables_is_told_which_right_it_lacks(lab: Lab) -> None:
    lab.sql("REVOKE PROCESS ON *.* FROM zsnapdb@localhost")
    try:
        done = lab.zsnapdb("doctor", "main", "--json")
    finally:
        lab.sql("GRANT PROCESS ON *.* TO zsnapdb@localhost")
    (diagnosis,) = json.loads(done.stdout)["instances"]
    (objection,) = [f for f in diagnosis["findings"] if f["severity"] == "unfit"]
    assert (done.code, objection["severity"], objection["what"]) == (2, "unfit", "server")
    assert "PROCESS privilege" in objection["detail"]
    assert "zsnapdb grants" in objection["hint"]
