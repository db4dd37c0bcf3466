"""`zsnapdb setup`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.base.errors import UsageError
from zsnapdb.base.untrusted_text import printed
from zsnapdb.cli.options import AsJson, PlanOnly, ServerBinary, argument, flag, option
from zsnapdb.cli.output import require_yes, show, show_at_once
from zsnapdb.cli.progress import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zsnapdb.jobs.setup.steps import ProofResult
    from zsnapdb.planning.setup.facts import SetupAnswers
    from zsnapdb.planning.setup.plan import SetupPlan

_REFUSED = 4
_QUESTION = "Run the steps of setup?"


RepositoryAddress = Annotated[
    str | None,
    argument("ADDRESS", "Address for backups, such as s3://bucket/prefix or file:///folder.", show_default=False),
]
NewInstance = Annotated[str, option("--instance", "NAME", "Name of the instance.")]
ServerSocket = Annotated[
    str | None, option("--socket", "PATH", "Socket of the server.", show_default="that of the only server")
]
ChosenPool = Annotated[
    str | None, option("--pool", "NAME", "Pool for files that are not on ZFS.", show_default="the only one")
]
StoreEndpoint = Annotated[str | None, option("--endpoint", "URL", "Endpoint of the store.")]
CredentialsFile = Annotated[
    str | None, option("--credentials-file", "FILE", "File with the credentials of the store.", show_default=False)
]
PlainBackups = Annotated[bool, flag("--plain", "Do not encrypt the backups.")]
Unsigned = Annotated[bool, flag("--no-signing", "Create no signing key: trust every writer of the repository.")]
NewConfigFile = Annotated[
    Path | None, option("--config", "FILE", "Configuration to write.", show_default="/etc/zsnapdb/zsnapdb.toml")
]
MovedFiles = Annotated[bool, flag("--move", "Stop the server and move its files to ZFS if necessary.")]
BinlogsOn = Annotated[bool, flag("--binlogs", "Enable binlogs with one restart if the server writes none.")]
Unproved = Annotated[bool, flag("--no-proof", "Skip doctor, the first backup and the first drill.")]
TakenOver = Annotated[bool, flag("--take-over", "Continue the backups that another host made of the instance.")]
Notified = Annotated[
    str | None, option("--notify", "WHERE", "Target of failure messages: an e-mail address, a URL or a program.")
]
AnswersFile = Annotated[
    Path | None, option("--answers", "FILE", "File with all answers, instead of ADDRESS and options.")
]
Removed = Annotated[
    bool, flag("--remove", "Remove the instance from schedule and configuration. All data and keys stay.")
]
Unasked = Annotated[bool, typer.Option("--yes", "-y", help="Do the steps without a confirmation.")]


_ADDRESSES = (
    "run `zsnapdb setup s3://backups/production --plan`, or with a folder `zsnapdb setup file:///srv/backups --plan`"
)


def setup(
    repository: RepositoryAddress = None,
    instance: NewInstance = "main",
    socket: ServerSocket = None,
    pool: ChosenPool = None,
    endpoint: StoreEndpoint = None,
    credentials_file: CredentialsFile = None,
    plain: PlainBackups = False,
    no_signing: Unsigned = False,
    config: NewConfigFile = None,
    binary: ServerBinary = None,
    move: MovedFiles = False,
    binlogs: BinlogsOn = False,
    no_proof: Unproved = False,
    take_over: TakenOver = False,
    notify: Notified = None,
    remove: Removed = False,
    answers: AnswersFile = None,
    yes: Unasked = False,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Find the server of this host and set up its protection.

    Setup prints its plan, asks for a confirmation, and performs its steps: identity, configuration, account on the
    server, repository, schedule. Then it runs doctor, makes a backup, and proves it by a drill. It also prints the
    steps that you must do yourself. After an interruption, the same command resumes the setup.

    A server whose files are on ZFS is adopted without touching its files. Otherwise setup needs --move, or asks for it.
    Then setup creates datasets, stops the server, copies the files, compares every copy, and starts the server on them.
    The old files are kept.

    Before the first change, setup checks the conditions of all steps, such as the server program that a drill needs.

    In an existing configuration, every value stays, and setup adds only missing keys. Setup refuses to start if the
    configuration has another repository, socket or dataset for this instance. If the repository already has backups of
    the instance, setup schedules no prune before the configuration has retention rules. If another host made them,
    setup needs --take-over. With --plan: exit code 4 if the setup would be refused.
    """
    from zsnapdb.jobs.setup import discovery as job
    from zsnapdb.jobs.setup import steps

    if remove:
        _remove(repository, instance, config, yes=yes, plan=plan, json=json)
        return
    program = str(binary.absolute()) if binary is not None else None
    if (repository is None) == (answers is None):
        raise UsageError("setup needs the ADDRESS of the repository, or --answers", hint=_ADDRESSES)
    if repository is not None:
        options = (socket, pool, credentials_file, endpoint)
        flags = (not no_signing, binlogs, take_over)
        chosen = job.SetupAnswers(
            repository, instance, *options, not plain, program, move, not no_proof, notify, *flags
        )
    else:
        assert answers is not None
        chosen = steps.read(answers)
    made = job.plan(chosen, config)
    if not (yes or plan or json) and sys.stdin.isatty() and sys.stderr.isatty():
        made = _completed(chosen, made, config)
    _carry_out(made, yes=yes, plan=plan, json=json)


