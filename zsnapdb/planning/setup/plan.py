"""Plans a setup. If a server's files are not on ZFS, setup creates datasets and moves the files to them.

Pure.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from zsnapdb.base.quantities import size
from zsnapdb.config.settings import DEFAULT_PATH
from zsnapdb.planning.server_family import family
from zsnapdb.planning.setup.configuration import (
    ALONE,
    NO_SIGNING,
    RECIPIENT,
    ServerLogin,
    ServerPlaces,
    SetupSurroundings,
    configuration_text,
    document_of,
    surroundings,
)
from zsnapdb.planning.setup.facts import FoundPool, FoundServer, SetupAnswers, SetupFacts
from zsnapdb.planning.setup.layout import (
    BINLOG_FRAGMENT,
    UNIT,
    UNIT_FILE,
    AccountPlan,
    account_plan,
    binlog_options,
    cron_file,
    user_of,
)
from zsnapdb.planning.setup.move import MoveDecision, MoveStep, ServerMove, dataset_names, objections, planned_move

_ROOM = 1.2
"""The free space that the pool must have, as a multiple of the data directory's size. Compression is not considered."""


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
    - `move_step`: the step of the move; FINISH is executed even if there are refusals, because the server already runs
      on ZFS and setup only records this
    - `around`: the configuration without the tables that setup writes
    - `kept`: the text of the existing configuration, if it already contains all these tables and is not changed
    - `signing`: the file of the signing key, or NO_SIGNING if the host does not sign; None if an earlier setup or the
      repository's configuration already determines this
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
    def can_offer_binlogs(self) -> bool:
        """Whether the server writes no binlogs, but setup could turn them on with one restart."""
        return (
            not self.refusals
            and self.server is not None
            and not self.archives
            and not missing_binlogs_reason(self.server)
        )

    def text(self, recipient: str | None) -> str:
        """Return the text of the configuration. If `recipient` is None, backups are not encrypted."""
        if self.kept is not None:
            return self.kept
        assert self.server is not None
        login = ServerLogin(self.socket, user_of(self.server), self.account.password_file if self.account else None)
        identity = self.identity if recipient is not None else None
        binary = self.answers.binary or self.server.binary
        places = ServerPlaces(binary, self.server.server_id_file, self.server.service)
        return configuration_text(
            self.answers, login, recipient, identity, places, self.around, signing=self.signing, archives=self.archives
        )


def plan_setup(facts: SetupFacts, answers: SetupAnswers, started: StartedMove | None = None) -> SetupPlan:
    """Return the plan of setup on this host, or its refusals. If a move was interrupted, `started` is that move."""
    folder = facts.configuration.rpartition("/")[0]
    around = surroundings(facts.configured, answers, facts.written)
    identity = f"{folder}/identity" if answers.encrypt and not (around and around.is_shared) else None
    server, why = _server(facts, answers, started)
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
    plan = _in_configuration(facts, plan, around)
    if plan.refusals:
        return plan
    if facts.missing_folder is not None:
        return replace(plan, refusals=(f"the folder {facts.missing_folder} of the repository is not there: make it",))
    if is_ended and not server.is_on_zfs:
        return replace(plan, refusals=(_ONE_AT_A_TIME,), refusal_hint="run the same setup once more")
    if not is_ended and (started is not None or not server.is_on_zfs):
        return _moving(facts, plan, server, started)
    if server.cipher is not None and identity is None and not (around and around.is_shared):
        why = f"{server.dataset} is encrypted ({server.cipher}), and its backups would be unencrypted"
        return replace(plan, refusals=(why,), refusal_hint="leave --plain out: setup makes keys for the backups")
    if answers.binlogs and not server.has_binlog and (why := missing_binlogs_reason(server)):
        return replace(plan, refusals=(f"setup cannot turn the binlogs on: {why}",), refusal_hint=_BY_HAND)
    notes = (*plan.notes, f"the files of the server lie on {server.dataset}: they stay there")
    if not plan.archives:
        how = _BY_HAND if missing_binlogs_reason(server) else "--binlogs turns them on, with one restart of the server"
        what = "the server writes no binlogs: changes since the last backup or snapshot cannot be restored"
        notes += (f"{what}; {how}",)
    if server.lacks_names:
        how = "SET PERSIST" if family(server.flavour).has_uuid else "in an option file, and SET GLOBAL"
        notes += (f"for `undo` the binlog should have the names of columns: {how} binlog_row_metadata = FULL",)
    if plan.kept is not None:
        notes += (f"{facts.configuration} exists as setup writes it: setup continues from there",)
    if facts.passed_drill is not None:
        notes += (f"the drill {facts.passed_drill} passed: from now on the schedule makes backups and drills",)
    return replace(plan, notes=notes, steps=tuple(_protection(facts, plan, server)))


