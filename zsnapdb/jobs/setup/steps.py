"""Executes a setup plan. Every step can be repeated, so if a setup is interrupted, the same command continues it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from zsnapdb.base import files
from zsnapdb.base.errors import (
    CommandError,
    CommandTimeout,
    ConfigError,
    ConsistencyError,
    DamagedError,
    PreflightError,
    ServerError,
    ZsnapdbError,
)
from zsnapdb.config.errors import every_error, explain, read_toml
from zsnapdb.config.settings import Settings, load
from zsnapdb.jobs.backup import run
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import exclusive
from zsnapdb.jobs.doctor import instance_checks
from zsnapdb.jobs.doctor.instance_checks import Diagnosis
from zsnapdb.jobs.repository import init
from zsnapdb.jobs.setup import configuration
from zsnapdb.jobs.setup import move as setup_move
from zsnapdb.jobs.setup.later_steps import account_refusal, before_keys
from zsnapdb.jobs.trial import drill
from zsnapdb.jobs.trial.drill import DrillResult
from zsnapdb.mysql import accounts
from zsnapdb.mysql.process import discovery
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.backup.fitness import Severity
from zsnapdb.planning.setup.facts import SetupAnswers
from zsnapdb.planning.setup.layout import UNIT, AccountPlan
from zsnapdb.planning.setup.move import MoveStep
from zsnapdb.planning.setup.plan import PROOF, SetupAction, SetupPlan, SetupStep, SetupWay, executed
from zsnapdb.repository.crypto_keys import write_secret
from zsnapdb.repository.drills import Outcome
from zsnapdb.zfs import command

_RESTART_SECONDS, _ANSWER_SECONDS = 900.0, 60.0


@dataclass(frozen=True)
class SetupResult:
    """The executed plan, and the public parts of the identity and the signing key."""

    plan: SetupPlan
    recipient: str | None
    signer: str | None = None


def execute(
    plan: SetupPlan,
    tell: Callable[[str], None] = lambda _: None,
    hears: Callable[[Settings, str], bool] = lambda _settings, _target: True,
) -> SetupResult:
    """Execute each step of the plan that setup itself performs, except the final verification.

    `tell` receives the title of each step. `hears` gets the name of a notification target, and returns whether a test
    message reached it. After an error that is not listed here, completed steps stay complete, and the same setup
    command can continue.

    Raises:
        CommandError: the test message did not arrive. No step was executed.
        PreflightError: the plan contains a reason why it must not be executed. Nothing was changed, with one exception:
            a move was completed if its server was already running on ZFS, or was stopped on its copies.
    """
    if plan.move is not None and (plan.move_step is MoveStep.FINISH or plan.starts_server):
        with exclusive("setup", doing="setting up this host"):
            setup_move.execute(plan.move, plan.move_step, tell)
    if plan.refusals:
        raise PreflightError("; ".join(plan.refusals), hint=plan.refusal_hint)
    settings = before_keys(plan)
    init.prove(settings, plan.around.repository)
    if plan.around.target and plan.kept is None and not hears(settings, plan.around.target):
        why = f"the test message did not reach {plan.answers.printed_target}, and nothing was changed"
        raise CommandError(why, hint="the reason is shown above; give another target with --notify, or leave it out")
    with exclusive("setup", doing="setting up this host"):
        recipient, signer = plan.recipient, plan.signer
        if plan.move is not None and plan.way is SetupWay.MOVE and not plan.starts_server:
            setup_move.execute(plan.move, plan.move_step, tell)
        for step in plan.steps:
            if step.action in (None, SetupAction.MOVE, *PROOF):
                continue
            tell(step.title)
            if step.action is SetupAction.IDENTITY:
                recipient = recipient or _make_identity(plan)
            elif step.action is SetupAction.SIGNING_KEY:
                signer = signer or _make_signing_key(plan)
            else:
                _do(plan, step, recipient)
    pid = next((one.pid for one in discovery.server_processes() if plan.socket in one.sockets), None)
    return SetupResult(executed(plan, pid), recipient, signer)


def _do(plan: SetupPlan, step: SetupStep, recipient: str | None) -> None:
    if step.action is SetupAction.CONFIGURATION:
        name, file = plan.answers.instance, Path(plan.configuration)
        configuration.write_tables(file, plan.around.configured, plan.text(recipient), name, plan.written)
    elif step.action is SetupAction.BINLOG:
        _turn_binlogs_on(Path(plan.socket), step)
    elif step.action is SetupAction.ACCOUNT and plan.account is not None:
        _make_account(Path(plan.socket), plan.account)
    elif step.action is SetupAction.REPOSITORY:
        init.init(load(Path(plan.configuration)), plan.around.repository)
    elif step.action is SetupAction.SCHEDULE:
        if step.path:
            _write(Path(step.path), step.text, 0o644)
        if not step.lines:
            configuration.note_written(Path(plan.configuration), plan.answers.instance, plan.with_cron(step.text))
        _run(step.lines)


def _turn_binlogs_on(socket: Path, step: SetupStep) -> None:
    """Write the option file, restart the server, and check that it writes binlogs.

    Raises ServerError if the server writes no binlogs. If the server does not start with the option file, the file is
    removed and the server is started again. If the server starts but does not answer yet, the option file stays,
    because the server may be recovering.
    """
    file, (line,) = Path(step.path), step.lines
    _write(file, step.text, 0o644)
    try:
        command.run(line.split(), timeout=_RESTART_SECONDS)
    except CommandTimeout as error:
        raise ServerError(
            f"the server has not finished its start with {file}; setup did not stop it",
            hint=f"see `journalctl -u {line.split()[-1]}`; run the same setup again when it answers",
        ) from error
    except CommandError as error:
        file.unlink()
        command.run(line.split(), timeout=_RESTART_SECONDS)
        raise ServerError(
            f"the server did not start with {file}, which was removed again: {error.message}",
            hint=f"see `journalctl -u {line.split()[-1]}` and the server's log; leave --binlogs out to continue",
        ) from error
    if not int(_answer(socket, "SELECT @@GLOBAL.log_bin")):
        raise ServerError(
            f"the server was restarted with {file} and writes no binlogs: another option turns them off",
            hint="remove skip_log_bin and disable_log_bin from its option files and command line; then run setup again",
        )


def _answer(socket: Path, question: str) -> str:
    """Query a value from a server that has just been started.

    Raises ServerError if the server accepts no connection within a minute.
    """
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            with Session.open(Address("root", socket), SecretStr("")) as session:
                return str(session.value(question))
        except ServerError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _run(lines: Sequence[str]) -> None:
    try:
        for line in lines:
            command.run(line.split())
    except CommandError as error:
        hint = f"see `journalctl -u {UNIT}`; all steps before this one are done"
        raise CommandError(str(error), hint=hint) from error


def _make_identity(plan: SetupPlan) -> str:
    assert plan.identity is not None
    file = Path(plan.identity)
    file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    (recipient,) = init.generate_keys(file, None).recipients
    return recipient


def _make_signing_key(plan: SetupPlan) -> str | None:
    assert plan.signing_key is not None
    file = Path(plan.signing_key)
    file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    return init.generate_keys(None, file).signer


def _write(file: Path, text: str, mode: int) -> None:
    file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    files.replace(file, text.encode(), mode)


def _make_account(socket: Path, account: AccountPlan) -> None:
    """Create the account and log in. If an interrupted setup left a password file, use the password in this file."""
    password = SecretStr("")
    if account.password_file is not None:
        file = Path(account.password_file)
        if not file.exists():
            write_secret(file, f"{secrets.token_urlsafe(24)}\n".encode())
        password = files.password_in(file, "password_file")
    with Session.open(Address("root", socket), SecretStr("")) as session:
        accounts.run_statements(session, account.statements, password)
    try:
        Session.open(Address(account.user, socket), password).close()
    except ServerError as error:
        refusal = account_refusal(account, error)
        raise ServerError(refusal.why, hint=refusal.hint) from error


class AnswersDocument(BaseModel):
    """The keys of the answers file, which are the options of `zsnapdb setup`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    repository: str
    instance: str = "main"
    socket: str | None = None
    pool: str | None = None
    credentials_file: str | None = None
    endpoint: str | None = None
    plain: bool = False
    signing: bool = True
    binlogs: bool = False
    binary: str | None = None
    move: bool = False
    proof: bool = True
    notify: str | None = None
    take_over: bool = False


