"""Makes a runbook: the current plan of `restore`, with step durations from past drills and the configured contacts."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base.domain_types import pool_of
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.restore import plan as restore_plan
from zsnapdb.jobs.restore.plan import RestoreRequest
from zsnapdb.planning.damage_register import KnownDamage
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.runbook import Commands, Look, RunbookPage, entries, pinned
from zsnapdb.planning.restore.steps import MakeReplica, ParallelRun, Promote
from zsnapdb.repository import drills
from zsnapdb.repository.verifications import known_damage

_DRILLS = 50
"""The number of newest drills from which step durations are taken."""


@dataclass(frozen=True)
class Runbook:
    """The plan as a page for people. The durations come from the last `drills` drills."""

    plan: RestorePlan
    entries: tuple[RunbookPage, ...]
    before: tuple[Look, ...]
    contacts: tuple[str, ...]
    url: str
    drills: int
    damage: tuple[KnownDamage, ...] = ()
    signers: tuple[str, ...] = ()
    """The public keys that this host trusts.

    The page shows the keys, because a host with a new configuration needs them.
    """
    repository: str = ""


def make(settings: Settings, instance: Instance, request: RestoreRequest, config: Path | None) -> Runbook:
    """Return the runbook; change nothing. Raises the errors of a restore's plan."""
    repository = instance.open_repository()
    planned = restore_plan.make(settings, instance, repository, request)
    past = drills.newest(repository, instance.name, _DRILLS)
    file = str(config) if config is not None else None
    # If --target is not given, the restore also creates the parent dataset.
    where = ("--target", request.top) if request.top is not None else ("--as", request.name or instance.name)
    commands = Commands(instance.name, pinned(planned), planned.layout.top, where, _options(planned, request), file)
    check = ["zsnapdb", "config", "check", *(("--config", file) if file is not None else ())]
    pool = pool_of(planned.layout.top)
    before = (Look(shlex.join(check)), Look(shlex.join(["zpool", "list", "-H", "-o", "health", pool]), "ONLINE"))
    return Runbook(
        planned,
        entries(planned, commands, drills.timings(past)),
        before,
        settings.site.contacts,
        instance.repository.url,
        len(past),
        known_damage(repository, instance.name).of_chain(
            list(dict.fromkeys(step.backup_id for step in planned.receives))
        ),
        repository.keyring.trusted,
        instance.settings.repository,
    )


def _options(planned: RestorePlan, request: RestoreRequest) -> tuple[str, ...]:
    last = planned.steps[-1]
    words = ["--handover", last.kind]
    if isinstance(last, ParallelRun | MakeReplica):
        words += ["--port", str(last.port), "--server-id", str(last.server_id)]
    if isinstance(last, Promote) and last.server_id is not None:
        words += ["--server-id", str(last.server_id)]
    if isinstance(last, MakeReplica):
        words += ["--source", f"{last.source_host}:{last.source_port}", "--source-user", last.source_user]
        words += ["--source-password-file", last.password_file] if last.password_file is not None else []
    if request.accepts_older and pinned(planned) == "latest":
        words.append("--accept-older")
    if planned.clones:
        words += ["--origin", "local"]
    if planned.repository_name is not None:
        words += ["--repository", planned.repository_name]
    if request.history is not None and planned.replays:
        words += ["--history", request.history]
    return tuple(words)
