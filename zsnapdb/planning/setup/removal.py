"""Plans the removal of an instance from the configuration and the schedule. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from zsnapdb.planning.setup.facts import WrittenTables
from zsnapdb.planning.setup.layout import UNIT
from zsnapdb.planning.setup.merge import TablePath, document_of, strings, subtables

_HEADER = re.compile(r"\[([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\]\s*")


def without(configured: str, instance: str, written: WrittenTables | None) -> str | None:
    """Return the configuration without the tables of an instance; None if these cannot be separated.

    The repository of this instance stays if another instance also uses it.
    """
    document = document_of(configured) or {}
    own = [("instance", instance), *(path for path in (written.tables if written else ()) if path[0] == "repository")]
    own = [path for path in own if path[0] == "instance" or path[-1] not in _used_by_others(document, instance)]
    parts = _cut(configured, own)
    rest = document_of("".join(parts))
    if rest is None or rest != _less(document, own):
        return None
    return "\n\n".join(part.strip("\n") for part in parts if part.strip("\n")) + "\n"


def _used_by_others(document: Mapping[str, Any], instance: str) -> set[str]:
    return set(strings({name: table for name, table in subtables(document, "instance").items() if name != instance}))


def _cut(text: str, own: Sequence[TablePath]) -> tuple[str, str]:
    """Split the text at the first of the given tables.

    Return the text before and after the split, both without the given tables.
    """
    parts: tuple[list[str], list[str]] = ([], [])
    has_begun, is_own = False, False
    for line in text.splitlines(keepends=True):
        header = _HEADER.fullmatch(line)
        if header is not None:
            path = tuple(header[1].split("."))
            is_own = any(path[: len(one)] == one for one in own)
            has_begun = has_begun or is_own
        elif is_own and line.lstrip().startswith("#"):
            is_own = False
        if not is_own:
            parts[has_begun].append(line)
    return "".join(parts[0]), "".join(parts[1])


def _less(document: Mapping[str, Any], own: Sequence[TablePath]) -> dict[str, Any]:
    """Return the document without the given tables, and without tables that are empty afterwards."""
    kept: dict[str, Any] = {}
    for key, value in document.items():
        inner = [path[1:] for path in own if path[0] == key]
        if () in inner:
            continue
        less = _less(value, inner) if inner and isinstance(value, dict) else value
        if less or not inner:
            kept[key] = less
    return kept


class RemovalAction(StrEnum):
    """An action of a removal that zsnapdb itself performs. The user performs all other steps."""

    UNSCHEDULE = "unschedule"
    CONFIGURATION = "configuration"


@dataclass(frozen=True)
class RemovalFacts:
    """The existing parts of an instance that will be removed.

    - `rest`: the configuration without the instance; empty if no instance remains, and None if the instance cannot be
      separated
    - `has_agent`: whether systemd has a unit of the agent
    - `own_unit`, `cron`: the unit file and the cron file that a setup created, or ""
    - `account`: the account of zsnapdb on the server, or "" for root
    - `datasets`: the known datasets of the instance
    - `identity`: the file with the keys of backups, or "" if none is configured
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


@dataclass(frozen=True)
class RemovalStep:
    """A step of a removal: its title, its shell or SQL lines, and the files that it renames or changes."""

    title: str
    lines: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    action: RemovalAction | None = None


@dataclass(frozen=True)
class RemovalPlan:
    """The steps of a removal, with notes about the data that is kept."""

    facts: RemovalFacts
    steps: tuple[RemovalStep, ...]
    notes: tuple[str, ...]


def plan_removal(facts: RemovalFacts) -> RemovalPlan:
    """Return the plan of a removal. zsnapdb itself does not remove data or keys."""
    notes = ["the server, its datasets, snapshots and backups stay: what follows names them, and removes none"]
    listed = f"`zsnapdb doctor {facts.instance}` lists restored servers, `zsnapdb reap --plan` received sets of clones"
    notes.append(f"remove these before the configuration, if there are any: {listed}")
    if facts.clones:
        notes.append(f"clones of the instance exist ({facts.clones}): `zsnapdb clone list` names them")
    return RemovalPlan(facts, tuple(_steps(facts)), tuple(notes))


def _steps(facts: RemovalFacts) -> Iterator[RemovalStep]:
    act, path = RemovalAction, facts.configuration
    if facts.rest is None:
        title = f"Take the tables of instance {facts.instance} out of {path}, then reload the agent"
        yield RemovalStep(title, (f"systemctl reload {UNIT}",) if facts.has_agent else ())
    elif not facts.rest:
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
