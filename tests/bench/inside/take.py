"""One snapshot set by zsnapdb's own function, without the process start and the sending around it: `take.py CONFIG`.

Does the same as jobs/backup up to the snapshot and prints a line; makes the set on a line of input, prints the result
as JSON; removes the set on the next line. So only `take` itself falls into the measured window.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.config.settings import load
from zsnapdb.jobs.backup.server_source import ServerSource
from zsnapdb.jobs.backup.snapshot_set import take
from zsnapdb.jobs.base.clock import fresh_backup_id
from zsnapdb.jobs.base.events import SILENT
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.zfs.owned import destroy_set


def _say(document: dict[str, object]) -> None:
    print(json.dumps(document), flush=True)


def main() -> None:
    """Probe, wait, take the set, report, wait, remove the set."""
    instance = Instance.of(load(Path(sys.argv[1])), None)
    with instance.session(read_timeout=60.0) as session:
        source = ServerSource(instance, session)
        observed = source.observe()
        backup_id = fresh_backup_id()
        _say({"ready": True})
        sys.stdin.readline()
        try:
            taken = take(source, observed, instance.name, backup_id, SILENT, run_id=instance.host.run_id())
        except ZsnapdbError as error:
            _say({"code": error.exit_code, "held_ms": None, "note": error.message})
            return
    _say({"code": 0, "held_ms": taken.proof.held_ms, "note": taken.proof.choice.name})
    sys.stdin.readline()
    destroy_set([snapshot.full_name for snapshot in taken.set.snapshots.values()], backup_id)


main()
