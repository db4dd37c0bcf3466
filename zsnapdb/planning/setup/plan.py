"""What setup does on a host: adopts a server whose files lie on ZFS, or creates datasets and moves them. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from zsnapdb.planning.family import family
from zsnapdb.planning.setup.account import AccountPlan, account_plan, user_of
from zsnapdb.planning.setup.configuration import RECIPIENT, REPOSITORY, ServerLogin, configuration_text
from zsnapdb.planning.setup.facts import DEFAULT_PAGE, FoundPool, FoundServer, SetupAnswers, SetupFacts
from zsnapdb.planning.setup.layout import ServerLayout, two_datasets
from zsnapdb.planning.setup.schedule import UNIT, UNIT_FILE
from zsnapdb.quantities import size

_ROOM = 1.2
"""How many times the size of the data directory must be free in the pool: compression is not counted on."""
_LOGS = ("#innodb_redo", "ib_logfile*", "aria_log*", "*-bin.[0-9]*", "*-bin.index", "binlog.[0-9]*", "binlog.index")
"""The files of a data directory that belong to the outer dataset (refman 8.4, "Redo Log", "The Binary Log")."""


class SetupWay(StrEnum):
    """ADOPT: the files stay where they are. MOVE: datasets are created, and the files are copied into them."""

    ADOPT = "adopt"
    MOVE = "move"


class SetupAction(StrEnum):
    """What setup itself does in a step. All other steps are left to the person."""

    IDENTITY = "identity"
    CONFIGURATION = "configuration"
    ACCOUNT = "account"
    REPOSITORY = "repository"
    SCHEDULE = "schedule"


@dataclass(frozen=True)
class SetupStep:
    """A step: what it is for, and the lines for a shell or a server, or the file, that are needed."""

    title: str
    lines: tuple[str, ...] = ()
    path: str = ""
    text: str = ""
    action: SetupAction | None = None


@dataclass(frozen=True)
class SetupPlan:
    """The way, the server and the steps. If there are refusals, nothing can be done, and there are no steps.

    `configuration` and `identity` are the paths of the files that setup writes; `identity` None: nothing is encrypted.
    `recipient` is that of an identity that is there already. `account` None: the account is there on every server.
    """

    way: SetupWay
    server: FoundServer | None
    answers: SetupAnswers
    configuration: str
    identity: str | None
    recipient: str | None = None
    account: AccountPlan | None = None
    notes: tuple[str, ...] = ()
    steps: tuple[SetupStep, ...] = ()
    refusals: tuple[str, ...] = ()

    @property
    def socket(self) -> str:
        """The socket by which the server is reached."""
        assert self.server is not None
        return self.answers.socket or self.server.sockets[0]

    def text(self, recipient: str | None) -> str:
        """Return the text of the configuration for the recipient of the backups, None: they are not encrypted."""
        assert self.server is not None
        login = ServerLogin(self.socket, user_of(self.server), self.account.password_file if self.account else None)
        identity = self.identity if recipient is not None else None
        return configuration_text(self.answers, login, recipient, identity, self.answers.binary or self.server.binary)


def plan_setup(facts: SetupFacts, answers: SetupAnswers) -> SetupPlan:
    """Return what setup does on this host, or why it does nothing."""
    folder = facts.configuration.rpartition("/")[0]
    identity = f"{folder}/identity" if answers.encrypt else None
    server, why = choose_server(facts.servers, answers.socket)
    recipient = facts.recipient if identity else None
    plan = SetupPlan(SetupWay.ADOPT, server, answers, facts.configuration, identity, recipient)
    if server is None:
        return replace(plan, refusals=(why,))
    grants = facts.grants.get(server.flavour, "")
    plan = replace(plan, account=account_plan(server, grants, f"{folder}/{answers.instance}.password"))
    is_continued = facts.configured is not None and facts.configured == plan.text(recipient)
    if facts.configured is not None and not is_continued:
        why = f"{facts.configuration} is there already: add a section to it, or name another file"
        return replace(plan, refusals=(why,))
    if facts.missing_folder is not None:
        return replace(plan, refusals=(f"the folder {facts.missing_folder} of the repository is not there: make it",))
    if not server.is_on_zfs:
        return _moving(facts, plan, server)
    notes: tuple[str, ...] = (f"the files of the server lie on {server.dataset}: they stay there",)
    if is_continued:
        notes += (f"{facts.configuration} is there, as setup writes it: setup goes on from there",)
    return replace(plan, notes=notes, steps=tuple(_protection(facts, plan, server)))


def _moving(facts: SetupFacts, plan: SetupPlan, server: FoundServer) -> SetupPlan:
    """Return the plan that moves the files. Its commands are for the person; then setup does the rest."""
    pool, why = choose_pool(facts.pools, plan.answers.pool, server.used)
    if pool is None:
        return replace(plan, refusals=(why,))
    layout = two_datasets(pool.name, server.flavour, server.page_size or DEFAULT_PAGE, facts.zfs_release)
    notes = (
        f"the files of the server lie on {server.filesystem} in {server.datadir}: they are copied to {pool.name}",
        *(() if server.page_size else ("the page size is not known: 16K is assumed, the default of InnoDB",)),
        "the server stops while its files are copied; the old files stay until you remove them",
    )
    again = SetupStep("Run the same setup again: it finds the files on ZFS, and does the rest")
    return replace(plan, way=SetupWay.MOVE, notes=notes, steps=(*_move(server, layout), again))


def choose_server(servers: Sequence[FoundServer], socket: str | None) -> tuple[FoundServer | None, str]:
    """Return the server that is meant, or None and why it is not clear."""
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
    """Return the pool for the files of a server, which need `needed` bytes, or None and why there is none."""
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


def _move(server: FoundServer, layout: ServerLayout) -> Iterator[SetupStep]:
    facts, old = family(server.flavour), f"{server.datadir}.before-zfs"
    mount = layout.datadir.rpartition("/")[0]
    yield SetupStep("Stop the server", (f"systemctl stop {facts.systemd_unit}",))
    yield SetupStep("Keep the old files", (shlex.join(["mv", server.datadir, old]),))
    creations = [
        [
            "zfs",
            "create",
            *(word for key, value in new.properties.items() for word in ("-o", f"{key}={value}")),
            new.name,
        ]
        for new in layout.datasets
    ]
    yield SetupStep("Create the datasets", tuple(shlex.join(words) for words in creations))
    yield SetupStep(
        "Copy the files",
        (
            shlex.join(["cp", "-a", "--reflink=auto", f"{old}/.", layout.datadir]),
            shlex.join(["chown", f"{server.account}:{server.account}", mount, layout.datadir]),
            shlex.join(["chmod", "750", mount, layout.datadir]),
        ),
    )
    logs = [word for name in _LOGS for word in ("-o", "-name", name)][1:]
    move = ["find", layout.datadir, "-maxdepth", "1", "(", *logs, ")", "-exec", "mv", "-t", mount, "{}", "+"]
    change = ["sed", "-i", f"s|^\\./|{mount}/|", "{}", "+"]
    lists = ["find", mount, "-maxdepth", "1", "-name", "*.index", "-exec", *change]
    yield SetupStep(
        "Move the logs to their dataset, and name them there in their lists", (shlex.join(move), shlex.join(lists))
    )
    fragment = f"{facts.option_folder}/90-zfs.cnf"
    yield SetupStep("Tell the server where its files are", path=fragment, text=layout.option_file)
    yield SetupStep("Start the server", (f"systemctl start {facts.systemd_unit}",))


def _protection(facts: SetupFacts, plan: SetupPlan, server: FoundServer) -> Iterator[SetupStep]:
    name = plan.answers.instance
    if plan.identity is not None:
        title = f"Make the identity {plan.identity}: keep a copy elsewhere, without it nobody can read a backup"
        if plan.recipient is not None:
            title = f"Use the identity {plan.identity}, which is there: keep a copy elsewhere"
        yield SetupStep(title, action=SetupAction.IDENTITY)
    text = plan.text((plan.recipient or RECIPIENT) if plan.identity is not None else None)
    yield SetupStep("Write the configuration", path=facts.configuration, text=text, action=SetupAction.CONFIGURATION)
    if plan.account is not None:
        yield _account(plan, plan.account, server)
    yield SetupStep("Make the repository", (f"zsnapdb init {REPOSITORY}",), action=SetupAction.REPOSITORY)
    if facts.has_systemd:
        yield SetupStep(
            "Run all jobs from now on",
            ("systemctl daemon-reload", f"systemctl enable --now {UNIT}"),
            path=UNIT_FILE if facts.unit is not None else "",
            text=facts.unit or "",
            action=SetupAction.SCHEDULE,
        )
    yield SetupStep("Check everything", (f"zsnapdb doctor {name}",))
    yield SetupStep("Make the first backup", (f"zsnapdb backup {name}",))
    yield SetupStep("Prove it by a restore", (f"zsnapdb drill {name}",))
    if not facts.has_systemd:
        yield SetupStep("Keep the agent running: it runs all jobs from now on", ("zsnapdb agent",))


def _account(plan: SetupPlan, account: AccountPlan, server: FoundServer) -> SetupStep:
    """Return the step that makes the account. It is left to the person where root is not let in, or may not write."""
    if server.lets_root_in and not server.is_read_only:
        title = f"Make the account {account.user} on the server"
        return SetupStep(title, account.shown, action=SetupAction.ACCOUNT)
    why = "on the source of this read-only server" if server.is_read_only else "as an administrator of the server"
    client = f"zsnapdb grants {plan.answers.instance} | mysql {shlex.join([f'--socket={plan.socket}'])}"
    return SetupStep(f"Make the account {account.user} {why}", (client,))
