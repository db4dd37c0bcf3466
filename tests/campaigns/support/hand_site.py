"""The site of the campaign `hands`: a guest whose server, options and records are in its pool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.guest import Guest, Running

PYTHON = "/opt/venv/bin/python"
LINES = "/checkout/tests/lab/inside/lines.py"
SERVER = "/checkout/tests/lab/inside/server"
CONFIG = "/etc/zsnapdb/zsnapdb.toml"
REAPING = "/etc/zsnapdb/reaping.toml"
"""The same configuration, but a restore's replaced datasets are kept for one second only."""
BINLOG_TOOLS = {"mysql": "/opt/mysql/bin/mysqlbinlog", "mariadb": "/usr/bin/mariadb-binlog"}
SPAN = 100_000
"""Each start of the writer has its own range of numbers."""
FILLED = "tank/fill"
"""A dataset that uses up the pool's space."""
PATIENCE = 280.0

# A host's files are in the pool or are rewritten, because the root of a guest is in memory.
BOOT = f"""
set -eu
mkdir -p /etc/zsnapdb /etc/lab.d
cd /checkout/tests/lab/inside
cp zsnapdb.FLAVOUR.toml {CONFIG} && cp credentials /etc/zsnapdb/
echo lab-zsnapdb > /etc/zsnapdb/main.password && echo lab-hands > /etc/zsnapdb/hands.password
cat >> {CONFIG} <<'END'
[instance.main.control]
stop = ["{SERVER}", "stop"]
start = ["{SERVER}", "start"]
timeout = "120s"
server_id_file = "/etc/lab.d/zsnapdb.cnf"
[instance.main.keep]
last = 2
END
sed -i 's/repository = "s3"/repository = "s3"\\nbinlog = {{ keep = "0s" }}/' {CONFIG}
(cat {CONFIG}; printf '\\n[restore]\\nkeep_replaced = "1s"\\n') > {REAPING}
printf 'repository = "file:///srv/backups"\nmove = true\nplain = true\nproof = false\n' > /etc/zsnapdb/answers.toml
chmod 600 /etc/zsnapdb/*
cp FLAVOUR.cnf /etc/lab.cnf
printf 'sync_binlog = 1\\n!includedir /etc/lab.d\\n' >> /etc/lab.cnf
"""
ACCOUNT = (
    "CREATE USER hands@localhost IDENTIFIED BY 'lab-hands'",
    "GRANT ALL ON *.* TO hands@localhost WITH GRANT OPTION",
    "CREATE DATABASE hands",
    "CREATE TABLE hands.numbers (number INT PRIMARY KEY, body TEXT)",
)
GRANTS = {
    "mysql": "GRANT BINLOG_ADMIN, TRIGGER ON *.* TO zsnapdb@localhost",
    "mariadb": "GRANT BINLOG ADMIN, TRIGGER ON *.* TO zsnapdb@localhost",
}
_HINT = re.compile(r"`(zsnapdb [^`\n]+)`")


@dataclass(frozen=True)
class Interruption:
    """When and how a command is interrupted (tests/lab/inside/interrupt)."""

    phase: str
    number: int
    how: str
    delay: float

    def __str__(self) -> str:
        return f"{self.how} at {self.phase} {self.number}{f' +{self.delay:.2f} s' if self.delay else ''}"


@dataclass(frozen=True)
class Facts:
    """The server and its datasets according to the kernel and ZFS. `guids`: those of the live volumes."""

    serving: tuple[int, ...]
    answers: bool
    datasets: tuple[dict[str, str], ...]

    @property
    def guids(self) -> tuple[str, ...]:
        return tuple(row["guid"] for row in self.datasets if row["name"] in ("tank/mysql", "tank/mysql/data"))

    @property
    def replaced(self) -> list[str]:
        """The ids of restores whose replaced datasets exist, from their names."""
        found = [re.search(r"-replaced-(\d{8})t(\d{6})z-([0-9a-f]+)$", row["name"]) for row in self.datasets]
        return sorted({f"{match[1]}T{match[2]}Z-{match[3]}" for match in found if match})


@dataclass(frozen=True)
class Ran:
    """A finished command: exit code (None: the power was cut), its output, and the event of its interruption."""

    words: tuple[str, ...]
    code: int | None
    stdout: str
    stderr: str
    reached: str = ""

    @property
    def text(self) -> str:
        return f"{self.stdout}\n{self.stderr}"

    @property
    def hints(self) -> list[str]:
        """The commands that it reported."""
        return _HINT.findall(self.text)