def read(file: Path) -> SetupAnswers:
    """Return the answers in a TOML file. Raises ConfigError, which lists all invalid keys, if a key is invalid."""
    hint = "`zsnapdb example setup-answers.toml` prints one"
    text = files.read_text(file, "the answers", hint)
    raw = read_toml(text, str(file))
    try:
        document = AnswersDocument.model_validate(raw)
    except ValidationError:
        message, known = explain(every_error(raw, AnswersDocument), AnswersDocument)
        raise ConfigError(f"{file}: {message}", hint=known or hint) from None
    values = document.model_dump()
    return SetupAnswers(encrypt=not values.pop("plain"), sign=values.pop("signing"), **values)


_PATIENCE = 600.0
"""The time in seconds to wait for a job of the agent that setup has just started."""
AGAIN = "all steps before this one are done; when the cause is mended, run the same setup again"


@dataclass(frozen=True)
class SetupCheck:
    """The result of `doctor` during a setup."""

    diagnosis: Diagnosis


ProofResult = SetupCheck | run.BackupResult | DrillResult


def prove(plan: SetupPlan, events: Events) -> Iterator[ProofResult]:
    """Execute the verification steps of the plan, and yield the result of each step, even if it is a failure.

    Every error has a note that says how to continue the setup. Raises PreflightError if the instance is not fit for
    backups. Raises ConsistencyError or DamagedError if the drill did not pass.
    """
    settings = load(Path(plan.configuration))
    instance = Instance.of(settings, plan.answers.instance, events).waiting(_PATIENCE)
    for step in plan.steps:
        if step.action not in PROOF:
            continue
        events.tell(step.title)
        try:
            result = _proof_result(step.action, settings, instance)
            yield result
            _check(result)
        except ZsnapdbError as error:
            error.add_note(AGAIN)
            raise


def _proof_result(action: SetupAction | None, settings: Settings, instance: Instance) -> ProofResult:
    if action is SetupAction.DOCTOR:
        (diagnosis,) = instance_checks.diagnose(settings, instance.host, instance.name)
        return SetupCheck(diagnosis)
    if action is SetupAction.BACKUP:
        return run.backup(instance)
    return drill.drill(settings, instance, drill.DrillRequest())


def _check(result: ProofResult) -> None:
    if isinstance(result, SetupCheck):
        for finding in result.diagnosis.findings:
            if finding.severity is Severity.UNFIT:
                raise PreflightError(
                    f"the server is set up, and cannot be backed up: {finding.detail}", hint=finding.hint
                )
    elif isinstance(result, DrillResult) and result.evidence.outcome is not Outcome.PASSED:
        kind = DamagedError if result.evidence.outcome is Outcome.DAMAGED else ConsistencyError
        raise kind("the first drill did not pass", hint="see its checks that did not pass, above")
