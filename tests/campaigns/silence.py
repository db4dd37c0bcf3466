"""Campaign: no fault stays undetected for longer than one interval, and nothing is green by mistake.

The agent runs with short intervals. Faults start and are repaired one by one. Four signs are watched independently: the
exit code of `zsnapdb status --all`, the metrics (with the shipped alert rules), a ping as for a dead man's switch, and
the agent's /readyz. Each must be red within one interval after the fault breaks an objective, must stay red until the
repair, and must be green again afterwards. The fault must not break any other objective.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.campaigns.support.faults import BUCKET, CONFIG, FAULTS, SOCKET, STATE, Fault, Site, add_innochecksum, must
from tests.campaigns.support.signs import Metrics, Receiver, Sample, Sign, Signs
from tests.lab.inside import ledger
from zsnapdb.base.domain_types import backup_time

ANY_SERVER = True
INTERVAL = 10.0
"""Interval in seconds between two checks of the objectives by the agent."""
PATIENCE = 30.0
"""Retry time in seconds for a store that does not answer."""
METRICS = Path("/run/silence/zsnapdb.prom")
PORT = 9807
SETTINGS = """
[instance.main.lock]
strategy = "ftwrl"
budget = "10s"
[instance.main.binlog]
interval = "5s"
[instance.main.objectives]
rpo = "{age}s"
backup_age = "{age}s"
archive_lag = "{lag}s"
drill_age = "1d"
warn_at = 1.0
[instance.main.agent]
archive = true
backup = {{ every = "30s" }}
drill = {{ every = "1d" }}
[agent]
metrics = "{metrics}"
status = {{ every = "{interval}s" }}
[agent.http]
port = {port}
stale = "{stale}s"
[notifications.to.board]
ping = "{url}/ping"
of = "objectives"
[notifications.to.hook]
webhook = "{url}/hook"
"""


@dataclass
class Row:
    """The signs of one fault. Times are in seconds; `due`: from its start until it breaks the first objective."""

    fault: str
    due: float = 0.0
    red: dict[str, float] = field(default_factory=dict)
    """Seconds from `due` until each sign was red."""
    broken: list[str] = field(default_factory=list)
    green: dict[str, float] = field(default_factory=dict)
    """Seconds from the repair until each sign was green."""
    words: dict[str, list[str]] = field(default_factory=dict)
    """The distinct messages of each sign between the start of the fault and the repair."""
    notes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def line(self) -> str:
        red = "".join(f"{self.red.get(sign, -1):>9.0f}" for sign in Sign)
        green = "".join(f"{self.green.get(sign, -1):>9.0f}" for sign in Sign)
        return f"{self.fault:<24}{self.due:>6.0f} {red} |{green}  {', '.join(self.broken)}"

    def details(self) -> str:
        """Return the messages of the signs, the notes and the problems."""
        said = [f"    {sign}: {'; '.join(self.words.get(sign, []))[:300]}" for sign in Sign]
        noted = [f"    note: {note}" for note in self.notes]
        judged = [f"    WRONG: {one}" for one in self.wrong] or ["    right"]
        return "\n".join([*said, *noted, *judged])


_SIGNS = "".join(f"{sign:>9}" for sign in Sign)
HEAD = (
    f"{'fault':<24}{'due':>6} {_SIGNS} |{_SIGNS}  broken\n"
    f"{'':<24}{'':>6} {'seconds from due until red':>36} |{'seconds from the mend until green':>36}"
)


class Campaign:
    """Faults one by one, watched by all signs."""

    def __init__(self, slack: float, age: float, lag: float) -> None:
        self.slack, self.age = slack, age
        self.silence, stale = 1.5 * INTERVAL + slack, 3 * INTERVAL + slack
        self.receiver = Receiver(self.silence)
        folder = METRICS.parent
        folder.mkdir()
        STATE.mkdir(exist_ok=True)
        must("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(STATE))
        limits = {"age": age, "lag": lag, "interval": INTERVAL, "stale": stale, "port": PORT}
        text = SETTINGS.format(**{k: f"{v:g}" for k, v in limits.items()}, metrics=METRICS, url=self.receiver.url)
        CONFIG.write_text(CONFIG.read_text() + text)
        self.site = Site(folder / "said")
        self.metrics = Metrics(METRICS, stale)
        self.signs = Signs(self.receiver, self.metrics, f"http://127.0.0.1:{PORT}/readyz", folder)

    def set_up(self) -> None:
        """Fill the server, write to it all the time, start the agent, and wait until all is green."""
        add_innochecksum()
        ledger.set_up(SOCKET)
        threading.Thread(target=_write, daemon=True).start()
        must("zsnapdb", "backup")
        must("zsnapdb", "drill", "main")
        self.site.start_agent()
        self.signs.start()
        self.wait_green(time.time(), 4 * self.age + 300)

    def play(self, fault: Fault, chance: random.Random) -> Row:
        """Start a fault, wait until all signs are red, repair it, and wait until everything is green."""
        row = Row(fault.name)
        self._settle()
        self._calm(row)
        # The fault starts at any moment between two checks.
        time.sleep(chance.uniform(0.0, INTERVAL))
        told, began = len(self.receiver.told), time.time()
        try:
            fault.begin(self.site)
            if not fault.is_aged:
                began = time.time()
            self._wait_red(fault, row, began, told)
        finally:
            mended = time.time()
            row.words = {sign: self._said(sign, began, mended) for sign in Sign}
            self.site.mend()
        self._wait_green(row, mended)
        heard = [one for one in self.receiver.told[told:] if one.event == "broken"]
        row.broken = sorted({one.subject for one in heard})
        for one in heard:
            if one.subject in fault.breaks | fault.may_break:
                continue
            age = self._backup_age(one.at)
            if one.subject == "backup-age" and age > self.age:
                row.notes.append(f"the newest backup was {age:.0f} s old, so backup-age broke, rightly")
            else:
                row.wrong.append(f"{one.subject} broke, too")
        return row

    def wait_green(self, since: float, seconds: float) -> None:
        """Wait until every sign was read since the moment and is green."""
        deadline = time.time() + seconds
        while not self.signs.are_green(since):
            if time.time() > deadline:
                last = [self.signs.last(sign) for sign in Sign]
                raise RuntimeError(f"not green: {last}\n{self.site.said.read_text()[-3000:]}")
            time.sleep(0.5)

    def _settle(self) -> None:
        """Wait until all is green, and no objective is about to break because a backup is late."""
        deadline = time.time() + 4 * self.age + 300
        while True:
            self.wait_green(time.time(), max(1.0, deadline - time.time()))
            left = [at - time.time() for at in self.metrics.deadlines().values()]
            if min(left, default=0.0) > 4 * INTERVAL:
                return
            if time.time() > deadline:
                raise RuntimeError(f"the machine is too slow for these limits: {self.metrics.deadlines()}")
            time.sleep(1.0)

    def _calm(self, row: Row) -> None:
        """Check that nothing is red while there is no fault."""
        since = time.time()
        time.sleep(2 * INTERVAL)
        alarms = [one for sign in Sign for one in self.signs.since(sign, since) if one.is_red]
        row.wrong += [f"false alarm of {one.sign}: {one.words}" for one in alarms[:3]]

    def _said(self, sign: Sign, since: float, until: float) -> list[str]:
        """Return the distinct messages of the sign while it was red."""
        reds = [one.words for one in self.signs.since(sign, since) if one.is_red and one.ended <= until]
        return list(dict.fromkeys("silent" if words.startswith("silent") else words for words in reds))

    def _backup_age(self, at: float) -> float:
        """Return the age of the newest backup at that time, from the bucket alone."""
        files = BUCKET.glob("buckets/backups/lab/main/manifests/*.json")
        made = [backup_time(file.stem).timestamp() for file in files if file.stat().st_mtime <= at]
        return at - max(made, default=0.0)

    def _due(self, fault: Fault, began: float) -> float:
        """Return the time at which the fault breaks its first objective, from the present deadlines."""
        if not fault.is_aged:
            return began
        deadlines = self.metrics.deadlines()
        known = [deadlines[name] for name in fault.breaks if name in deadlines]
        return max(began, min(known, default=began))

    def _bound(self, fault: Fault, sign: Sign) -> float:
        """Return the limit in seconds from `due` until the sign is red."""
        waits = PATIENCE if "repository" in fault.breaks else 0.0
        silence = self.silence if sign is Sign.PING and not fault.has_notifier else 0.0
        return INTERVAL + waits + silence + self.slack

    def _wait_red(self, fault: Fault, row: Row, began: float, told: int) -> None:
        give_up = began + self.age + 4 * (INTERVAL + PATIENCE + self.silence + self.slack)
        wanted = fault.breaks if fault.has_notifier else frozenset()
        seen: dict[Sign, Sample] = {}
        while time.time() < give_up:
            for sign in Sign:
                red = next((one for one in self.signs.until_now(sign, began) if one.is_red), None)
                if red is not None:
                    seen.setdefault(sign, red)
            heard = {one.subject for one in self.receiver.told[told:] if one.event == "broken"}
            if len(seen) == len(Sign) and wanted <= heard:
                break
            time.sleep(0.5)
        due = self._due(fault, began)
        row.due = due - began
        for sign, red in seen.items():
            row.red[sign] = max(0.0, red.ended - due)
            if row.red[sign] > self._bound(fault, sign):
                row.wrong.append(f"{sign} was red {row.red[sign]:.0f} s after it was due")
        row.wrong += [f"{sign} was never red" for sign in Sign if sign not in seen]
        missing = wanted - {one.subject for one in self.receiver.told[told:] if one.event == "broken"}
        row.wrong += [f"nobody heard that {name} broke" for name in sorted(missing)]
        # From then on nothing may be green: two more checks show it.
        since = time.time()
        time.sleep(2 * INTERVAL + self.slack / 2)
        green = [one for sign in seen for one in self.signs.since(sign, since) if not one.is_red]
        row.wrong += [f"false green of {one.sign}: {one.words}" for one in green[:3]]

    def _wait_green(self, row: Row, mended: float) -> None:
        self.wait_green(mended, 4 * self.age + 120)
        for sign in Sign:
            samples = self.signs.since(sign, mended)
            reds = [one.ended for one in samples if one.is_red]
            after = reds[-1] if reds else mended
            row.green[sign] = next(one.ended for one in samples if one.began >= after and not one.is_red) - mended


def _write() -> None:
    """Commit a change every two seconds, as far as the server allows it."""
    while True:
        try:
            with ledger.connect(SOCKET) as connection, connection.cursor() as cursor:
                while True:
                    cursor.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 1")
                    time.sleep(2)
        except Exception:
            time.sleep(1)


def chosen_faults(names: str) -> tuple[Fault, ...]:
    """Return the faults with these names, separated by commas; all if there are none."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    known = {fault.name: fault for fault in FAULTS}
    unknown = sorted(set(wanted) - known.keys())
    if unknown:
        raise SystemExit(f"no fault {', '.join(unknown)}; there are: {', '.join(known)}")
    return tuple(known[name] for name in wanted) or FAULTS


