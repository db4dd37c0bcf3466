"""Campaign: first setup and recovery from mistakes, only with commands that zsnapdb prints.

    python3 tests/lab campaign day [--mistakes M1,M2,…]

The host has systemd and two servers on ZFS. The package is installed. Setup is called with five wrong values and
corrected by its own hints. One agent runs the jobs of both instances, with short schedules. Then a user makes six
mistakes. For each, `binlog find` finds the transaction; after that only commands are run that zsnapdb printed. The
table must be equal to its state before the mistake. Commands and seconds of each are printed.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab import newcomer
from tests.lab.guest import SYSTEMD, Guest, Lab, Outcome
from tests.lab.newcomer import CLIENTS, SOCKET, shell, sql

ANY_SERVER = True
ON_HOST = True
CONFIG = "/etc/zsnapdb/zsnapdb.toml"
WORK = "/srv/work"
PATH = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"}
SECOND_SOCKET = "/run/second/second.sock"
PROGRAMS = {"mysql": "/opt/mysql/bin/mysqld", "mariadb": "/usr/sbin/mariadbd"}
SECOND_UNIT = """[Unit]
Description=a second server
[Service]
User=mysql
RuntimeDirectory=second
ExecStart={program} --no-defaults --datadir=/srv/second --socket={socket} --port=3307 --server-id=2 --log-bin=binlog \
--innodb-use-native-aio=0 --innodb-buffer-pool-size=64M --pid-file=/run/second/second.pid {more}
TimeoutStopSec=600
"""
NEXT = re.compile(r"`(zsnapdb [^`]+)`")


@dataclass
class Solved:
    """A mistake and its solution: the commands, their seconds, and the difference from the earlier state."""

    name: str
    commands: list[str] = field(default_factory=list)
    seconds: float = 0.0
    wrong: str = ""

    def line(self) -> str:
        end = f", WRONG: {self.wrong}" if self.wrong else ", as before"
        return f"{self.name}: {len(self.commands)} commands, {self.seconds:.0f} s{end}"


class Person:
    """A user who types commands on the host and reads their output."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.solved = Solved("setup")

    def types(self, command: str) -> Outcome:
        """Run a command unchanged, and print it with its seconds."""
        began = time.monotonic()
        done = self.guest.run(["sh", "-c", f"cd {WORK}; {command}"], timeout=1800, env=PATH)
        taken = time.monotonic() - began
        self.solved.commands.append(command)
        self.solved.seconds += taken
        print(f"  {taken:6.1f} s  {done.code:3}  {command}", flush=True)
        return done

    def does(self, command: str) -> str:
        """Run a command that must succeed, and return its output."""
        done = self.types(command)
        assert done.code == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def is_refused(self, command: str, word: str) -> str:
        """Run a command that must be refused with this text, and return its hint."""
        done = self.types(command)
        assert done.code != 0, done.stdout
        assert word in done.stderr, done.stderr
        return done.stderr.partition("hint: ")[2].split("\n")[0]


def prepare(guest: Guest) -> None:
    """Start two servers on their own datasets, without any part of zsnapdb."""
    newcomer.strip(guest, is_adopted=True)
    if guest.flavour == "mariadb":
        options = "[mariadbd]\nserver_id = 1\nlog_bin = binlog\nbinlog_format = ROW\nbinlog_row_metadata = FULL\n"
        shell(guest, f"cat > /etc/mysql/mariadb.conf.d/70-binlog.cnf <<'END'\n{options}END")
        shell(guest, f"systemctl restart {newcomer.UNITS['mariadb']}")
    program = PROGRAMS[guest.flavour]
    more = "--gtid-mode=ON --enforce-gtid-consistency=ON --mysqlx=OFF" if guest.flavour == "mysql" else ""
    make = (
        f"{program} --no-defaults --initialize-insecure --user=mysql --datadir=/srv/second 2>&1"
        if guest.flavour == "mysql"
        else "mariadb-install-db --no-defaults --user=mysql --datadir=/srv/second"
        " --auth-root-authentication-method=socket --skip-test-db"
    )
    unit = SECOND_UNIT.format(program=program, socket=SECOND_SOCKET, more=more)
    shell(guest, "zfs create -o recordsize=16K -o mountpoint=/srv/second tank/second; chown mysql: /srv/second")
    shell(guest, f"{make}; cat > /etc/systemd/system/second.service <<'END'\n{unit}END")
    shell(guest, "systemctl daemon-reload; systemctl start second")
    shell(guest, f"i=0; until [ -S {SECOND_SOCKET} ]; do sleep 0.2; i=$((i + 1)); [ $i -lt 600 ]; done")


