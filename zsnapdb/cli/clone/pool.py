"""`zsnapdb clone pool`."""

from __future__ import annotations

import functools
from typing import Annotated

from zsnapdb.cli import completion, options
from zsnapdb.cli.command_context import host_context, instance_context
from zsnapdb.cli.idempotency import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.notified_commands import evidence_of_pool, evidence_of_removed
from zsnapdb.cli.options import flag, option
from zsnapdb.cli.output import show


def pool(
    instance: options.InstanceName = None,
    once: options.Once = None,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Fill the pool of an instance with clones for `zsnapdb clone create`.

    Pool clones with a stopped server, outdated data or outdated masking are destroyed and recreated.
    """
    from zsnapdb.jobs.clone import pool_filling as job
    from zsnapdb.report.clone import create as report

    settings, chosen = instance_context(config, instance)
    if plan:
        show(report.PoolPlanView(job.plan_fill(settings, chosen)), json)
        return

    def make() -> CommandAnswer:
        filled = job.fill(settings, chosen)
        evidence_of_pool(chosen, filled.changed)
        return CommandAnswer(report.FilledPoolView(filled))

    show_once(chosen.host, once, Repeatable("clone pool", chosen.name, tell=chosen.events.tell), make, json)


def prepare(
    instance: options.InstanceName = None,
    source: Annotated[
        str,
        option(
            "--from",
            "SOURCE",
            "Source: latest, the id of a backup or a commit, or @SNAPSHOT.",
            autocompletion=completion.sources,
        ),
    ] = "latest",
    mask: Annotated[bool, flag("--mask", "Mask it even if the instance does not require masking.")] = False,
    removes: Annotated[
        bool,
        flag("--remove", "Remove the prepared sets of that set, or the set received/NAME, if unused."),
    ] = False,
    accepts_older: options.AcceptOlder = False,
    once: options.Once = None,
    binary: options.ServerBinary = None,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Prepare a snapshot set, so that its clones start fast.

    A server recovers the snapshot set once and is shut down cleanly. If clones must be masked, the set is masked once.
    Clones of a prepared set, and their resets, do not need these steps.
    """
    from zsnapdb.jobs.clone import set_preparation as job
    from zsnapdb.report.clone.change import IntentionView
    from zsnapdb.report.clone.create import PreparedView, RemovedFormsView

    settings, chosen = instance_context(config, instance, binary=binary)
    if removes:
        act = job.forms_of if plan else job.remove_forms
        show(RemovedFormsView(tuple(act(settings, chosen, source)), is_done=not plan), json)
        return
    verb = job.prepare(settings, chosen, source, masks=mask, accepts_older=accepts_older)
    if plan:
        show(IntentionView(verb.plan(), "prepare"), json)
        return

    def make() -> CommandAnswer:
        return CommandAnswer(PreparedView(verb.run()))

    about = f"{chosen.name} from {source}{', masked' if mask else ''}"
    command = Repeatable("clone prepare", about, tell=chosen.events.tell)
    show_once(chosen.host, once, command, make, json)


def reap(
    with_foreign_snapshots: options.WithForeignSnapshots = False,
    trust_clock: Annotated[
        bool, flag("--trust-clock", "Confirm that the clock of this host is right, for all removals.")
    ] = False,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Destroy expired clones and virtual machines, and the leftovers of interrupted runs.

    Servers left running by interrupted runs are stopped.
    """
    from zsnapdb.jobs.base import clock_record
    from zsnapdb.jobs.clone import reaper
    from zsnapdb.jobs.dataset_copies.sweep import ExtraRemoval
    from zsnapdb.jobs.doctor import orphan_servers
    from zsnapdb.jobs.vm import removal as vm_reaper
    from zsnapdb.report.clone import change as report

    settings, host = host_context(config)
    if trust_clock and not plan:
        clock_record.confirm(host)
    also = [ExtraRemoval.FOREIGN_SNAPSHOTS] if with_foreign_snapshots else []
    note = functools.partial(evidence_of_removed, settings)
    clones = reaper.plan(settings, host) if plan else reaper.reap(settings, host, also, note)
    outcomes = [*clones, *(orphan_servers.plan(settings) if plan else orphan_servers.reap(settings))]
    outcomes += vm_reaper.sweep(settings, host, act=not plan, also=also)
    show(report.ReapPlanView(outcomes) if plan else report.ReapView(outcomes), json)
    for item in outcomes:
        if item.error is not None:
            raise item.error
