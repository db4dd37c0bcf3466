"""The faults of the campaign `silence`: their start, their repair, and the objectives that they break."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pymysql

from tests.lab.inside import ledger

CONFIG = Path("/etc/zsnapdb/zsnapdb.toml")
SOCKET = "/run/mysqld/mysqld.sock"
SERVER, S3 = "/checkout/tests/lab/inside/server", "/checkout/tests/lab/inside/s3"
STATE = Path("/var/lib/zsnapdb")
BUCKET = Path("/srv/s3")
_AT_WORK = 75


def run(*argv: str, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)


def must(*argv: str, timeout: float = 300.0) -> str:
    """Run a command that must exit with 0, and return its output."""
    done = run(*argv, timeout=timeout)
    if done.returncode != 0:
        raise RuntimeError(f"{argv} ended with {done.returncode}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout


def add_innochecksum() -> None:
    """Add a start script for MySQL's innochecksum to the guest, because drills need it. Other releases have one."""
    program, example = Path("/opt/mysql/bin/innochecksum"), Path("/opt/mysql/bin/mysqldump")
    if Path("/etc/lab-flavour").read_text().strip() == "mysql" and not program.exists():
        program.write_text(example.read_text().replace("mysqldump", "innochecksum"))
        program.chmod(0o755)


