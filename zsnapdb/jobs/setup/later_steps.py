"""Checks the conditions of all steps of a setup before its first step. The checks change nothing."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import SecretStr

from zsnapdb.base import files
from zsnapdb.base.errors import ConfigError, NotFound, ServerError, ZsnapdbError
from zsnapdb.base.quantities import quantity, size
from zsnapdb.config.settings import Settings, parse
from zsnapdb.jobs.backup import preflight
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.repository import init
from zsnapdb.jobs.trial import host_needs
from zsnapdb.mysql import accounts, locks
from zsnapdb.mysql.probe import probe
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.backup.fitness import FitnessFinding, Severity, judge_server
from zsnapdb.planning.backup.lock_strategy import AUTO, choose
from zsnapdb.planning.setup.facts import FoundServer, LaterFacts, SetupFacts, SetupRefusal
from zsnapdb.planning.setup.layout import UNIT, AccountPlan
from zsnapdb.planning.setup.plan import PROOF, SetupAction, SetupPlan, SetupWay
from zsnapdb.repository.catalogue import Summary
from zsnapdb.store.layers import refuse_unfit

UNIT_FOLDERS = ("/etc/systemd/system", "/run/systemd/system")
"""The folders with masks of units (systemctl(1), "mask")."""
_PATIENCE = 5.0
"""The time in seconds for which an unreachable repository is retried."""
_SHELL_KEY = "AWS_ACCESS_KEY_ID"
"""The environment variable with credentials, which the agent and cron do not get from the user's shell."""


def before_keys(planned: SetupPlan) -> Settings:
    """Return the planned settings without the key files that the setup will create.

    Raises ConfigError if the settings are invalid.
    """
    return parse(replace(planned, signing=None).text(None), planned.configuration)


@dataclass(frozen=True)
class Ahead:
    """A plan of a setup, the settings that it writes, and the instance in these settings."""

    plan: SetupPlan
    settings: Settings
    instance: Instance
    is_running: bool
    """Whether the server runs. An interrupted move may have stopped it."""

    @property
    def server(self) -> FoundServer:
        assert self.plan.server is not None
        return self.plan.server


@dataclass(frozen=True)
class Condition:
    """A condition of a later step. The check yields or raises the unmet parts of the condition."""

    name: str
    step: SetupAction
    check: Callable[[Ahead], Iterator[SetupRefusal]]


def look_ahead(facts: SetupFacts, planned: SetupPlan) -> LaterFacts:
    """Return the unmet conditions of the planned steps, and the state of the repository.

    If setup does not run a step itself, its unmet conditions are notes.
    """
    try:
        settings = before_keys(planned)
        instance = Instance.of(settings, planned.answers.instance).impatient(_PATIENCE)
    except ConfigError as error:
        return LaterFacts((SetupRefusal(f"the answers make no configuration: {error.message}", error.hint),))
    ahead = Ahead(planned, settings, instance, _is_running(facts, planned))
    own = {step.action for step in planned.steps}
    refusals, notes = list[SetupRefusal](), list[str]()
    for condition in CONDITIONS:
        if condition.step in own:
            refusals += _unmet(condition, ahead)
        elif condition.step in PROOF and facts.passed_drill is None:
            notes += [f"later: {unmet.why}; {unmet.hint}" for unmet in _unmet(condition, ahead)]
    notes += (*_shell_keys(ahead), *_folder_room(ahead))
    has_repository, backups, maker = False, 0, ""
    try:
        has_repository, backups, maker = _stored(ahead)
    except ZsnapdbError as error:
        refusals.append(_unusable(ahead, error))
    unmet, told = tuple(dict.fromkeys(refusals)), tuple(dict.fromkeys(notes))
    return LaterFacts(unmet, has_repository, backups, maker, told)


def _is_running(facts: SetupFacts, planned: SetupPlan) -> bool:
    known = set(planned.server.sockets) if planned.server is not None else set()
    return any(known & set(server.sockets) for server in facts.servers)


def _unmet(condition: Condition, ahead: Ahead) -> list[SetupRefusal]:
    try:
        return list(condition.check(ahead))
    except ZsnapdbError as error:
        return [SetupRefusal(error.message, error.hint)]


