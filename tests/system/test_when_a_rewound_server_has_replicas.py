"""A server that others replicate from is put back only if they will be made anew, and they are named until they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zsnapdb.mysql.process.server import ServerProcess

from .in_guest import SERVER, Done, Lab, zfs
from .rewinding import accident, controlled, lines

pytestmark = pytest.mark.usefixtures("first")


@pytest.fixture
def control(lab: Lab) -> Iterator[tuple[tuple[str, str], ...]]:
    """Say how the guest's server is stopped and started. Afterwards the first server is in its place again."""
    with controlled(lab) as replacements:
        yield replacements


@pytest.fixture
def replica(lab: Lab, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A server of a restore that replicates from the guest's server, and that the account of zsnapdb may identify."""
    right = "REPLICATION SLAVE" if lab.flavour == "mysql" else "REPLICATION MASTER ADMIN"
    lab.sql(f"GRANT {right} ON *.* TO zsnapdb@localhost")
    lab.sql("CREATE USER replica@localhost IDENTIFIED BY 'Repl-1ca-x'")
    lab.sql("GRANT REPLICATION SLAVE ON *.* TO replica@localhost")
    password = tmp_path / "password"
    password.write_text("Repl-1ca-x\n")
    password.chmod(0o600)
    backup = lab.zsnapdb("backup", "--json").json["backup"]["backup_id"]
    words = ("--to", backup, "--target", "tank/reader", "--handover", "replica", "--source", "127.0.0.1:3306")
    account = ("--source-user", "replica", "--source-password-file", str(password))
    yield lab.zsnapdb("restore", "main", *words, *account, "--json").json
    ServerProcess(Path(zfs("get", "-H", "-o", "value", "mountpoint", "tank/reader")[0]) / ".zsnapdb").kill_all()
    zfs("destroy", "-r", "tank/reader")
    lab.sql("DROP USER replica@localhost")
    lab.sql(f"REVOKE {right} ON *.* FROM zsnapdb@localhost")


def check_refused(done: Done) -> None:
    """Check that a replica is named, and what to say so that the command goes on."""
    said = done.stdout + done.stderr
    assert (done.code, "replica@localhost" in said, "--replicas-will-be-rebuilt" in said) == (4, True, True), said


def from_here(gtid: str) -> str:
    """Return the GTIDs of this transaction and the next one: MariaDB tells the last alone."""
    source, mark, number = gtid.rpartition(":" if ":" in gtid else "-")
    following = str(int(number) + 1)
    return f"{source}:{number}-{following}" if mark == ":" else f"{source}-{following}"


def told_of_replicas(lab: Lab, config: Path) -> list[str]:
    """Return the warnings of doctor about replicas that must be rebuilt."""
    (diagnosis,) = json.loads(lab.zsnapdb("doctor", "main", "--json", config=config).stdout)["instances"]
    findings = [finding for finding in diagnosis["findings"] if finding["what"] == "replicas"]
    return [finding["detail"] for finding in findings if finding["severity"] == "warning"]


def test_a_source_is_rewound_only_if_its_replicas_will_be_rebuilt_and_they_are_named_until_they_are(
    lab: Lab, replica: dict[str, Any], control: tuple[tuple[str, str], ...]
) -> None:
    socket = f"{replica['mount']}/.zsnapdb/server.sock"
    second = f'[instance.second]\nsocket = "{socket}"\nuser = "zsnapdb"\npassword_file = "/etc/zsnapdb/main.password"'
    config = lab.changed(*control)
    both = lab.changed(*control, ("[instance.main]", f'{second}\nrepository = "s3"\n\n[instance.main]'))
    assert lab.zsnapdb("snapshot").code == 0
    _, point = accident(lab)
    left_out = from_here(point.removeprefix("before-"))
    # An archive that ends before the newest backup would make `latest` doubtful.
    assert lab.zsnapdb("binlog", "archive", "main", "--once", config=config).code == 0
    rewind = ("rewind", "main", "--to", point, "--no-backup")
    promote = ("restore", "main", "--target", "tank/promoted", "--handover", "promote", "--server-id", "4711")
    for words in ((*rewind, "--plan"), (*rewind, "--yes"), (*promote, "--plan"), promote):
        check_refused(lab.zsnapdb(*words, config=config))
    assert not [name for name in zfs("list", "-H", "-o", "name") if "main-rewind" in name or "promoted" in name]

    # What was said once does not count for a later command: it may come hours later, to somebody else.
    ((text, section),) = control
    unable = lab.changed((text, section.replace(f'stop = ["{SERVER}", "stop"]', 'stop = ["false"]')))
    assert lab.zsnapdb(*rewind, "--yes", "--replicas-will-be-rebuilt", config=unable).code == 5
    again = ("rewind", "main", "--resume", "--yes", "--no-backup")
    check_refused(lab.zsnapdb(*again, config=config))
    assert (lines(lab), told_of_replicas(lab, both)) == ([], [])
    done = lab.zsnapdb(*again, "--replicas-will-be-rebuilt", "--json", config=config).json
    assert (done["finished"], lines(lab)) == (True, [1, 2, 3])
    (asked,) = told_of_replicas(lab, both)
    assert ("instance second" in asked, asked.endswith(f"lacks: {left_out}")) == (True, True), asked
    assert lab.zsnapdb("rewind", "main", "--replicas-rebuilt", "--json", config=config).json["readers"]
    assert told_of_replicas(lab, both) == []