@dataclass
class Site:
    """The guest: its agent, its configuration, and the repair functions of a fault."""

    said: Path
    agent: subprocess.Popen[bytes] | None = None
    kept: list[Callable[[], object]] = field(default_factory=list)
    """Repair functions of the present fault, in reverse order."""

    def start_agent(self) -> None:
        with self.said.open("ab") as said:
            argv = [sys.executable, "-m", "zsnapdb", "agent"]
            self.agent = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def kill_agent(self) -> None:
        """Kill the agent and its jobs, as a service manager does with the rest of a killed service."""
        assert self.agent is not None
        for pid in (self.agent.pid, *children(self.agent.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.agent.wait()

    def archiver(self) -> int:
        """Return the process id of the binlog archiver."""
        assert self.agent is not None
        deadline = time.monotonic() + 120
        while True:
            found = [pid for pid in children(self.agent.pid) if "archive" in command(pid)]
            if found:
                return found[0]
            if time.monotonic() > deadline:
                raise RuntimeError("there is no archiver")
            time.sleep(0.2)

    def run_job(self, job: str) -> int:
        """Run a job of the agent now, and return its exit code. It waits for a run in progress; no other run starts."""
        pause("1h")
        try:
            while (code := run("zsnapdb", "agent", "run", job, timeout=600).returncode) == _AT_WORK:
                time.sleep(1)
            return code
        finally:
            pause("0s")

    def must_run_job(self, job: str) -> None:
        """Run a job of the agent now, which must exit with 0."""
        code = self.run_job(job)
        if code != 0:
            raise RuntimeError(f"{job} ended with {code}: {(STATE / 'agent/main' / f'{job}.log').read_text()[-2000:]}")

    def later(self, mend: Callable[[], object]) -> None:
        """Register a repair function."""
        self.kept.append(mend)

    def mend(self) -> None:
        """Repair the fault. The first error of a repair is raised after all others ran."""
        errors: list[Exception] = []
        while self.kept:
            try:
                self.kept.pop()()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def pause(length: str) -> None:
    """Let no job of the instance start for that long."""
    must("zsnapdb", "agent", "pause", "main", "--for", length, "--reason", "the campaign")


def children(parent: int) -> list[int]:
    """Return the child processes of this one."""
    return [int(word) for word in run("pgrep", "-P", str(parent)).stdout.split()]


def command(pid: int) -> list[str]:
    """Return the arguments of a process; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def store_away(site: Site) -> None:
    site.later(lambda: must(S3, "start"))
    must(S3, "stop")


def credentials_revoked(site: Site) -> None:
    """The S3 server has other keys than zsnapdb. If the server checks no keys, zsnapdb loses its own."""
    if Path("/opt/s3/which").read_text().strip() != "versitygw":
        file = Path("/etc/zsnapdb/credentials")
        before = file.read_text()
        site.later(lambda: file.write_text(before))
        file.write_text("")
        return
    must(S3, "stop")
    argv = ["/opt/s3/versitygw", "--port", "127.0.0.1:7070", "--quiet", "posix", "--sidecar", "/srv/s3/metadata"]
    keys = {"ROOT_ACCESS_KEY": "another", "ROOT_SECRET_KEY": "another-secret"}
    null = subprocess.DEVNULL
    server = subprocess.Popen(
        [*argv, "/srv/s3/buckets"], env={**os.environ, **keys}, stdin=null, stdout=null, stderr=null
    )

    def back() -> None:
        server.kill()
        server.wait()
        must(S3, "start")

    site.later(back)


def pool_full(site: Site) -> None:
    """Another dataset reserves all free space of the pool: no backup starts, and a server that needs space ends."""
    site.later(start_ended_server)
    site.later(lambda: must("zfs", "destroy", "tank/full"))
    must("zfs", "create", "tank/full")
    for _ in range(20):
        free = int(must("zfs", "list", "-H", "-p", "-o", "available", "tank").strip())
        # The server writes in the meantime, so there may be less now.
        if run("zfs", "set", f"reservation={free - (1 << 20)}", "tank/full").returncode == 0:
            return
    raise RuntimeError(f"the pool cannot be filled: {free} bytes are free")


def start_ended_server() -> None:
    """Start the server, as its service manager does, if it has ended by itself."""
    with contextlib.suppress(pymysql.MySQLError), ledger.connect(SOCKET, "root", "", None):
        return
    run(SERVER, "kill", timeout=60)
    must(SERVER, "start")


def server_down(site: Site) -> None:
    site.later(lambda: must(SERVER, "start"))
    must(SERVER, "kill")


def lock_never_granted(site: Site) -> None:
    """A statement that runs without end: no global read lock is granted."""
    connection = ledger.connect(SOCKET, read_timeout=100_000)
    number = ledger.connection_id(connection)

    def read() -> None:
        with contextlib.suppress(pymysql.MySQLError), connection.cursor() as cursor:
            cursor.execute("SELECT SLEEP(100000) FROM accounts LIMIT 1")

    def end() -> None:
        with ledger.connect(SOCKET, "root", "", None) as root, root.cursor() as cursor:
            cursor.execute(f"KILL {number}")

    threading.Thread(target=read, daemon=True).start()
    site.later(end)


def archive_stopped(site: Site) -> None:
    """The archiver hangs: it does not end, and nothing is archived."""
    pid = site.archiver()
    site.later(lambda: os.kill(pid, signal.SIGCONT))
    os.kill(pid, signal.SIGSTOP)


def drill_failing(site: Site) -> None:
    before = CONFIG.read_text()
    wrong = before.replace('options = ["', 'options = ["no_such_option=1", "')
    assert wrong != before, before
    site.later(lambda: site.must_run_job("drill"))
    site.later(lambda: CONFIG.write_text(before))
    CONFIG.write_text(wrong)
    code = site.run_job("drill")
    if code == 0:
        raise RuntimeError("a drill whose server cannot start passed")


def agent_killed(site: Site) -> None:
    site.later(site.start_agent)
    site.kill_agent()


def journal_full(site: Site) -> None:
    """The disk with the journal, the agent's records and the sent notifications is full."""
    filler, is_over = STATE / "filler", threading.Event()

    def fill() -> None:
        while not is_over.wait(0.2):
            with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass

    # A started backup succeeds without its journal.
    pause("1h")
    while any("backup" in command(child) for child in children(site.agent.pid if site.agent else 0)):
        time.sleep(0.5)
    thread = threading.Thread(target=fill, daemon=True)
    thread.start()

    def end() -> None:
        is_over.set()
        thread.join()
        filler.unlink()

    site.later(end)
    pause("0s")


def rolled_back(site: Site) -> None:
    """The repository is replaced by an older state of itself, and nothing writes to it until the repair."""
    # The server keeps its metadata apart from the objects: both must be from one moment.
    parts = [(BUCKET / name, BUCKET / f"{name}-older", BUCKET / f"{name}-newer") for name in ("buckets", "metadata")]
    for present, older, _ in parts:
        must("cp", "-a", str(present), str(older))
    site.must_run_job("backup")
    pause("1h")
    pid = site.archiver()
    os.kill(pid, signal.SIGSTOP)
    while any("backup" in command(child) for child in children(site.agent.pid if site.agent else 0)):
        time.sleep(0.5)
    must(S3, "stop")
    for present, older, newer in parts:
        present.rename(newer)
        older.rename(present)

    def back() -> None:
        must(S3, "stop")
        for present, _, newer in parts:
            shutil.rmtree(present)
            newer.rename(present)
        must(S3, "start")
        os.kill(pid, signal.SIGCONT)
        pause("0s")

    site.later(back)
    must(S3, "start")


@dataclass(frozen=True)
class Fault:
    """A fault, the objectives that it must break, and others that it may break.

    Objectives have the names of notifications; `repository` means an unreadable repository. `is_aged`: they break when
    their limits are reached, not immediately.
    """

    name: str
    begin: Callable[[Site], None]
    breaks: frozenset[str]
    may_break: frozenset[str] = frozenset()
    is_aged: bool = False
    has_notifier: bool = True
    """Whether a component is left that can notify."""


AGES = frozenset({"rpo", "backup-age", "archive-lag"})
FAULTS = (
    Fault("S3 away", store_away, frozenset({"repository"}), AGES),
    Fault("credentials revoked", credentials_revoked, frozenset({"repository"}), AGES),
    Fault("archive stopped", archive_stopped, frozenset({"archive-lag"}), frozenset({"rpo"}), is_aged=True),
    Fault("server down", server_down, AGES, is_aged=True),
    Fault("lock never granted", lock_never_granted, frozenset({"backup-age"}), is_aged=True),
    Fault("drill failing", drill_failing, frozenset({"drill"})),
    Fault("pool full", pool_full, frozenset({"backup-age"}), AGES, is_aged=True),
    Fault("agent killed", agent_killed, AGES, is_aged=True, has_notifier=False),
    Fault("journal's disk full", journal_full, frozenset({"intact"}), AGES),
    Fault("repository rolled back", rolled_back, frozenset({"intact"}), AGES),
)
