"""A rewind that loses its power while the server is being replaced goes on, and ends at the point."""

from __future__ import annotations

import json
import random

import pytest

from tests.lab.guest import Guest
from tests.lab.host import LabError

from .in_guest import CONFIG, PYTHON, QUICK, wait_for_step

# What is interrupted is changes of datasets. Which server starts on them makes no difference.
pytestmark = pytest.mark.any_server

SERVER = "/checkout/tests/lab/inside/server"
CONTROL = f"""
mkdir -p /etc/lab.d && echo '!includedir /etc/lab.d' >> /etc/lab.cnf
cat >> {CONFIG} <<'END'
[instance.main.control]
stop = ["{SERVER}", "stop"]
start = ["{SERVER}", "start"]
server_id_file = "/etc/lab.d/zsnapdb.cnf"
END
"""
SQL = (
    "import sys; sys.path.insert(0, '/checkout'); from tests.lab.inside import ledger; c = ledger.connect("
    "'/run/mysqld/mysqld.sock', 'root', '', None).cursor(); [c.execute(s) for s in sys.argv[1:]]; print(c.fetchall())"
)
ACCIDENT = (
    "CREATE DATABASE rewound",
    "CREATE TABLE rewound.lines (number INT PRIMARY KEY)",
    "INSERT INTO rewound.lines VALUES (1), (2), (3)",
    "DELETE FROM rewound.lines",
)
LINES = "SELECT SUM(number), COUNT(*) FROM rewound.lines"
CUTS = 2


def cut_off(guest: Guest, command: list[str], delay: float) -> bool:
    """Run the command until it has replaced the server for so many seconds, then cut the power and boot again.

    False if it ended before.
    """
    running = guest.spawn(command)
    wait_for_step(running, ["handover"])
    ended = running.done.wait(delay)
    if not ended:
        guest.power_cut()
        boot(guest)
        # The configuration is not on a disk of the guest.
        guest.run(["sh", "-c", CONTROL]).check()
    return not ended


def boot(guest: Guest) -> None:
    """Boot the guest. The datasets of its server may be between two names: then that cannot start by itself."""
    try:
        guest.start()
    except LabError as error:
        if "server did not start" not in str(error):
            raise


def test_a_rewind_whose_power_is_cut_while_the_server_is_replaced_goes_on_to_the_point(guest: Guest) -> None:
    guest.run(["zfs", "create", "-o", "mountpoint=/var/lib/zsnapdb", "tank/state"]).check()
    guest.run(["sh", "-c", CONTROL]).check()
    guest.run([QUICK, "snapshot", "main"]).check()
    guest.run([PYTHON, "-c", SQL, *ACCIDENT]).check()
    words = ["binlog", "find", "main", "--json", "--table", "rewound.lines", "--kind", "delete", "--limit", "1"]
    (entry,) = json.loads(guest.run([QUICK, *words]).check().stdout)["transactions"]
    chance = random.Random(5)
    command = ["zsnapdb", "rewind", "main", "--to", f"before-{entry['gtid']}", "--yes", "--no-backup", "--json"]
    cuts = 0
    while cuts < CUTS and cut_off(guest, command, chance.uniform(0.2, 2.0)):
        cuts += 1
        command = ["zsnapdb", "rewind", "main", "--resume", "--yes", "--no-backup", "--json"]
    assert cuts >= 1
    if cuts == CUTS:
        assert json.loads(guest.run(command, timeout=600).check().stdout)["finished"]
    assert guest.run([PYTHON, "-c", SQL, LINES]).check().stdout.strip() == "((Decimal('6'), 3),)"
    left = guest.run(["sh", "-c", "zfs list -H -t snapshot -o name | grep zsnapdb-restore-"])
    assert left.stdout == ""
    # The next backup works, and the replaced datasets are known.
    guest.run([QUICK, "backup"], timeout=600).check()
    named = json.loads(guest.run([QUICK, "doctor", "main", "--json"]).stdout)["instances"][0]["findings"]
    assert [finding["severity"] for finding in named if finding["what"] == "replaced"] == ["ok"]
