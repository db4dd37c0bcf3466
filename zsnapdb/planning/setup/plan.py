"""What setup does on a host: adopts a server whose files lie on ZFS, or creates datasets and moves them. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from zsnapdb.planning.family import family
from zsnapdb.planning.setup.configuration import RECIPIENT, REPOSITORY, configuration_text
from zsnapdb.planning.setup.facts import DEFAULT_PAGE, FoundPool, FoundServer, SetupAnswers, SetupFacts
from zsnapdb.planning.setup.layout import ServerLayout, two_datasets
from zsnapdb.quantities import size

_ROOM = 1.2
"""How many times the size of the data directory must be free in the pool: compression is not counted on."""
_LOGS = ("#innodb_redo", "ib_logfile*", "aria_log*", "*-bin.[0-9]*", "*-bin.index", "binlog.[0-9]*", "binlog.index")
"""The files of a data directory that belong to the outer dataset (refman 8.4, "Redo Log", "The Binary Log")."""


class SetupWay(StrEnum):
    """ADOPT: the files stay where they are. MOVE: datasets are created, and the files are copied into them."""

    ADOPT = "adopt"
    MOVE = "move"


@dataclass(frozen=True)
class SetupStep:
    """A step: what it is for, and the lines for a shell or the file that are needed.

    `is_automatic`: `zsnapdb setup` itself does the step. All others are left to the person.
    """

    title: str
    lines: tuple[str, ...] = ()
    path: str = ""
    text: str = ""
    is_automatic: bool = False


@dataclass(frozen=True)
class SetupPlan:
    """The way, the server and the steps. If there are refusals, nothing can be done, and there are no steps.

    `configuration` and `identity` are the paths of the files that setup writes; `identity` None: nothing is encrypted.
    """

    way: SetupWay
    server: FoundServer | None
    answers: SetupAnswers
    configuration: str
    identity: str | None
    notes: tuple[str, ...] = ()
    steps: tuple[SetupStep, ...] = ()
    refusals: tuple[str, ...] = ()

    def text(self, recipient: str | None) -> str:
        """Return the text of the configuration for the recipient of the backups, None: they are not encrypted."""
        assert self.server is not None
        identity = self.identity if recipient is not None else None
        return configuration_text(self.answers, self.server.sockets[0], account(self.server), recipient, identity)


def plan_setup(facts: SetupFacts, answers: SetupAnswers) -> SetupPlan:
    """Return what setup does on this host, or why it does nothing."""
    identity = f"{facts.configuration.rpartition('/')[0]}/identity" if answers.encrypt else None
    server, why = choose_server(facts.servers, answers.socket)
    plan = SetupPlan(SetupWay.ADOPT, server, answers, facts.configuration, identity)
    if server is None:
        return replace(plan, refusals=(why,))
    if facts.is_configured:
        why = f"{facts.configuration} is there already: add a section to it, or name another file"
        return replace(plan, refusals=(why,))
    protection = tuple(_protection(facts, plan, server))
    if server.is_on_zfs:
        note = f"the files of the server lie on {server.dataset}: they stay there"
        return replace(plan, notes=(note,), steps=protection)
    pool, why = choose_pool(facts.pools, answers.pool, server.used)
    if pool is None:
        return replace(plan, refusals=(why,))
    layout = two_datasets(pool.name, server.flavour, server.page_size or DEFAULT_PAGE, facts.zfs_release)
    notes = (
        f"the files of the server lie on {server.filesystem} in {server.datadir}: they are copied to {pool.name}",
        *(() if server.page_size else ("the page size is not known: 16K is assumed, the default of InnoDB",)),
        "the server stops while its files are copied; the old files stay until you remove them",
    )
    return replace(plan, way=SetupWay.MOVE, notes=notes, steps=(*_move(server, layout), *protection))


def account(server: FoundServer) -> str:
    """Return the account that zsnapdb uses on the server: root where every server lets root in by its socket."""
    return "root" if family(server.flavour).root_uses_socket else "zsnapdb"


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
        yield SetupStep(title, is_automatic=True)
    text = plan.text(RECIPIENT if plan.identity is not None else None)
    yield SetupStep("Write the configuration", path=facts.configuration, text=text, is_automatic=True)
    if account(server) != "root":
        client = f"zsnapdb grants {name} | mysql {shlex.join([f'--socket={server.sockets[0]}'])}"
        yield SetupStep("Make the account of zsnapdb on the server", (client,))
    yield SetupStep("Make the repository", (f"zsnapdb init {REPOSITORY}",))
    yield SetupStep("Check everything", (f"zsnapdb doctor {name}",))
    yield SetupStep("Make the first backup", (f"zsnapdb backup {name}",))
    yield SetupStep("Prove it by a restore", (f"zsnapdb drill {name}",))
    if facts.has_systemd:
        yield SetupStep("Run all jobs from now on", ("systemctl enable --now zsnapdb-agent.service",))
