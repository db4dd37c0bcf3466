"""A restore that is interrupted in any step continues with that step, and restores exactly the requested state."""

from __future__ import annotations

import json
import random
import re
import signal
from typing import Any

import pytest

from tests.lab.guest import Guest

from .in_guest import CONFIG, QUICK, speed_up, wait_for_step

# The journal's steps are those of either server, and a step begins again from its start. That a replay is exact is
# shown on both by test_points.py and by the runbook.
pytestmark = pytest.mark.any_server

PYTHON = "/opt/venv/bin/python"
HEAD = "import sys; sys.path.insert(0, '/checkout'); from tests.lab.inside import ledger; "
WRITE = (
    HEAD + "l = ledger.Load('/run/mysqld/mysqld.sock', rate=100.0); l.start(); l.wait_for(150); l.stop(); c ="
    " ledger.connect('/run/mysqld/mysqld.sock'); c.cursor().execute('CREATE TABLE later (id INT PRIMARY KEY, body"
    " LONGTEXT)'); [c.cursor().execute(f'INSERT INTO later VALUES ({n}, REPEAT(CHAR(65 + {n}), 1000000))') for n in"
    " range(20)]"
)
# It is in no binlog: only the backups are large. Its newest rows are in the redo log, which the parent volume has.
BULK = (
    HEAD + "import os; k = ledger.connect('/run/mysqld/mysqld.sock', 'root', '', 'ledger').cursor();"
    " k.execute('SET sql_log_bin = 0'); k.execute('CREATE TABLE IF NOT EXISTS bulk (id INT PRIMARY KEY AUTO_INCREMENT,"
    " body LONGBLOB)'); [k.execute('INSERT INTO bulk (body) VALUES (%s)', (os.urandom(1000000),)) for n in range(32)]"
)
# What ZFS received is seen after its transaction group, which may be seconds long: each look ends one. That the restore
# runs at 3 MiB/s leaves ten seconds between enough of a volume and its end.
RECEIVED = (
    "import subprocess, sys; sys.path.insert(0, '/checkout'); from zsnapdb.base.errors import NotFound;"
    " from zsnapdb.stream.resume_stream import parse_token; from zsnapdb.zfs import streams\n"
    "def point():\n"
    "    subprocess.run(['zpool', 'sync', 'tank'], check=True)\n"
    "    try:\n"
    "        return (token := streams.token(sys.argv[1])) and parse_token(token)\n"
    "    except NotFound:\n"
    "        return None\n"
    "def is_enough(seen):\n"
    "    return seen and bool(seen.from_guid) is (sys.argv[2] == 'increment') and seen.received >= 13e6\n"
    "while not is_enough(point()):\n"
    "    pass\n"
)
STATE = (
    HEAD
    + "import json; c = ledger.connect(sys.argv[1], 'root', '', 'ledger'); s = ledger.read_state(c); k = c.cursor(); "
    "k.execute('SELECT COUNT(*), SUM(CRC32(body)) FROM later UNION ALL SELECT COUNT(*), SUM(CRC32(body)) FROM bulk'); "
    "print(json.dumps([sorted(s.journal), sorted(s.accounts.items()), s.ballast, str(k.fetchall())]))"
)
SHUT_DOWN = HEAD + "ledger.connect(sys.argv[1], 'root', '').cursor().execute('SHUTDOWN')"
SERVING = (
    "import sys; from pathlib import Path; from zsnapdb.mysql.process import discovery\n"
    "place = Path(sys.argv[1])\n"
    "def serving():\n"
    "    return [s.pid for s in discovery.servers_below([place.parent], '.zsnapdb') if s.place == place]\n"
    "while not (pids := serving()) and 'wait' in sys.argv:\n"
    "    pass\n"
    "print(*pids)"
)
TOP = "tank/resumed"
RESTORE = ["zsnapdb", "restore", "main", "--to", "latest", "--target", TOP, "--handover", "run", "--json"]
SLOW = ["sed", "-i", 's/^stream.chunk_size.*/&\\nbandwidth = "3MiB"/', CONFIG]
FAST = ["sed", "-i", "/^bandwidth/d", CONFIG]
CONTINUES = re.compile(r"the parent volume of \S+ continues at ([0-9.]+) MiB of ([0-9.]+) MiB: ZFS kept")
LISTING = ["zfs", "list", "-H", "-t", "all", "-o", "name"]
RESUME = ["zsnapdb", "restore", "main", "--resume", "--target", TOP, "--json"]


