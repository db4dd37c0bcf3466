"""`zsnapdb clone prepare`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli import completion
from zsnapdb.cli.once import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.opened import of_instance
from zsnapdb.cli.options import AcceptOlder, AsJson, ConfigFile, InstanceName, Once, PlanOnly, ServerBinary
from zsnapdb.cli.output import show


def prepare(
    instance: InstanceName = None,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="SOURCE",
            help="latest, the id of a backup or a commit, or @SNAPSHOT.",
            autocompletion=completion.sources,
        ),
    ] = "latest",
    mask: Annotated[bool, typer.Option("--mask", help="Mask it, also where the instance does not require it.")] = False,
    removes: Annotated[
        bool, typer.Option("--remove", help="Remove the prepared forms of that set instead; a form with clones stays.")
    ] = False,
    accepts_older: AcceptOlder = False,
    once: Once = None,
    binary: ServerBinary = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Prepare a snapshot set for clones that start fast.

    A server recovers the snapshot set once and is shut down cleanly; where clones are masked, it is masked once. Clones
    of it, and their resets, then need neither.
    """
    from zsnapdb.jobs.clone import plans
    from zsnapdb.jobs.clone import prepare as job
    from zsnapdb.report.clone.change import IntentionView
    from zsnapdb.report.clone.create import PreparedView, RemovedFormsView

    settings, chosen = of_instance(config, instance, binary=binary)
    if removes:
        act = job.forms_of if plan else job.remove_forms
        show(RemovedFormsView(tuple(act(settings, chosen, source)), is_done=not plan), json)
        return
    if plan:
        intention = plans.prepare(settings, chosen, source, masks=mask, accepts_older=accepts_older)
        show(IntentionView(intention, "prepare"), json)
        return

    def make() -> CommandAnswer:
        prepared = job.prepare(settings, chosen, source, masks=mask, accepts_older=accepts_older)
        return CommandAnswer(PreparedView(prepared))

    about = f"{chosen.name} from {source}{', masked' if mask else ''}"
    command = Repeatable("clone prepare", about, tell=chosen.events.tell)
    show_once(chosen.host, once, command, make, json)