def first_hour(person: Person, package: str) -> None:
    """Install the package, make five mistakes in setup, and protect both servers."""
    guest = person.guest
    person.does(f"apt-get install -y /out/{package}")
    binary = "--binary /opt/mysql/bin/mysqld" if guest.flavour == "mysql" else ""
    setup = f"zsnapdb setup file:///srv/backups {binary} --yes"
    person.is_refused(setup, "2 servers run on this host")
    setup += f" --socket {SOCKET}"
    person.is_refused(setup, "the folder /srv/backups of the repository is not there")
    person.does("mkdir /srv/backups /srv/elsewhere")
    person.is_refused(f"{setup} --notify /bin/false", "the test message did not reach /bin/false")
    person.does(f"{setup.replace('/srv/backups', '/srv/elsewhere')} --notify /bin/true --no-proof")
    hint = person.is_refused(f"{setup} --notify /bin/true", "and the answers say file:///srv/backups")
    (removal,) = re.findall(r"`(zsnapdb setup --remove [^`]*)`", hint)
    person.does(f"{removal} --yes")
    person.does(f"{setup} --notify /bin/true")
    second = f"{setup.replace(SOCKET, SECOND_SOCKET)} --instance second"
    hint = person.is_refused(f"{second} --config /etc/other.toml", "one agent runs the jobs of all instances")
    person.does(f"{second} {hint.partition(': ')[2]}")
    shell(guest, f"sed -i 's/^backup = .*/backup = {{ every = \"60s\" }}/' {CONFIG}; systemctl reload zsnapdb-agent")
    if guest.flavour == "mysql":
        # As setup's plan proposes.
        sql(guest, "SET PERSIST binlog_row_metadata = FULL")
    jobs = json.loads(person.does("zsnapdb agent status --json"))["jobs"]
    assert {job["instance"] for job in jobs} == {"main", "second", None}, jobs


def contents(guest: Guest, table: str) -> str:
    """Return all rows and the definition of a table, as the server prints them, without AUTO_INCREMENT."""
    said = sql(guest, f"SHOW CREATE TABLE {table}; SELECT * FROM {table} ORDER BY 1")
    return re.sub(r" AUTO_INCREMENT=[0-9]+", "", said)


def undone(person: Person, said: str) -> None:
    """Undo the rows of a transaction with the commands that `binlog find` and `undo` print."""
    (command,) = NEXT.findall(said)
    shown = person.does(command)
    assert "`--apply` proves and runs it" in shown, shown
    person.does(f"{command} --apply --yes")


def rescued(person: Person, said: str) -> None:
    """Recover a table from a file with the commands that `binlog find` and `rescue` print, and put it in place."""
    command = NEXT.findall(said)[0]
    shown = person.does(command)
    loading = shown.partition("such as\n")[2].strip().split("\n")[0]
    person.does(loading)
    table = re.search(r"--table (\S+)", command)
    assert table is not None
    name = table[1].partition(".")[2]
    sql(
        person.guest,
        f"DROP TABLE IF EXISTS {table[1]}; RENAME TABLE rescued.{name} TO {table[1]}; DROP DATABASE rescued",
    )


