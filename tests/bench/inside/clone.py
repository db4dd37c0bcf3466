"""In the guest: how long a clone takes to its first answer, beside a bare server on a bare copy.

`clone.py SIZES ROUNDS CLONES POOL` writes /out/clone.json.

The bare start is what a person would do: `zfs clone`, an option file, mysqld, and ask until it answers. It is done on
two copies: of the running server's snapshot, which has to be recovered, and of one that was shut down cleanly.
"""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql

SOURCE, SOCKET = Path("/var/lib/mysql"), "/run/mysqld/mysqld.sock"
SERVER = "/checkout/tests/lab/inside/server"
CONFIG = Path("/tmp/bench.toml")
RECOVERING = ("Starting crash recovery", "starting crash recovery")
ROW = 1000
STAMP = struct.Struct("d")
UPDATES = 2000
POOL = 5
KEPT = Path("/run/bench-haproxy")

flavour = Path("/etc/lab-flavour").read_text().strip()
binary = "/opt/mysql/bin/mysqld" if flavour == "mysql" else "/usr/sbin/mariadbd"


def said(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(argv)} ended with exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def zsnapdb(*words: str) -> tuple[dict[str, Any], float]:
    began = time.monotonic()
    document: dict[str, Any] = json.loads(said("zsnapdb", *words, "--json", "--config", str(CONFIG)))
    return document, time.monotonic() - began


def source() -> pymysql.Connection:
    return pymysql.connect(unix_socket=SOCKET, user="root", autocommit=True, read_timeout=600)


