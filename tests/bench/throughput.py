"""Measures how fast the stream engine is beside shell pipelines.

    python3 tests/bench/throughput.py [--json FILE] [--rounds N] [--only PART…]

Runs on the machine itself, with the recorded stream of a real InnoDB dataset (made in a guest once) and versitygw as S3
server. The contenders take turns, so that drift of the machine hits all alike; a ratio is the median of the rounds' own
ratios. Each is a whole process or pipeline from its start to its end; processor seconds are those of all its processes,
without the server's. It reports, it does not judge: it ends with 0 whenever it could measure.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.line import DELAY, RATE, behind_a_line
from tests.bench.pipeline import Run, pipeline
from tests.bench.recording import Recording, recording
from tests.bench.s3_server import BUCKET, LEVEL, Server, serve
from tests.bench.tools import Tools, tools
from tests.lab.cache import Cache
from tests.lab.host import LabError

ENGINE = Path(__file__).parent / "engine.py"
PARTS = ("backup", "restore", "line", "memory", "increment", "slope")
MIB = 1 << 20
LONG_GIB = 8
"""The length of the stream that shows the slope, in GiB: what a run costs once is small beside it."""
GOALS = {
    "backup_wall_encrypted": "<= 0.60",
    "backup_cpu_encrypted": "<= 0.95",
    "restore_wall_encrypted": "<= 0.90",
    "line_backup_wall_encrypted": "<= 1.00",
    "line_restore_wall_encrypted": "<= 1.00",
    "slope_backup_cpu": "<= 1.35",
    "slope_restore_cpu": "<= 1.10",
    "slope_restore_wall": "<= 0.90",
}
MEMORY_GOAL = "<= 256"


@dataclass
class Bench:
    """The server, programs and streams of the measurement, and its results: runs by contender, figures for the JSON."""

    server: Server
    tools: Tools
    streams: Recording
    rounds: int
    key: str = field(default_factory=lambda: secrets.token_hex(32))
    figures: dict[str, dict[str, object]] = field(default_factory=dict)

    def engine(self, *words: str) -> list[str]:
        return [str(self.tools.python), str(ENGINE), *words]

    def rows(self, name: str) -> str:
        return str(self.server.folder / f"{name}.json")

    def figure(self, name: str, value: float, unit: str, goal: str | None = None) -> None:
        self.figures[name] = {"value": round(value, 3), "unit": unit, **({"goal": goal} if goal else {})}

    def take_turns(
        self, contenders: Mapping[str, Callable[[], Run]], after: Callable[[], None] = lambda: None
    ) -> dict[str, list[Run]]:
        """Let each contender run once in every round, after a first round that is not counted."""
        runs: dict[str, list[Run]] = {name: [] for name in contenders}
        for number in range(self.rounds + 1):
            for name, run in contenders.items():
                os.sync()
                result = run()
                after()
                if number > 0:
                    runs[name].append(result)
        return runs

    def compare(self, title: str, runs: Mapping[str, Sequence[Run]], bars: Sequence[str], part: str) -> None:
        """Print the runs and our ratios to the better pipeline of each round; note the ratios as figures."""
        print(f"\n{title}: {len(next(iter(runs.values())))} rounds, in turns, {os.cpu_count()} processors")
        print(f"{'':<24}{'wall s':>8}{'least':>8}{'cpu s':>8}{'least':>8}{'server':>8}{'MiB':>8}")
        for name, rounds in runs.items():
            walls, cpus = [run.wall for run in rounds], [run.cpu for run in rounds]
            server = statistics.median(run.server for run in rounds)
            print(
                f"{name:<24}{statistics.median(walls):8.2f}{min(walls):8.2f}{statistics.median(cpus):8.2f}{min(cpus):8.2f}"
                f"{server:8.2f}{max(run.memory for run in rounds):8.0f}"
            )
        for what in ("wall", "cpu"):
            for name in runs:
                if name in bars:
                    continue
                bar = [min(getattr(runs[other][number], what) for other in bars) for number in range(self.rounds)]
                ratios = [getattr(run, what) / bar[number] for number, run in enumerate(runs[name])]
                figure = f"{part}_{what}_{name.split()[-1]}"
                self.figure(figure, statistics.median(ratios), "ratio", GOALS.get(figure))
                goal = f", goal {GOALS[figure]}" if figure in GOALS else ""
                print(
                    f"{name}, {what}: {statistics.median(ratios):.2f} of the better pipeline (rounds"
                    f" {min(ratios):.2f} to {max(ratios):.2f}{goal})"
                )

    def zstd(self) -> list[str]:
        return ["zstd", f"-{LEVEL}", "-T0", "-q", "-c"]

    def aws(self, *words: str) -> list[str]:
        return [str(self.tools.aws), "s3", "cp", "--endpoint-url", self.server.url, "--only-show-errors", *words]

    def uploads(self, stream: Path) -> dict[str, Callable[[], Run]]:
        return {
            "zstd | aws": lambda: pipeline(self.server, [self.zstd(), self.aws("-", f"s3://{BUCKET}/aws")], stream),
            "zstd | rclone": lambda: pipeline(
                self.server, [self.zstd(), [str(self.tools.rclone), "rcat", f":s3:{BUCKET}/rclone"]], stream
            ),
            "zsnapdb plain": lambda: pipeline(self.server, [self.engine("upload", self.rows("plain"), "-")], stream),
            "zsnapdb encrypted": lambda: pipeline(
                self.server,
                [self.engine("upload", self.rows("encrypted"), self.key)],
                stream,
                env={**self.server.environment(), **OTHER},
            ),
        }

    def backup(self) -> None:
        """Uploads of the full stream."""
        runs = self.take_turns(self.uploads(self.streams.full))
        size = self.streams.full.stat().st_size
        self.compare(
            f"backup of {size / MIB:.0f} MiB of InnoDB, zstd level {LEVEL}",
            runs,
            ("zstd | aws", "zstd | rclone"),
            "backup",
        )
        self.limits(runs["zsnapdb encrypted"])

    def limits(self, ours: Sequence[Run]) -> None:
        """Print the cost of each part of the work on one processor, and the ratio of the whole to the part of zstd."""
        alone = [
            pipeline(self.server, [["zstd", f"-{LEVEL}", "--single-thread", "-q", "-c"]], self.streams.full).cpu
            for _ in range(2)
        ]
        parts = json.loads(
            subprocess.run(
                self.engine("parts", str(self.streams.full)),
                env=self.server.environment(),
                stdout=subprocess.PIPE,
                check=True,
                text=True,
            ).stdout
        )
        processors = os.cpu_count() or 1
        wall, cpu = statistics.median(run.wall for run in ours), statistics.median(run.cpu for run in ours)
        ideal = min(alone) / processors
        self.figure("backup_wall_to_zstd_per_processor", wall / ideal, "ratio")
        print(
            f"zstd alone: {min(alone):.2f} cpu s, so at least {ideal:.2f} s on {processors} processors; ours is"
            f" {wall / ideal:.2f} of that"
        )
        rest = cpu - sum(parts.values())
        print(
            "of ours, cpu s: "
            + ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items())
            + f", all else (HTTP, pipe, Python) {rest:.2f}"
        )

    def downloads(self) -> dict[str, Callable[[], Run]]:
        """What reads back what `uploads` stored, each through a pipe."""
        back = ["zstd", "-d", "-q", "-c"]
        rclone = [str(self.tools.rclone), "cat", f":s3:{BUCKET}/rclone"]
        ours = {name: self.engine("restore", self.rows(name), key) for name, key in self.keys().items()}
        encrypted = {**self.server.environment(), **OTHER}
        return {
            "aws | zstd": lambda: pipeline(self.server, [self.aws(f"s3://{BUCKET}/aws", "-"), back], None, sink=True),
            "rclone | zstd": lambda: pipeline(self.server, [rclone, back], None, sink=True),
            "zsnapdb plain": lambda: pipeline(self.server, [ours["plain"]], None, sink=True),
            "zsnapdb encrypted": lambda: pipeline(self.server, [ours["encrypted"]], None, sink=True, env=encrypted),
        }

    def keys(self) -> dict[str, str]:
        """Return the data key of each of our contenders, as the engine takes it."""
        return {"plain": "-", "encrypted": self.key}

    def restore(self) -> None:
        """Downloads of what the uploads stored, through a pipe."""
        for run in self.uploads(self.streams.full).values():
            run()
        runs = self.take_turns(self.downloads())
        self.compare("restore of the same, through a pipe", runs, ("aws | zstd", "rclone | zstd"), "restore")

    def line(self) -> None:
        """Both ways over a line as in life: a rate for each connection, and a delay."""
        self.server.empty()
        here = self.server
        with behind_a_line(here) as self.server:
            up = self.take_turns(self.uploads(self.streams.full))
            down = self.take_turns(self.downloads())
        self.server = here
        speed = f"{RATE / 1e6:.0f} MB/s a connection, {DELAY * 1000:.0f} ms"
        self.compare(f"backup over a line, {speed}", up, ("zstd | aws", "zstd | rclone"), "line_backup")
        self.compare(f"restore over a line, {speed}", down, ("aws | zstd", "rclone | zstd"), "line_restore")
        ours = (*up["zsnapdb encrypted"], *down["zsnapdb encrypted"])
        self.figure("line_memory", max(run.memory for run in ours), "MiB", MEMORY_GOAL)

    def slope(self) -> None:
        """Processor seconds per GiB of a long stream, encrypted: beside zstd alone, and back beside rclone and zstd."""
        self.server.empty()
        stream = self.server.folder / "long"
        with stream.open("wb") as file:
            maker = self.engine("make", str(LONG_GIB << 30), str(self.streams.full))
            subprocess.run(maker, stdout=file, check=True, env=self.server.environment())
        one = ["zstd", f"-{LEVEL}", "--single-thread", "-q", "-c"]
        uploads, ours, peer = self.uploads(stream), "zsnapdb encrypted", "rclone | zstd"
        alone = {"zstd alone": lambda: pipeline(self.server, [one], stream)}
        up = self.take_turns({**alone, **{name: uploads[name] for name in ("zstd | rclone", ours)}})
        down = self.take_turns({name: run for name, run in self.downloads().items() if name in (peer, ours)})
        stream.unlink()
        print(f"\n{LONG_GIB} GiB, encrypted: {self.rounds} rounds, in turns")
        for name, runs in (*up.items(), *((f"{name}, back", runs) for name, runs in down.items())):
            wall, cpu = (statistics.median(getattr(run, what) for run in runs) / LONG_GIB for what in ("wall", "cpu"))
            print(f"{name:<24}{wall:6.2f} s and {cpu:5.2f} processor s per GiB, {max(r.memory for r in runs):5.0f} MiB")
        for figure, ratios in {
            "slope_backup_cpu": [our.cpu / zstd.cpu for our, zstd in zip(up[ours], up["zstd alone"], strict=True)],
            "slope_restore_cpu": [our.cpu / other.cpu for our, other in zip(down[ours], down[peer], strict=True)],
            "slope_restore_wall": [our.wall / other.wall for our, other in zip(down[ours], down[peer], strict=True)],
        }.items():
            self.figure(figure, statistics.median(ratios), "ratio", GOALS[figure])
            print(
                f"{figure}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), {GOALS[figure]}"
            )
        self.figure("slope_memory", max(run.memory for run in (*up[ours], *down[ours])), "MiB", MEMORY_GOAL)
        self.server.empty()

    def memory(self) -> None:
        """The largest memory of an upload and a restore of synthetic streams, with encryption, by their length."""
        print("\nlargest memory, MiB, with encryption, at the default chunk size and concurrency")
        for gib in (1, 4, 16):
            self.server.empty()
            maker = self.engine("make", str(gib << 30), str(self.streams.full))
            up = self._last_of([maker, self.engine("upload", self.rows("memory"), self.key)])
            down = pipeline(self.server, [self.engine("restore", self.rows("memory"), self.key)], None, sink=True)
            self.figure(f"memory_backup_{gib}_gib", up, "MiB", MEMORY_GOAL)
            self.figure(f"memory_restore_{gib}_gib", down.memory, "MiB", MEMORY_GOAL)
            print(f"{gib:>4} GiB: backup {up:.0f}, restore {down.memory:.0f}", flush=True)
        self.server.empty()

    def _last_of(self, argvs: Sequence[Sequence[str]]) -> float:
        """Run a pipe of two and return the largest memory of the second, in MiB."""
        env = self.server.environment()
        first = subprocess.Popen(argvs[0], stdout=subprocess.PIPE, env=env)
        assert first.stdout is not None
        second = subprocess.Popen(argvs[1], stdin=first.stdout, env=env)
        first.stdout.close()
        _, status, usage = os.wait4(second.pid, 0)
        second.returncode = os.waitstatus_to_exitcode(status)
        if second.returncode != 0 or first.wait() != 0:
            raise LabError("the synthetic stream was not stored")
        return usage.ru_maxrss / 1024

    def increment(self) -> None:
        """The increment after 1 % of the rows changed: bytes and seconds, beside the full stream's."""
        self.server.empty()
        full = self.uploads(self.streams.full)["zsnapdb encrypted"]()
        full_bytes = self.server.stored()
        self.server.empty()
        runs = self.take_turns({"increment": self.uploads(self.streams.change)["zsnapdb encrypted"]})["increment"]
        stored = self.server.stored()
        wall = statistics.median(run.wall for run in runs)
        self.figure("increment_bytes", stored / full_bytes, "ratio")
        self.figure("increment_wall", wall / full.wall, "ratio")
        share = self.streams.change.stat().st_size / self.streams.full.stat().st_size
        print(
            f"\nincrement after 1 % of the rows changed: stream {share:.4f} of the full one, stored"
            f" {stored / full_bytes:.4f} of its bytes, {wall:.2f} s, {wall / full.wall:.3f} of its time"
        )


OTHER = {"BENCH_BACKUP": "20260101T000000Z-0001"}


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Measure the parts and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often each contender runs (default: 5)")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"of {', '.join(PARTS)} only these"
    )
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    signal.signal(signal.SIGTERM, _interrupt)
    cache = Cache.default()
    try:
        programs, streams = tools(cache), recording(cache)
        # Into the page cache: the disk is not what is measured. Piece by piece: a child inherits the largest memory of
        # who starts it.
        with streams.full.open("rb", buffering=0) as file:
            while file.read(MIB):
                pass
        cache.runs.mkdir(parents=True, exist_ok=True)
        with serve(programs.server, cache.top) as server:
            bench = Bench(server, programs, streams, options.rounds)
            for part in options.only:
                getattr(bench, part)()
    except (LabError, subprocess.CalledProcessError) as error:
        print(f"throughput: {error}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps({"figures": bench.figures}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
