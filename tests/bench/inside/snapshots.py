"""In the guest: what commands cost in their children, with a few snapshot sets on the host, with many, and with clones.

`snapshots.py MANY CLONES BACKUPS` writes /out/snapshots.json: for each command the processor seconds of the programs
that it started, and of it all, first with a few sets ("few"), then with MANY more ("many"), then with so many clones
besides ("clones"), then with so many backups in the repository besides ("backups"): each only if there are any. No
server of those clones runs; the backups have manifests alone.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.inside.programs import trace
from tests.bench.manifests import Origin, manifests
from tests.lab.inside.zygote import Zygote
from zsnapdb.config.settings import load
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.record.record_file import HostRecord
from zsnapdb.repository import layout
from zsnapdb.repository.manifest import server_source
from zsnapdb.zfs import libzfs, snapshots

CONFIG = Path("/etc/zsnapdb/zsnapdb.toml")
USAGE = Path("/tmp/usage.json")
ROUNDS = 3
STAGES = ("many", "clones", "backups")
VOLUMES = ("tank/mysql", "tank/mysql/data")
MARKS = ("zsnapdb:instance", "zsnapdb:version", "zsnapdb:lock", "zsnapdb:position")
MEASURED: dict[str, tuple[str, ...]] = {
    "snapshot": ("snapshot", "main"),
    "backup of nothing": ("backup", "main"),
    "clone create": ("clone", "create", "main", "--name", "own"),
    "clone list": ("clone", "list"),
    "status": ("status", "main"),
    "list": ("list", "main"),
    "doctor": ("doctor", "main"),
}


def run(words: tuple[str, ...]) -> None:
    """Run a command and write what it and its children used."""
    try:
        trace("/dev/null", list(words))
    finally:
        children, own = resource.getrusage(resource.RUSAGE_CHILDREN), resource.getrusage(resource.RUSAGE_SELF)
        seconds = [one.ru_utime + one.ru_stime for one in (children, own)]
        USAGE.write_text(json.dumps({"children": seconds[0], "all": sum(seconds)}))


def measured(words: tuple[str, ...]) -> dict[str, float]:
    """Return the medians of what a command used, and of its wall time."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.monotonic()
        argv = [sys.executable, __file__, "--run", *words, "--json"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=900)
        # The lab's MySQL lacks a program for drills, of which doctor warns.
        if done.returncode not in ((0, 1, 2) if words[0] == "doctor" else (0, 2)):
            raise SystemExit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}{done.stdout}")
        rounds.append({**json.loads(USAGE.read_text()), "wall": time.monotonic() - began})
        if words[:2] == ("clone", "create"):
            subprocess.run(["zsnapdb", "clone", "destroy", "own"], check=True, capture_output=True)
    return {key: sorted(one[key] for one in rounds)[ROUNDS // 2] for key in rounds[0]}


def add(count: int) -> None:
    """Make so many sets as `zsnapdb snapshot` makes them, by what the newest one says of itself."""
    library = libzfs.load()
    assert library is not None
    newest = snapshots.list_owned([VOLUMES[1]], ["zsnapdb:backup", *MARKS])[-1].properties
    properties = {key: newest[key] for key in MARKS} | {"zsnapdb:state": "local"}
    for number in range(count):
        day, minute = divmod(number, 1440)
        backup_id = f"202601{1 + day:02d}T{minute // 60:02d}{minute % 60:02d}00Z-{number:04x}"
        names = [f"{volume}@zsnapdb-{backup_id}" for volume in VOLUMES]
        library.snapshot(names, {**properties, "zsnapdb:backup": backup_id})


def add_clones(count: int) -> None:
    """Make so many clones of the newest moment, with commands forked from one process."""
    with tempfile.TemporaryDirectory() as folder:
        zygote = Zygote(Path(folder) / "zygote", os.environ)
        try:
            for number in range(count):
                words = ["clone", "create", "main", "--no-start", "--name", f"many-{number}"]
                code, _, errors = zygote.run(words, os.environ, 300)
                if code != 0:
                    raise SystemExit(f"clone {number} ended with {code}: {errors}")
        finally:
            zygote.close()


def add_backups(count: int) -> None:
    """Put so many older backups of the server in the repository, and in the record of what this host stored."""
    instance = Instance.of(load(CONFIG), "main")
    repository = instance.open_repository()
    newest = repository.manifest("main", repository.backup_ids("main")[-1])
    origin = Origin(repository.id, newest.pool_guid, server_source(newest).server.server_uuid or "")
    for backup_id, body in manifests(count, origin):
        repository.overwrite(layout.manifest("main", backup_id), body)
    stored = tuple(
        host_backup_record._recorded(backup, backup.digest) for backup in instance.summaries(repository).backups
    )
    record = HostRecord.of(instance, repository)
    assert record is not None
    record.change_backups(lambda known: known.model_copy(update={"stored": stored}))


def main() -> None:
    """Measure with few, add many, measure again, and write it."""
    terms = "\n[clones]\nper_owner = 0\ntotal = 0\nlast_port = 23400\n\n[instance.main.local]\nlast = 100000\n"
    CONFIG.write_text(CONFIG.read_text() + terms)
    subprocess.run(["zsnapdb", "backup", "main"], check=True, capture_output=True)
    few = {name: measured(words) for name, words in MEASURED.items()}
    result = {"few": few}
    for stage, more, count in zip(STAGES, (add, add_clones, add_backups), map(int, sys.argv[1:]), strict=True):
        if count:
            more(count)
            result[stage] = {name: measured(words) for name, words in MEASURED.items()}
    Path("/out/snapshots.json").write_text(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(tuple(sys.argv[2:]))
    else:
        main()
