"""The recorded load of production beside a migration: what it committed after a snapshot set, on a clone of this set.

The server of the clone applies the binlogs itself, at the pace at which production committed them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from posixpath import join

from zsnapdb.base import server_files
from zsnapdb.base.errors import NotThere, PreflightError
from zsnapdb.base.quantities import format_duration
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.backup import local_snapshot
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import masking_policy
from zsnapdb.jobs.clone.ephemeral import RunningClone
from zsnapdb.jobs.clone.lifecycle import server_of
from zsnapdb.jobs.clone.sources import with_volumes
from zsnapdb.jobs.host.local_binlogs import LocalBinlogs
from zsnapdb.jobs.restore.choice import choose
from zsnapdb.jobs.restore.plan import local_binlogs, located_in, replayer_of
from zsnapdb.jobs.restore.replay import fetch_logs
from zsnapdb.jobs.restore.without_store import archive_of, stored_or_here
from zsnapdb.mysql.binlog.transactions import transactions
from zsnapdb.mysql.replication.paced_replay import PacedReplay
from zsnapdb.mysql.replication.replay import RelayLogs, ReplayInput
from zsnapdb.planning.clone.recorded_load import LoadFindings, RecordedTransaction, load_findings
from zsnapdb.planning.restore.origin import RestoreOrigin
from zsnapdb.planning.restore.replays import mode_objection
from zsnapdb.planning.restore.steps import Replay
from zsnapdb.planning.restore.targets import AtTime
from zsnapdb.planning.server_copy.identity import binlog_paths
from zsnapdb.repository.manifest import Manifest, is_of_server, server_source
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import datasets

_ALL = 1 << 62
"""Bytes of a batch that holds all binlogs."""
_LATEST = "latest"
_MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class PlannedLoad:
    """The load of so many seconds from a set on: the binlogs with it, and where they are."""

    manifest: Manifest
    step: Replay
    repository: Repository

    @property
    def backup_id(self) -> str:
        """The set of which the clones are made."""
        return self.manifest.backup_id


def plan_load(settings: Settings, instance: Instance, source: str, seconds: float) -> PlannedLoad:
    """Return the load of so many seconds after a set: the named one, else the newest that is so old.

    PreflightError if no set is so old, if clones are masked (binlogs have the rows that masking hides), if the server
    cannot replay relay logs, or if nothing was committed. NotThere if no binlogs lead so far.
    """
    if masking_policy.rules_of(instance.settings.masking, requested=False):
        raise PreflightError(
            f"clones of {instance.name} are masked, and the recorded load has the rows that masking hides",
            hint="leave out --load",
        )
    instance = with_volumes(instance)
    manifest = _set_of(instance, source, seconds)
    server = server_source(manifest).server
    if replayer_of(settings, server.flavour, server.version) == "client":
        raise PreflightError(
            f"{server.flavour} {server.version} of {instance.name} does not replay binlogs by itself (or restore.replay"
            " says so), so they cannot be replayed at their pace",
            hint="leave out --load",
        )
    return stored_or_here(instance, lambda repository: _from(instance, repository, manifest, seconds))


def _set_of(instance: Instance, source: str, seconds: float) -> Manifest:
    known = [one for one in local_snapshot.load(instance) if is_of_server(one)]
    named = [one for one in known if source in (_LATEST, one.backup_id)]
    latest = instance.host.now() - timedelta(seconds=seconds)
    old = [one for one in named if one.created <= latest]
    if not old:
        what = "no snapshot set" if source == _LATEST else f"no snapshot set {source}"
        have = f"the oldest here was made {known[0].created:%Y-%m-%dT%H:%M:%SZ}" if known else "there is none"
        raise PreflightError(
            f"{what} on this host is {format_duration(seconds)} old; {have}",
            hint="name a shorter --load, or another set with --from",
        )
    return old[-1]


def _from(instance: Instance, repository: Repository, manifest: Manifest, seconds: float) -> PlannedLoad:
    target = AtTime(manifest.created + timedelta(seconds=seconds))
    archive = archive_of(instance, repository, target).load()
    local = local_binlogs([manifest], RestoreOrigin.AUTO)
    chosen = choose(instance, repository, [manifest], target, archive, None, local)
    objection = mode_objection(chosen.choice.files, server_source(manifest).server.variables.get("gtid_mode"))
    if objection is not None:
        raise PreflightError(objection, hint="name a set from after gtid_mode was changed with --from")
    steps = located_in(chosen.replays(_ALL), archive, local)
    if not steps:
        raise NotThere(
            f"no binlog has what was committed in the {format_duration(seconds)} after {manifest.backup_id}",
            hint="`zsnapdb binlog status` says what is archived",
        )
    return PlannedLoad(manifest, steps[0], repository)


@dataclass(frozen=True)
class RunningLoad:
    """The load, while the server of the clone applies it. `first` is the commit time of the first transaction."""

    planned: PlannedLoad
    logs: RelayLogs
    first: int
    replay: PacedReplay

    def end(self, migration_began: float) -> LoadFindings:
        """Stop it, and return what became of it. The migration began so many seconds after the load."""
        self.replay.end()
        recorded = _recorded(self.planned.step, self.logs, self.first)
        return load_findings(self.planned.backup_id, recorded, self.replay.samples, migration_began, self.replay.error)


def start_load(settings: Settings, instance: Instance, clone: RunningClone, planned: PlannedLoad) -> RunningLoad:
    """Copy the binlogs into the clone, and let its server apply them from now on.

    PreflightError if the clone has no room for them.
    """
    copy, step = server_of(settings, clone.info).copy, planned.step
    free = datasets.available(clone.info.top)
    if free < 2 * step.size:
        raise PreflightError(
            f"the recorded load has {step.size} bytes of binlogs, and the clone has room for {free}",
            hint="name a shorter --load, or make room",
        )
    paths = binlog_paths(copy.variables, "relay_log")
    # MariaDB without relay_log names its relay logs after its pid file (sql/log.cc, generate_name).
    base = paths[0] if paths is not None else join(copy.variables["datadir"], "server-relay-bin")
    logs = RelayLogs(Path(copy.paths.translate(base)), is_set=paths is not None)
    archive = archive_of(instance, planned.repository, only={part.file: part.size for part in step.logs})
    fetch_logs(archive, LocalBinlogs.of(copy.variables, copy.key_files), step, logs, instance.events)
    first = next(_commits(step, logs), None)
    if first is None:
        raise PreflightError(
            f"nothing was committed after {planned.backup_id} in the time of the load", hint="name a longer --load"
        )
    logs.take(len(step.logs), copy.settings.user)
    sizes = tuple(part.size for part in step.logs)
    delay = math.ceil(instance.host.now().timestamp() - first[2] / _MICROSECONDS)
    replay = PacedReplay.start(
        lambda: clone.session(read_timeout=120.0),
        clone.info.flavour,
        logs,
        ReplayInput(sizes, step.logs[0].start, step.logs[0].file, None),
        delay,
        settings.restore.workers or len(os.sched_getaffinity(0)),
    )
    return RunningLoad(planned, logs, first[2], replay)


def _commits(step: Replay, logs: RelayLogs) -> Iterator[tuple[int, int, int]]:
    """Yield log, end and commit time (microseconds UTC) of each transaction."""
    for number, part in enumerate(step.logs, 1):
        with server_files.open_to_read(logs.file(number)) as file:
            for one in transactions(file, part.file, part.start, part.stop):
                yield number, one.end, one.committed


def _recorded(step: Replay, logs: RelayLogs, first: int) -> Iterator[RecordedTransaction]:
    for number, end, committed in _commits(step, logs):
        yield RecordedTransaction(number, end, (committed - first) / _MICROSECONDS)
