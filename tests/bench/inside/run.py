"""Measures in a guest how long commits wait around each kind of snapshot; writes every sample to /out/stall.json.

`run.py ROUNDS LONG_ROUNDS LONG_SECONDS [CASE…]`. The cases take turns, so that drift of the machine hits all alike.
Fails if it could not measure; judges nothing.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import pymysql

from tests.lab.inside import ledger

HERE = Path(__file__).resolve().parent
SOCKET = "/run/mysqld/mysqld.sock"
PYTHON = "/opt/venv/bin/python"
TIMES = Path("/tmp/commits")
SNAPSHOTS = ("tank/mysql@stall", "tank/mysql/data@stall")
CONFIG = Path("/etc/zsnapdb/zsnapdb.toml")
LOCKS = {
    "none": '{ strategy = "none" }',
    "auto": '{ strategy = "auto" }',
    "ftwrl": '{ strategy = "ftwrl", deadline = "2s", budget = "0s" }',
    # Waits behind any statement, which the one above does not.
    "tried": '{ strategy = "ftwrl", deadline = "2s", budget = "0s", longest_statement = "1h" }',
}

BEFORE = 0.3
AFTER = 0.5
SETTLE = 1.0
"""Seconds of the window before and after the action; of quiet before it."""
STAMP_BYTES = 8
ALREADY_LONG = 3.0
"""Seconds that a SELECT has been running when the action begins; more than the default of lock.longest_statement."""


@dataclass(frozen=True)
class Outcome:
    """The end of an action: exit status, reported milliseconds of its lock, and a note."""

    code: int
    held_ms: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Sample:
    """One measured window.

    `gap_ms` is the longest time between two acknowledged commits, which began `gap_at_ms` after the action.

    `even_gap_ms` is the same in a window that is at least as long as that of zsnapdb's snapshot: a longer
    window has more gaps of other causes, so only windows of the same length can be compared.
    """

    case: str
    round: int
    gap_ms: float
    gap_at_ms: float
    even_gap_ms: float
    action_ms: float
    commits_per_second: float
    load_wait_ms: float
    outcome: Outcome


class Action(Protocol):
    """Something that may make commits wait. Only `run` is measured."""

    def prepare(self) -> None: ...

    def run(self) -> Outcome: ...

    def clean(self) -> None: ...


def _zfs(*words: str) -> None:
    subprocess.run(["zfs", *words], check=True)


def _nothing() -> None:
    pass


def _destroy() -> None:
    for name in SNAPSHOTS:
        _zfs("destroy", name)


class Nothing:
    """The baseline: its even window is the one to look at."""

    def prepare(self) -> None:
        pass

    def run(self) -> Outcome:
        return Outcome(0)

    def clean(self) -> None:
        pass


@dataclass(frozen=True)
class Command:
    """A command from its start to its end; `undo` removes what it made. Its exit status must be one of `codes`."""

    argv: tuple[str, ...]
    undo: Callable[[], None] = _nothing
    codes: tuple[int, ...] = (0,)

    def prepare(self) -> None:
        pass

    def run(self) -> Outcome:
        done = subprocess.run(self.argv, capture_output=True, text=True)
        if done.returncode not in self.codes:
            raise RuntimeError(f"{' '.join(self.argv)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        if done.returncode != 0:
            return Outcome(done.returncode, note=done.stderr.strip().splitlines()[0])
        return Outcome(0, _lock_milliseconds(done.stdout))

    def clean(self) -> None:
        self.undo()


def _lock_milliseconds(output: str) -> float | None:
    """Return the lock time in the output of a command; None if the output has none."""
    if not output.strip():
        return None
    document = json.loads(output)
    lock = document["backup"]["lock"] if "backup" in document else document
    return float(lock["held_ms"])


class Take:
    """zsnapdb's `take` in a process that is ready for it: see take.py. A fresh one each time, as for a backup."""

    def __init__(self, lock: str, codes: tuple[int, ...] = (0,)) -> None:
        self._argv = [PYTHON, str(HERE / "take.py"), str(_config(lock))]
        self._codes = codes

    def prepare(self) -> None:
        self._process = subprocess.Popen(
            self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._read()

    def run(self) -> Outcome:
        self._go()
        answer = self._read()
        return Outcome(int(answer["code"]), answer["held_ms"], str(answer["note"]))

    def clean(self) -> None:
        self._go()
        if self._process.wait(60) != 0:
            raise RuntimeError("take.py could not remove its snapshots")

    def _go(self) -> None:
        assert self._process.stdin is not None
        # One that was refused has ended already.
        if self._process.poll() is None:
            self._process.stdin.write("\n")

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"take.py ended with {self._process.wait()}")
        document: dict[str, Any] = json.loads(line)
        if document.get("code", 0) not in (0, *self._codes):
            raise RuntimeError(f"take.py: {document}")
        return document


