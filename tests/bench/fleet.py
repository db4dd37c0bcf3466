"""Measures `zsnapdb fleet status` of 400 hosts and 2,000 instances on a local S3 server: seconds and requests.

    python3 tests/bench/fleet.py [--hosts N] [--instances N] [--repositories N] [--json FILE]

Makes repositories with manifests of small backups, a drill and a record of evidence for each instance; there are no
chunks and no binlogs. Then it looks at the fleet: for the first time, again, after one instance in a hundred has a new
backup, and out of the cache: as a command of its own with the start of the program, and as the page of `zsnapdb
serve`. It needs versitygw, which the
lab builds, and no guest. It ends with 1 if the page out of the cache, or that of `zsnapdb serve`, takes over a second.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

if TYPE_CHECKING:
    from zsnapdb.config.repository import RepositorySettings
    from zsnapdb.jobs.repository.fleet_status import FleetState
    from zsnapdb.store.base import Store

LIMIT = 1.0
"""Seconds that the page out of the cache may take."""
BACKUPS = 5
"""Backups of each instance."""


@dataclass(frozen=True)
class Look:
    """A look at the fleet: wall and processor seconds, and what was asked of the server."""

    what: str
    seconds: float
    cpu: float
    listings: int
    objects: int
    changed: int


@dataclass(frozen=True)
class Size:
    """How large the fleet is."""

    hosts: int
    instances: int
    repositories: int

    def names(self, repository: int) -> Iterator[tuple[str, str]]:
        """Yield the name and the host of each instance of a repository."""
        for number in range(repository, self.instances, self.repositories):
            yield f"instance-{number:05d}", f"db-{number % self.hosts:04d}"


def documents(instance: str, host: str, repository_id: str, now: datetime) -> Iterator[tuple[str, bytes]]:
    """Yield key and content of each object of an instance."""
    from tests.unit.support.drilled import evidence
    from zsnapdb.base.domain_types import new_backup_id
    from zsnapdb.planning.evidence import NOTHING
    from zsnapdb.repository.drills import Outcome
    from zsnapdb.repository.evidence_log import AuthorPart, EvidenceRecord

    for number in range(BACKUPS):
        yield backup(instance, host, repository_id, number, now - timedelta(hours=BACKUPS - number))
    made = evidence(Outcome.PASSED, repository_id, new_backup_id(now - timedelta(hours=2), 1))
    drill = made.model_copy(update={"instance": instance, "finished": now - timedelta(hours=2), "started": now})
    yield f"{instance}/drills/{drill.drill_id}.json", drill.encode() + b"\n"
    record = EvidenceRecord(
        number=1,
        previous=NOTHING,
        repository_id=repository_id,
        instance=instance,
        run_id=f"{now:%Y%m%dT%H%M%SZ}-{hashlib.sha256(instance.encode()).hexdigest()[:8]}",
        job="backup",
        command="zsnapdb backup",
        who=AuthorPart(account="root", host=host),
        started=now - timedelta(hours=1),
        finished=now - timedelta(hours=1),
        exit_code=0,
        tool_version="0",
    )
    yield f"{instance}/evidence/00000001.json", record.model_dump_json().encode() + b"\n"


def backup(instance: str, host: str, repository_id: str, number: int, at: datetime) -> tuple[str, bytes]:
    """Return key and content of the manifest of a backup."""
    from tests.unit.support.manifests import manifest
    from zsnapdb.base.domain_types import new_backup_id
    from zsnapdb.config.instance import ObjectiveSettings
    from zsnapdb.repository.manifest import ObjectivesPart

    example = manifest(new_backup_id(at, number), instance)
    volumes = tuple(one.model_copy(update={"guid": number + 1}) for one in example.volumes)
    changes = {"repository_id": repository_id, "created": at, "createtxg": number + 1, "host": host, "volumes": volumes}
    objectives = ObjectivesPart.of(ObjectiveSettings(backup_age=7200.0, drill_age=7 * 86400.0))
    made = example.model_copy(update={**changes, "objectives": objectives})
    return f"{instance}/manifests/{made.backup_id}.json", made.encode() + b"\n"


def fill(settings: RepositorySettings, number: int, size: Size, now: datetime) -> int:
    """Write a repository. Return how many objects it has."""
    from zsnapdb.store.layers import open_store

    store, prefix = open_store(settings)
    repository_id = f"bench-{number}"
    store.put(f"{prefix}zsnapdb.json", json.dumps({"format": 1, "id": repository_id, "recipients": []}).encode())

    def write(names: tuple[str, str]) -> int:
        count = 0
        for key, body in documents(*names, repository_id, now):
            store.put(f"{prefix}{key}", body)
            count += 1
        return count

    with ThreadPoolExecutor(8) as pool:
        return sum(pool.map(write, size.names(number)))


def configuration(url: str, folder: Path, size: Size) -> str:
    """Return the text of fleet.toml."""
    lines = [f'cache = "{folder / "cache"}"']
    for number in range(size.repositories):
        lines += [f"[repository.r{number}]", f'url = "s3://bench/r{number}"', f"[repository.r{number}.s3]"]
        lines += [f'endpoint = "{url}"', 'region = "us-east-1"', 'addressing = "path"']
    return "\n".join(lines) + "\n"


def look(what: str, text: str) -> tuple[Look, FleetState]:
    """Look at the fleet, and count what it costs."""
    from tests.unit.support.fleet_yard import CountingStore
    from zsnapdb.config.fleet import parse
    from zsnapdb.jobs.base.host import Host
    from zsnapdb.jobs.repository import fleet_status
    from zsnapdb.store.layers import open_store

    asked: Counter[str] = Counter()

    def opened(settings: RepositorySettings, tell: object) -> tuple[Store, str]:
        store, prefix = open_store(settings)
        return CountingStore(store, asked, []), prefix

    began, cpu = time.monotonic(), _cpu()
    state = fleet_status.status(parse(text, "bench"), fleet_status.FleetRequest(), Host(open_store=opened))
    changed = sum(one.changed for one in state.repositories)
    assert all(one.error is None for one in state.repositories), state.repositories
    return Look(what, time.monotonic() - began, _cpu() - cpu, asked["list"], asked["get"], changed), state


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cached(file: Path) -> Look:
    """Show the page out of the cache by the command itself."""
    argv = [sys.executable, "-m", "zsnapdb", "fleet", "status", "--cached", "--config", str(file)]
    times = []
    for _ in range(3):
        began = time.monotonic()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(argv, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode in (0, 1, 2), done.stderr
        assert "no repository was read" in done.stdout
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        times.append((time.monotonic() - began, cpu))
    seconds, cpu = sorted(times)[1]
    return Look("page out of the cache, with the start of the program", seconds, cpu, 0, 0, 0)


def page(file: Path) -> list[Look]:
    """Show the page of `zsnapdb serve`: the answer of its helper, and the HTML. First, and when nothing has changed."""
    from zsnapdb.jobs.base.host import Host
    from zsnapdb.report.fleet import FleetSnapshot
    from zsnapdb.serve.fleet_pages import fleet_of
    from zsnapdb.serve.page_app import PageTemplates
    from zsnapdb.serve.page_rows import Person
    from zsnapdb.serve.roles import Role
    from zsnapdb.verbs.requests import FleetQuery

    look, templates, asked = FleetSnapshot(Host(), file), PageTemplates(), FleetQuery(most=200)
    limits = {"most": 1, "ttl": 3600, "longest_lease": 3600}
    person = Person.model_validate({"subject": "user:a@example.org", "role": "operator", "clones": limits})
    looks = []
    for what in ("page of zsnapdb serve, first", "page of zsnapdb serve, again"):
        began, cpu = time.monotonic(), _cpu()
        answer = look(asked, Role.OPERATOR).model_dump_json()
        card = fleet_of(json.loads(answer)["document"], asked, datetime.now(UTC))
        text = templates.page("fleet.html", {"card": card, "person": person, "csrf": "x", "problem": None})
        assert text.count("<tr>") > 1
        looks.append(Look(what, time.monotonic() - began, _cpu() - cpu, 0, 0, 0))
    return looks


def figures(looks: list[Look]) -> dict[str, dict[str, object]]:
    """Return what was measured, by name."""
    names = ("first", "unchanged", "one_in_a_hundred", "cached", "page_first", "page")
    found: dict[str, dict[str, object]] = {}
    for name, one in zip(names, looks, strict=True):
        goal = LIMIT if name in ("cached", "page", "page_first") else None
        found[f"{name}_seconds"] = {"value": round(one.seconds, 3), "unit": "s", "goal": goal}
        found[f"{name}_cpu"] = {"value": round(one.cpu, 3), "unit": "s", "goal": None}
        if one.listings:
            found[f"{name}_listings"] = {"value": one.listings, "unit": "requests", "goal": None}
            found[f"{name}_objects"] = {"value": one.objects, "unit": "requests", "goal": None}
            most = 0 if name == "unchanged" else None
            found[f"{name}_read_anew"] = {"value": one.changed, "unit": "instances", "goal": most}
    return found


def measure(url: str, folder: Path, size: Size) -> list[Look]:
    """Fill the repositories and look at them."""
    from zsnapdb.config.fleet import parse
    from zsnapdb.store.layers import open_store

    text, now = configuration(url, folder, size), datetime.now(UTC).replace(microsecond=0)
    settings = parse(text, "bench").repository
    began = time.monotonic()
    count = sum(fill(settings[f"r{number}"], number, size, now) for number in range(size.repositories))
    print(
        f"{size.hosts} hosts, {size.instances} instances, {count} objects, written in {time.monotonic() - began:.0f} s"
    )
    looks = []
    for what in ("first", "second, nothing has changed"):
        made, state = look(what, text)
        assert len(state.rows) == size.instances
        assert len(state.hosts) == size.hosts
        looks.append(made)
    for number in range(size.repositories):
        store, prefix = open_store(settings[f"r{number}"])
        for name, host in list(size.names(number))[::100]:
            key, body = backup(name, host, f"bench-{number}", BACKUPS, now)
            store.put(f"{prefix}{key}", body)
    looks.append(look("third, one instance in a hundred has a new backup", text)[0])
    (folder / "fleet.toml").write_text(text)
    looks.append(cached(folder / "fleet.toml"))
    looks += page(folder / "fleet.toml")
    return looks


def main() -> int:
    """Measure and print."""
    from tests.bench.s3_server import serve
    from tests.unit.support.s3_server import program

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=400)
    parser.add_argument("--instances", type=int, default=2000)
    parser.add_argument("--repositories", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    size = Size(options.hosts, options.instances, options.repositories)
    with tempfile.TemporaryDirectory(prefix="fleet-", dir="/var/tmp") as name, serve(program(), Path(name)) as server:
        os.environ.update(server.environment())
        looks = measure(server.url, Path(name), size)
    print(f"{'LOOK':<54} {'SECONDS':>8} {'CPU':>7} {'LISTINGS':>9} {'OBJECTS':>8} {'READ ANEW':>10}")
    for one in looks:
        print(
            f"{one.what:<54} {one.seconds:>8.2f} {one.cpu:>7.2f} {one.listings:>9} {one.objects:>8} {one.changed:>10}"
        )
    if options.json:
        options.json.write_text(json.dumps({"figures": figures(looks)}, indent=1) + "\n")
    return int(any(one.seconds > LIMIT for one in looks[3:]))


if __name__ == "__main__":
    sys.exit(main())