def _stored(ahead: Ahead) -> tuple[bool, int, str]:
    """Return whether the repository exists, the number of the instance's backups in it, and their `maker`.

    If this host recorded that it stored backups of the instance there, there is no other maker.
    """
    try:
        repository, name = ahead.instance.open_repository(), ahead.instance.name
        backups = repository.backup_ids(name)
    except NotFound:
        return False, 0, ""
    is_own = any(record.instance == name for record in ahead.instance.expected_backups())
    host = ""
    if backups and not is_own:
        with suppress(ZsnapdbError):
            host = Summary.read(repository, name, backups[-1]).host
    return True, len(backups), host if host != socket.gethostname() else ""


def _repository(ahead: Ahead) -> Iterator[SetupRefusal]:
    """Check that the store answers, and that this host may write backups to the repository."""
    try:
        init.plan(ahead.settings, ahead.plan.around.repository)
        refuse_unfit(ahead.instance.repository)
        if ahead.plan.around.is_shared or ahead.plan.identity is None:
            with suppress(NotFound):
                ahead.instance.open_repository().check_writable()
    except ZsnapdbError as error:
        yield _unusable(ahead, error)


def _unusable(ahead: Ahead, error: ZsnapdbError) -> SetupRefusal:
    return SetupRefusal(f"the repository {ahead.plan.answers.repository} cannot be used: {error.message}", error.hint)


def _identity(ahead: Ahead) -> Iterator[SetupRefusal]:
    """Check that the identity of this host opens the existing backups of the instance."""
    try:
        repository, name = ahead.instance.open_repository(), ahead.instance.name
    except NotFound:
        return
    known, file = repository.recipients, ahead.plan.identity
    if known and ahead.plan.recipient not in known and (count := len(repository.backup_ids(name))):
        what = f"the repository has {quantity(count, 'backup')} of {name}, encrypted to {known[0]}"
        yield SetupRefusal(
            f"{what}, and {file} is not an identity that opens them",
            f"copy the identity of the host that made these backups to {file}, or use another address",
        )


def _files(ahead: Ahead) -> Iterator[SetupRefusal]:
    """Check that the folders of all files can be written that setup creates."""
    keys = (ahead.plan.identity, ahead.plan.signing_key, ahead.plan.account and ahead.plan.account.password_file)
    paths = [path for path in (*(step.path for step in ahead.plan.steps), *keys) if path]
    for folder in dict.fromkeys(_existing(Path(path).parent) for path in paths):
        if not (folder.is_dir() and os.access(folder, os.W_OK)):
            yield SetupRefusal(f"setup must write files in {folder}, and cannot", f"make {folder} a writable folder")


def _existing(folder: Path) -> Path:
    return next((one for one in (folder, *folder.parents) if os.path.lexists(one)), Path("/"))


def _schedule(ahead: Ahead) -> Iterator[SetupRefusal]:
    """Check that systemd can run the agent."""
    (step,) = [step for step in ahead.plan.steps if step.action is SetupAction.SCHEDULE]
    for program in {line.split()[0] for line in step.lines}:
        if shutil.which(program) is None:
            yield SetupRefusal(f"the command {program} was not found", f"install {program}")
    for folder in UNIT_FOLDERS:
        if step.lines and os.path.realpath(f"{folder}/{UNIT}") == "/dev/null":
            yield SetupRefusal(f"{UNIT} is masked", f"run `systemctl unmask {UNIT}`")


def _account(ahead: Ahead) -> Iterator[SetupRefusal]:
    """Check that setup can log in with the account that it would create, if this account exists already."""
    account, socket = ahead.plan.account, Path(ahead.plan.socket)
    if account is None or not ahead.is_running:
        return
    with Session.open(Address("root", socket), SecretStr("")) as session:
        if not accounts.is_known(session, account.user):
            return
    file = Path(account.password_file) if account.password_file is not None else None
    password = files.password_in(file, "password_file") if file is not None and file.exists() else SecretStr("")
    try:
        Session.open(Address(account.user, socket), password).close()
    except ServerError as error:
        yield account_refusal(account, error)


def account_refusal(account: AccountPlan, error: ServerError) -> SetupRefusal:
    """Return the refusal for an account that exists with another login."""
    user = f"{account.user}@localhost"
    return SetupRefusal(
        f"the account {user} was there before, and setup cannot log in as it: {error.message}",
        f"if nobody else uses it, run `DROP USER {user}` on the server, then the same setup again",
    )