def prepare(guest: Guest) -> str:
    """Make a full backup, an increment, and archived binlogs behind it.

    Journals go to a dataset, so that a power cut leaves them. Return the state.
    """
    guest.run(["zfs", "create", "-o", "mountpoint=/var/lib/zsnapdb", "tank/state"]).check()
    guest.run([PYTHON, "-c", HEAD + "ledger.set_up('/run/mysqld/mysqld.sock')"]).check()
    guest.run([PYTHON, "-c", BULK], timeout=600).check()
    guest.run(["sed", "-i", 's/^\\[repository.s3\\]$/&\\nstream.chunk_size = "1MiB"/', CONFIG]).check()
    speed_up(guest)
    guest.run([QUICK, "backup"]).check()
    guest.run(
        [
            PYTHON,
            "-c",
            HEAD + "c = ledger.connect('/run/mysqld/mysqld.sock').cursor(); c.execute('CREATE TABLE between_backups (id"
            " INT)')",
        ]
    ).check()
    guest.run([PYTHON, "-c", BULK], timeout=600).check()
    guest.run([QUICK, "backup"]).check()
    guest.run([PYTHON, "-c", WRITE], timeout=600).check()
    guest.run([QUICK, "binlog", "archive", "main", "--once"], timeout=600).check()
    return guest.run([PYTHON, "-c", STATE, "/run/mysqld/mysqld.sock"]).check().stdout


def steps(guest: Guest) -> list[str]:
    plan: dict[str, Any] = json.loads(guest.run([QUICK, *RESTORE[1:], "--plan"]).check().stdout)
    return [step["name"] for step in plan["steps"]]


def check_end(guest: Guest, prepared: str, output: str) -> None:
    """Check that the restored server has the data of the source, and that no snapshot or journal is left."""
    restored = json.loads(output)
    assert restored["finished"]
    assert guest.run([PYTHON, "-c", STATE, f"{restored['mount']}/.zsnapdb/server.sock"]).check().stdout == prepared
    left = guest.run(
        ["sh", "-c", "zfs list -H -t snapshot -o name | grep zsnapdb-restore-; ls /var/lib/zsnapdb/restores/*.json"]
    )
    assert left.stdout == ""


def end_orphan(guest: Guest, resume: list[str], mount: str) -> None:
    """Kill a restore while its server runs: doctor names the server, and reap ends it."""
    running = guest.spawn(resume)
    seen = guest.spawn([PYTHON, "-c", SERVING, mount, "wait"])
    while not seen.done.wait(0.1):
        assert not running.done.is_set(), running.output(2)
    running.signal(signal.SIGKILL)
    running.wait(600)
    pid = seen.wait().check().stdout.strip()
    named = guest.run([QUICK, "doctor"])
    assert f"process {pid} of the restore to" in named.stdout, named.stdout + named.stderr
    swept = json.loads(guest.run([QUICK, "reap", "--json"]).check().stdout)["swept"]
    assert [item["name"] for item in swept if item["what"] == "server"] == [f"process {pid}"]
    assert guest.run([PYTHON, "-c", SERVING, mount]).check().stdout == "\n"


def fetched(guest: Guest) -> int:
    """Return the bytes that went over the loopback interface of the guest, over which alone its store is reached."""
    line = next(line for line in guest.run(["cat", "/proc/net/dev"]).check().stdout.splitlines() if "lo:" in line)
    return int(line.split()[1])


