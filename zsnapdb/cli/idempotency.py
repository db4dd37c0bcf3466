"""`--once RUN`: a repeated command with the same run id returns the earlier answer and repeats no action.

Each verb declares which object it changes, and how to detect that an earlier run already made its change. This module
chooses the action. `backup` does not need this module: the manifest contains the run id, and a later backup resumes an
interrupted one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from zsnapdb.base.errors import PreflightError, UsageError
from zsnapdb.cli import log_writer
from zsnapdb.cli.output import Printable, show

if TYPE_CHECKING:
    from zsnapdb.jobs.base.host import Host


@dataclass(frozen=True)
class CommandAnswer:
    """Output and exit code of a command. If the output contains secrets, `kept` is the output to record instead."""

    view: Printable
    exit_code: int = 0
    kept: Printable | None = None


@dataclass(frozen=True)
class RecordedAnswer:
    """Recorded answer of an earlier run."""

    recorded_text: str
    recorded: Mapping[str, Any]

    def text(self) -> str:
        """Return the recorded result as text, the output without `--json`."""
        return self.recorded_text

    def document(self) -> str:
        """Return the recorded result as a JSON document, the output with `--json`."""
        return json.dumps(self.recorded)


@dataclass(frozen=True)
class Repeatable:
    """A command that may be repeated.

    - `about`: the object of the command.
    - `aim`: returns the GUIDs of the datasets that have the object's name.
    - `made`: returns the answer of a run that was killed between its action and its record, or resumes that run (None:
      the run left nothing).
    - `gone`: returns the answer if the object no longer exists (None: the command is refused).
    - `revealed`: adds the secrets that the recorded document lacks.
    - `patience`: seconds to wait for the same run in another process.
    - `is_scheduled`: whether a schedule derives run ids from its times. While the clock was ahead, an earlier run may
      have used the id of this run. Such a record is ignored, so the command may run twice.
    """

    verb: str
    about: str
    aim: Callable[[], tuple[str, ...]] = tuple
    made: Callable[[], CommandAnswer | None] = field(default=lambda: None)
    gone: Callable[[], CommandAnswer] | None = None
    revealed: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    patience: float = 0.0
    is_scheduled: bool = False
    tell: Callable[[str], None] = field(default=lambda _text: None)


def show_once(host: Host, run: str | None, command: Repeatable, make: Callable[[], CommandAnswer], json: bool) -> None:
    """Run the command unless the same run is already complete, and show the answer.

    If `run` is None, always run the command.

    Raises:
        typer.Exit: with the exit code of the answer if that is not 0.
        UsageError, PreflightError: the run belongs to another command, was abandoned, or its object no longer exists.
        BusyError: the run is in progress.
    """
    answer = make() if run is None else _answer_once(host, run, command, make)
    show(answer.view, json)
    if answer.exit_code:
        raise typer.Exit(answer.exit_code)


def _answer_once(host: Host, run: str, command: Repeatable, make: Callable[[], CommandAnswer]) -> CommandAnswer:
    from zsnapdb.jobs.record.idempotency_records import Action, OnceRecords, RunVerdict

    records = OnceRecords(host)
    with records.alone(run, Action(command.verb, command.about), command.patience, command.tell):
        known = records.read(run)
        is_early = command.is_scheduled and known is not None and records.began_early(known)
        known = None if is_early else known
        is_done = known is not None and known.is_done
        action = Action(command.verb, command.about, () if is_done else command.aim())
        decision = records.decide(run, action, known)
        if decision.verdict is RunVerdict.ANSWER and known is not None:
            shown = command.revealed(_parsed(known.document))
            return CommandAnswer(RecordedAnswer(known.text, shown), known.exit_code)
        if decision.verdict is RunVerdict.REFUSE:
            raise UsageError(decision.reason, hint=decision.hint)
        if decision.verdict is RunVerdict.GONE:
            if command.gone is None:
                raise PreflightError(decision.reason, hint=decision.hint)
            answer = command.gone()
        else:
            known = known or records.begin(run, action)
            answer = (None if is_early else command.made()) or make()
        assert known is not None
        kept = answer.kept or answer.view
        try:
            records.end(known, answer.exit_code, kept.text(), kept.document())
        except PreflightError as error:
            # The action is complete, so the caller must get the answer even after an error.
            log_writer.warn(f"run {run} is not recorded, so the command could run twice: {error}")
        return answer


def _parsed(document: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(document)
    return parsed
