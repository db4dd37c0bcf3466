"""Short texts about a setup: its effects on the host, and the commands that a new user needs next.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from zsnapdb.planning.setup.layout import UNIT, command_line
from zsnapdb.planning.setup.move import MoveStep
from zsnapdb.planning.setup.plan import PROOF, SetupAction, SetupPlan, SetupStep


def summarize(plan: SetupPlan) -> Iterator[str]:
    """Yield the effects of a plan on the host, most serious first. A question follows them."""
    own = [step.action for step in plan.steps if step.action is not None]
    yield _outage(plan, own)
    if created := [*_created(plan, own)]:
        yield f"setup writes: {', '.join(created)}"
    for step in plan.steps:
        if step.action is SetupAction.SCHEDULE:
            yield f"from then on, {UNIT if step.lines else 'cron'} runs all jobs"
    if set(PROOF) <= set(own):
        yield "then setup checks everything, makes a first backup, and restores it for a test, next to the server"
    if by_hand := [str(number) for number, step in enumerate(plan.steps, 1) if step.action is None]:
        yield f"you do {'step' if len(by_hand) == 1 else 'steps'} {', '.join(by_hand)} yourself"


def _outage(plan: SetupPlan, own: list[SetupAction]) -> str:
    if plan.move is not None and SetupAction.MOVE in own:
        if plan.move_step is MoveStep.START:
            return "setup starts the stopped server on its copied files"
        return (
            f"the server stops while setup copies its files to {plan.move.datasets[0].name}, and starts on the copies"
        )
    if SetupAction.BINLOG in own:
        return "the server restarts once, to turn the binlogs on; its files stay where they are"
    return "the server keeps running, and its files stay where they are"


def _created(plan: SetupPlan, own: list[SetupAction]) -> Iterator[str]:
    if plan.identity is not None and plan.recipient is None:
        yield f"the identity {plan.identity}"
    if plan.signing_key is not None and plan.signer is None:
        yield f"the signing key {plan.signing_key}"
    if plan.kept is None:
        yield f"the configuration {plan.configuration}"
    if plan.account is not None and SetupAction.ACCOUNT in own:
        yield f"the database account {plan.account.user}@localhost"
    if SetupAction.REPOSITORY in own:
        yield f"the repository {plan.answers.repository}, unless it exists"


def remaining_steps(plan: SetupPlan, recipient: str | None, signer: str | None) -> Iterator[SetupStep]:
    """Yield the steps that the user must do after setup. `recipient` and `signer` are the public parts of the keys."""
    if plan.identity is not None:
        title = f"Without {plan.identity} no backup can be read: keep a copy outside this host"
        yield SetupStep(title, (f"cat {plan.identity}", f"its recipient is {recipient}"))
    if plan.signing_key is not None:
        signers = plan.around.signers or (str(signer),)
        who = f"{plan.signing_key} signs" if len(signers) == 1 else "the keys of these signers sign"
        title = f"This host believes only what {who}. Note the line that other readers need"
        yield SetupStep(title, (f"signers = {json.dumps(signers)}",))
    yield from (step for step in plan.steps if step.action is None)


def next_commands(plan: SetupPlan) -> Iterator[tuple[str, str]]:
    """Yield commands that a new user needs after setup, each with its purpose."""
    name, table = plan.answers.instance, ("--table", "SCHEMA.TABLE")
    yield command_line(plan.configuration, "status", name), "shows what can be restored now, and what is wrong"
    if plan.server is not None and plan.archives:
        find = command_line(plan.configuration, "binlog", "find", name, *table)
        yield find, "finds the GTID of a wrong change"
        undo = command_line(plan.configuration, "undo", name, "--gtid", "GTID")
        yield undo, "shows the rows that it changed, and whether they can be undone"
    rescue = command_line(plan.configuration, "rescue", name, *table, "--to", "POINT", "--into", "FILE.sql")
    yield rescue, "writes an earlier state of a table into a file"
    yield (
        command_line(plan.configuration, "rewind", name, "--to", "latest", "--plan"),
        "shows how to return the server to its last state",
    )