def goes_on_inside_a_volume(guest: Guest, prepared: str, steps: list[str]) -> None:
    """Kill a restore while ZFS receives a large volume: the next run fetches about the rest, and the data is exact.

    `steps` receive the volume of a full backup, then that of the increment: it is killed in both. What ZFS kept is
    removed with the restore that is given up.
    """
    top, rest = "tank/halfway", ["--target", "tank/halfway", "--json"]
    begin, resume = ["restore", "main", "--to", "latest", "--handover", "run"], ["restore", "main", "--resume"]

    def killed(words: list[str], kind: str) -> None:
        guest.run(SLOW).check()
        running = guest.spawn(["zsnapdb", *words, *rest])
        enough = guest.spawn([PYTHON, "-c", RECEIVED, top, kind])
        while not enough.done.wait(0.1):
            assert not running.done.is_set(), running.output(2)
        enough.wait().check()
        running.signal(signal.SIGKILL)
        running.wait(600)
        guest.run(FAST).check()
        guest.run([PYTHON, "-c", RECEIVED, top, kind]).check()

    for step in steps:
        killed(begin if step == steps[0] else resume, "full" if step == steps[0] else "increment")
        before = fetched(guest)
        stopped = guest.run(["zsnapdb", *resume, "--stop-after", step, *rest], timeout=600).check()
        went = fetched(guest) - before
        at, whole = (float(number) for number in CONTINUES.search(stopped.stderr).groups())  # type: ignore[union-attr]
        print(f"killed in {step}: it continues at {at} of {whole} MiB, {went / 2**20:.1f} MiB were transferred")
        assert 10 < at < whole - 10
        # The first chunk and the one of the point are fetched twice; descriptions and headers are less than a chunk.
        assert went < (whole - at + 4) * 2**20
    output = guest.run(["zsnapdb", "restore", "main", "--resume", *rest], timeout=600).check().stdout
    check_end(guest, prepared, output)
    guest.run([PYTHON, "-c", SHUT_DOWN, f"{json.loads(output)['mount']}/.zsnapdb/server.sock"]).check()
    guest.run(["sh", "-c", f"until zfs destroy -r {top}; do sleep 1; done"], timeout=600).check()
    datasets = guest.run(LISTING).check().stdout
    killed(begin, "full")
    guest.run(["zsnapdb", "restore", "main", "--abandon", *rest]).check()
    assert guest.run(LISTING).check().stdout == datasets


def test_killed_or_cut_off_in_every_step_it_goes_on_and_given_up_it_leaves_nothing(guest: Guest) -> None:
    prepared = prepare(guest)
    chance = random.Random(3)
    names = steps(guest)
    goes_on_inside_a_volume(guest, prepared, [name for name in names if re.fullmatch("receive-.*-parent", name)])
    by_hand = guest.spawn(RESTORE)
    wait_for_step(by_hand, [name for name in names if name.startswith("receive-")])
    by_hand.signal(signal.SIGINT)
    ended = by_hand.wait(600)
    assert (ended.code, "are kept: continue with --resume" in ended.stderr) == (130, True), ended.stderr
    keeps_objects = guest.run(["cat", "/opt/s3/which"]).stdout.strip() != "moto"
    cut = {[name for name in names if name.startswith("receive-")][-1], "replay-1"} if keeps_objects else set()
    command, left, finished = RESUME, names[2:], ""
    while left and not finished:
        running = guest.spawn(command)
        name = wait_for_step(running, left)
        running.done.wait(chance.uniform(0.0, 1.0))
        if name in cut:
            guest.power_cut()
            guest.start()
        else:
            running.signal(signal.SIGKILL)
            # The last step may have ended before the signal.
            finished = running.output(1) if running.wait(600).code == 0 else ""
        # A quick step may have ended before the kill. The next kill then happens in a later step.
        left = left[left.index(name) + 1 :]
        command = RESUME
    if not finished:
        refused = guest.run(RESTORE)
        assert (refused.code, "--resume" in refused.stderr) in ((4, True), (8, True)), refused.stderr
        finished = guest.run(RESUME).check().stdout
    check_end(guest, prepared, finished)
    speed_up(guest)
    before = guest.run(LISTING).check().stdout
    other = ["--target", "tank/given-up"]
    stopped = json.loads(
        guest.run([QUICK, "restore", "main", *other, "--stop-after", "recover", "--json"]).check().stdout
    )
    assert (stopped["finished"], stopped["next_step"]) == (False, "replay-1")
    assert guest.run(LISTING).check().stdout != before
    end_orphan(guest, ["zsnapdb", "restore", "main", "--resume", *other], stopped["mount"])
    for words in (["--resume", "--stop-after", "replay-1"], ["--abandon"]):
        # A recursive snapshot of somebody else: ZFS does not roll back over it.
        guest.run(["zfs", "snapshot", "-r", "tank/given-up@autosnap_one"]).check()
        kept = guest.run(LISTING).check().stdout
        refused = guest.run([QUICK, "restore", "main", *words, *other])
        assert (refused.code, "made by sanoid" in refused.stderr) == (4, True), refused.stderr
        assert guest.run(LISTING).check().stdout == kept
        guest.run([QUICK, "restore", "main", *words, *other, "--with-foreign-snapshots"], timeout=600).check()
    assert guest.run(LISTING).check().stdout == before
