"""`zsnapdb setup`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.base.errors import UsageError
from zsnapdb.base.untrusted_text import printed
from zsnapdb.cli.options import AsJson, PlanOnly, ServerBinary
from zsnapdb.cli.output import show, show_at_once
from zsnapdb.cli.progress import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zsnapdb.jobs.setup.steps import ProofResult
    from zsnapdb.report.view import View

_REFUSED = 4


RepositoryAddress = Annotated[
    str | None,
    typer.Argument(
        metavar="ADDRESS", help="Address for backups: s3://bucket/prefix or file:///folder.", show_default=False
    ),
]
NewInstance = Annotated[str, typer.Option("--instance", metavar="NAME", help="Name of the instance.")]
ServerSocket = Annotated[
    str | None,
    typer.Option("--socket", metavar="PATH", help="Socket of the server.", show_default="that of the only server"),
]
ChosenPool = Annotated[
    str | None,
    typer.Option("--pool", metavar="NAME", help="Pool for files that are not on ZFS.", show_default="the only one"),
]
StoreEndpoint = Annotated[
    str | None, typer.Option("--endpoint", metavar="URL", help="Endpoint of the S3 store.", show_default=False)
]
CredentialsFile = Annotated[
    str | None,
    typer.Option(
        "--credentials-file", metavar="FILE", help="File with the credentials of the store.", show_default=False
    ),
]
PlainBackups = Annotated[bool, typer.Option("--plain", help="Do not encrypt the backups.")]
Unsigned = Annotated[
    bool, typer.Option("--no-signing", help="Create no signing key: trust every writer of the repository.")
]
NewConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Configuration to write.", show_default="/etc/zsnapdb/zsnapdb.toml"),
]
MovedFiles = Annotated[bool, typer.Option("--move", help="Stop the server and move its files to ZFS if necessary.")]
BinlogsOn = Annotated[
    bool, typer.Option("--binlogs", help="Enable binlogs with one restart if the server writes none.")
]
Unproved = Annotated[bool, typer.Option("--no-proof", help="Skip doctor, the first backup and the first drill.")]
Notified = Annotated[
    str | None,
    typer.Option(
        "--notify",
        metavar="WHERE",
        help="Target of failure messages: an e-mail address, a URL or a program.",
        show_default=False,
    ),
]
AnswersFile = Annotated[
    Path | None,
    typer.Option(
        "--answers",
        metavar="FILE",
        help="File with all answers, instead of ADDRESS and options.",
        show_default=False,
    ),
]
Removed = Annotated[
    bool, typer.Option("--remove", help="Remove the instance from schedule and configuration. All data and keys stay.")
]
Unasked = Annotated[bool, typer.Option("--yes", "-y", help="Do the steps without a confirmation.")]


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
    notify: Notified = None,
    remove: Removed = False,
    answers: AnswersFile = None,
    yes: Unasked = False,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Find the server of this host and set up its protection, from the identity to the schedule.

    Setup prints its plan, asks, and does its own steps: identity, configuration, account on the server, repository,
    schedule. Then it runs doctor, makes a backup, and proves it by a drill. It prints the steps that remain for you.
    The same setup resumes after an interruption.

    A server whose files are on ZFS is adopted without touching its files. Otherwise --move moves the files: setup
    creates datasets, stops the server, copies the files, compares every copy, and starts the server on them. The old
    files are kept.

    An existing configuration gets the instance added. An earlier setup of the same instance is replaced. With --plan:
    exit code 4 if the setup would be refused.
    """
    from zsnapdb.jobs.setup import discovery as job
    from zsnapdb.jobs.setup import steps as setup_answers
    from zsnapdb.jobs.setup import steps as setup_proof
    from zsnapdb.jobs.setup import steps as setup_steps
    from zsnapdb.notify.commands import send_test
    from zsnapdb.report import setup as report

    if remove:
        _remove(repository, instance, config, yes=yes, plan=plan, json=json)
        return
    program = str(binary.absolute()) if binary is not None else None
    if (repository is None) == (answers is None):
        raise UsageError("setup needs the ADDRESS of the repository, or --answers", hint="name one of the two")
    if repository is not None:
        options = (socket, pool, credentials_file, endpoint)
        chosen = job.SetupAnswers(
            repository, instance, *options, not plain, program, move, not no_proof, notify, not no_signing, binlogs
        )
    else:
        assert answers is not None
        chosen = setup_answers.read(answers)
    made = job.plan(chosen, config)
    if made.around.is_silent and not (yes or plan or json or made.refusals) and _has_reader():
        named = typer.prompt("Who hears of failures (e-mail, URL or program; empty: nobody)", default="", err=True)
        chosen = replace(chosen, notify=named or None)
        made = job.plan(chosen, config) if named else made
    if made.can_offer_binlogs and not (yes or plan or json) and _has_reader():
        question = "The server writes no binlogs: changes between backups are lost. Turn them on (one restart)?"
        if typer.confirm(question, default=False, err=True):
            chosen = replace(chosen, binlogs=True)
            made = job.plan(chosen, config)
    if plan:
        show(report.SetupPlanView(made), json)
        if made.refusals:
            raise typer.Exit(_REFUSED)
        return
    if not (yes or made.refusals):
        _ask(report.SetupPlanView(made), json)
    terminal = Terminal()
    done = setup_steps.execute(
        made, terminal.tell, lambda settings, target: not send_test(settings, [target], terminal.tell)
    )
    show(report.SetupView(done, _shown(setup_proof.prove(made, terminal), terminal, json)), json)


def _shown(results: Iterable[ProofResult], terminal: Terminal, json: bool) -> list[ProofResult]:
    """Return the results of the proof. Each is shown at once, unless --json prints one document at the end."""
    from zsnapdb.report import setup as report

    proof = []
    for result in results:
        terminal.end()
        proof.append(result)
        if not json:
            show_at_once(report.proof_view(result), json)
    return proof


def _remove(repository: str | None, instance: str, config: Path | None, *, yes: bool, plan: bool, json: bool) -> None:
    from zsnapdb.jobs.setup import removal as job
    from zsnapdb.report import setup as report

    if repository is not None:
        raise UsageError("setup --remove takes no ADDRESS", hint="name the instance with --instance instead")
    made = job.plan(instance, config)
    if plan:
        show(report.RemovalPlanView(made), json)
        return
    if not yes:
        _ask(report.RemovalPlanView(made), json)
    show(report.RemovalView(job.execute(made, Terminal().tell)), json)


def _ask(view: View, json: bool) -> None:
    """Print the plan and ask for a confirmation.

    Raises: UsageError if there is no terminal or the answer is no. Nothing was changed then.
    """
    if json or not _has_reader():
        raise UsageError("setup asks for a confirmation, which needs a terminal", hint="add --yes")
    print(printed(view.text()), file=sys.stderr)
    if not typer.confirm("Run the steps of setup?", err=True):
        raise UsageError("nothing was changed", hint="run the same command to be asked again")


def _has_reader() -> bool:
    """Whether stdin and stderr are a terminal for a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()
