"""What is done when an instance is given up on a host: it is no longer scheduled; data and keys stay. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.planning.setup.layout import UNIT


class RemovalAction(StrEnum):
    """What the removal itself does in a step. All other steps are left to the person."""

    UNSCHEDULE = "unschedule"
    CONFIGURATION = "configuration"


@dataclass(frozen=True)
class RemovalFacts:
    """What is there of an instance.

    `rest` is the text of the configuration without the instance; "" if no other instance is in it, None if its tables
    cannot be told from the others. `has_agent`: systemd knows the unit of the agent. `own_unit` and `cron` are the
    files of a setup that are there ("": they are not). `account` is the account of zsnapdb on the server ("": root).
    `datasets` are those of the instance, as far as they are known. `identity` is the file with
    the keys of backups, "" if none is configured.
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
        """Whether no other instance is configured."""
        return self.rest == ""


@dataclass(frozen=True)
class RemovalStep:
    """A step: what it is for, the lines for a shell or a server, and the files that get another name or other text."""

    title: str
    lines: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    action: RemovalAction | None = None


@dataclass(frozen=True)
class RemovalPlan:
    """The steps of a removal. `notes` say what stays."""

    facts: RemovalFacts
    steps: tuple[RemovalStep, ...]
    notes: tuple[str, ...]


def plan_removal(facts: RemovalFacts) -> RemovalPlan:
    """Return what gives the instance up. Nothing that holds data, and no key, is removed by zsnapdb itself."""
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
            title = "Run no job any more; files of the schedule are kept beside as ….before"
            yield RemovalStep(title, stop, files, act.UNSCHEDULE)
        yield RemovalStep(
            f"Remove the configuration; it is kept beside as {path}.before-…", (), (path,), act.CONFIGURATION
        )
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
    yield RemovalStep(f"Remove the repository when nobody needs a backup of it any more: {facts.repository}")
    if facts.identity:
        yield RemovalStep(f"Keep {facts.identity} as long as one backup is kept: without it nobody can read a backup")
