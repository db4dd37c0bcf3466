"""Campaign: from a host without zsnapdb to a passed drill, by the script of a new user.

    python3 tests/lab campaign newcomer [--way adopt|create|both] [--kills 0]

The host has systemd, a pool, and a server in its usual folder: on the root filesystem (`create`: setup moves its files
to ZFS), or on its own dataset (`adopt`). The Debian package is built and installed by apt. Every command, its seconds
and the questions to the user are printed. The server's rows must be the same before and after.

With `--kills N` the setup of `create` is killed with -9 before and after each of its commands that change something, at
most N times (-1: at all of them). The same setup must then succeed, with the same rows, and the old files unchanged.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab import newcomer
from tests.lab.guest import SYSTEMD, Guest, Lab
from tests.lab.newcomer import DATADIR, UNITS, rows, shell, sql

ANY_SERVER = True
ON_HOST = True
ANSWERS = 'repository = "file:///srv/backups"\nmove = true\n'
SETUP = "zsnapdb setup --answers answers.toml --yes"
OLD = f"{DATADIR}.before-zfs"
SHIM = "/tmp/shim"
COMMANDS = (5, 3, 6, 4, 2, 1, 7)
"""The commands of a setup that change something, by number: set, stop, start, sync, create, create, enable."""
SHIMMED = ("zfs", "zpool", "systemctl")


class Newcomer:
    """Runs commands, and counts and times them."""

    def __init__(self, guest: Guest, way: str) -> None:
        self.guest, self.way = guest, way
        self.seconds: list[tuple[str, float]] = []

    def types(self, command: str) -> str:
        """Run one command as a user would type it. LabError if it fails, or waits for an answer."""
        began = time.monotonic()
        done = self.guest.run(["sh", "-ec", command], timeout=1800, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        self.seconds.append((command, time.monotonic() - began))
        print(f"{self.way}: {self.seconds[-1][1]:6.1f} s  {command}", flush=True)
        return done.check().stdout

    def total(self) -> None:
        seconds = sum(part for _, part in self.seconds)
        print(f"{self.way}: {len(self.seconds)} commands, {seconds:.0f} s of the machine, 0 questions", flush=True)


def journey(lab: Lab, flavour: str, way: str, package: Path) -> dict[str, object]:
    """Go through all steps once, and return the figures."""
    with Guest.boot(lab, flavour, init=SYSTEMD) as guest:
        newcomer.strip(guest, is_adopted=way == "adopt")
        shell(guest, "mkdir /srv/backups")
        (guest.out / package.name).write_bytes(package.read_bytes())
        before, gtids = rows(guest), executed(guest)
        person = Newcomer(guest, way)
        person.types(f"apt-get install -y /out/{package.name}")
        binary = 'binary = "/opt/mysql/bin/mysqld"\n' if flavour == "mysql" else ""
        person.types(f"cat > answers.toml <<'END'\n{ANSWERS}{binary}END")
        *_, drill = json.loads(person.types(f"{SETUP} --json"))["proof"]
        assert drill["drill"]["outcome"] == "passed"
        person.total()
        assert rows(guest) == before, "rows were lost"
        if way == "create":
            check_moved(guest, gtids)
        shown = shell(guest, "zsnapdb doctor --json || [ $? = 1 ]")
        findings = [f for one in json.loads(shown)["instances"] for f in one["findings"] if f["severity"] != "ok"]
        for finding in findings:
            print(f"{way}: doctor: {finding['severity']} {finding['what']}: {finding['detail']}", flush=True)
        for line in shell(guest, "journalctl --no-pager -o cat -n 5 -u zsnapdb-agent").splitlines():
            print(f"{way}: agent: {line}", flush=True)
        return {"way": way, "commands": len(person.seconds), "seconds": dict(person.seconds), "questions": 0}


def executed(guest: Guest) -> str:
    """Return the GTIDs of the server ("" if it has none)."""
    return sql(guest, "SELECT @@GLOBAL." + ("gtid_executed" if guest.flavour == "mysql" else "gtid_binlog_pos"))


def check_moved(guest: Guest, gtids: str) -> None:
    """Check that the server runs on ZFS with its history, and that its old files exist."""
    assert sql(guest, "SELECT @@datadir") == f"{DATADIR}/data/"
    assert executed(guest).startswith(gtids.rpartition("-")[0]), (gtids, executed(guest))
    source = shell(guest, f"findmnt -n -o SOURCE -T {DATADIR}/data; findmnt -n -o SOURCE -T {DATADIR}").split()
    assert source == ["tank/mysql/data", "tank/mysql"], source
    shell(guest, f"[ -d {OLD}/mysql ]; [ ! -e /var/lib/zsnapdb/setup/move.json ]")


def kills(lab: Lab, flavour: str, most: int) -> int:
    """Kill the setup at its commands, continue each time, and return the number of kills."""
    with Guest.boot(lab, flavour, init=SYSTEMD) as guest:
        shell(guest, "cp /usr/local/bin/zsnapdb /root/zsnapdb")
        newcomer.strip(guest)
        shell(guest, "mkdir /srv/backups; mv /root/zsnapdb /usr/local/bin/")
        shell(guest, f"mkdir -p {SHIM}/bin; cat > answers.toml <<'END'\n{ANSWERS}plain = true\nproof = false\nEND")
        for name in SHIMMED:
            shell(guest, f"cp /checkout/tests/lab/inside/kill-shim {SHIM}/bin/{name}")
        before = rows(guest)
        chosen = list(itertools.product(COMMANDS, ("after", "before")))[: most if most >= 0 else None]
        for number, side in chosen:
            killed_at(guest, number, side, before)
        return len(chosen)


def killed_at(guest: Guest, number: int, side: str, before: str) -> None:
    """Kill the setup at one of its commands and continue."""
    shell(guest, f"rm -f {SHIM}/count; echo {number} {side} > {SHIM}/at")
    done = guest.run([*SETUP.split()], env={"PATH": f"{SHIM}/bin:/usr/local/bin:/usr/sbin:/usr/bin"}, timeout=900)
    at = shell(guest, f"cat {SHIM}/last 2>/dev/null || true; rm -f {SHIM}/at {SHIM}/last").strip()
    assert done.code == 137, done.stdout + done.stderr
    again = guest.run([*SETUP.split()], timeout=900).check()
    assert "Put the server back" not in again.stderr, again.stderr
    assert rows(guest) == before, f"rows were lost by a kill {side} `{at}`"
    check_moved(guest, "")
    print(f"killed {side} `{at}`: the next setup went on", flush=True)
    go_back(guest)


def go_back(guest: Guest) -> None:
    """Put the server back on its old files, as before setup."""
    unit = UNITS[guest.flavour]
    shell(guest, f"systemctl disable --now zsnapdb-agent; systemctl stop {unit}; zfs destroy -r tank/mysql")
    shell(
        guest,
        f"rmdir {DATADIR}; mv {OLD} {DATADIR}; rm -rf /etc/mysql/*/zz-zsnapdb-zfs.cnf /etc/zsnapdb /srv/backups/*",
    )
    if guest.flavour == "mysql":
        shell(guest, f"systemctl start {unit}; until [ -S {newcomer.SOCKET} ]; do sleep 0.2; done")
        sql(guest, "DROP USER IF EXISTS zsnapdb@localhost")
    shell(guest, f"systemctl restart {unit}; until [ -S {newcomer.SOCKET} ]; do sleep 0.2; done")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--flavour", default="mariadb")
    parser.add_argument("--way", choices=("adopt", "create", "both", "none"), default="both")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lab = Lab.ready()
    figures = []
    if options.way != "none":
        with tempfile.TemporaryDirectory() as folder:
            package = newcomer.package(lab, Path(folder))
            ways = ("adopt", "create") if options.way == "both" else (options.way,)
            figures = [journey(lab, options.flavour, way, package) for way in ways]
    if options.kills:
        count = kills(lab, options.flavour, options.kills)
        print(f"killed {count} times, each time the same setup went on to the same rows", flush=True)
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
