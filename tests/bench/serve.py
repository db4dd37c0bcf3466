"""Measures `zsnapdb serve` with ten thousand backups and fifty clones: its pages, its API, and memory under load.

    python3 tests/bench/serve.py [--backups N] [--clones N] [--looks N] [--minutes M] [--store file|versitygw]
        [--pool N --flavours mysql,mariadb] [--json FILE]

Runs the real helper as root and the real web process under an account without rights, each a process of its own, in a
mount namespace where their folders are empty; no guest is needed. The repository has N manifests (`manifests.py`). The
clones are what a stand-in for `zfs` prints, as fast as a shell starts.

It looks at each page `--looks` times, one after the other, then asks `GET /clones` from eight clients, then keeps up a
bounded load of all of that for `--minutes`. Memory is the proportional set size of the process, once a second: it is
flat if the last third has no more than the third before. It ends with 1 if a page takes over a second (p95), or memory
is not flat.

With `--pool N` it does something else: in a guest of each flavour N clones, one after the other, come out of a pool by
the API, and each is timed from the request to its first query (`inside/serve.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import catalogue
from tests.bench.figures import FLAVOURS, PYTHON, Figure, to_terminal

LIMIT = 1.0
"""Seconds that a page may take, p95."""
PORT = 19808
PRIVATE = ("/run", "/var/lib", "/var/cache", "/usr/local/sbin")
"""Folders that are empty for the processes: theirs lie there, and the stand-in for `zfs`."""
WEB, FETCH = "nobody", "daemon"
"""Accounts that every Debian has."""
PAGES = ("/", "/clones", "/new?instance=main")
CLIENTS = 8
STEADY_PER_SECOND = 5.0
SPREAD_MIB = 3.0
"""By how much two thirds of a flat curve may differ: the allocator of the interpreter takes 1 MiB at a time."""
CONFIGURATION = f"""
[clones]
dataset = "tank/zsnapdb/clones"

[serve]
account = "{WEB}"
fetch_account = "{FETCH}"
unmasked = ["main"]
"""
INSIDE = "/checkout/tests/bench/inside/serve.py"


@dataclass(frozen=True)
class Sites:
    """The two processes, and how they are asked: a session of the page, and a token."""

    helper: int
    web: int
    token: str
    cookie: str = ""

    def get(self, path: str) -> float:
        """Ask for a page or for a path of the API; return the seconds until the whole answer is there."""
        headers = {"Authorization": f"Bearer {self.token}"} if path.startswith("/api/") else {"Cookie": self.cookie}
        began = time.monotonic()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)) as connection:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
        # A page whose part is not known says so, and is no page of that part.
        if answer.status != 200 or b'class="code"' in body:
            raise SystemExit(f"{path} answered {answer.status}: {body[:500]!r}")
        return time.monotonic() - began

    def cpu(self) -> float:
        """Return the processor seconds that both processes have used, without those of the helper's commands."""
        ticks = 0
        for pid in (self.helper, self.web):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


