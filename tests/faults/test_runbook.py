"""On a host with only the package, the configuration and the key, a drill passes and the runbook restores the server.

The test types every command of the printed runbook literally.
"""

from __future__ import annotations

import json
import re
import shlex

import pytest

from tests.lab.guest import Guest

# What is typed are commands of zsnapdb and ZFS. On both servers test_main_job.py drills and restores, test_points.py
# replays what is archived to its end and to points, and test_local_restore.py starts the server of such a restore.
pytestmark = pytest.mark.any_server

PYTHON = "/opt/venv/bin/python"
LEDGER = "import sys; sys.path.insert(0, '/checkout'); from tests.lab.inside import ledger; "
SET_UP = (
    LEDGER + "ledger.set_up('/run/mysqld/mysqld.sock'); load = ledger.Load('/run/mysqld/mysqld.sock'); load.start();"
    " load.wait_for(40); load.stop()"
)
MORE = (
    LEDGER + "load = ledger.Load('/run/mysqld/mysqld.sock', first_number={n: 10000 for n in range(3)}); load.start();"
    " load.wait_for(60); load.stop()"
)
STATE = (
    LEDGER
    + "s = ledger.read_state(ledger.connect(sys.argv[1])); print(len(s.journal), sum(s.accounts.values()), s.accounts"
    " == ledger.balances(s.journal), s.ballast)"
)
GTIDS = (
    LEDGER
    + "c = ledger.connect(sys.argv[1], 'zsnapdb', 'lab-zsnapdb', None).cursor(); c.execute(\"SHOW GLOBAL VARIABLES"
    " WHERE variable_name IN ('gtid_executed', 'gtid_binlog_pos')\"); print(''.join(row[1] for row in c.fetchall()))"
)
INNOCHECKSUM = (
    "cd /opt/mysql/bin && sed s/mysqldump/innochecksum/ mysqldump > innochecksum && chmod +x innochecksum || true"
)
KEY = "/etc/zsnapdb/identity"
CONFIG = "/etc/zsnapdb/zsnapdb.toml"


def ask(guest: Guest, script: str, socket: str) -> str:
    return guest.run([PYTHON, "-c", script, socket]).check().stdout.strip()


def encrypt_and_name_contacts(guest: Guest) -> None:
    """Encrypt the repository, so that the host needs a key too, and configure contacts."""
    made = json.loads(guest.run(["zsnapdb", "key", "generate", "--identity", KEY, "--json"]).check().stdout)
    recipient = re.search(r"age1[0-9a-z]+", json.dumps(made))
    assert recipient is not None
    more = (
        f'\n[repository.s3.encryption]\nrecipients = ["{recipient.group()}"]\nidentity_file = "{KEY}"\n[site]\ncontacts'
        ' = ["Ann, 555-0100"]\n'
    )
    guest.run(["sh", "-c", f"printf %s {shlex.quote(more)} >> {CONFIG}"]).check()


def make_bare(guest: Guest) -> None:
    """Remove the server, its datasets, and everything of zsnapdb but the package, the configuration and the key."""
    guest.run(["/checkout/tests/lab/inside/server", "stop"]).check()
    guest.run(["zfs", "destroy", "-r", "tank/mysql"]).check()
    guest.run(
        ["sh", "-c", "rm -rf /var/lib/zsnapdb /var/cache/zsnapdb /run/zsnapdb /var/lib/mysql/*; zpool scrub -w tank"]
    ).check()
    assert guest.run(["zfs", "list", "-H", "-o", "name"]).check().stdout.split() == ["tank"]


def follow(guest: Guest, text: str) -> list[str]:
    """Type every command of the runbook as printed. Each command must succeed and print what the runbook says."""
    typed = []
    for command, expected in re.findall(r"```sh\n(.*?)\n```\n(?:\nprints\n\n```text\n(.*?)\n```\n)?", text, re.DOTALL):
        done = guest.run(["sh", "-c", command], timeout=600)
        assert done.code == 0, f"{command}\n{done.stdout}{done.stderr}"
        if expected:
            assert done.stdout.strip() == expected, command
        typed.append(command)
    return typed


def test_the_printed_runbook_brings_the_server_back_on_a_bare_host(guest: Guest) -> None:
    guest.run(["sh", "-c", INNOCHECKSUM]).check()
    encrypt_and_name_contacts(guest)
    guest.run([PYTHON, "-c", SET_UP], timeout=600).check()
    guest.run(["zsnapdb", "backup"], timeout=600).check()
    # The transactions after the backup are only in the archived binlogs.
    guest.run([PYTHON, "-c", MORE], timeout=600).check()
    guest.run(["zsnapdb", "binlog", "archive", "main", "--once"], timeout=600).check()
    socket = "/run/mysqld/mysqld.sock"
    state, gtids = ask(guest, STATE, socket), ask(guest, GTIDS, socket)
    make_bare(guest)
    drill = guest.run(["zsnapdb", "drill", "main", "--json"])
    assert drill.code == 0, drill.stdout + drill.stderr
    text = guest.run(["zsnapdb", "runbook", "main"]).check().stdout
    assert "- Ann, 555-0100" in text
    assert guest.run(["zfs", "list", "-H", "-t", "snapshot", "-o", "name"]).check().stdout == ""
    for kind in ("Receive the data volume", "Start the server once"):
        expected = re.search(rf"{kind}.*?\n\nExpected: (.*?)\. Begun", text)
        assert expected is not None
        assert expected.group(1) != "unknown"
    typed = follow(guest, text)
    assert sum(command.startswith("zsnapdb restore main") for command in typed) == text.count("## Step ")
    (restored,) = guest.run(["find", "/var/lib/zsnapdb/restored", "-name", "server.sock"]).check().stdout.split()
    assert (ask(guest, STATE, restored), ask(guest, GTIDS, restored)) == (state, gtids)
