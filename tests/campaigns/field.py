"""Campaign: random servers on random hosts. Every copy has its source's contents, or the plan states why it cannot.

It runs inside a guest (`python3 tests/lab campaign field`). A round draws:

- about twenty settings from the release's list (option file, SET GLOBAL, SET PERSIST), and plugins
- properties, mounts and permissions of datasets, and another uid of the server's account
- a hostile home and environment, and the caller of zsnapdb: cron, a login shell, a unit, a container

Random DDL and rows come before and after a backup. Then some copies are made: a clone, a drill, a query, a rescue,
restores to the backup and to a point, a rewind. Their contents are compared with those of the source at that moment. A
refusal is right if the round knows that its reason is true. A round depends on the seed and its number only.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pymysql

from tests.campaigns.support import field_host, field_reasons, field_truth, field_variables
from tests.campaigns.support.field_callers import Caller, Calls
from tests.campaigns.support.field_host import Host, Site
from tests.campaigns.support.field_objects import Objects
from tests.campaigns.support.field_truth import Truth
from tests.campaigns.support.field_variables import Setting, Variable
from tests.campaigns.support.field_verbs import Moment, Verbs, question_of
from zsnapdb.base.domain_types import Flavour

VERBS = ("clone", "drill", "query", "rescue", "restore", "point", "rewind")
_DAEMONS = {Flavour.MYSQL: "/opt/mysql/bin/mysqld", Flavour.MARIADB: "/usr/sbin/mariadbd"}
_PLUGINS = {Flavour.MYSQL: Path("/opt/mysql/usr/lib/mysql/plugin"), Flavour.MARIADB: Path("/usr/lib/mysql/plugin")}
DRAWN_VERBS = 4
"""Number of verbs per round: all of them take two minutes."""
LINES = 400
"""Limit of printed differences of a round; /out/campaign.json has all."""
_DRIFT = (
    "default_storage_engine",
    "innodb_strict_mode",
    "explicit_defaults_for_timestamp",
    "innodb_default_row_format",
)


@dataclass(frozen=True)
class Result:
    """A round: the drawn configuration, the result of each verb, the differences, and the seconds."""

    number: int
    drawn: tuple[str, ...]
    said: dict[str, str]
    problems: tuple[str, ...]
    seconds: float

    @property
    def line(self) -> str:
        verbs = ", ".join(f"{verb} {said}" for verb, said in self.said.items())
        state = "FAIL" if self.problems else "ok  "
        return f"{state} {self.number:3d} {self.seconds:5.0f} s: {verbs}\n       " + "\n       ".join(self.drawn)


class Field:
    """All rounds on the guest's server."""

    def __init__(self, seed: int, verbs: Sequence[str], without: Sequence[str]) -> None:
        self.seed, self.verbs, self.without = seed, verbs, frozenset(without)
        self.flavour = Flavour(Path("/etc/lab-flavour").read_text().strip())
        self.libraries = frozenset(path.stem for path in _PLUGINS[self.flavour].glob("*.so"))
        with field_truth.connect(field_host.SOCKET) as connection, connection.cursor() as cursor:
            self.variables: tuple[Variable, ...] = field_variables.read_variables(
                cursor, self.flavour, _DAEMONS[self.flavour]
            )
            cursor.execute("GRANT TRIGGER, SHOW VIEW, EVENT ON *.* TO zsnapdb@localhost")
        self.properties = field_host.known_properties()
        self.host = Host(self.flavour)

    def round(self, number: int) -> Result:
        """Draw, prepare and check one round."""
        began, chance = time.monotonic(), random.Random(f"{self.seed}/{number}")
        site = field_host.draw(self.flavour, chance, self.libraries, self.properties)
        drawn_settings = field_variables.draw(self.variables, self.flavour, chance)
        settings = [one for one in drawn_settings if one.name not in self.without]
        caller = chance.choice(list(Caller))
        self.host.clean()
        self.host.prepare(site, number)
        # An earlier container would keep the mounts of the previous round.
        calls = Calls(caller, chance)
        drawn = [f"{calls}; {site}"]
        try:
            made = _Round(self, site, calls, chance)
            try:
                made.play(settings, self.verbs or self._drawn_verbs(number))
            except Exception as error:
                made.problems.append(f"{made.stage}: {type(error).__name__}: {error}")
            drawn += made.drawn
            return Result(number, tuple(drawn), made.said, tuple(made.problems), round(time.monotonic() - began, 1))
        finally:
            calls.end()

    def _drawn_verbs(self, number: int) -> list[str]:
        """Return the verbs of a round; a rewind is the last."""
        drawn = random.Random(f"{self.seed}/{number}/verbs").sample(VERBS, DRAWN_VERBS)
        return sorted(drawn, key=VERBS.index)


