"""A restored server that runs: whether it is at the point, and the look around in it before the restore goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base.model import parse_gtids
from zsnapdb.jobs.restore.replay import served
from zsnapdb.jobs.restore.steps import STEP_SNAPSHOT, ServerWork, be_mounted, keep, take_back, was_kept
from zsnapdb.jobs.server_copy.prepare import check_inside
from zsnapdb.mysql.probe import probe
from zsnapdb.mysql.replication import replica
from zsnapdb.mysql.replication.replay import check_executed
from zsnapdb.mysql.session import Session
from zsnapdb.planning.facts import ServerFacts
from zsnapdb.planning.restore.steps import LookAround
from zsnapdb.planning.server_copy.identity import Access


@dataclass(frozen=True)
class HandedOver:
    """How the server is left: its option file (None: that of the site), and its port and process if it runs.

    `socket` is that of a server to look around in.
    """

    option_file: Path | None
    port: int | None = None
    pid: int | None = None
    notes: tuple[str, ...] = ()
    socket: Path | None = None


def look_around(work: ServerWork, step: LookAround) -> HandedOver:
    """Start the server read-only. It is not handed over: datasets and snapshots stay those of the restore."""
    be_mounted(work)
    copy = work.copy
    copy.process().kill_all()
    if was_kept(work, step.name):
        # An interrupted run began the look.
        take_back(work, f"{STEP_SNAPSHOT}{step.name}")
    else:
        keep(work, step.name)
    flavour = work.plan.flavour
    with served(
        work,
        port=None,
        server_id=step.server_id,
        stays=True,
        finally_do=lambda session: replica.refuse_writes(session, flavour),
    ) as session:
        check_point(work, session)
    again = f"zsnapdb restore {work.plan.instance} --target {work.plan.layout.top} --continue-to"
    note = (
        f"it answers to its own accounts; `{again} next --handover look` goes on by one transaction, and"
        f" `{again} here` ends the look and leaves it stopped"
    )
    identity = copy.identity(server_id=step.server_id, port=None, access=Access.ACCOUNTS)
    return HandedOver(None, pid=copy.process().pid(), notes=(note,), socket=Path(identity.socket))


def check_point(work: ServerWork, session: Session) -> ServerFacts:
    """Return the facts of the started server. ConsistencyError unless it is exactly at the point, on its own files."""
    facts = probe(session)
    expected = work.plan.point.gtids
    gtids = parse_gtids(work.plan.flavour, expected) if expected is not None else None
    check_executed(session, work.plan.flavour, gtids)
    check_inside(facts, Path(work.plan.layout.mount))
    return facts
