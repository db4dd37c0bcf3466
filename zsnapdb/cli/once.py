"""`--once RUN`: a command that is repeated with the id of its run is answered as the run was, and does nothing twice.

The verbs declare what they are about, and how it is seen what a run of theirs made; here it is decided what is done.
`backup` does not need this: the manifest, which all hosts see, has the id, and an interrupted backup goes on anyway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from zsnapdb.base.errors import PreflightError, UsageError
from zsnapdb.cli import log
from zsnapdb.cli.output import show
from zsnapdb.report.log_lines import LogLevel
from zsnapdb.report.view import View

if TYPE_CHECKING:
    from zsnapdb.jobs.base.host import Host


@dataclass(frozen=True)
class CommandAnswer:
    """What a command shows, and the code with which it ends. `kept` is what is recorded of it if it has secrets."""

    view: View
    exit_code: int = 0
    kept: View | None = None


@dataclass(frozen=True)
class RecordedView(View):
    """The answer of a run as it was recorded."""

    recorded_text: str
    recorded: Mapping[str, Any]

    def text(self) -> str:
        return self.recorded_text

    def fields(self) -> Mapping[str, Any]:
        return self.recorded

    def document(self) -> str:
        return json.dumps(self.recorded)


def _nothing() -> None:
    return None


def _no_aim() -> tuple[str, ...]:
    return ()


def _say_nothing(_text: str) -> None:
    return None


@dataclass(frozen=True)
class Repeatable:
    """A command that may be repeated.

    `about` is what it is about. `aim` returns the GUIDs of the datasets of that name. `made` returns the answer of a
    run that did its deed and was killed before that was recorded, or goes on with what it left; None: nothing is there.
    `gone` returns the answer if what the run was about is gone (None: then the command is refused). `revealed` adds to
    a recorded document what was kept out of it.
    """

    verb: str
    about: str
    aim: Callable[[], tuple[str, ...]] = _no_aim
    made: Callable[[], CommandAnswer | None] = _nothing
    gone: Callable[[], CommandAnswer] | None = None
    revealed: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    patience: float = 0.0
    tell: Callable[[str], None] = _say_nothing


def show_once(host: Host, run: str | None, command: Repeatable, make: Callable[[], CommandAnswer], json: bool) -> None:
    """Do what the command asks for, unless the run has done it (None: whatever was done), and show the answer.

    typer.Exit with the code of the answer if that is not 0. UsageError or PreflightError if the run was another one,
    was given up, or is about something that is gone. BusyError if the run is at work.
    """
    answer = make() if run is None else _answer_once(host, run, command, make)
    show(answer.view, json)
    if answer.exit_code:
        raise typer.Exit(answer.exit_code)


def _answer_once(host: Host, run: str, command: Repeatable, make: Callable[[], CommandAnswer]) -> CommandAnswer:
    from zsnapdb.jobs.record.once_record import Deed, OnceRecords, RunVerdict

    records = OnceRecords(host)
    with records.alone(run, Deed(command.verb, command.about), command.patience, command.tell):
        known = records.read(run)
        is_done = known is not None and known.is_done
        deed = Deed(command.verb, command.about, () if is_done else command.aim())
        decision = records.decide(run, deed, known)
        if decision.verdict is RunVerdict.ANSWER and known is not None:
            shown = command.revealed(_parsed(known.document))
            return CommandAnswer(RecordedView(known.text, shown), known.exit_code)
        if decision.verdict is RunVerdict.REFUSE:
            raise UsageError(decision.reason, hint=decision.hint)
        if decision.verdict is RunVerdict.GONE:
            if command.gone is None:
                raise PreflightError(decision.reason, hint=decision.hint)
            answer = command.gone()
        else:
            known = known or records.begin(run, deed)
            answer = command.made() or make()
        assert known is not None
        kept = answer.kept or answer.view
        try:
            records.end(known, answer.exit_code, kept.text(), kept.document())
        except PreflightError as error:
            # What was done is done, and whoever asked is to hear of it.
            log.write(LogLevel.WARNING, f"run {run} is not recorded, so it could be done twice: {error}")
        return answer


def _parsed(document: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(document)
    return parsed