def run(campaign: Campaign, faults: Sequence[Fault], seed: int) -> list[Row]:
    """Play the faults, print a row for each, and write all rows to /out. A failed play counts as wrong."""
    rows: list[Row] = []
    for fault in faults:
        began = time.time()
        try:
            row = campaign.play(fault, random.Random(f"{seed} {fault.name}"))
        except Exception as error:
            row = Row(fault.name, wrong=[f"{type(error).__name__}: {error}"])
        rows.append(row)
        print(f"{row.line()} ({time.time() - began:.0f} s)\n{row.details()}", flush=True)
        Path("/out/campaign.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="names of faults, with commas", default="")
    parser.add_argument("--seed", type=int, default=1, help="decides the moment at which each fault begins")
    parser.add_argument("--age", type=float, default=240.0, help="the limit of rpo and backup_age, in seconds")
    parser.add_argument("--lag", type=float, default=90.0, help="the limit of archive_lag, in seconds")
    parser.add_argument("--slack", type=float, default=30.0, help="how long a judgement may take, in seconds")
    options = parser.parse_args()
    chosen = chosen_faults(options.only)
    campaign = Campaign(options.slack, options.age, options.lag)
    campaign.set_up()
    rows = run(campaign, chosen, options.seed)
    flavour = Path("/etc/lab-flavour").read_text().strip()
    print(HEAD)
    print("\n".join(row.line() for row in rows))
    right = sum(not row.wrong for row in rows)
    print(
        f"{flavour}: {right} of {len(rows)} faults were seen in time, by every sign, and nothing was green by mistake"
    )
    return 0 if right == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