def _login(ahead: Ahead) -> Iterator[SetupRefusal]:
    """Check the login that the configuration has, if setup does not create it."""
    if ahead.plan.around.knows_login(ahead.plan.login) or not ahead.is_running:
        return
    try:
        ahead.instance.session().close()
    except ServerError as error:
        name = ahead.instance.name
        hint = f"correct the login in [instance.{name}], or create the account with `zsnapdb grants {name}`"
        yield SetupRefusal(f"the login in {ahead.plan.configuration} does not work: {error.message}", hint)


def _fitness(ahead: Ahead) -> Iterator[SetupRefusal]:
    """Check as root that the server is fit for backups, as `doctor` does after setup with zsnapdb's account."""
    if not ahead.server.lets_root_in or not ahead.is_running:
        return
    with Session.open(Address("root", Path(ahead.plan.socket)), SecretStr("")) as session:
        if ahead.plan.way is SetupWay.ADOPT:
            findings = list(preflight.examine(ahead.instance, session).findings)
        else:
            findings = moved_fitness(session, ahead.plan.socket)
    yield from _unfit(findings)


def moved_fitness(session: Session, socket: str) -> list[FitnessFinding]:
    """Return the findings about a server that do not depend on the place of its files.

    Raises PreflightError if no lock fits the server.
    """
    facts = probe(session)
    choose(facts, AUTO, locks.STRATEGIES)
    return judge_server(facts, socket, forced=False)


def _unfit(findings: list[FitnessFinding]) -> Iterator[SetupRefusal]:
    yield from (SetupRefusal(one.detail, one.hint) for one in findings if one.severity is Severity.UNFIT)


def _drill(ahead: Ahead) -> Iterator[SetupRefusal]:
    server = ahead.server
    if server.version is not None:
        replays = ahead.plan.archives
        findings = host_needs.judge_host(
            ahead.settings, ahead.instance, server.flavour, server.version, replays=replays
        )
        for unmet in _unfit(findings):
            yield SetupRefusal(f"the first drill cannot run: {unmet.why}", unmet.hint)


def _room(ahead: Ahead) -> Iterator[SetupRefusal]:
    if not ahead.server.is_on_zfs:
        return
    for unmet in _unfit(host_needs.judge_room(ahead.instance, _datasets(ahead))):
        yield SetupRefusal(f"the first drill cannot run: {unmet.why}", f"{unmet.hint}, or add --no-proof")


def _datasets(ahead: Ahead) -> tuple[str, ...]:
    volumes = ahead.instance.settings.volumes
    return tuple(sorted(volumes.values())) if volumes is not None else (ahead.server.dataset,)


def _shell_keys(ahead: Ahead) -> Iterator[str]:
    provider = ahead.instance.repository.provider
    if provider is None or provider.credentials_file is not None:
        return
    if _SHELL_KEY in os.environ:
        yield (
            f"the credentials come from {_SHELL_KEY} of this shell, which the scheduled jobs do not have: write them"
            " to a file, and name it with --credentials-file"
        )


def _folder_room(ahead: Ahead) -> Iterator[str]:
    """Yield a note if a first backup may not fit into the folder of the repository."""
    address, server = ahead.instance.repository.address, ahead.server
    if address.scheme != "file":
        return
    with suppress(OSError, ZsnapdbError):
        seen = os.statvfs(f"/{address.path}")
        free = seen.f_bavail * seen.f_frsize
        needed = host_needs.referenced(_datasets(ahead)) if server.is_on_zfs else server.used
        if free < needed:
            yield f"/{address.path} has {size(free)} free, and the files take {size(needed)} before their compression"


CONDITIONS = (
    Condition("repository", SetupAction.REPOSITORY, _repository),
    Condition("identity", SetupAction.IDENTITY, _identity),
    Condition("files", SetupAction.CONFIGURATION, _files),
    Condition("account", SetupAction.ACCOUNT, _account),
    Condition("login", SetupAction.DOCTOR, _login),
    Condition("schedule", SetupAction.SCHEDULE, _schedule),
    Condition("fitness", SetupAction.BACKUP, _fitness),
    Condition("drill", SetupAction.DRILL, _drill),
    Condition("room", SetupAction.DRILL, _room),
)
"""The conditions of the last steps. Setup checks all of them before its first change, and with --plan."""
