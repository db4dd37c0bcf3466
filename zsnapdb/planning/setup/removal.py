"""The removal of an instance from a host: its jobs are no longer scheduled; data and keys are kept. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.planning.setup.layout import UNIT


class RemovalAction(StrEnum):
    """An action that the removal itself performs. All other steps are left to the user."""

    UNSCHEDULE = "unschedule"
    CONFIGURATION = "configuration"


@dataclass(frozen=True)
class RemovalFacts:
    """The existing parts of an instance.

    - `rest`: the configuration without the instance (empty if it had no other; None if its tables cannot be separated)
    - `has_agent`: systemd knows the unit of the agent
    - `own_unit`, `cron`: existing files of a setup ("": none)
    - `account`: the account of zsnapdb on the server ("": root)
    - `datasets`: the known datasets of the instance
    - `identity`: the file with the keys of backups ("": none is configured)
    """

    instance: str
    configuration: str
    rest: str | None
    has_agent: bool
    own_unit: str
    cron: str
    account: str
    socket: str
    datasets: tuple[str, ...]
    repository: str
    identity: str
    clones: int = 0

    @property
    def is_last(self) -> bool:
        return self.rest == ""


@dataclass(frozen=True)
class RemovalStep:
    """A step: its title, the shell or SQL lines, and the files that are renamed or changed."""

    title: str
    lines: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    action: RemovalAction | None = None


@dataclass(frozen=True)
class RemovalPlan:
    """The steps of a removal. `notes` list the kept data."""

    facts: RemovalFacts
    steps: tuple[RemovalStep, ...]
    notes: tuple[str, ...]


def plan_removal(facts: RemovalFacts) -> RemovalPlan:
    """Return the plan of a removal. zsnapdb itself removes no data and no key."""
    notes = ["the server, its datasets, snapshots and backups stay: what follows names them, and removes none"]
    if facts.clones:
        notes.append(f"clones of the instance exist ({facts.clones}): `zsnapdb clone list` names them")
    return RemovalPlan(facts, tuple(_steps(facts)), tuple(notes))


def _steps(facts: RemovalFacts) -> Iterator[RemovalStep]:
    act, path = RemovalAction, facts.configuration
    if facts.rest is None:
        title = f"Take the tables of instance {facts.instance} out of {path}, then reload the agent"
        yield RemovalStep(title, (f"systemctl reload {UNIT}",) if facts.has_agent else ())
    elif facts.is_last:
        stop = (f"systemctl disable --now {UNIT}",) if facts.has_agent else ()
        files = tuple(file for file in (facts.own_unit, facts.cron) if file)
        if stop or files:
            title = "Run no more jobs; the files of the schedule are kept next to them as ….before"
            yield RemovalStep(title, stop, files, act.UNSCHEDULE)
        yield RemovalStep(f"Remove the configuration; it is kept as {path}.before-…", (), (path,), act.CONFIGURATION)
    else:
        if facts.cron:
            title = f"Let cron run no job of the instance; the file is kept as {facts.cron}.before"
            yield RemovalStep(title, (), (facts.cron,), act.UNSCHEDULE)
        title = f"Take the instance {facts.instance} out of {path}; all else in it stays"
        yield RemovalStep(title, (), (path,), act.CONFIGURATION)
        reload = (f"systemctl reload-or-restart {UNIT}",) if facts.has_agent else ()
        if reload:
            yield RemovalStep("Run the jobs of the other instances alone", reload, (), act.UNSCHEDULE)
    if facts.account:
        client = shlex.join(["mysql", f"--socket={facts.socket}", "-e", f"DROP USER {facts.account}@localhost"])
        yield RemovalStep("Remove the account of zsnapdb from the server", (client,))
    for dataset in facts.datasets:
        marked = f"zfs list -H -o name -d 1 -t snapshot,bookmark {dataset} | grep '[@#]zsnapdb-'"
        yield RemovalStep(
            f"Destroy the snapshots and bookmarks of {dataset}", (marked, f"{marked} | xargs -n1 zfs destroy")
        )
    yield RemovalStep(f"Remove the repository when none of its backups is needed any more: {facts.repository}")
    if facts.identity:
        yield RemovalStep(f"Keep {facts.identity} as long as one backup is kept: no backup can be read without it")
