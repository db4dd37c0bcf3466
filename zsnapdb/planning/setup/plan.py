"""Plans a setup. If a server's files are not on ZFS, setup creates datasets and moves the files to them.

Pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from zsnapdb.base.quantities import quantity, size
from zsnapdb.planning.server_family import family
from zsnapdb.planning.setup.choices import choose_pool, choose_server, missing_binlogs_reason
from zsnapdb.planning.setup.configuration import (
    ALONE,
    NO_SIGNING,
    PRUNE,
    RECIPIENT,
    ServerLogin,
    ServerPlaces,
    SetupSurroundings,
    merged_configuration,
    retention_rules,
    retention_table,
    surroundings,
)
from zsnapdb.planning.setup.contradictions import contradictions, is_same_path
from zsnapdb.planning.setup.facts import (
    FoundServer,
    LaterFacts,
    SetupAnswers,
    SetupFacts,
    SetupRefusal,
    WrittenTables,
)
from zsnapdb.planning.setup.layout import (
    BINLOG_FRAGMENT,
    UNIT,
    UNIT_FILE,
    AccountPlan,
    account_plan,
    binlog_options,
    command_line,
    cron_file,
    cron_jobs,
    merged_cron,
    user_of,
)
from zsnapdb.planning.setup.merge import Merge, subtables
from zsnapdb.planning.setup.move import MoveDecision, MoveStep, ServerMove, dataset_names, objections, planned_move


class SetupWay(StrEnum):
    """The way in which setup handles the files of the server.

    ADOPT does not move the files. MOVE creates datasets and copies the files into them.
    """

    ADOPT = "adopt"
    MOVE = "move"


class SetupAction(StrEnum):
    """An action that setup itself performs. The user performs all other steps."""

    MOVE = "move"
    BINLOG = "binlog"
    IDENTITY = "identity"
    SIGNING_KEY = "signing-key"
    CONFIGURATION = "configuration"
    ACCOUNT = "account"
    REPOSITORY = "repository"
    SCHEDULE = "schedule"
    DOCTOR = "doctor"
    BACKUP = "backup"
    DRILL = "drill"


PROOF = (SetupAction.DOCTOR, SetupAction.BACKUP, SetupAction.DRILL)
"""The last steps, which verify the result of the previous steps. `jobs/setup/steps.py` runs them."""


@dataclass(frozen=True)
class SetupStep:
    """A step of setup: its title, and either shell lines, SQL lines or a file to write."""

    title: str
    lines: tuple[str, ...] = ()
    path: str = ""
    text: str = ""
    action: SetupAction | None = None


@dataclass(frozen=True)
class StartedMove:
    """An interrupted move of files, with the decision about its next step."""

    move: ServerMove
    decision: MoveDecision


@dataclass(frozen=True)
class SetupPlan:
    """The plan of a setup: the server, the way in which its files are handled (`SetupWay`), and the steps.

    A plan with refusals contains steps only if nothing but `--move` is missing.

    - `configuration`, `identity`: the paths of the files that setup writes; without encryption, `identity` is None
    - `recipient`: the recipient of an existing identity
    - `account`: the account to create, or None if every server has it; `move`: the move of the files, if any
    - `move_step`: the step of the move. FINISH is executed even if there are refusals, because the server already runs
      on ZFS and setup only records this. START is executed too (`starts_server`)
    - `around`: the existing configuration
    - `kept`: the text of the existing configuration, if it lacks nothing and is not changed
    - `signing`: the file of the signing key, or NO_SIGNING if the host does not sign; None if an earlier setup or the
      repository's configuration already determines this
    - `prunes`: whether setup schedules `prune`
    """

    way: SetupWay
    server: FoundServer | None
    answers: SetupAnswers
    configuration: str
    identity: str | None
    recipient: str | None = None
    account: AccountPlan | None = None
    move: ServerMove | None = None
    move_step: MoveStep = MoveStep.COPY
    notes: tuple[str, ...] = ()
    steps: tuple[SetupStep, ...] = ()
    refusals: tuple[str, ...] = ()
    refusal_hint: str = "answer with --socket, --pool or --config"
    around: SetupSurroundings = ALONE
    kept: str | None = None
    signing: str | None = None
    signer: str | None = None
    """The public part of an existing signing key."""
    prunes: bool = True

    @property
    def signing_key(self) -> str | None:
        return self.signing if self.signing != NO_SIGNING else None

    @property
    def socket(self) -> str:
        assert self.server is not None
        return self.answers.socket or self.server.sockets[0]

    @property
    def archives(self) -> bool:
        """Whether binlogs are archived, because the server writes them or setup turns them on."""
        assert self.server is not None
        return self.server.has_binlog or not self.server.is_on_zfs or self.answers.binlogs

    @property
    def lacks_move(self) -> bool:
        """Whether setup is refused only because the user's answers do not allow it to move the server's files."""
        return self.way is SetupWay.MOVE and bool(self.steps) and not self.answers.move

    @property
    def starts_server(self) -> bool:
        """Whether setup starts the server that an interrupted move left stopped on its copies, despite refusals."""
        return self.way is SetupWay.MOVE and self.move_step is MoveStep.START and self.answers.move

    @property
    def can_offer_binlogs(self) -> bool:
        """Whether the server writes no binlogs, but setup could turn them on with one restart."""
        return (
            not self.refusals
            and self.server is not None
            and not self.archives
            and not missing_binlogs_reason(self.server)
        )

    @property
    def login(self) -> ServerLogin:
        """The login that setup chooses. If the configuration has another login, that login stays."""
        assert self.server is not None
        return ServerLogin(self.socket, user_of(self.server), self.account.password_file if self.account else None)

    def merged(self, recipient: str | None) -> Merge:
        """Return the configuration with the tables of setup. If `recipient` is None, backups are not encrypted."""
        assert self.server is not None
        identity = self.identity if recipient is not None else None
        binary = self.answers.binary or self.server.binary
        return merged_configuration(
            self.answers,
            self.login,
            recipient,
            identity,
            ServerPlaces(binary, self.server.server_id_file, self.server.service),
            self.around,
            signing=self.signing,
            archives=self.archives,
            prunes=self.prunes,
        )

    def text(self, recipient: str | None) -> str:
        """Return the text of the configuration. If `recipient` is None, backups are not encrypted."""
        return self.merged(recipient).text

    @property
    def written(self) -> WrittenTables:
        """The tables that this setup creates, and the keys of the configuration that it writes or finds.

        A notification target is an answer, so its keys are not recorded.
        """
        known, keys = self.around.written, self.merged(RECIPIENT).keys
        tables = (*known.tables, *self.around.created(self.answers.instance))
        own = (key for key in keys if key[0] != "notifications")
        return WrittenTables(tuple(dict.fromkeys(tables)), known.keys | frozenset(own))

    def with_cron(self, text: str) -> WrittenTables:
        """Return `written` with the jobs in the text of a cron file."""
        jobs = (("cron", job) for job in cron_jobs(self.answers.instance) if f" {job} " in text)
        return replace(self.written, keys=self.written.keys | frozenset(jobs))


def plan_setup(facts: SetupFacts, answers: SetupAnswers, started: StartedMove | None = None) -> SetupPlan:
    """Return the plan of setup on this host, or its refusals. If a move was interrupted, `started` is that move."""
    folder = facts.configuration.rpartition("/")[0]
    around = surroundings(facts.configured, answers, facts.written)
    identity = _identity(facts, answers, around, f"{folder}/identity")
    server, why = _server(facts, answers, started, around)
    recipient = facts.recipient if identity else None
    signing = _signing(facts, answers, around, f"{folder}/signing-key")
    plan = SetupPlan(
        SetupWay.ADOPT,
        server,
        answers,
        facts.configuration,
        identity,
        recipient,
        signing=signing,
        signer=facts.signer if signing is not None and signing != NO_SIGNING else None,
        prunes=not facts.later.backups or (around is not None and around.has_rules),
    )
    if started is not None and started.decision.step is None:
        return replace(plan, refusals=(started.decision.why,), refusal_hint=started.decision.hint)
    is_ended = started is not None and started.decision.step is MoveStep.FINISH
    if started is not None and is_ended:
        plan = replace(plan, move=started.move, move_step=MoveStep.FINISH, notes=(_ENDED,))
    if server is None:
        return replace(plan, refusals=(why,))
    grants = facts.grants.get(server.flavour, "")
    plan = replace(plan, account=account_plan(server, grants, f"{folder}/{answers.instance}.password"))
    plan = _in_configuration(facts, plan, around, server)
    if plan.refusals:
        return plan
    if facts.missing_folder is not None:
        return replace(plan, refusals=(f"the folder {facts.missing_folder} of the repository is not there: make it",))
    if is_ended and not server.is_on_zfs:
        return replace(plan, refusals=(_ONE_AT_A_TIME,), refusal_hint="run the same setup once more")
    if not is_ended and (started is not None or not server.is_on_zfs):
        return _refused_later(facts, _moving(facts, plan, server, started))
    if server.cipher is not None and identity is None and not (around and around.is_shared):
        why = f"{server.dataset} is encrypted ({server.cipher}), and its backups would be unencrypted"
        return replace(plan, refusals=(why,), refusal_hint="leave --plain out: setup makes keys for the backups")
    if answers.binlogs and not server.has_binlog and (why := missing_binlogs_reason(server)):
        return replace(plan, refusals=(f"setup cannot turn the binlogs on: {why}",), refusal_hint=_BY_HAND)
    notes = (*plan.notes, *_adopted_notes(facts, plan, server))
    return _refused_later(facts, replace(plan, notes=notes, steps=tuple(_protection(facts, plan, server))))


def _adopted_notes(facts: SetupFacts, plan: SetupPlan, server: FoundServer) -> Iterator[str]:
    yield f"the files of the server lie on {server.dataset}: they stay there"
    if not plan.archives:
        how = _BY_HAND if missing_binlogs_reason(server) else "--binlogs turns them on, with one restart of the server"
        yield f"the server writes no binlogs: changes since the last backup or snapshot cannot be restored; {how}"
    if server.lacks_names:
        how = "SET PERSIST" if family(server.flavour).has_uuid else "in an option file, and SET GLOBAL"
        yield f"for `undo` the binlog should have the names of columns: {how} binlog_row_metadata = FULL"
    if plan.kept is not None:
        yield f"{facts.configuration} lacks nothing: setup continues from there"
    if facts.passed_drill is not None:
        yield f"the drill {facts.passed_drill} passed: from now on the schedule makes backups and drills"


def _refused_later(facts: SetupFacts, plan: SetupPlan) -> SetupPlan:
    """Return the plan, or the refusals for later steps whose conditions are not met."""
    plan = replace(plan, notes=(*plan.notes, *facts.later.notes))
    refusals = (*facts.later.refusals, *_foreign_backups(facts.later, plan.answers))
    if not refusals:
        return plan
    hints = dict.fromkeys(refusal.hint for refusal in refusals)
    whys = tuple(refusal.why for refusal in refusals)
    if plan.starts_server:
        plan = replace(plan, notes=(*plan.notes, _STARTED))
    return replace(plan, steps=(), refusals=whys, refusal_hint="; ".join(hint for hint in hints if hint))


def _foreign_backups(later: LaterFacts, answers: SetupAnswers) -> Iterator[SetupRefusal]:
    """Refuse an instance that another host backs up. Otherwise each host could restore the data of the other one."""
    if later.maker and not answers.take_over:
        yield SetupRefusal(
            f"the repository already has {quantity(later.backups, 'backup')} of {answers.instance}, made"
            f" by host {later.maker}",
            f"give each host an address of its own, such as {answers.repository.rstrip('/')}/HOST; if this host"
            f" replaces {later.maker}, add --take-over",
        )


def _identity(facts: SetupFacts, answers: SetupAnswers, around: SetupSurroundings | None, file: str) -> str | None:
    """Return the file of the identity; None if backups are not encrypted, or if the configuration has other keys."""
    if not answers.encrypt:
        return None
    if around is None or not around.is_shared:
        return file
    encryption = subtables(around.stored_in, "encryption")
    is_own = bool(around.own) and encryption.get("identity_file") == file
    return file if is_own and facts.recipient in encryption.get("recipients", ()) else None


def _signing(facts: SetupFacts, answers: SetupAnswers, around: SetupSurroundings | None, file: str) -> str | None:
    """Return the file of the signing key, or NO_SIGNING, or None if the existing configuration determines signing.

    An existing repository without a key stays unsigned, because its stored backups are unsigned.
    """
    if around is None:
        return None
    if not around.is_shared:
        is_new_key = answers.sign and facts.signer is None
        return NO_SIGNING if not answers.sign else None if is_new_key and facts.later.has_repository else file
    encryption = subtables(around.stored_in, "encryption")
    if not around.own:
        return None
    if "signing_key_file" in encryption:
        return file if encryption["signing_key_file"] == file and facts.signer is not None else None
    return NO_SIGNING if not answers.sign else None


def _in_configuration(
    facts: SetupFacts, plan: SetupPlan, around: SetupSurroundings | None, server: FoundServer
) -> SetupPlan:
    """Return the plan with the parts of the existing configuration that are kept, or with a refusal."""
    path = facts.configuration
    if facts.agent_reads not in (None, path):
        why = f"the agent of this host reads {facts.agent_reads}, and one agent runs the jobs of all instances"
        return replace(plan, refusals=(why,), refusal_hint=f"add the instance to that: --config {facts.agent_reads}")
    if not facts.has_systemd and facts.cron_reads not in (None, path):
        name = plan.answers.instance
        why = f"cron runs the jobs of {name} with {facts.cron_reads}, in {cron_file(name)}"
        return replace(plan, refusals=(why,), refusal_hint=f"set up the instance there: --config {facts.cron_reads}")
    if around is None:
        why = f"{path} already exists, and it is not valid TOML"
        return replace(plan, refusals=(why,), refusal_hint=f"run `zsnapdb config check --config {path}`")
    plan = replace(plan, around=around)
    refusals = [*contradictions(path, around, plan.answers, server)]
    if refusals:
        hints = "; ".join(dict.fromkeys(refusal.hint for refusal in refusals))
        return replace(plan, refusals=tuple(refusal.why for refusal in refusals), refusal_hint=hints)
    if not around.knows_login(plan.login):
        plan = replace(plan, account=None)
    merged = plan.merged(plan.recipient)
    if merged.failed:
        tables = ", ".join(f"[{'.'.join(table.path)}]" for table in merged.failed)
        why = f"setup cannot add {tables} to {path}, because of the form in which the file defines the outer table"
        lines = "; ".join(table.text.replace("\n", " ") for table in merged.failed)
        return replace(plan, refusals=(why,), refusal_hint=f"write it as a section with a header, or add: {lines}")
    if around.configured and merged.text == around.configured:
        plan = replace(plan, kept=facts.configured)
    return replace(plan, notes=(*plan.notes, *_configuration_notes(facts, plan, merged)))


def _configuration_notes(facts: SetupFacts, plan: SetupPlan, merged: Merge) -> Iterator[str]:
    path, around = facts.configuration, plan.around
    if plan.answers.repository.startswith("file:") and not around.is_shared:
        yield _FOLDER
    if around.own and plan.kept is None:
        yield f"{path} has the instance {plan.answers.instance}: what it says stays, and setup adds what it lacks"
        yield from (f"  + {line}" for table in merged.added for line in table.text.split("\n"))
    elif not around.own and around.configured:
        yield f"{path} is there: the instance is added to it, all else stays"
    yield from (f"  = {sentence}" for sentence in merged.stays)
    if "keep" in around.own and around.own["keep"] != retention_rules(plan.answers.instance):
        yield f"  = [instance.{plan.answers.instance}.keep] stays"
    if around.own and not around.knows_login(plan.login):
        yield "the login in the file stays: setup makes no account"
    if around.is_shared and plan.kept is None:
        yield f"the repository {around.repository} is configured already: it is used as it is, with its encryption"
    if around.target and plan.kept is None:
        yield f"{plan.answers.printed_target} hears of failures, and of a test before the rest"
    is_new_key = plan.answers.sign and not around.is_shared
    if plan.signing is None and is_new_key:
        yield _REPOSITORY_THERE
    decided = {"signing", "signing_key_file", "signers"} & set(subtables(around.stored_in, "encryption"))
    if plan.signing is None and around.own and around.is_shared and not decided:
        yield _UNDECIDED
    if around.is_silent:
        yield _SILENT
    if not plan.prunes:
        yield from _open_rules(facts, plan)


def _open_rules(facts: SetupFacts, plan: SetupPlan) -> Iterator[str]:
    """Yield the note that setup schedules no prune, with the lines for users who have chosen the rules."""
    name, path = plan.answers.instance, facts.configuration
    yield (
        f"the repository already has {quantity(facts.later.backups, 'backup')} of {name}: setup chooses no retention"
        f" and schedules no prune. Nothing is removed until you add rules to {path}, such as those of the host that"
        " made these backups:"
    )
    yield from (f"  {line}" for line in retention_table(name).text.split("\n"))
    yield "then look at what the rules would remove:"
    yield f"  {command_line(facts.configuration, 'prune', name, '--plan')}"
    if facts.has_systemd or facts.cron is None:
        yield f"then schedule prune in [instance.{name}.agent], and reload the agent:"
        yield f"  {PRUNE}"
        yield f"  systemctl reload {UNIT}"
    else:
        yield f"then schedule prune in {cron_file(name)}:"
        yield from (f"  {line}" for line in facts.cron.split("\n") if f" prune {name} " in line)


_REPOSITORY_THERE = (
    "the repository already exists: setup makes no signing key, because its stored backups would no longer be trusted"
)
_UNDECIDED = (
    "an earlier setup left signing open, and this one does not change that: `zsnapdb doctor` says how to sign; with"
    " --no-signing the configuration says that this host does not"
)
_SILENT = "no failure is reported: --notify names an address, a URL or a program"
_FOLDER = (
    "the backups are written to a folder: if that is on a disk of this host, they are lost with the host; copy them to"
    " another host with `zsnapdb copy`"
)
_BY_HAND = "set log_bin in its option file, restart it, and run the same setup again"
_ENDED = "an earlier setup moved the files of the server, which runs on ZFS: setup notes that, and stops nothing"
_STARTED = "setup still starts the server on its copies, and does no other step"
_INTERRUPTED = "this move was interrupted: setup continues it"
_ONE_AT_A_TIME = "the files of another server were moved before: setup notes that, and moves no other files in this run"


def _server(
    facts: SetupFacts, answers: SetupAnswers, started: StartedMove | None, around: SetupSurroundings | None
) -> tuple[FoundServer | None, str]:
    """Return the selected server, or None and the reason. If a move was interrupted, this server may be down."""
    if started is None:
        known = str(around.own.get("socket", "")) if around is not None else ""
        configured = [path for server in facts.servers for path in server.sockets if is_same_path(known, path)]
        return choose_server(facts.servers, answers.socket or next(iter(configured), None))
    if started.decision.step is MoveStep.FINISH:
        return choose_server(facts.servers, answers.socket or started.move.server.sockets[0])
    return started.move.server, ""


def _moving(facts: SetupFacts, plan: SetupPlan, server: FoundServer, started: StartedMove | None) -> SetupPlan:
    """Return a plan that moves the files and then continues like the plan for a server on ZFS."""
    move, why = (started.move, ()) if started is not None else _new_move(facts, plan, server)
    if move is None:
        return replace(plan, refusals=why)
    step = started.decision.step if started is not None and started.decision.step is not None else MoveStep.COPY
    notes = [*_move_notes(move, step), f"the old files stay in {move.places.old} until you remove them"]
    if not move.is_renaming:
        notes.append(f"a mount point keeps its name: where AppArmor guards the server, allow {move.places.mount} first")
    if started is not None:
        notes.append(_INTERRUPTED)
    steps = (*_move_steps(move, step), *_protection(facts, plan, server))
    plan = replace(plan, way=SetupWay.MOVE, move=move, move_step=step, notes=(*plan.notes, *notes), steps=steps)
    if not plan.lacks_move:
        return plan
    refusal = "the files of the server do not lie on ZFS, and the server must be stopped to move them"
    if step is MoveStep.START:
        refusal = "a move of the files of the server was interrupted, and the server is stopped"
    return replace(plan, refusals=(refusal,), refusal_hint="add --move to run these steps")


def _move_notes(move: ServerMove, step: MoveStep) -> list[str]:
    """Return the notes that apply only until the move has been made."""
    target = move.datasets[0].name
    if step is MoveStep.START:
        return [f"the files of the server were copied to {target}: it is started there"]
    server = move.server
    return [
        f"the files of the server lie on {server.filesystem} in {server.datadir}: they are copied to {target}",
        f"the server stops while {size(server.used)} are copied and compared; then its files are in {move.datadir}",
    ]


def executed(plan: SetupPlan, pid: int | None) -> SetupPlan:
    """Return the plan, updated for its execution. `pid` is the present process of the server, if it was found.

    If the plan moved files, the server's files are now on ZFS.
    """
    if plan.server is not None and pid is not None:
        plan = replace(plan, server=replace(plan.server, pid=pid))
    if plan.way is not SetupWay.MOVE or plan.move is None:
        return plan
    place = plan.move.datasets[1].name
    server = replace(plan.server or plan.move.server, datadir=plan.move.datadir, filesystem="zfs", dataset=place)
    past = (*_move_notes(plan.move, plan.move_step), _INTERRUPTED)
    return replace(plan, server=server, notes=tuple(note for note in plan.notes if note not in past))


def _new_move(facts: SetupFacts, plan: SetupPlan, server: FoundServer) -> tuple[ServerMove | None, tuple[str, ...]]:
    why = objections(server)
    pool, no_pool = choose_pool(facts.pools, plan.answers.pool, server.used)
    if pool is None or server.files is None:
        return None, why if pool is not None else (*why, no_pool)
    names = dataset_names(pool.name, plan.answers.instance)
    free = [name for name in names if name not in facts.datasets]
    if not free:
        why = (*why, f"the datasets {' and '.join(names)} are there already: name the instance otherwise")
    return (None, why) if why else (planned_move(server, server.files, free[0], facts.zfs_release), ())


def _move_steps(move: ServerMove, step: MoveStep) -> Iterator[SetupStep]:
    where, act = move.places, SetupAction.MOVE
    last = SetupStep("Start the server, and ask the kernel where its files are", move.shown([move.start]), action=act)
    if step is MoveStep.START:
        to_mount = [move.mount_at(where.mount)] if move.is_renaming else []
        yield SetupStep("Mount the copies, unless they are mounted", move.shown(to_mount), action=act)
        yield last
        return
    yield SetupStep("Create the datasets", move.shown(move.creations), action=act)
    yield SetupStep("Stop the server", move.shown([move.stop]), action=act)
    yield SetupStep(
        f"Copy the files of {move.server.datadir} to {where.staging}/data and the logs to {where.staging}, and compare"
        " every copy with its file; then make a snapshot of both datasets",
        action=act,
    )
    if move.is_renaming:
        yield SetupStep("Keep the old files under another name", move.shown([move.rename]), action=act)
    yield SetupStep("Tell the server where its files are", path=move.fragment, text=move.option_file, action=act)
    if move.is_renaming:
        mounting = move.shown([move.mount_at(where.mount)])
        yield SetupStep("Mount the copies in the place of the old files", mounting, action=act)
    yield last


def _protection(facts: SetupFacts, plan: SetupPlan, server: FoundServer) -> Iterator[SetupStep]:
    name = plan.answers.instance
    if server.is_on_zfs and not server.has_binlog and plan.answers.binlogs:
        yield SetupStep(
            "Turn the binlogs on: the server is restarted once",
            (f"systemctl restart {server.service}",),
            path=f"{server.option_folder}/{BINLOG_FRAGMENT}",
            text=binlog_options(server.flavour),
            action=SetupAction.BINLOG,
        )
    if plan.identity is not None:
        title = f"Make the identity {plan.identity}: keep a copy elsewhere, without it nobody can read a backup"
        if plan.recipient is not None:
            title = f"Use the identity {plan.identity}, which is there: keep a copy elsewhere"
        yield SetupStep(title, action=SetupAction.IDENTITY)
    if plan.signing_key is not None:
        title = f"{'Use' if plan.signer else 'Make'} the signing key {plan.signing_key}: only what it signs is believed"
        yield SetupStep(title, action=SetupAction.SIGNING_KEY)
    text = plan.text((plan.recipient or RECIPIENT) if plan.identity is not None else None)
    yield SetupStep("Write the configuration", path=facts.configuration, text=text, action=SetupAction.CONFIGURATION)
    if plan.account is not None:
        yield _account(plan, plan.account, server)
    making = command_line(facts.configuration, "init", plan.around.repository)
    yield SetupStep("Make the repository", (making,), action=SetupAction.REPOSITORY)
    if facts.has_systemd:
        yield SetupStep(
            "Run all jobs from now on",
            # This makes a running agent reload the configuration, and starts a stopped agent (systemctl(1)).
            ("systemctl daemon-reload", f"systemctl enable {UNIT}", f"systemctl reload-or-restart {UNIT}"),
            path=UNIT_FILE if facts.unit is not None else "",
            text=facts.unit or "",
            action=SetupAction.SCHEDULE,
        )
    elif facts.cron is not None:
        title = "Run all jobs from now on, by cron"
        left_out = (*(() if plan.archives else (" binlog archive ",)), *(() if plan.prunes else (" prune ",)))
        lines = [line for line in facts.cron.split("\n") if not any(job in line for job in left_out)]
        text = merged_cron(facts.cron_now, "\n".join(lines), name, plan.around.written.keys)
        yield SetupStep(title, path=cron_file(name), text=text, action=SetupAction.SCHEDULE)
    if facts.passed_drill is None:
        yield from _proof(facts, plan, server)
    if not facts.has_systemd and facts.cron is None:
        yield SetupStep("Keep the agent running: it runs all jobs from now on", ("zsnapdb agent",))


def _account(plan: SetupPlan, account: AccountPlan, server: FoundServer) -> SetupStep:
    """Return the step that creates the account. The user must execute it if root cannot log in or may not write."""
    if _may_make_accounts(server):
        title = f"Make the account {account.user} on the server"
        return SetupStep(title, account.shown, action=SetupAction.ACCOUNT)
    why = "on the source of this read-only server" if server.is_read_only else "as an administrator of the server"
    client = f"zsnapdb grants {plan.answers.instance} | mysql {shlex.join([f'--socket={plan.socket}'])}"
    return SetupStep(f"Make the account {account.user} {why}", (client,))


def _proof(facts: SetupFacts, plan: SetupPlan, server: FoundServer) -> Iterator[SetupStep]:
    """Yield the verification steps.

    The user executes these steps if the answers say so, or if the user must create the account.
    """
    is_own = plan.answers.proof and (plan.account is None or _may_make_accounts(server))
    for action, title in zip(PROOF, ("Check everything", "Make a backup", "Prove it by a restore"), strict=True):
        command = command_line(facts.configuration, action.value, plan.answers.instance)
        yield SetupStep(title, (command,), action=action if is_own else None)


def _may_make_accounts(server: FoundServer) -> bool:
    return server.lets_root_in and not server.is_read_only