def _completed(chosen: SetupAnswers, made: SetupPlan, config: Path | None) -> SetupPlan:
    """Ask for values that a person may have forgotten to give. Return the plan that includes these values."""
    from zsnapdb.jobs.setup import discovery as job

    if made.lacks_move and made.server is not None:
        print(printed("\n".join(made.notes)), file=sys.stderr)
        if typer.confirm("Stop the server and move its files to ZFS?", default=False, err=True):
            chosen = replace(chosen, move=True)
            made = job.plan(chosen, config)
    if made.around.is_silent and not made.refusals:
        named = typer.prompt("Who hears of failures (e-mail, URL or program; empty: nobody)", default="", err=True)
        chosen = replace(chosen, notify=named or None)
        made = job.plan(chosen, config) if named else made
    if made.can_offer_binlogs:
        question = "The server writes no binlogs: changes between backups are lost. Turn them on (one restart)?"
        if typer.confirm(question, default=False, err=True):
            made = job.plan(replace(chosen, binlogs=True), config)
    return made


def _carry_out(made: SetupPlan, *, yes: bool, plan: bool, json: bool) -> None:
    from zsnapdb.jobs.setup import steps
    from zsnapdb.notify.occasions import send_test
    from zsnapdb.report import setup as report

    if plan:
        show(report.SetupPlanView(made), json)
        if made.refusals:
            raise typer.Exit(_REFUSED)
        return
    if not (yes or made.refusals):
        require_yes("setup", report.SetupPlanView(made).question(), _QUESTION, json=json)
    terminal = Terminal()
    done = steps.execute(made, terminal.tell, lambda settings, target: not send_test(settings, [target], terminal.tell))
    show(report.SetupView(done, _print_results(steps.prove(made, terminal), terminal, json)), json)


def _print_results(results: Iterable[ProofResult], terminal: Terminal, json: bool) -> list[ProofResult]:
    """Return the results of the proof.

    Each result is shown immediately, unless --json prints one document at the end.
    """
    from zsnapdb.report import setup as report

    proof = []
    for result in results:
        terminal.end()
        proof.append(result)
        if not json:
            show_at_once(report.proof_view(result), json)
    return proof


def _remove(repository: str | None, instance: str, config: Path | None, *, yes: bool, plan: bool, json: bool) -> None:
    from zsnapdb.jobs.setup import configuration as job
    from zsnapdb.report import setup as report

    if repository is not None:
        raise UsageError("setup --remove takes no ADDRESS", hint="name the instance with --instance instead")
    made = job.find_removal(instance, config)
    if plan:
        show(report.RemovalPlanView(made), json)
        return
    if not yes:
        require_yes("setup", report.RemovalPlanView(made).text(), _QUESTION, json=json)
    show(report.RemovalView(job.execute_removal(made, Terminal().tell)), json)