def loaded(person: Person, said: str) -> None:
    """Recover a schema from a file."""
    command = NEXT.findall(said)[0]
    person.does(command)
    file = command.rpartition("--into ")[2]
    schema = re.search(r"--schema (\S+)", command)
    assert schema is not None
    sql(person.guest, f"CREATE DATABASE IF NOT EXISTS {schema[1]}")
    person.does(f"{CLIENTS[person.guest.flavour]} {schema[1]} < {file}")


@dataclass(frozen=True)
class Mistake:
    """A user's mistake, the search for it, and its solution."""

    name: str
    statements: str
    found_by: str
    solve: Callable[[Person, str], None]
    is_in_a_schema_of_its_own: bool = False


MISTAKES = (
    Mistake("M1", "UPDATE shop.orders SET body = 'oops'", "--table shop.orders --kind update", undone),
    Mistake("M2", "DROP TABLE shop.orders", "--table shop.orders --kind ddl", rescued),
    Mistake("M3", "TRUNCATE TABLE shop.orders", "--table shop.orders --kind ddl", rescued),
    Mistake("M4", "DROP DATABASE shop", "--kind ddl", loaded),
    Mistake(
        "M5",
        "INSERT INTO shop.orders (body) SELECT CONCAT('wrong file ', id) FROM shop.orders",
        "--table shop.orders --kind insert",
        undone,
    ),
    Mistake("M6", "ALTER TABLE shop.orders DROP COLUMN body", "--table shop.orders --kind ddl", rescued),
)


def worst_hour(person: Person, mistake: Mistake) -> Solved:
    """Make the mistake and correct it."""
    guest = person.guest
    person.solved = solved = Solved(mistake.name)
    print(f"{mistake.name}: {mistake.statements}", flush=True)
    try:
        before = contents(guest, "shop.orders")
        began = shell(guest, "sleep 1.1; date -u +%Y-%m-%dT%H:%M:%SZ").strip()
        sql(guest, mistake.statements)
        # A rescue writes its file to the user's working folder.
        shell(guest, f"rm -rf {WORK}; mkdir {WORK}")
        said = person.does(f"zsnapdb binlog find main {mistake.found_by} --between {began} 2100-01-01T00:00:00Z")
        mistake.solve(person, said)
        after = contents(guest, "shop.orders")
        if after != before:
            lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))
            solved.wrong = f"the table is not as before: {lines[:8]}"
    except Exception as error:
        solved.wrong = f"{type(error).__name__}: {error}"
    return solved


def day(lab: Lab, flavour: str, package: Path, mistakes: list[str]) -> list[Solved]:
    """Play the day, and return the result of each part."""
    with Guest.boot(lab, flavour, init=SYSTEMD) as guest:
        prepare(guest)
        (guest.out / package.name).write_bytes(package.read_bytes())
        person = Person(guest)
        shell(guest, f"mkdir {WORK}")
        print("the first hour:", flush=True)
        first_hour(person, package.name)
        results = [person.solved]
        chosen = [one for one in MISTAKES if not mistakes or one.name in mistakes]
        results += [worst_hour(person, mistake) for mistake in chosen]
        person.solved = Solved("the end")
        status = person.types("zsnapdb status --all")
        if status.code not in (0, 1):
            person.solved.wrong = status.stdout + status.stderr
        return [*results, person.solved]


def main() -> int:
    """Play the day, print its figures, and return 1 if any table was different."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flavour", default="mariadb")
    parser.add_argument("--mistakes", default="", help="M1 to M6, with commas; all without it")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lab = Lab.ready()
    with tempfile.TemporaryDirectory() as folder:
        package = newcomer.package(lab, Path(folder))
        results = day(lab, options.flavour, package, [name for name in options.mistakes.split(",") if name])
    for solved in results:
        print(solved.line(), flush=True)
    if options.out:
        options.out.write_text(json.dumps([asdict(solved) for solved in results], indent=1) + "\n")
    return 1 if any(solved.wrong for solved in results) else 0


if __name__ == "__main__":
    sys.exit(main())