def _config(lock: str) -> Path:
    return CONFIG.with_name(f"stall-{lock}.toml")


def write_configs() -> None:
    """Write a copy of the lab's configuration for each lock."""
    table = "[instance.main]\n"
    text = CONFIG.read_text()
    for name, value in LOCKS.items():
        _config(name).write_text(text.replace(table, f"{table}lock = {value}\n"))


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
            time.sleep(0.05)

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
    """The load, the probe and the samples so far. `even_seconds` is how long zsnapdb's snapshot took last."""

    load: ledger.Load
    probe: Probe
    even_seconds: float = 1.5
    samples: list[Sample] = field(default_factory=list)

    def measure(self, case: str, number: int, action: Action, long_seconds: float = 0.0) -> Sample:
        """Run the action once and record the longest gap; beside a SELECT of `long_seconds` unless this is 0."""
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
        self.probe.wait_for_commit_at(max(ended, began + self.even_seconds) + AFTER, long_seconds + 60)
        times = self.probe.since(mark)
        if select is not None:
            select.end()
        action.clean()
        sample = self._sample(case, number, times, began, ended, outcome)
        self.samples.append(sample)
        print(
            f"  {case:<26} round {number}: {sample.gap_ms:8.1f} ms {sample.even_gap_ms:8.1f} ms  {outcome.note[:100]}",
            flush=True,
        )
        if self.load.failures:
            raise RuntimeError(f"the load failed: {self.load.failures[:3]}")
        return sample

    def _sample(
        self, case: str, number: int, times: list[float], began: float, ended: float, outcome: Outcome
    ) -> Sample:
        # The commit that ends a gap may come long after the window; one that begins behind the window is not of it.
        gaps = [
            (later - earlier, earlier)
            for earlier, later in pairwise(times)
            if earlier < max(ended, began + self.even_seconds) + AFTER
        ]
        gap, at = max(candidate for candidate in gaps if candidate[1] < ended + AFTER)
        rate = len(times) / (times[-1] - times[0])
        return Sample(
            case,
            number,
            gap * 1000,
            (at - began) * 1000,
            max(gaps)[0] * 1000,
            (ended - began) * 1000,
            rate,
            self.load.longest_wait * 1000,
            outcome,
        )


def backup_command(lock: str, codes: tuple[int, ...] = (0,)) -> Command:
    """Return the whole command, as a user runs it."""
    return Command(("zsnapdb", "backup", "--json", "--config", str(_config(lock))), codes=codes)


def script() -> Command:
    """Return the usual script with the global read lock."""
    return Command((PYTHON, str(HERE / "script.py"), *SNAPSHOTS), _destroy)


def short_rounds(bench: Bench, rounds: int, only: list[str]) -> None:
    """Measure the cases without a long statement, in turns: those in `only`, all if it is empty."""
    cases: dict[str, Action] = {
        "nothing": Nothing(),
        "bare_snapshot": Command(("zfs", "snapshot", *SNAPSHOTS), _destroy),
        "lockfree": Take("none"),
        "default": Take("auto"),
        "plain_script": script(),
        "lockfree_command": backup_command("none"),
        "default_command": backup_command("auto"),
    }
    for number in range(1, rounds + 1):
        for case, action in cases.items():
            if only and case not in only:
                continue
            sample = bench.measure(case, number, action)
            if case == "default":
                bench.even_seconds = sample.action_ms / 1000


def long_rounds(bench: Bench, rounds: int, seconds: float) -> None:
    """Measure the cases beside a long SELECT. The script, which waits for its end, has one round."""
    refused = (0, 10)
    cases: dict[str, Action] = {
        "default_long_select": Take("auto"),
        "ftwrl_long_select": backup_command("ftwrl", refused),
        "ftwrl_tried_long_select": Take("tried", refused),
        "plain_script_long_select": script(),
    }
    for number in range(1, rounds + 1):
        for case, action in cases.items():
            if number == 1 or case not in ("plain_script_long_select", "ftwrl_tried_long_select"):
                bench.measure(case, number, action, seconds)


def main() -> None:
    """Set everything up, measure, write the samples."""
    rounds, longs, seconds, only = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
    write_configs()
    ledger.set_up(SOCKET, ballast_rows=400)
    load = ledger.Load(SOCKET, workers=3, rate=10.0)
    probe = Probe()
    load.start()
    try:
        load.wait_for(20)
        probe.wait_for_commit_at(time.monotonic(), 60)
        # The first backup is a full one and makes the repository; what is measured are increments.
        backup_command("auto").run()
        bench = Bench(load, probe)
        short_rounds(bench, rounds, only)
        long_rounds(bench, longs, seconds)
    finally:
        probe.stop()
        load.stop()
    Path("/out/stall.json").write_text(json.dumps([asdict(sample) for sample in bench.samples], indent=1) + "\n")


main()
