"""`zsnapdb setup`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.base.errors import UsageError
from zsnapdb.base.foreign_text import printed
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
        metavar="ADDRESS", help="Where backups go: s3://bucket/prefix or file:///folder.", show_default=False
    ),
]
NewInstance = Annotated[str, typer.Option("--instance", metavar="NAME", help="The name of the instance.")]
ServerSocket = Annotated[
    str | None,
    typer.Option("--socket", metavar="PATH", help="The socket of the server.", show_default="that of the only server"),
]
ChosenPool = Annotated[
    str | None,
    typer.Option("--pool", metavar="NAME", help="The pool for files that are not on ZFS.", show_default="the only one"),
]
StoreEndpoint = Annotated[
    str | None, typer.Option("--endpoint", metavar="URL", help="The endpoint of the S3 store.", show_default=False)
]
CredentialsFile = Annotated[
    str | None,
    typer.Option(
        "--credentials-file", metavar="FILE", help="The file with the credentials of the store.", show_default=False
    ),
]
PlainBackups = Annotated[bool, typer.Option("--plain", help="Do not encrypt the backups.")]
Unsigned = Annotated[
    bool, typer.Option("--no-signing", help="Make no signing key: believe what anybody writes to the repository.")
]
NewConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="The configuration to write.", show_default="/etc/zsnapdb/zsnapdb.toml"
    ),
]
MovedFiles = Annotated[
    bool, typer.Option("--move", help="Stop the server and move its files to ZFS, if they are not there.")
]
BinlogsOn = Annotated[
    bool, typer.Option("--binlogs", help="Turn on the binlogs of a server that writes none, with one restart.")
]
Unproved = Annotated[
    bool, typer.Option("--no-proof", help="Leave doctor, the first backup and the first drill to you.")
]
Notified = Annotated[
    str | None,
    typer.Option(
        "--notify",
        metavar="WHERE",
        help="Who hears of failures: an address of e-mail, a URL, or the path of a program.",
        show_default=False,
    ),
]
AnswersFile = Annotated[
    Path | None,
    typer.Option(
        "--answers",
        metavar="FILE",
        help="A file with all answers, in place of ADDRESS and options.",
        show_default=False,
    ),
]
Removed = Annotated[
    bool, typer.Option("--remove", help="Take the instance out of schedule and configuration; all data and keys stay.")
]
Unasked = Annotated[bool, typer.Option("--yes", "-y", help="Do the steps without a question.")]


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

    Setup prints its plan, asks, and does the steps that are its own: identity, configuration, account on the server,
    repository, schedule. Then it runs doctor, makes a backup, and proves it by a drill. It prints what is left to you.
    The same setup again goes on where one was interrupted. A server whose files lie on ZFS is adopted: its files are
    not touched. The files of another one are moved with --move: setup creates datasets, stops the server, copies the
    files, compares every copy, and starts the server on them. The old files are kept. A configuration that is there
    gets the instance added; what an earlier setup wrote of the same instance is replaced. With --plan: 4 if the setup
    would be refused.
    """
    from zsnapdb.jobs.setup import find as job
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
    """Return the results of the proof. Each is shown at once, unless one document shows all of them at the end."""
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
        raise UsageError("setup --remove takes no ADDRESS", hint="--instance names the instance to give up")
    made = job.plan(instance, config)
    if plan:
        show(report.RemovalPlanView(made), json)
        return
    if not yes:
        _ask(report.RemovalPlanView(made), json)
    show(report.RemovalView(job.execute(made, Terminal().tell)), json)


def _ask(view: View, json: bool) -> None:
    """Print the plan and ask. UsageError where nobody can answer, or the answer is no: then nothing was changed."""
    if json or not _has_reader():
        raise UsageError("setup asks before it changes anything, and nobody can answer here", hint="add --yes")
    print(printed(view.text()), file=sys.stderr)
    if not typer.confirm("Do the steps that are its own?", err=True):
        raise UsageError("nothing was changed", hint="the same command asks again")


def _has_reader() -> bool:
    """Whether somebody can read a question here and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()