class _Round:
    """One round on a prepared host."""

    def __init__(self, campaign: Field, site: Site, calls: Calls, chance: random.Random) -> None:
        self.flavour, self.host, self.campaign = campaign.flavour, campaign.host, campaign
        self.site, self.calls, self.chance = site, calls, chance
        self.drawn: list[str] = []
        self.said: dict[str, str] = {}
        self.problems: list[str] = []
        self.stage = "start"
        engines = [plugin.engine for plugin in site.plugins if plugin.engine] + ["InnoDB", "MyISAM"]
        self.objects = Objects(
            self.flavour,
            chance,
            engines + (["Aria"] if self.flavour is Flavour.MARIADB else []),
            [plugin.login for plugin in site.plugins if plugin.login],
            [plugin.function for plugin in site.plugins if plugin.function],
        )

    def play(self, settings: Sequence[Setting], verbs: Sequence[str]) -> None:
        """Run the server with its settings and objects, and then all verbs."""
        self._start(settings)
        self.stage = "objects"
        self.write(14)
        at_backup = self.moment("")
        self.stage = "backup"
        facts = field_reasons.Facts(self.site, self.calls, at_backup.truth, ())
        made = self.calls.run("backup", "main")
        if made.code != 0:
            reason = field_reasons.judge("backup", made.code, made.message, facts)
            self.said["backup"] = f"refused ({reason})" if reason else "WRONG"
            if reason is None:
                self.problems.append(f"backup ended with {made.code}: {made.message}")
            return
        at_backup = Moment(made.document["backup"]["backup_id"], at_backup.truth, at_backup.answer)
        self.stage = "later objects"
        drift = self._drift()
        table = self._rescued_table()
        at_point = self.moment(self._gtid(), table)
        self.write(5)
        self.stage = "archive"
        for words in (("snapshot", "main"), ("binlog", "archive", "main", "--once")):
            archived = self.calls.run(*words)
            if archived.code != 0:
                self.problems.append(f"{' '.join(words)} ended with {archived.code}: {archived.message}")
        at_end = self.truth()
        facts = field_reasons.Facts(self.site, self.calls, at_backup.truth, drift)
        judged = Verbs(
            self.flavour, self.calls, facts, at_backup, at_point, at_end, table, self._restarted(settings, at_end)
        )
        self._verbs(judged, verbs, at_end)
        self.said |= judged.said
        self.problems += judged.problems

    def _verbs(self, judged: Verbs, verbs: Sequence[str], at_end: Truth) -> None:
        """Run the verbs. The source must be unchanged before the rewind. A server of another host is not rewound."""
        if self.site.has_other_account:
            self.host.change_account()
        for verb in verbs:
            self.stage = verb
            if verb == "rewind" and self.site.has_other_account:
                continue
            if verb == "rewind":
                self._untouched(judged, at_end)
            judged.run(verb)
        if "rewind" not in verbs and not self.site.has_other_account:
            self._untouched(judged, at_end)

    def _untouched(self, judged: Verbs, at_end: Truth) -> None:
        now = self.truth()
        for line in field_truth.differences(at_end.objects, now.objects):
            judged.problems.append(f"the source itself changed: {line}")

    def _start(self, settings: Sequence[Setting]) -> None:
        if self.site.has_hostile_home:
            self.host.write_home()
        left_out = self.host.start(settings, self.site)
        with field_truth.connect(field_host.SOCKET) as connection, connection.cursor() as cursor:
            refused = dict(self._load_plugins(cursor))
            self.started = dict(field_variables.shown(cursor))
            refused |= field_variables.apply(cursor, settings)
            with suppress(pymysql.MySQLError):
                cursor.execute("CREATE USER dba@localhost IDENTIFIED BY 'dba'")
                cursor.execute("GRANT ALL ON *.* TO dba@localhost WITH GRANT OPTION")
        unset = {one.name for one in left_out} | set(refused)
        self.drawn.append("settings: " + ", ".join(str(one) for one in settings if one.name not in unset))
        if unset:
            self.drawn.append("the server refused: " + ", ".join(sorted(unset)))

    def _load_plugins(self, cursor: pymysql.cursors.Cursor) -> list[tuple[str, str]]:
        refused = []
        for plugin in self.site.plugins:
            kind, _, name = plugin.how.partition(" ")
            statement = {
                "INSTALL": f"INSTALL SONAME '{plugin.library}'",
                "plugin": f"INSTALL PLUGIN {name} SONAME '{plugin.library}'",
                "function": f"CREATE FUNCTION {name} RETURNS INTEGER SONAME '{plugin.library}'",
                "component": f"INSTALL COMPONENT 'file://{plugin.library}'",
            }.get(kind)
            if statement is not None:
                try:
                    cursor.execute(statement)
                except pymysql.MySQLError as error:
                    refused.append((plugin.library, str(error)))
        return refused

    def write(self, count: int) -> None:
        """Run random statements in an application's session."""
        with field_truth.connect(field_host.SOCKET, is_own=False) as connection:
            self.objects.write(connection, count)

    def truth(self) -> Truth:
        """Return the source's present contents."""
        with field_truth.connect(field_host.SOCKET) as connection:
            return field_truth.read(connection, self.flavour)

    def moment(self, to: str, table: str | None = None) -> Moment:
        """Return the present state of the source."""
        truth = self.truth()
        with field_truth.connect(field_host.SOCKET, is_own=False) as connection, connection.cursor() as cursor:
            cursor.execute(question_of(table))
            (row,) = cursor.fetchall()
        return Moment(to, truth, "|".join("" if value is None else str(value) for value in row))

    def _gtid(self) -> str:
        with field_truth.connect(field_host.SOCKET) as connection, connection.cursor() as cursor:
            name = "gtid_executed" if self.flavour is Flavour.MYSQL else "gtid_binlog_pos"
            cursor.execute(f"SELECT @@GLOBAL.{name}")
            return str(cursor.fetchall()[0][0]).replace("\n", "")

    def _drift(self) -> tuple[str, ...]:
        """Write, in some rounds under other settings than those of the backup. Return the settings' names."""
        if self.chance.random() < 0.7:
            self.write(8)
            return ()
        name = self.chance.choice(_DRIFT)
        with field_truth.connect(field_host.SOCKET) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT @@GLOBAL.{name}")
            ((before,),) = cursor.fetchall()
            other = {"default_storage_engine": "MyISAM", "innodb_default_row_format": "compact"}.get(
                name, 1 - int(before == 1)
            )
            cursor.execute(f"SET GLOBAL {name} = %s", (other,))
            self.write(8)
            cursor.execute(f"SET GLOBAL {name} = %s", (before,))
        self.drawn.append(f"after the backup {name} was {other} for a while")
        return (name,)

    def _rescued_table(self) -> str | None:
        """Choose a table whose definition does not depend on other tables."""
        names = [
            one.name for one in self.objects.tables if not any(w in one.name for w in ("child", "versioned", "copied"))
        ]
        return self.chance.choice(names) if names else None

    def _restarted(self, settings: Sequence[Setting], at_end: Truth) -> dict[str, str]:
        names = {one.name for one in settings if one.way is field_variables.Way.PERSIST}
        names |= {name.removeprefix("default_") for name in names & {"default_time_zone"}}
        persisted = names | {name.replace("replica", "slave") for name in names}
        persisted |= {name.replace("slave", "replica") for name in names}
        changed = {name for name, value in at_end.variables.items() if self.started.get(name, value) != value}
        return {name: self.started[name] for name in changed - persisted}


def main() -> int:
    """Run the rounds. Return 0 if all were right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=VERBS, default=(), help="these verbs; else each round draws some")
    parser.add_argument("--without", nargs="+", default=(), help="variables that are left as they are")
    words = parser.parse_args()
    campaign = Field(words.seed, words.only, words.without)
    print(f"{len(campaign.variables)} variables are drawn of", flush=True)
    results = []
    for number in range(words.first, words.first + words.rounds):
        result = campaign.round(number)
        results.append(result)
        print(result.line, flush=True)
        for line in result.problems[:LINES]:
            print(f"       ! {line[:400]}", flush=True)
    wrong = [result for result in results if result.problems]
    Path("/out/campaign.json").write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    print(f"{len(results) - len(wrong)} of {len(results)} rounds are right")
    for result in wrong:
        print(f"round {result.number}, --seed {words.seed} --first {result.number} --rounds 1:")
        for line in result.problems:
            print(f"    {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
