"""Measures in a guest how long commits wait while backups are made; writes every sample to /out/stall.json.

`run.py ROUNDS LONG_ROUNDS LONG_SECONDS WINDOW CASE…`. Every window has at least WINDOW seconds (0: three times the
median of some backups, which are made first), and all of its action: stall.py cuts the windows of a round to the
length of the backup in it. The cases take turns, each round in another order, so that drift of the machine hits all
alike, and none always comes after the same other one. Fails if it could not measure; judges nothing.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import pymysql

from tests.bench.inside.actions import PYTHON, Action, Bare, Busy, Nothing, Outcome, backup, script, write_configs
from tests.lab.inside import ledger

HERE = Path(__file__).resolve().parent
SOCKET = "/run/mysqld/mysqld.sock"
TIMES = Path("/tmp/commits")

BEFORE = 0.3
SETTLE = 1.0
"""Seconds that the probe runs before an action; of quiet before that."""
WARM_UPS = 6
"""Backups before anything is measured. The first is a full one and makes the repository; the others are increments."""
ROOM = 3.0
STAMP_BYTES = 8
ALREADY_LONG = 3.0
"""Seconds that a SELECT has been running when the action begins; more than the default of lock.longest_statement."""


@dataclass(frozen=True)
class Sample:
    """The waits between two acknowledged commits in one window, in their order, in milliseconds.

    The window begins with the action. The first wait began at `first_ms`, shortly before.
    """

    case: str
    round: int
    window_ms: float
    first_ms: float
    waits_ms: tuple[float, ...]
    action_ms: float
    load_wait_ms: float
    outcome: Outcome


class Probe:
    """The process that commits, and the times it notes."""

    def __init__(self) -> None:
        TIMES.touch()
        self._process = subprocess.Popen([PYTHON, str(HERE / "probe.py"), str(TIMES)])

    def wait_for_commit_at(self, moment: float, seconds: float) -> None:
        """Wait until a commit was acknowledged at `moment` or later: a gap that is still open has no length yet."""
        deadline = moment + seconds
        while not (times := self.since(TIMES.stat().st_size - STAMP_BYTES)) or times[-1] < moment:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"the probe made no commit within {seconds:.0f} s (exit status {self._process.poll()})"
                )
            time.sleep(min(1.0, max(0.05, moment - time.monotonic())))

    def mark(self) -> int:
        """Return where in the file the next commits will stand."""
        return TIMES.stat().st_size

    def since(self, mark: int) -> list[float]:
        """Return when the commits behind the mark were acknowledged."""
        with TIMES.open("rb") as file:
            file.seek(max(0, mark))
            data = file.read()
        return list(memoryview(data[: len(data) // STAMP_BYTES * STAMP_BYTES]).cast("d"))

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class LongSelect:
    """A SELECT that keeps the probe's and the ledger's tables open for `seconds`, or until it is ended."""

    def __init__(self, seconds: float) -> None:
        self._connection = ledger.connect(SOCKET)
        self._thread = threading.Thread(target=self._run, args=(seconds,), daemon=True)
        self._thread.start()
        time.sleep(ALREADY_LONG)
        if not self._thread.is_alive():
            raise RuntimeError("the long SELECT ended at once")

    def _run(self, seconds: float) -> None:
        # MySQL ends a killed SLEEP with a result, MariaDB with an error.
        with contextlib.suppress(pymysql.OperationalError), self._connection.cursor() as cursor:
            cursor.execute(f"SELECT SLEEP({seconds}) FROM accounts JOIN stall_probe LIMIT 1")

    def end(self) -> None:
        """Kill it if it still runs."""
        if self._thread.is_alive():
            with ledger.connect(SOCKET) as other, other.cursor() as cursor:
                cursor.execute(f"KILL QUERY {ledger.connection_id(self._connection)}")
        self._thread.join(30)
        self._connection.close()


@dataclass
class Bench:
    """The load, the probe, the seconds of a window, and the samples so far."""

    load: ledger.Load
    probe: Probe
    window: float
    samples: list[Sample] = field(default_factory=list)

    def measure(self, case: str, number: int, action: Action, long_seconds: float = 0.0) -> None:
        """Run the action once and record the waits; beside a SELECT of `long_seconds` unless this is 0.

        Beside a SELECT the window is as long as the action, and else not shorter.
        """
        action.prepare()
        subprocess.run(["zpool", "sync", "tank"], check=True)
        time.sleep(SETTLE)
        select = LongSelect(long_seconds) if long_seconds else None
        self.load.longest_wait = 0.0
        mark = self.probe.mark()
        time.sleep(BEFORE)
        began = time.monotonic()
        outcome = action.run()
        ended = time.monotonic()
        window = max(self.window if select is None else BEFORE, ended - began)
        self.probe.wait_for_commit_at(began + window, long_seconds + window + 60)
        times = self.probe.since(mark)
        if select is not None:
            select.end()
        action.clean()
        # The commit that ends the last wait may come long after the window.
        pairs = [(earlier, later) for earlier, later in pairwise(times) if later >= began and earlier < began + window]
        waits = tuple(round((later - earlier) * 1000, 3) for earlier, later in pairs)
        sample = Sample(
            case,
            number,
            window * 1000,
            round((pairs[0][0] - began) * 1000, 3),
            waits,
            (ended - began) * 1000,
            self.load.longest_wait * 1000,
            outcome,
        )
        self.samples.append(sample)
        lock = "" if outcome.held_ms is None else f"lock to unlock {outcome.held_ms:6.1f} ms"
        print(
            f"  {case:<24} round {number:>3}: {len(waits):>6} commits, longest wait {max(waits):8.1f} ms, action"
            f" {sample.action_ms:7.0f} ms  {lock}{outcome.note[:100]}",
            flush=True,
        )
        if self.load.failures:
            raise RuntimeError(f"the load failed: {self.load.failures[:3]}")


def short_rounds(bench: Bench, rounds: int, chosen: list[str]) -> None:
    """Measure the chosen cases in windows of one length."""
    cases: dict[str, Action] = {
        "untouched": Nothing(),
        "untouched_again": Nothing(),
        "bare": Bare(),
        "backup": backup("auto"),
        "backup_lockfree": backup("none"),
        "busy": Busy(),
        "script": script(),
    }
    for number in range(1, rounds + 1):
        first = number % len(chosen)
        for case in (*chosen[first:], *chosen[:first]):
            bench.measure(case, number, cases[case])


def long_rounds(bench: Bench, rounds: int, seconds: float) -> None:
    """Measure the cases beside a long SELECT. The script, which waits for its end, has one round."""
    refused = (0, 10)
    cases: dict[str, Action] = {
        "backup_long_select": backup("auto"),
        "ftwrl_long_select": backup("ftwrl", refused),
        "ftwrl_tried_long_select": backup("tried", refused),
        "script_long_select": script(),
    }
    for number in range(1, rounds + 1):
        for case, action in cases.items():
            if number == 1 or case not in ("script_long_select", "ftwrl_tried_long_select"):
                bench.measure(case, number, action, seconds)


def warmed_up() -> float:
    """Make some backups; return the seconds of an increment, the median."""
    seconds = []
    for _ in range(WARM_UPS):
        began = time.monotonic()
        backup("auto").run()
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds[1:])


def main() -> None:
    """Set everything up, measure, write the samples."""
    rounds, longs = int(sys.argv[1]), int(sys.argv[2])
    seconds, window, chosen = float(sys.argv[3]), float(sys.argv[4]), sys.argv[5:]
    write_configs()
    ledger.set_up(SOCKET, ballast_rows=400)
    load = ledger.Load(SOCKET, workers=3, rate=10.0)
    probe = Probe()
    load.start()
    try:
        load.wait_for(20)
        probe.wait_for_commit_at(time.monotonic(), 60)
        usual = warmed_up()
        bench = Bench(load, probe, window or ROOM * usual)
        print(f"  a backup takes {usual:.1f} s, a window at least {bench.window:.1f} s", flush=True)
        short_rounds(bench, rounds, chosen)
        long_rounds(bench, longs, seconds)
    finally:
        probe.stop()
        load.stop()
    Path("/out/stall.json").write_text(json.dumps([asdict(sample) for sample in bench.samples]) + "\n")


main()
