"""Campaign: a server's history is split in every known way while the archiver runs; restores are exact or refused.

It runs inside a guest (`python3 tests/lab campaign histories`). A round writes known transactions, with rotations and
backups, and splits the history: a reset, a failover with or without loss, an administrator's rollback, renamed binlogs,
a clock that is set back, or GTIDs that are turned off. Then it writes again. Points before, at and after the split, the
latest state and a point of any earlier round are planned, and one of them is restored.

The truth is the order in which the server acknowledged the commits. A plan and a restore must give exactly the server's
state at the point. If a point stands for several states, the result is the named one, or a refusal that lists the
histories. A point with a backup before it in its own history must not be refused.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.campaigns.support import restored
from tests.campaigns.support.history_server import HistoryServer, Split, splits_of
from tests.campaigns.support.live_states import Entry, Rows
from tests.lab.inside import ledger
from tests.lab.inside.zygote import Zygote
from zsnapdb.base.domain_types import Flavour

CONFIG = Path("/etc/zsnapdb/zsnapdb.toml")
LOG = Path("/tmp/archiver.log")
BINLOGS_GONE = (Split.RESET, Split.SET_BACK, Split.FAILOVER, Split.FAILOVER_LOSS)
"""Splits after which the server no longer has its last binlogs, so they are never archived."""
SETTLED = 120.0
"""Time limit in seconds for archiving everything."""
_HISTORY = re.compile(r"(\S+) \(in \S+ of server")
_NO_HISTORY = (
    r"no backup leads to|neither in a backup nor|cannot be reached from backup|is after the end of the archive"
)
_OWN_REASONS = {
    "mode": r"with gtid_mode (ON|OFF), replays none",
    "several": r"lies in \d+ histories",
    "latest": r"the latest state cannot be reached",
    "early": r"no backup is older than|every backup already contains",
    "end": _NO_HISTORY,
    "future": r"is in the future",
    "not in it": r"is not in \S+ of this history",
    "no GTIDs": r"have no GTIDs|is not a GTID",
}
"""Accepted reasons to refuse a point."""


@dataclass(frozen=True)
class Point:
    """A point: its location, the argument of --to, the right states, and whether it must be accepted."""

    where: str
    to: str
    right: frozenset[Rows]
    must: bool


@dataclass(frozen=True)
class Judged:
    """The result of a point: exact, refused for a reason, or a problem. `--history` was given if needed."""

    round: int
    split: str
    where: str
    to: str
    outcome: str
    is_restored: bool
    wrong: str


@dataclass(frozen=True)
class Backup:
    """A backup, and the index of its state."""

    backup_id: str
    place: int
    ended: float


class Campaign:
    """All rounds on the guest's server."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.flavour = Flavour(Path("/etc/lab-flavour").read_text().strip())
        self.zygote = Zygote(Path(tempfile.mkdtemp()) / "zygote")
        self.server = HistoryServer(self.flavour, self.random)
        self.backups: list[Backup] = []
        self.judged: list[Judged] = []
        self.archived = 0
        self.unsure: set[int] = set()
        text = CONFIG.read_text()
        assert 'repository = "s3"\n' in text
        CONFIG.write_text(text.replace('repository = "s3"\n', 'repository = "s3"\nbinlog = { interval = "2s" }\n', 1))
        self.start_archiver()

    def zsnapdb(self, *words: str) -> tuple[int, dict[str, Any], str]:
        """Run a command and return its exit code, JSON document and stderr."""
        code, out, err = self.zygote.run((*words, "--json"), dict(os.environ), 600)
        return code, json.loads(out) if code == 0 else {}, err

    def start_archiver(self) -> None:
        log = LOG.open("ab")
        # SIGABRT makes it print its stack.
        env = {**os.environ, "PYTHONFAULTHANDLER": "1"}
        self.archiver = subprocess.Popen(["zsnapdb", "binlog", "archive", "main"], stdout=log, stderr=log, env=env)
        log.close()

    def stop_archiver(self) -> None:
        self.archiver.send_signal(signal.SIGTERM)
        try:
            self.archiver.wait(120)
        except subprocess.TimeoutExpired as error:
            self.archiver.send_signal(signal.SIGABRT)
            self.archiver.wait(60)
            raise RuntimeError(f"the archiver did not end: {_said()}") from error

    def backup(self) -> None:
        """Back up the server's present state."""
        place = len(self.server.states.entries) - 1
        code, made, said = self.zsnapdb("backup", "main")
        if code != 0:
            raise RuntimeError(f"backup ended with {code}: {said}")
        self.backups.append(Backup(made["backup"]["backup_id"], place, time.time()))

    def write(self, transactions: int, backup: float) -> None:
        """Write transactions, with a backup at a random place with the probability `backup`."""
        first = self.random.randrange(transactions + 1)
        self.server.write(first)
        if self.random.random() < backup:
            self.backup()
        self.server.write(transactions - first)

    def settle(self) -> None:
        """Wait until the running archiver has archived everything."""
        last = self.server.states.last
        end = next((entry for entry in reversed(self.server.states.entries) if entry.is_commit), None)
        if end is None or end.epoch != last.epoch:
            return
        deadline = time.monotonic() + SETTLED
        while not self._is_archived(end):
            if self.archiver.poll() is not None:
                raise RuntimeError(f"the archiver ended: {_said()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{end} was not archived: {_said()}")
            time.sleep(0.3)
        self.archived = len(self.server.states.entries) - 1

    def _is_archived(self, end: Entry) -> bool:
        code, archive, said = self.zsnapdb("binlog", "status", "main")
        if code != 0:
            raise RuntimeError(f"binlog status ended with {code}: {said}")
        files = archive["incarnations"][-1]["files"] if archive["incarnations"] else []
        return any(
            file["name"] == end.file
            and file["bytes"] >= end.end
            and file["last_commit"] is not None
            and datetime.fromisoformat(file["last_commit"]).timestamp() >= int(end.low)
            for file in files
        )

    def round(self, number: int, how: Split) -> None:
        """Write, split, write again, and check points."""
        server, states = self.server, self.server.states
        begin = len(states.entries)
        self.write(self.random.randrange(1, 5), 1.0 if number == 1 else 0.8)
        marked = server.mark()
        self.write(self.random.randrange(2, 6), 0.2)
        if self.random.random() < 0.8:
            self.settle()
        before = range(begin, len(states.entries))
        if how in BINLOGS_GONE:
            self.unsure.update(range(self.archived + 1, len(states.entries)))
        is_new_host = how in (Split.FAILOVER, Split.FAILOVER_LOSS)
        if is_new_host:
            self.stop_archiver()
        server.split(how, marked)
        if is_new_host:
            self.start_archiver()
        at = len(states.entries) - 1
        self.write(self.random.randrange(2, 6), 0.7)
        self.settle()
        after = range(at + 1, len(states.entries))
        points = [
            self._point("before", self.random.choice(before)),
            self._point("at", at - 1),
            self._point("after", self.random.choice(after)),
            self._point("earlier", self.random.randrange(1, len(states.entries))),
            Point("latest", "latest", frozenset({states.last.rows}), self._has_backup(len(states.entries) - 1)),
        ]
        chosen = self.random.randrange(len(points))
        for place, point in enumerate(points):
            self.judge(number, how, point, restore=place == chosen)
        server.unmark()
        server.mend(how)

    def _has_backup(self, place: int) -> bool:
        """Whether a backup leads to a state within its own history, and everything up to there is archived."""
        entry = self.server.states.entries[place]
        own = [b for b in self.backups if self.server.states.entries[b.place].epoch == entry.epoch]
        is_archived = place <= self.archived and place not in self.unsure
        return is_archived and any(backup.place <= place for backup in own)

    def _point(self, where: str, place: int) -> Point:
        """Return a point at a state: its GTID, the one before the next, or a time at which the server had it."""
        states = self.server.states
        entry = states.entries[place]
        kind = self.random.choice(("gtid", "before", "time"))
        if kind == "gtid" and entry.gtid is not None:
            right = states.with_gtid(entry.gtid)
            # The GTID set of a MySQL backup does not show which transaction was the last.
            must = len(right) == 1 and self._has_backup(place) and all(b.place != place for b in self.backups)
            return Point(where, entry.gtid, frozenset(right), must)
        following = states.entries[place + 1] if place + 1 < len(states.entries) else None
        if kind == "before" and following is not None and following.gtid is not None:
            right = states.before_gtid(following.gtid)
            must = len(right) == 1 and self._has_backup(place) and self._has_backup(place + 1)
            return Point(where, f"before-{following.gtid}", frozenset(right), must)
        moment = self.random.uniform(entry.low, following.low if following else entry.high)
        text = datetime.fromtimestamp(moment, UTC).isoformat(timespec="microseconds")
        # A time counts as archived if a later commit of its history is archived.
        is_inside = any(
            later.epoch == entry.epoch and states.shown(later.low) > states.shown(moment) and self._has_backup(at)
            for at, later in enumerate(states.entries[place + 1 :], place + 1)
        )
        is_after = all(moment > b.ended for b in self.backups if b.place == place)
        right = states.at_time(datetime.fromisoformat(text).timestamp())
        return Point(
            where, text, frozenset(right), is_inside and is_after and self._has_backup(place) and len(right) == 1
        )

    def judge(self, number: int, how: Split, point: Point, *, restore: bool) -> None:
        """Plan the point. With `restore`, also restore it if the plan is exact."""
        outcome, wrong, history = self._planned(point)
        is_restored = restore and outcome.startswith("exact") and not wrong
        if is_restored:
            wrong = self._restored(point, history)
        judged = Judged(number, how.value, point.where, point.to, outcome, is_restored, wrong)
        self.judged.append(judged)
        what = f"{outcome}{', restored' if is_restored else ''}{'' if point.must else ', may be refused'}"
        print(
            f"{'FAIL' if wrong else 'ok  '} {number:3d} {how.value}, {point.where}: {point.to}: {what} {wrong}",
            flush=True,
        )

    def _planned(self, point: Point) -> tuple[str, str, str | None]:
        """Return the result of a plan, its problem, and the history that had to be named."""
        code, plan, said = self._plan(point, None)
        if code == 0:
            wrong = self._compare(self._states_of(plan), point.right)
            if not wrong:
                return "exact", "", None
            last = plan["point"]["last"]
            known = self.server.states.named(last["gtid"]) if last else ""
            return "exact", f"{wrong}: {plan['target']}, {plan['point']}; known: {known}", None
        reason = next((name for name, pattern in _OWN_REASONS.items() if re.search(pattern, said)), None)
        if code not in (4, 6, 7) or reason is None:
            return "refused", f"refused with {code}: {said}", None
        if reason == "several":
            return self._with_history(point, said)
        # The backup's server applies no transactions of the other mode, wherever the point is.
        is_allowed = reason == "mode" or not point.must
        return f"refused ({reason})", "" if is_allowed else f"must not be refused: {said}", None

    def _with_history(self, point: Point, said: str) -> tuple[str, str, str | None]:
        """Try each of the listed histories: one must give the right state or state why it cannot."""
        wrong, named, fitting, is_refused = [], [], None, False
        for history in _HISTORY.findall(said):
            code, plan, error = self._plan(point, history)
            reached = self._states_of(plan) if code == 0 else set()
            named.append(f"{history}: {_short(reached)} {error.partition(chr(10))[0]}")
            is_refused |= code == 6
            if code == 0 and not reached:
                wrong.append(f"--history {history} gives no state that the server had: {plan['point']}")
            elif reached & point.right:
                fitting = history
        if fitting is None and (point.must or not is_refused):
            wrong.append(f"none of the histories gives {_short(point.right)}: {named}")
        if fitting is None:
            print(f"      {'; '.join(named)}", flush=True)
        return "exact, of a named history" if fitting else "refused (history)", "; ".join(wrong), fitting

    def _plan(self, point: Point, history: str | None) -> tuple[int, dict[str, Any], str]:
        named = ("--history", history) if history else ()
        return self.zsnapdb("restore", "main", "--to", point.to, *named, "--target", restored.TARGET, "--plan")

    def _states_of(self, plan: dict[str, Any]) -> set[Rows]:
        """Return the possible states of a plan, from its last transaction or its backup."""
        states, last = self.server.states, plan["point"]["last"]
        if last is None:
            (backup,) = [b for b in self.backups if b.backup_id == plan["target"]]
            return {states.entries[backup.place].rows}
        committed = datetime.fromisoformat(last["committed"]).timestamp()
        return states.planned(last["gtid"], committed, last["file"], last["end"])

    def _compare(self, reached: set[Rows], right: frozenset[Rows]) -> str:
        return "" if reached & right else f"leads to {_short(reached)}, and {_short(right)} is right"

    def _rows_of(self, made: dict[str, Any]) -> Rows:
        socket = f"{made['mount']}/.zsnapdb/server.sock"
        with ledger.connect(socket, "root", "", "past") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT number FROM numbers ORDER BY number")
            return tuple(int(row[0]) for row in cursor.fetchall())

    def _restored(self, point: Point, history: str | None) -> str:
        """Restore and compare the rows of the server that was started on the result."""
        named = ("--history", history) if history else ()
        words = ("restore", "main", "--to", point.to, *named, "--target", restored.TARGET, "--handover", "run")
        code, made, said = self.zsnapdb(*words)
        try:
            if code != 0:
                return f"the restore ended with {code}: {said}\n{_server_said()}"
            wrong = self._compare({self._rows_of(made)}, point.right)
            return f"restored: {wrong}" if wrong else ""
        finally:
            restored.remove(made.get("pid"))