def _signing(facts: SetupFacts, answers: SetupAnswers, around: SetupSurroundings | None, file: str) -> str | None:
    """Return the file of the signing key, or NO_SIGNING, or None if the existing configuration determines signing.

    An existing installation without a key stays unsigned, because its stored backups are unsigned.
    """
    if around is None or around.is_shared:
        return None
    if not answers.sign:
        return NO_SIGNING
    repositories = (document_of(facts.configured or "") or {}).get("repository")
    known = repositories.get(around.repository) if isinstance(repositories, dict) else None
    encryption = known.get("encryption", {}) if isinstance(known, dict) else None
    is_open = isinstance(encryption, dict) and not {"signing", "signing_key_file"} & set(encryption)
    return None if is_open else file


def leave_signing_open(plan: SetupPlan) -> SetupPlan:
    """Return the plan without a signing key. A new key would invalidate the backups in an existing repository."""
    plan = replace(plan, signing=None, signer=None, notes=(*plan.notes, _REPOSITORY_THERE))
    text = plan.text((plan.recipient or RECIPIENT) if plan.identity is not None else None)
    steps = (
        replace(step, text=text) if step.action is SetupAction.CONFIGURATION else step
        for step in plan.steps
        if step.action is not SetupAction.SIGNING_KEY
    )
    return replace(plan, steps=tuple(steps))


def _in_configuration(facts: SetupFacts, plan: SetupPlan, around: SetupSurroundings | None) -> SetupPlan:
    """Return the plan with the parts of the existing configuration that are kept, or with a refusal."""
    path, name = facts.configuration, plan.answers.instance
    if facts.agent_reads not in (None, path):
        why = f"the agent of this host reads {facts.agent_reads}, and one agent runs the jobs of all instances"
        return replace(plan, refusals=(why,), refusal_hint=f"add the instance to that: --config {facts.agent_reads}")
    by_hand = f"change it by hand, or give the instance another name: --instance NAME ({path} may have several)"
    document = document_of(facts.configured or "")
    if document is None or around is None:
        why = f"{path} already exists, and setup cannot tell which of its settings belong to the instance {name}"
        return replace(plan, refusals=(why,), refusal_hint="see `zsnapdb config check`, and " + by_hand)
    plan = replace(plan, around=around)
    if plan.answers.repository.startswith("file:") and not around.is_shared:
        plan = replace(plan, notes=(*plan.notes, _FOLDER))
    text = plan.text(plan.recipient)
    instances = document.get("instance")
    is_there = isinstance(instances, dict) and name in instances
    if is_there and document_of(text) == document:
        plan = replace(plan, kept=facts.configured)
    elif is_there and facts.written is None:
        why = f"{path} has the instance {name} already, and setup did not write it, or somebody changed it since"
        return replace(plan, refusals=(why,), refusal_hint=by_hand)
    elif is_there:
        plan = replace(plan, notes=(*plan.notes, *_replaced(facts, text)))
    elif document:
        plan = replace(plan, notes=(*plan.notes, f"{path} is there: the instance is added to it, all else stays"))
    if around.is_shared and plan.kept is None:
        note = f"the repository {around.repository} is configured already: it is used as it is, with its encryption"
        plan = replace(plan, notes=(*plan.notes, note))
    if around.target and plan.kept is None:
        plan = replace(
            plan, notes=(*plan.notes, f"{plan.answers.notify} hears of failures, and of a test before the rest")
        )
    if plan.signing is None and not around.is_shared:
        plan = replace(plan, notes=(*plan.notes, _UNDECIDED))
    if around.is_silent:
        plan = replace(plan, notes=(*plan.notes, _SILENT))
    return plan