@dataclass
class MemoryCurve:
    """The memory of a process in MiB, once a second while the block runs."""

    pid: int
    seen: list[float] = field(default_factory=list)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(1.0):
                self.seen.append(proportional_mib(self.pid))

        watches = threading.Thread(target=watch)
        watches.start()
        try:
            yield
        finally:
            stop.set()
            watches.join()

    @property
    def thirds(self) -> tuple[float, float]:
        """The most memory in the second and in the last third."""
        third = max(1, len(self.seen) // 3)
        return max(self.seen[third : 2 * third] or self.seen), max(self.seen[-third:])

    @property
    def is_flat(self) -> bool:
        before, last = self.thirds
        return last <= before + SPREAD_MIB


def proportional_mib(pid: int) -> float:
    """Return the proportional set size of a process (proc(5), smaps_rollup)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"process {pid} has no Pss")


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the value that this share of the samples does not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def stand_in(folder: Path, count: int) -> None:
    """Write a program `zfs` that prints what `zfs get` would print of so many clones, and that there are no snapshots.

    It refuses everything else.
    """
    from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool

    pool, base = ClonePool(), f"{SOURCE}@zsnapdb-20261120T100000Z-0001"
    pool.snapshot(base)
    for number in range(count):
        pool.clone(f"clone-{number:03d}", base, owner=f"ci:shop/{number % 7}", expires="2099-01-01T00:00:00Z")
    said: dict[str, str] = {}

    def keep(argv: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        done = pool.run(argv, **options)
        said[" ".join(argv[1:])] = done.stdout.decode()
        return done

    from zsnapdb.config.settings import parse
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import catalogue as clones
    from zsnapdb.jobs.clone import sources
    from zsnapdb.zfs import command

    run, command.subprocess.run = command.subprocess.run, keep  # type: ignore[attr-defined]
    try:
        clones.known_clones(parse(CONFIGURATION + catalogue.configuration("file:///srv", ""), "bench"), THIS_HOST)
        sources.commits(HOME)
    finally:
        command.subprocess.run = run  # type: ignore[attr-defined]
    cases = []
    for number, (words, text) in enumerate(said.items()):
        (folder / f"{number}.txt").write_text(f"{text}\n")
        cases.append(f"'{words}') exec cat {folder}/{number}.txt ;;")
    program = folder / "zfs"
    cases.append("'list -H -p -d 1 -t snapshot '*) exit 0 ;;")
    program.write_text("\n".join(("#!/bin/sh", 'case "$*" in', *cases, "esac", 'echo "refused: $*" >&2', "exit 1", "")))
    program.chmod(0o755)
    zpool = folder / "zpool"
    zpool.write_text("#!/bin/sh\nexit 0\n")
    zpool.chmod(0o755)


@contextlib.contextmanager
def running(config: Path, folder: Path) -> Iterator[Sites]:
    """Run both processes while the block runs; somebody is logged in who sees all."""
    python = (sys.executable, "-m", "zsnapdb")
    env = {**os.environ, "PATH": f"/usr/local/sbin:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
    env["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    said = (folder / "said").open("wb")
    with said, contextlib.ExitStack() as stack:

        def start(*argv: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(argv, cwd="/", stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=env)
            stack.callback(process.wait, 120)
            stack.callback(process.terminate)
            return process

        made = subprocess.run(
            (*python, "token", "create", "--for", "user:op@example.org", "--role", "operator", "--json"),
            capture_output=True,
            text=True,
            check=True,
            env=env,
        )
        token = json.loads(made.stdout)["text"]
        helper = start(*python, "serve-helper", "--config", str(config))
        walls = ("setpriv", f"--reuid={WEB}", "--regid=nogroup", "--clear-groups", "--no-new-privs")
        web = start(*walls, *python, "serve", f"--port={PORT}")
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError, SystemExit):
                site = Sites(helper.pid, web.pid, token)
                site.get("/api/v1/instances")
                break
            if time.monotonic() > deadline or helper.poll() is not None or web.poll() is not None:
                raise SystemExit((folder / "said").read_text()[-3000:])
            time.sleep(0.1)
        yield Sites(helper.pid, web.pid, token, log_in(token))


def log_in(token: str) -> str:
    """Log in to the page, and return the cookie."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)) as connection:
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
        connection.request("POST", "/login", urlencode({"token": token}), headers)
        answer = connection.getresponse()
        answer.read()
        return str(answer.headers["Set-Cookie"]).partition(";")[0]


def per_second(ask: Callable[[], object], seconds: float) -> float:
    """Return how often several clients at once get an answer in a second."""
    counts, end = [0] * CLIENTS, time.monotonic() + seconds

    def go_on(number: int) -> None:
        while time.monotonic() < end:
            ask()
            counts[number] += 1

    threads = [threading.Thread(target=go_on, args=(number,)) for number in range(CLIENTS)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - began)


def steady(site: Sites, minutes: float) -> tuple[MemoryCurve, MemoryCurve, int]:
    """Ask at a steady rate; return the memory of helper and web process, and how many requests there were."""
    helper, web, asked = MemoryCurve(site.helper), MemoryCurve(site.web), 0
    paths = ("/api/v1/clones", "/", "/api/v1/instances", "/clones", "/api/v1/objectives", "/new?instance=main")
    end = time.monotonic() + minutes * 60
    with helper.watched(), web.watched():
        while time.monotonic() < end:
            began = time.monotonic()
            site.get(paths[asked % len(paths)])
            asked += 1
            time.sleep(max(0.0, 1 / STEADY_PER_SECOND - (time.monotonic() - began)))
    return helper, web, asked


def measure(config: Path, folder: Path, options: argparse.Namespace) -> dict[str, Figure]:
    """Run everything that needs no guest, print it, and return the figures."""
    figures: dict[str, Figure] = {}
    with running(config, folder) as site:
        for path in PAGES:
            name = {"/": "overview", "/clones": "clones", "/new?instance=main": "new_clone"}[path]
            first, before = site.get(path), site.cpu()
            times = [site.get(path) for _ in range(options.looks)]
            cpu = (site.cpu() - before) / len(times)
            p95, middle = percentile(times, 0.95), statistics.median(times)
            print(
                f"{path:<20} first {first:6.2f} s   median {middle:6.3f} s   p95 {p95:6.3f} s   processor {cpu:6.3f} s",
                flush=True,
            )
            figures[f"page_{name}_p95"] = Figure(p95, "s", f"< {LIMIT:g}")
            figures[f"page_{name}_first"] = Figure(first, "s")
            figures[f"page_{name}_cpu"] = Figure(cpu, "s")
        rate = per_second(lambda: site.get("/api/v1/clones"), options.seconds)
        print(f"GET /clones from {CLIENTS} clients: {rate:.1f} a second", flush=True)
        figures["clones_per_second"] = Figure(rate, "1/s")
        helper, web, asked = steady(site, options.minutes)
        for name, curve in (("helper", helper), ("web", web)):
            before, last = curve.thirds
            print(
                f"memory of the {name:<7} after {options.minutes:g} min and {asked} requests: {last:.1f} MiB, before"
                f" {before:.1f} MiB"
            )
            figures[f"memory_{name}"] = Figure(last, "MiB", "flat")
            figures[f"memory_{name}_grown"] = Figure(last - before, "MiB", f"<= {SPREAD_MIB:g}")
    return figures


def of_pool(flavours: Sequence[str], count: int, timeout: float) -> dict[str, Figure]:
    """Time the way of clones out of a pool by the API to a first query, in a guest of each flavour."""
    from tests.lab.cache import Cache
    from tests.lab.guest import Guest, Lab
    from tests.lab.host import LabError

    found: dict[str, Figure] = {}
    for flavour in flavours:
        with Guest.boot(Lab.ready(Cache.default()), flavour) as guest:
            done = guest.run(
                [PYTHON, INSIDE, str(count)],
                timeout=timeout,
                env={"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": "/checkout", "LAB_FLAVOUR": flavour},
                sink=to_terminal,
            )
            if done.code != 0:
                raise LabError(f"{flavour}: the measurement ended with exit status {done.code}")
            seconds = json.loads((guest.out / "serve.json").read_text())
        p95, middle = percentile(seconds, 0.95), statistics.median(seconds)
        print(f"{flavour}: {count} clones out of the pool by the API: median {middle:.2f} s, p95 {p95:.2f} s")
        found[f"{flavour}_pool_by_api_median"] = Figure(middle, "s")
        found[f"{flavour}_pool_by_api_p95"] = Figure(p95, "s", "<= 0.4")
    return found


def alone(argv: Sequence[str]) -> int:
    """Run this program again in a mount namespace of its own, with empty folders; return its exit status."""
    return subprocess.run(("unshare", "--mount", "--propagation", "private", sys.executable, *argv)).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backups", type=int, default=10_000)
    parser.add_argument("--clones", type=int, default=50)
    parser.add_argument("--looks", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long GET /clones is asked from eight clients")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--store", default="file", choices=["file", "versitygw"])
    parser.add_argument("--pool", type=int, default=0, help="clones out of a pool by the API, in a guest")
    parser.add_argument("--flavours", default=",".join(FLAVOURS))
    parser.add_argument("--timeout", type=float, default=1800.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pool:
        found = of_pool(options.flavours.split(","), options.pool, options.timeout)
        write(found, options.json)
        return 0
    if os.geteuid() != 0:
        raise SystemExit("run it as root: the helper is root's")
    if not options.alone:
        return alone([*sys.argv, "--alone"])
    for place in PRIVATE:
        subprocess.run(("mount", "-t", "tmpfs", "bench", place), check=True)
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory(prefix="zsnapdb-bench-", dir="/run") as top:
        folder = Path(top)
        stand_in(Path("/usr/local/sbin"), options.clones)
        for _, url, settings, server in catalogue.stores([options.store], folder):
            with server():
                if url.startswith("s3:"):
                    catalogue.make_bucket(settings)
                catalogue.fill(url, settings, options.backups)
                config = folder / "zsnapdb.toml"
                config.write_text(CONFIGURATION + catalogue.configuration(url, settings))
                figures = measure(config, folder, options)
    slow = [name for name, one in figures.items() if name.endswith("_p95") and one.value >= LIMIT]
    grown = [name for name, one in figures.items() if name.endswith("_grown") and one.value > SPREAD_MIB]
    print(f"over the limit: {', '.join(slow + grown) or 'nothing'}")
    write(figures, options.json)
    return 1 if slow or grown else 0


def write(figures: Mapping[str, Figure], file: Path | None) -> None:
    """Write the figures as JSON, if a file is named."""
    if file is not None:
        document = {"figures": {name: one.document() for name, one in figures.items()}}
        file.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