@dataclass
class Acknowledged:
    """The numbers of acknowledged commits. They leave the guest immediately, so no power cut loses them."""

    numbers: set[int] = field(default_factory=set)
    _begun: bytes = b""

    def __call__(self, _descriptor: int, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        self.numbers |= {int(line.split()[1]) for line in lines if line.startswith(b"A ")}


class Site:
    """A guest that starts each round in the same state."""

    def __init__(self, guest: Guest, flavour: str) -> None:
        self.guest = guest
        self.flavour = flavour
        self.acknowledged = Acknowledged()
        self._spawned = 0
        self._base = guest.folder / "base"
        # Only the site's boot starts the server, after its options exist.
        guest.flavour = "none"

    def make_base(self) -> None:
        """Set up the server, back it up, and keep the disk and the bucket for all rounds."""
        self.sh(
            "zfs create -o mountpoint=/etc/lab.d tank/options; zfs create -o mountpoint=/var/lib/zsnapdb tank/state"
        )
        self.sh(f"{SERVER} stop")
        self.configure()
        self.sh(f"{SERVER} start")
        self.python("root", *ACCOUNT)
        self.python("root", GRANTS[self.flavour])
        self.python("some", "1", "20")
        for words in (("backup",), ("snapshot", "main"), ("binlog", "archive", "main", "--once")):
            done = self.zsnapdb(*words)
            assert done.code == 0, done.text
        self.sh(f"{SERVER} stop")
        self.guest.power_off()
        self._base.mkdir()
        _copy(self.guest.pool, self._base / "pool.img")
        shutil.copytree(self.guest.bucket, self._base / "bucket")

    def reset(self) -> None:
        """Start a round: restore the disk and the bucket of the base, and start the server."""
        self.guest.power_cut()
        _copy(self._base / "pool.img", self.guest.pool)
        shutil.rmtree(self.guest.bucket)
        shutil.copytree(self._base / "bucket", self.guest.bucket)
        self.acknowledged = Acknowledged()
        self._spawned = 0
        self.guest.start()
        self.configure()
        self.sh(f"{SERVER} start")

    def boot(self) -> None:
        """Cut the power, and boot like a host: ZFS mounts what it mounts by itself, then the server is started."""
        self.guest.power_cut()
        self.guest.start()
        self.configure()
        self.guest.run([SERVER, "start"], timeout=PATIENCE)
        if self._spawned:
            self.write()

    def configure(self) -> None:
        """Write the host's configuration of the base."""
        self.sh(BOOT.replace("FLAVOUR", self.flavour))

    def sh(self, script: str) -> str:
        return self.guest.run(["sh", "-c", script], timeout=PATIENCE).check().stdout

    def python(self, *words: str) -> Any:
        """Run a subcommand of lines.py. Return its JSON document, if it prints one."""
        done = self.guest.run([PYTHON, LINES, *words], timeout=PATIENCE).check()
        self.acknowledged(1, done.stdout.encode())
        return json.loads(done.stdout) if done.stdout[:1] in ("[", "{") else None

    def write(self) -> None:
        """Write rows from now on, as long as the guest has power."""
        self._spawned += 1
        self.guest.spawn([PYTHON, LINES, "write", str(self._spawned * SPAN)], sink=self.acknowledged)

    def facts(self) -> Facts:
        seen = self.python("facts")
        return Facts(tuple(seen["serving"]), seen["answers"], tuple(seen["datasets"]))

    def point(self) -> str:
        """Return the GTID of the newest transaction."""
        if self.flavour == "mariadb":
            return str(self.python("sql", "SELECT @@GLOBAL.gtid_binlog_pos")[0][0])
        ((uuid, executed),) = self.python("sql", "SELECT @@server_uuid, @@GLOBAL.gtid_executed")
        numbers = re.search(rf"{uuid}:([\d:-]+)", executed)
        assert numbers is not None, executed
        return f"{uuid}:{re.split('[:-]', numbers.group(1))[-1]}"

    def newest_change(self, table: str) -> str:
        """Return the GTID of the newest update of the table."""
        words = ("binlog", "find", "main", "--json", "--table", table, "--kind", "update", "--limit", "1")
        (entry,) = json.loads(self.zsnapdb(*words).stdout)["transactions"]
        return str(entry["gtid"])

    def rows(self) -> set[int]:
        """Return the numbers in the live server. LabError if it does not answer."""
        return set(self.python("read"))

    def rows_of_clone(self, source: str) -> set[int] | None:
        """Return the numbers in a clone of a replaced server; None if no clone can be created."""
        made = self.zsnapdb("clone", "create", "main", "--from", source, "--name", "judged", "--json")
        try:
            if made.code != 0:
                return None
            login = json.loads(made.stdout)
            return set(self.python("read", str(login["clone"]["port"]), login["user"], login["password"]))
        finally:
            self.zsnapdb("clone", "destroy", "judged")

    def zsnapdb(self, *words: str, config: str = CONFIG, interruption: Interruption | None = None) -> Ran:
        """Run a command without the zygote, and cut the power if the interruption requires it."""
        env = {"ZSNAPDB_CONFIG": config, "PYTHONPATH": "/checkout", "PYTHONDONTWRITEBYTECODE": "1"}
        reached = self.guest.out / "reached"
        reached.unlink(missing_ok=True)
        (self.guest.out / "events").unlink(missing_ok=True)
        if interruption is not None:
            at = interruption
            env["PYTHONPATH"] = "/checkout/tests/lab/inside/interrupt:/checkout"
            env |= {"INTERRUPT_AT": f"{at.phase} {at.number} {at.how} {at.delay}", "INTERRUPT_INTO": "/out"}
        running = self.guest.spawn(["zsnapdb", *words], env=env)
        if interruption is not None and interruption.how == "power" and self._cut(running, reached):
            self.boot()
            return Ran(words, None, running.output(1), running.output(2), reached.read_text())
        done = running.wait(PATIENCE)
        return Ran(words, done.code, done.stdout, done.stderr, reached.read_text() if reached.exists() else "")

    def _cut(self, running: Running, reached: Path) -> bool:
        """Wait until the command has reached its event. False if it ended before."""
        deadline = time.monotonic() + PATIENCE
        while not running.done.wait(0.02):
            if reached.exists():
                return True
            assert time.monotonic() < deadline, running.output(2)
        return False

    def events(self) -> Sequence[str]:
        """Return the events of the last command that could be interrupted."""
        file = self.guest.out / "events"
        return file.read_text().splitlines() if file.exists() else []


def _copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    subprocess.run(["cp", "--sparse=always", str(source), str(target)], check=True)
