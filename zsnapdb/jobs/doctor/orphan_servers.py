"""Servers and machines that a killed restore, drill or rescue left behind.

`doctor` lists these servers and machines, and `reap` ends them. Incomplete clones and their servers are handled by
`jobs/clone/reaper.py`. This module never touches the server of a finished restore or of a clone, because such a server
has a user.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base.errors import DamagedError, PreflightError, ZsnapdbError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.run_locks import if_free
from zsnapdb.jobs.dataset_copies.sweep import Leak, ReapOutcome
from zsnapdb.jobs.steps.restore_journal import Journals
from zsnapdb.jobs.trial import machine_drill, scratch_datasets
from zsnapdb.jobs.trial.machine_drill import DrilledMachine
from zsnapdb.jobs.trial.scratch_datasets import SCRATCH_PROPERTY
from zsnapdb.mysql.process import discovery
from zsnapdb.mysql.process.discovery import RunningServer
from zsnapdb.mysql.process.server import PRIVATE_FOLDER
from zsnapdb.planning.clone.lease import LeaseVerdict
from zsnapdb.zfs import datasets, destruction, mounts
from zsnapdb.zfs.destruction import Mark

_SCRATCH = re.compile(
    r"(?P<container>(?:[^/]+/)+(?P<instance>[^/]+)/(?P<what>[a-z]+)/(?P<id>[0-9A-Za-z-]+))/(?P=what)-(?P=id)"
)
"""The pattern of the names of datasets that `jobs/trial/scratch_datasets.py` gives to scratch copies."""


@dataclass(frozen=True)
class _Work:
    """A restore or scratch copy, and the lock of its command.

    If the command is killed, the server of the copy may keep running.
    """

    what: str
    lock: str
    instance: str
    hint: str


@dataclass(frozen=True)
class Orphan:
    """A server that a killed command left running."""

    server: RunningServer
    work: _Work

    @property
    def what(self) -> str:
        return f"server whose command was killed, process {self.server.pid} of the {self.work.what}"


def leaks(settings: Settings) -> list[Leak]:
    """Return the orphaned servers, and the leftover machines of drills, of all instances; change nothing.

    The result is for `doctor`.
    """
    servers = [
        Leak(orphan.what, str(orphan.server.datadir), orphan.work.instance, orphan.work.hint)
        for orphan in _orphans(settings)
    ]
    return [*servers, *(_leak(copy) for copy in _drilled(settings))]


def plan(settings: Settings) -> list[ReapOutcome]:
    """Return the orphaned servers and machines that `reap` would end; change nothing."""
    servers = [_outcome(orphan) for orphan in _orphans(settings)]
    return [*servers, *(_machine_outcome(copy) for copy in _drilled(settings))]


def reap(settings: Settings) -> list[ReapOutcome]:
    """End every orphaned server and remove every leftover machine of a drill, each under the lock of its command.

    A server process is identified by its process id, its start time and its data directory, never by its name. The data
    directory must be below the mount point of the restore or scratch copy. The files of a server stay. The domain and
    the zvols of a machine are removed.
    """
    return [*_end_servers(settings), *_remove_machines(settings)]


def _end_servers(settings: Settings) -> list[ReapOutcome]:
    outcomes = []
    for orphan in _orphans(settings):
        with if_free(orphan.work.lock) as is_free:
            # The command may have finished meanwhile, and a user may be using the server.
            if is_free and orphan.server.place in _works(settings) and discovery.end(orphan.server, PRIVATE_FOLDER):
                outcomes.append(_outcome(orphan))
    return outcomes


def _remove_machines(settings: Settings) -> Iterator[ReapOutcome]:
    for copy in _drilled(settings):
        with if_free(machine_drill.lock_name(copy)) as is_free:
            if not is_free or not datasets.exists(copy.container):
                continue
            outcome = _machine_outcome(copy)
            try:
                scratch_datasets.remove(copy.container, settings.restore.mount_root, machine_drill.ending(settings))
            except ZsnapdbError as error:
                outcome = ReapOutcome(outcome.what, outcome.name, LeaseVerdict.KEEP, outcome.reason, error)
            yield outcome


def _drilled(settings: Settings) -> Iterator[DrilledMachine]:
    """Yield the scratch copies of drilled machines whose drill no longer runs."""
    for copy in machine_drill.copies(settings):
        with if_free(machine_drill.lock_name(copy)) as is_free:
            is_left = is_free and datasets.exists(copy.container)
        if is_left:
            yield copy


def _leak(copy: DrilledMachine) -> Leak:
    hint = f"run `zsnapdb reap` to remove it; the next drill of {copy.instance} removes it too"
    return Leak("machine whose drill was killed", copy.container, copy.instance, hint)


def _machine_outcome(copy: DrilledMachine) -> ReapOutcome:
    reason = f"the drill of {copy.instance} was killed"
    return ReapOutcome("drilled machine", copy.container, LeaseVerdict.REAP, reason)


def _outcome(orphan: Orphan) -> ReapOutcome:
    return ReapOutcome(
        "server", f"process {orphan.server.pid}", LeaseVerdict.REAP, f"the command of the {orphan.work.what} was killed"
    )


def _orphans(settings: Settings) -> Iterator[Orphan]:
    servers = discovery.servers_below([settings.restore.mount_root], PRIVATE_FOLDER)
    if not servers:
        return
    by_place = _works(settings)
    for server in servers:
        work = by_place.get(server.place)
        if work is None:
            continue
        with if_free(work.lock) as is_free:
            is_orphan = is_free and server.place in _works(settings)
        if is_orphan:
            yield Orphan(server, work)


def _works(settings: Settings) -> dict[Path, _Work]:
    return {**_restores(settings), **_scratch_copies(settings.restore.mount_root)}


def _restores(settings: Settings) -> dict[Path, _Work]:
    journals, works = Journals(settings.restore.journal), {}
    for instance in settings.instance:
        with contextlib.suppress(DamagedError, PreflightError):
            for journal in journals.readable(instance):
                top = journal.plan.layout.top
                again = f"`zsnapdb restore {instance} --resume --target {top}`"
                hint = f"run `zsnapdb reap` to end it; {again} ends it too and continues the restore"
                works[Path(journal.plan.layout.mount)] = _Work(f"restore to {top}", f"restore-{top}", instance, hint)
    return works


def _scratch_copies(mount_root: Path) -> dict[Path, _Work]:
    works = {}
    for entry in mounts.mounted():
        match = _SCRATCH.match(entry.source) if entry.fstype == "zfs" else None
        if match is None or not destruction.is_ours(match["container"], Mark(SCRATCH_PROPERTY, match["id"])):
            continue
        what, instance = match["what"], match["instance"]
        hint = f"run `zsnapdb reap` to end it; the next {what} of {instance} removes the copy"
        place = mount_root / f"{what}-{match['id']}"
        works[place] = _Work(f"{what} copy {match['container']}", f"{what}-{instance}", instance, hint)
    return works