def fill(size: int) -> None:
    """Fill the table up to `size` bytes of rows.

    Then a clean restart and a fixed number of changes, so that recovery has the same to do at any size.
    """
    with source() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute("CREATE DATABASE IF NOT EXISTS bench")
        cursor.execute("USE bench")
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS bench.filler (id INT PRIMARY KEY AUTO_INCREMENT, n INT DEFAULT 0, pad"
            " VARBINARY(1000))"
        )
        cursor.execute("SELECT COUNT(*) FROM bench.filler")
        ((count,),) = cursor.fetchall()
        if not count:
            values = ",".join(["(CONCAT(LEFT(SHA2(RAND(), 256), 32), REPEAT(LEFT(SHA2(RAND(), 256), 32), 30)))"] * 500)
            cursor.execute(f"INSERT INTO bench.filler (pad) VALUES {values}")
            count = 500
        while count * ROW < size:
            step = min(count, 20_000, size // ROW - count + 1)
            cursor.execute(
                "INSERT INTO bench.filler (pad) SELECT CONCAT(LEFT(SHA2(RAND(), 256), 32), SUBSTRING(pad, 33)) FROM"
                f" bench.filler LIMIT {step}"
            )
            count += step
    said(SERVER, "stop")
    said(SERVER, "start")
    with source() as connection, connection.cursor() as cursor:
        for number in range(UPDATES):
            cursor.execute(f"UPDATE bench.filler SET n = n + 1 WHERE id = {number % 400 + 1}")


class Bare:
    """A copy made and started by hand."""

    def __init__(self, name: str, parent: str, child: str) -> None:
        self.name, self.root = name, Path(f"/bare/{name}")
        began = time.monotonic()
        said("zfs", "clone", "-p", "-o", f"mountpoint={self.root}", parent, f"tank/bare/{name}")
        said("zfs", "clone", "-o", f"mountpoint={self.root}/data", child, f"tank/bare/{name}/data")
        self.clone_seconds = time.monotonic() - began

    def start(self) -> float:
        """Start its server; return in how many seconds it answered."""
        began = time.monotonic()
        text = (
            Path("/etc/lab.cnf")
            .read_text()
            .replace("/var/lib/mysql", str(self.root))
            .replace("/run/mysqld/mysqld", f"/run/mysqld/{self.name}")
        )
        text = text.replace("innodb_buffer_pool_size = 256M", "innodb_buffer_pool_size = 128M").replace(
            "/var/log/lab/server.log", f"/var/log/lab/{self.name}.log"
        )
        Path(f"/etc/{self.name}.cnf").write_text(text + "skip_networking = ON\nserver_id = 99\n")
        for index in self.root.glob("*.index"):
            index.write_text(index.read_text().replace(str(SOURCE), str(self.root)))
        (self.root / "data/auto.cnf").unlink(missing_ok=True)
        log = Path(f"/var/log/lab/{self.name}.log")
        log.touch()
        shutil.chown(log, "mysql")
        self.process = subprocess.Popen(
            [binary, f"--defaults-file=/etc/{self.name}.cnf"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while True:
            try:
                with (
                    pymysql.connect(unix_socket=f"/run/mysqld/{self.name}.sock", user="root") as connection,
                    connection.cursor() as cursor,
                ):
                    cursor.execute("SELECT 1")
                    return time.monotonic() - began
            except pymysql.MySQLError:
                if self.process.poll() is not None:
                    raise SystemExit(f"the bare server {self.name} ended\n{log.read_text()[-3000:]}") from None
                time.sleep(0.01)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    def destroy(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        said("zfs", "destroy", f"tank/bare/{self.name}/data")
        said("zfs", "destroy", f"tank/bare/{self.name}")


def one_clone(case: str, name: str, source_set: str) -> dict[str, Any]:
    made, wall = zsnapdb("clone", "create", "main", "--name", name, "--from", source_set)
    log = (Path(made["clone"]["mount"]) / ".zsnapdb/error.log").read_text(errors="replace")
    own = int(said("zfs", "get", "-H", "-p", "-o", "value", "used", made["clone"]["datasets"][0]))
    recovered = any(words in log for words in RECOVERING)
    return {
        "case": case,
        "wall": wall,
        **made["seconds"],
        "own_bytes": own,
        "recovered": recovered,
        "set": made["clone"]["backup_id"],
    }


def measure(size: str, rounds: int) -> list[dict[str, Any]]:
    """Every case once per round, side by side."""
    fill(int(float(size) * (1 << 30)))
    said("sync")
    keeper = one_clone("live", "keeper", "live")
    samples = [keeper]
    chosen = keeper["set"]
    parent, child = f"tank/mysql@zsnapdb-{chosen}", f"tank/mysql/data@zsnapdb-{chosen}"
    clean = Bare("clean", parent, child)
    clean.start()
    clean.stop()
    said("zfs", "snapshot", "tank/bare/clean@clean", "tank/bare/clean/data@clean")
    for number in range(rounds):
        bare = Bare(f"crash{number}", parent, child)
        samples.append({"case": "bare_crash", "start": bare.start(), "clone": bare.clone_seconds})
        bare.destroy()
        samples.append(one_clone("plain", "plain", chosen))
        zsnapdb("clone", "destroy", "plain")
    zsnapdb("clone", "prepare", "main", "--from", chosen)
    for number in range(rounds):
        bare = Bare(f"clean{number}", "tank/bare/clean@clean", "tank/bare/clean/data@clean")
        samples.append({"case": "bare_clean", "start": bare.start(), "clone": bare.clone_seconds})
        bare.destroy()
        samples.append(one_clone("prepared", "prepared", chosen))
        samples[-1]["destroy"] = zsnapdb("clone", "destroy", "prepared")[1]
    said("zfs", "destroy", "tank/bare/clean/data@clean")
    said("zfs", "destroy", "tank/bare/clean@clean")
    clean.destroy()
    for sample in samples:
        sample["size"] = size
        print(size, sample, flush=True)
    return samples


class Commits:
    """A client that commits to the source without a pause."""

    def __enter__(self) -> Commits:
        with source() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE IF NOT EXISTS ledger")
        self.file = Path("/tmp/commits")
        self.file.unlink(missing_ok=True)
        self.process = subprocess.Popen([sys.executable, str(Path(__file__).with_name("probe.py")), str(self.file)])
        while not self.stamps():
            if self.process.poll() is not None:
                raise SystemExit("who commits to the source ended")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
        with source() as connection, connection.cursor() as cursor:
            cursor.execute("DROP TABLE ledger.stall_probe")

    def stamps(self) -> list[float]:
        body = self.file.read_bytes() if self.file.exists() else b""
        return [stamp for (stamp,) in STAMP.iter_unpack(body[: len(body) // STAMP.size * STAMP.size])]

    def gap_during(self, work: Callable[[], object]) -> float:
        """Return the longest time in seconds between two commits while the work was done."""
        begin, before = time.monotonic(), len(self.stamps())
        work()
        time.sleep(0.5)
        inside = [stamp for stamp in self.stamps()[max(0, before - 1) :] if stamp > begin - 1]
        return max(later - earlier for earlier, later in itertools.pairwise(inside))


def bare_snapshot() -> None:
    said("zfs", "snapshot", "tank/mysql@bench", "tank/mysql/data@bench")
    said("zfs", "destroy", "tank/mysql@bench")
    said("zfs", "destroy", "tank/mysql/data@bench")


def bare_clones(count: int) -> None:
    """Clone the two volumes so often by hand; no server is started."""
    for number in range(count):
        said("zfs", "clone", "-p", "-o", "mountpoint=none", "tank/mysql@bench", f"tank/bare/once{number}")
        said("zfs", "clone", "tank/mysql/data@bench", f"tank/bare/once{number}/data")


def gap_of_bare_clones(commits: Commits, count: int) -> float:
    """Return the longest time between two commits while so many bare clones were made."""
    said("zfs", "snapshot", "tank/mysql@bench", "tank/mysql/data@bench")
    gap = commits.gap_during(lambda: bare_clones(count))
    for number in range(count):
        said("zfs", "destroy", "-r", f"tank/bare/once{number}")
    said("zfs", "destroy", "tank/mysql@bench")
    said("zfs", "destroy", "tank/mysql/data@bench")
    return gap


def at_once(count: int) -> dict[str, Any]:
    """Make that many clones at the same time.

    Return the seconds this took, and how many clones are correct: own identity, all rows.
    """
    words = [
        "zsnapdb",
        "clone",
        "create",
        "main",
        "--from",
        "latest",
        "--profile",
        "tiny",
        "--json",
        "--config",
        str(CONFIG),
    ]
    with Commits() as commits:
        nothing = commits.gap_during(lambda: time.sleep(5))
        snapshot = statistics.median(commits.gap_during(bare_snapshot) for _ in range(5))
        bare = gap_of_bare_clones(commits, count)
        began = time.monotonic()
        outputs = []

        def clones() -> None:
            running = [
                subprocess.Popen(
                    [*words, "--name", f"many-{n}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
                for n in range(count)
            ]
            outputs.extend([(process, *process.communicate()) for process in running])

        gap = commits.gap_during(clones)
        seconds = time.monotonic() - began
    right, ids = 0, set()
    with source() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM bench.filler")
        rows = cursor.fetchone()
    for process, out, err in outputs:
        if process.returncode != 0:
            print(err, flush=True)
            continue
        made = json.loads(out)
        with (
            pymysql.connect(
                host="127.0.0.1", port=made["clone"]["port"], user=made["user"], password=made["password"]
            ) as there,
            there.cursor() as cursor,
        ):
            cursor.execute("SELECT @@server_id, @@port")
            ids.add(cursor.fetchone())
            cursor.execute("SELECT COUNT(*) FROM bench.filler")
            right += cursor.fetchone() == rows
    for number in range(count):
        subprocess.run(["zsnapdb", "clone", "destroy", f"many-{number}", "--config", str(CONFIG)], capture_output=True)
    gaps = {"gap_nothing": nothing, "gap_snapshot": snapshot, "gap_bare": bare, "gap": gap}
    return {"case": "at_once", "size": "", "seconds": seconds, "right": min(right, len(ids)), "of": count, **gaps}


def of_pool(count: int) -> list[dict[str, Any]]:
    """Hand out so many clones of a pool, each to its first query, and reset one of them so often after changes."""
    samples: list[dict[str, Any]] = []
    for number in range(count):
        if number % POOL == 0:
            zsnapdb("clone", "pool", "main")
        began = time.monotonic()
        made, wall = zsnapdb("clone", "create", "main", "--name", f"pooled-{number}")
        login = {"port": made["clone"]["port"], "user": made["user"], "password": made["password"], "autocommit": True}
        with pymysql.connect(host="127.0.0.1", **login) as there, there.cursor() as cursor:
            cursor.execute("SELECT 1")
        total, own = time.monotonic() - began, made["seconds"]["start"]
        samples.append({"case": "pool", "wall": wall, "total": total, "own": own, "right": made["of_pool"]})
        if number < count - 1:
            zsnapdb("clone", "destroy", f"pooled-{number}")
    for changes in (20, 100):
        for _ in range(count):
            with pymysql.connect(host="127.0.0.1", **login) as there, there.cursor() as cursor:
                for n in range(changes // 2):
                    cursor.execute(f"UPDATE bench.filler SET n = n + 1 WHERE id = {n + 1}")
                    cursor.execute("INSERT INTO bench.filler (pad) VALUES ('x')")
            done, wall = zsnapdb("clone", "reset", f"pooled-{count - 1}")
            right = done["undone"] == changes
            samples.append(
                {"case": f"undo_{changes}", "wall": wall, "own": done["undone_seconds"] or 0, "right": right}
            )
    zsnapdb("clone", "destroy", f"pooled-{count - 1}")
    samples += of_swap(count)
    for left in json.loads(said("zsnapdb", "clone", "list", "--json"))["clones"]:
        if left["waits"]:
            zsnapdb("clone", "destroy", left["name"])
    for sample in samples:
        sample["size"] = ""
        print(sample, flush=True)
    return samples


def of_swap(count: int) -> list[dict[str, Any]]:
    """Reset a clone so often after a change of a table, which is undone by no rows, until its first query."""
    KEPT.mkdir(mode=0o755, exist_ok=True)
    with CONFIG.open("a") as config:
        config.write(f'\n[clones.address]\nsocket = "{KEPT}/admin.sock"\nlast_port = 23175\n')
    file = KEPT / "haproxy.cfg"
    zsnapdb("clone", "addresses", "--haproxy", str(file))
    haproxy = subprocess.Popen(["haproxy", "-db", "-f", str(file)])
    while zsnapdb("clone", "addresses")[0]["error"] is not None:
        if haproxy.poll() is not None:
            raise SystemExit("HAProxy ended")
    samples: list[dict[str, Any]] = []
    zsnapdb("clone", "pool", "main")
    made, _ = zsnapdb("clone", "create", "main", "--name", "swapped")
    login = {"port": made["clone"]["port"], "user": made["user"], "password": made["password"]}
    for number in range(count):
        if number % POOL == 0:
            zsnapdb("clone", "pool", "main")
        with pymysql.connect(host="127.0.0.1", **login) as there, there.cursor() as cursor:
            cursor.execute("CREATE TABLE bench.changed (id INT)")
        began = time.monotonic()
        done, wall = zsnapdb("clone", "reset", "swapped")
        with pymysql.connect(host="127.0.0.1", **login) as there, there.cursor() as cursor:
            cursor.execute("SHOW TABLES FROM bench LIKE 'changed'")
            right = done["way"] == "swap" and not cursor.fetchall()
        total = time.monotonic() - began
        samples.append({"case": "swap", "wall": wall, "total": total, "own": done["swap_seconds"] or 0, "right": right})
    zsnapdb("clone", "destroy", "swapped")
    haproxy.terminate()
    haproxy.wait()
    zsnapdb("reap")
    return samples


def main() -> None:
    sizes, rounds, clones, pool = sys.argv[1].split(","), *(int(word) for word in sys.argv[2:5])
    verbose = '"log_error_verbosity=3", ' if flavour == "mysql" else ""
    CONFIG.write_text(Path("/etc/zsnapdb/zsnapdb.toml").read_text().replace('options = ["', f'options = [{verbose}"'))
    samples: list[dict[str, Any]] = []
    for number, size in enumerate(sizes):
        samples += measure(size, rounds)
        if number == 0 and clones:
            zsnapdb("backup", "main")
            samples.append(at_once(clones))
        if number == 0 and pool:
            CONFIG.write_text(f"{CONFIG.read_text()}\n[instance.main.pool]\nsize = {POOL}\n")
            zsnapdb("backup", "main")
            samples += of_pool(pool)
        zsnapdb("clone", "destroy", "keeper")
    Path("/out/clone.json").write_text(json.dumps(samples))


main()