def missing_binlogs_reason(server: FoundServer) -> str:
    """Return why setup cannot turn on binlogs of this server; "" if it can."""
    if not server.service:
        return f"systemd does not run process {server.pid}, so setup cannot restart it"
    if not server.lets_root_in:
        return "root may not log in by the socket, so setup cannot see whether they are on"
    return "" if server.option_folder else "no folder of option files was found, such as /etc/mysql/conf.d"


def _replaced(facts: SetupFacts, text: str) -> Iterator[str]:
    """Yield notes which say that setup replaces the tables of an earlier setup, with the changed lines."""
    yield (
        f"{facts.configuration} was written by an earlier setup with other arguments: it is replaced, and a copy"
        " is kept next to it"
    )
    lines = difflib.unified_diff((facts.configured or "").splitlines(), text.splitlines(), n=0, lineterm="")
    yield from (f"  {line[0]} {line[1:]}" for line in list(lines)[2:] if not line.startswith("@@"))


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
_INTERRUPTED = "this move was interrupted: setup continues it"
_ONE_AT_A_TIME = "the files of another server were moved before: setup notes that, and moves no other files in this run"


def _server(facts: SetupFacts, answers: SetupAnswers, started: StartedMove | None) -> tuple[FoundServer | None, str]:
    """Return the selected server, or None and the reason. If a move was interrupted, this server may be down."""
    if started is None:
        return choose_server(facts.servers, answers.socket)
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


def executed(plan: SetupPlan) -> SetupPlan:
    """Return the plan, updated for its execution. If the plan moved files, the server's files are now on ZFS."""
    if plan.way is not SetupWay.MOVE or plan.move is None:
        return plan
    server = replace(plan.move.server, datadir=plan.move.datadir, filesystem="zfs", dataset=plan.move.datasets[1].name)
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


def choose_server(servers: Sequence[FoundServer], socket: str | None) -> tuple[FoundServer | None, str]:
    """Return the selected server, or None and the reason why no server was selected."""
    reachable = [server for server in servers if server.sockets]
    if socket is not None:
        for server in reachable:
            if socket in server.sockets:
                return server, ""
        return None, f"no running server listens on {socket}"
    if not reachable:
        return None, "no server runs on this host: start it, or name its socket"
    if len(reachable) > 1:
        listing = ", ".join(server.sockets[0] for server in reachable)
        return None, f"{len(reachable)} servers run on this host: name the socket of one of them ({listing})"
    return reachable[0], ""


def choose_pool(pools: Sequence[FoundPool], name: str | None, needed: int) -> tuple[FoundPool | None, str]:
    """Return the pool for a server's files, which need `needed` bytes, or None and the reason."""
    if name is not None:
        pools = [pool for pool in pools if pool.name == name]
    if not pools:
        return None, f"there is no pool {name} here" if name else "there is no pool here: make one with `zpool create`"
    if len(pools) > 1:
        return None, f"there are {len(pools)} pools: name one of {', '.join(pool.name for pool in pools)}"
    (pool,) = pools
    if pool.free < needed * _ROOM:
        return None, f"the pool {pool.name} has {size(pool.free)} free, and the files take {size(needed)}"
    return pool, ""


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
    making = _command(facts, "init", plan.around.repository)
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
        lines = [line for line in facts.cron.split("\n") if plan.archives or " binlog archive " not in line]
        yield SetupStep(title, path=cron_file(name), text="\n".join(lines), action=SetupAction.SCHEDULE)
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
        command = _command(facts, action.value, plan.answers.instance)
        yield SetupStep(title, (command,), action=action if is_own else None)


def _may_make_accounts(server: FoundServer) -> bool:
    return server.lets_root_in and not server.is_read_only


def _command(facts: SetupFacts, *words: str) -> str:
    """Return a zsnapdb command. It contains the path of the configuration unless this is the default."""
    config = () if facts.configuration == str(DEFAULT_PATH) else ("--config", facts.configuration)
    return shlex.join(("zsnapdb", *words, *config))