def _said() -> str:
    return LOG.read_text()[-4000:]


def _server_said() -> str:
    """Return the end of the error log of the restored server, if there is one."""
    log = Path("/var/lib/zsnapdb/restored") / Path(restored.TARGET).name / ".zsnapdb/error.log"
    return log.read_text(errors="replace")[-3000:] if log.exists() else "(no error log)"


def _short(states: set[Rows] | frozenset[Rows]) -> str:
    return " or ".join(f"{len(rows)} rows to {rows[-1] if rows else 0}" for rows in sorted(states)) or "no known state"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=[split.name.lower() for split in Split], help="only this kind of split")
    options = parser.parse_args()
    began = time.monotonic()
    campaign = Campaign(options.seed)
    kinds: list[Split] = []
    for number in range(1, options.rounds + 1):
        if not kinds:
            kinds = [s for s in splits_of(campaign.flavour) if options.only in (None, s.name.lower())]
            campaign.random.shuffle(kinds)
        campaign.round(number, kinds.pop())
    campaign.stop_archiver()
    judged = campaign.judged
    bad = [one for one in judged if one.wrong]
    print(
        f"{campaign.flavour}: {len(judged) - len(bad)} of {len(judged)} points right in {options.rounds} rounds, seed"
        f" {options.seed}: {dict(Counter(one.outcome for one in judged))},"
        f" {sum(one.is_restored for one in judged)} restored; {time.monotonic() - began:.0f} s"
    )
    document = {"flavour": campaign.flavour.value, "seed": options.seed, "points": [asdict(one) for one in judged]}
    Path("/out/campaign.json").write_text(json.dumps(document, indent=1) + "\n")
    return 1 if bad or not judged else 0


if __name__ == "__main__":
    sys.exit(main())
