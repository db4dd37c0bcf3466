"""The verbs of the campaign `field`: each is run for its round's caller, and its result is compared with the truth."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql

from tests.campaigns.support import field_host, field_lists, field_reasons, field_truth, restored
from tests.campaigns.support.field_callers import Calls, Outcome
from tests.campaigns.support.field_reasons import Facts
from tests.campaigns.support.field_truth import Truth
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ZsnapdbError

TARGET = restored.TARGET
RESCUED = Path("/root/rescued.sql")
_CLIENTS = {Flavour.MYSQL: "/opt/mysql/bin/mysql", Flavour.MARIADB: "/usr/bin/mariadb"}


@dataclass(frozen=True)
class Moment:
    """A state of the source: the argument of --to, the visible contents, and the answer to an application's query."""

    to: str
    truth: Truth
    answer: str


@dataclass
class Verbs:
    """Runs the verbs of a round. `problems` are the faults, `said` has a word for each verb's result.

    `restarted` are variables that SET GLOBAL changed, with their values after a restart.
    """

    flavour: Flavour
    calls: Calls
    facts: Facts
    at_backup: Moment
    at_point: Moment
    at_end: Truth
    table: str | None
    restarted: Mapping[str, str]
    problems: list[str] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)

    def run(self, verb: str) -> None:
        """Run a verb and record its result."""
        acts: Mapping[str, Callable[[], list[str]]] = {
            "clone": self._clone,
            "drill": self._drill,
            "query": self._query,
            "rescue": self._rescue,
            "restore": lambda: self._restore(self.at_backup, "restore"),
            "point": lambda: self._restore(self.at_point, "point"),
            "rewind": self._rewind,
        }
        began = time.monotonic()
        try:
            found = acts[verb]()
        except _RefusedError as refused:
            self.said[verb] = f"refused ({refused})"
            return
        except _FailedError as failed:
            found = [str(failed)]
        except (pymysql.MySQLError, OSError, KeyError, ValueError, subprocess.SubprocessError, ZsnapdbError) as error:
            found = [f"{type(error).__name__}: {error}"]
        seconds = f"{time.monotonic() - began:.0f} s"
        self.said[verb] = f"exact {seconds}" if not found else f"{len(found)} WRONG {seconds}"
        self.problems += [f"{verb}: {line}" for line in found]

    def done(self, verb: str, *words: str, has_plan: bool = True, document: bool = True) -> Outcome:
        """Run a command. _RefusedError if it refused for a true reason, _FailedError for any other failure."""
        outcome = self.calls.run(*words, document=document)
        if outcome.code == 0:
            return outcome
        said = f"`{' '.join(words)}` ended with {outcome.code}: {outcome.message}"
        reason = field_reasons.judge(verb, outcome.code, outcome.message, self.facts)
        if reason is None:
            raise _FailedError(said)
        if has_plan:
            planned = self.calls.run(*words, "--plan")
            if planned.code != outcome.code:
                raise _FailedError(f"{said}; and its plan ended with {planned.code}")
        raise _RefusedError(reason)

    def _variables(self, expected: Truth, found: Truth, *, of_clone: bool) -> list[str]:
        names = {*expected.variables, *found.variables}
        left_out = {name for name in names if field_lists.is_left_out(name)}
        left_out |= field_lists.CLONES if of_clone else set()
        return [f"variable {line}" for line in field_truth.differences(expected.variables, found.variables, left_out)]

    def _used_plugins(self, expected: Truth, found: Truth) -> list[str]:
        """Return the engines and authentication plugins that objects of the source use and the copy lacks."""
        lacking = {name: kind for name, kind in expected.plugins.items() if name not in found.plugins}
        texts = "\n".join(text for text in (*expected.objects.values(), *expected.accounts.values()))
        used = [name for name, kind in lacking.items() if f"ENGINE={name}" in texts or f"VIA {name}" in texts]
        used += [name for name in lacking if f"WITH '{name}'" in texts]
        return [f"plugin {name} ({lacking[name]}) is not active" for name in sorted(set(used))]

    def _objects(self, expected: Truth, found: Truth, outcome: Outcome | None) -> list[str]:
        """Return the differences, except events that are disabled and that the command reported as such."""
        said = outcome.err + json.dumps(outcome.document, ensure_ascii=False) if outcome is not None else ""
        objects = dict(found.objects)
        for name, text in found.objects.items():
            if name.startswith("event ") and f"ALTER EVENT {name.removeprefix('event ')} ENABLE" in said:
                was = expected.objects.get(name, "")
                objects[name] = next((was for state in (" ENABLE ", " DISABLE ") if _OFF.sub(state, text) == was), text)
        return field_truth.differences(expected.objects, objects)

    def _compared(
        self, moment: Moment, connection: pymysql.Connection, *, accounts: bool, outcome: Outcome | None = None
    ) -> list[str]:
        found = field_truth.read(connection, self.flavour)
        lines = self._objects(moment.truth, found, outcome)
        if accounts:
            lines += field_truth.differences(moment.truth.accounts, found.accounts)
        lines += self._used_plugins(moment.truth, found)
        return lines + self._variables(moment.truth, found, of_clone=not accounts)

    def _clone(self) -> list[str]:
        made = self.done(
            "clone", "clone", "create", "main", "--name", "c", "--admin", "--ttl", "2h", "--at", self.at_backup.to,
            has_plan=False,
        ).document  # fmt: skip
        try:
            with field_truth.connect(
                port=int(made["clone"]["port"]), user=made["user"], password=made["password"]
            ) as connection:
                lines = self._compared(self.at_backup, connection, accounts=False)
                with connection.cursor() as cursor:
                    cursor.execute("SELECT @@datadir")
                    ((datadir,),) = cursor.fetchall()
            words = ("clone", "connect", "c", "-N", "-B", "-e", "SELECT @@datadir")
            answer = self.done("clone", *words, has_plan=False, document=False).out.strip()
            if answer != datadir:
                lines.append(f"clone connect came to the server of {answer!r}, the clone is in {datadir!r}")
            return lines
        finally:
            gone = self.calls.run("clone", "destroy", "c")
            if gone.code != 0:
                self.problems.append(f"clone: destroy ended with {gone.code}: {gone.message}")

    def _drill(self) -> list[str]:
        self.done("drill", "drill", "main")
        return []

    def _query(self) -> list[str]:
        question = question_of(self.table)
        words = ("query", "main", question, "--at", self.at_point.to, "--format", "csv")
        told = self.done("query", *words, has_plan=False, document=False).out
        rows = list(csv.reader(io.StringIO(told)))
        answer = "|".join(rows[-1]) if rows else ""
        return [] if answer == self.at_point.answer else [f"answered {answer!r} instead of {self.at_point.answer!r}"]

    def _rescue(self) -> list[str]:
        if self.table is None:
            raise _RefusedError("no table was made")
        RESCUED.unlink(missing_ok=True)
        schema, _, name = self.table.replace("`", "").partition(".")
        into = ("--into", str(RESCUED))
        self.done("rescue", "rescue", "main", "--table", f"{schema}.{name}", "--to", self.at_point.to, *into)
        seen = Path(self.calls.seen(str(RESCUED)))
        before = field_host.servers()
        if not before:
            return [] if seen.stat().st_size else ["the file is empty"]
        with field_truth.connect(field_host.SOCKET) as connection:
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION innodb_strict_mode = 0")
                cursor.execute("CREATE DATABASE rescued")
            try:
                self._load(seen)
                with connection.cursor() as cursor:
                    cursor.execute(f"SHOW CREATE TABLE rescued.`{name}`")
                    ((_, text),) = cursor.fetchall()
                expected = {
                    "table": field_truth.without_counter(self.at_point.truth.objects[f"table {self.table}"]),
                    "rows": self.at_point.truth.objects[f"rows {self.table}"],
                }
                found = {
                    "table": f"{name} | {field_truth.without_counter(text)}",
                    "rows": field_truth.rows_of(connection, f"rescued.`{name}`"),
                }
                return field_truth.differences(expected, found)
            finally:
                with connection.cursor() as cursor:
                    cursor.execute("DROP DATABASE rescued")

    def _load(self, file: Path) -> None:
        """Load a dump with the server's own client, which reads no option file."""
        session = "SET SESSION innodb_strict_mode = 0, SESSION foreign_key_checks = 0, SESSION autocommit = 1"
        session += ", SESSION sql_select_limit = 18446744073709551615, SESSION transaction_read_only = 0"
        session += ", SESSION completion_type = 0"
        argv = [
            _CLIENTS[self.flavour],
            "--no-defaults",
            "-uroot",
            f"-S{field_host.SOCKET}",
            f"--init-command={session}",
        ]
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "MYSQL_TEST_LOGIN_FILE": "/nonexistent"}
        with file.open("rb") as content:
            done = subprocess.run([*argv, "rescued"], stdin=content, capture_output=True, env=env, check=False)
        if done.returncode != 0:
            raise ValueError(f"the rescued file cannot be loaded: {done.stderr.decode(errors='replace')[-300:]}")

    def _restore(self, moment: Moment, verb: str) -> list[str]:
        done: Mapping[str, Any] = {}
        try:
            words = ("restore", "main", "--to", moment.to, "--target", TARGET, "--handover", "run")
            outcome = self.done(verb, *words)
            done = outcome.document
            socket = self.calls.seen(f"{done['mount']}/.zsnapdb/server.sock")
            with field_truth.connect(socket) as connection:
                return self._compared(moment, connection, accounts=True, outcome=outcome)
        finally:
            self._remove(done.get("pid"))

    def _remove(self, pid: int | None) -> None:
        """End the restored server, and remove its datasets wherever they are mounted."""
        if pid is not None:
            restored.end(pid)
        for dataset in (f"{TARGET}/data", TARGET):
            self.calls.unmount(dataset)
        restored.remove(None)

    def _rewind(self) -> list[str]:
        before = field_host.dataset_state()
        outcome = self.done("rewind", "rewind", "main", "--to", self.at_point.to, "--yes", "--no-backup")
        after = field_host.dataset_state()
        lines = field_truth.differences(before, after)
        with field_truth.connect(field_host.SOCKET) as connection:
            found = field_truth.read(connection, self.flavour)
        lines += self._objects(self.at_point.truth, found, outcome)
        lines += field_truth.differences(self.at_point.truth.accounts, found.accounts)
        lines += field_truth.differences(self.at_end.plugins, found.plugins)
        own = ("server_id", "server_uuid", "read_only", *_FOLLOWING)
        left_out = {name for name in found.variables if field_lists.is_state(name) or name in own}
        # A restart of any server loses the changes of SET GLOBAL.
        expected = {**self.at_end.variables, **self.restarted}
        return lines + [f"variable {one}" for one in field_truth.differences(expected, found.variables, left_out)]


_OFF = re.compile(r" DISABLE ON (?:REPLICA|SLAVE) ")
"""The state of an event that a replica's applier created."""
_FOLLOWING = (
    "character_set_client",
    "character_set_connection",
    "character_set_results",
    "collation_connection",
    "collation_server",
    "sql_big_selects",
)
"""Variables without an option: a restart of any server derives them from max_join_size and character_set_server."""


class _RefusedError(Exception):
    """The command refused for a reason that is true of the round."""


class _FailedError(Exception):
    """The command failed, or refused for another reason."""


def question_of(table: str | None) -> str:
    """Return a query whose answer depends on rows and on settings."""
    count = f"(SELECT COUNT(*) FROM {table})" if table else "0"
    return f"SELECT {count} AS n, 'a' || 'b' AS b, FROM_UNIXTIME(86400) AS f, 5 / 3 AS d, NOT 1 BETWEEN -5 AND 5 AS x"
