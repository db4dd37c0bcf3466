"""Stops a replica's applier for the moment of a snapshot, at a point its source knows, and starts it again whatever happens."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from zsnapdb.errors import LockNotGranted, PreflightError, ServerError
from zsnapdb.jobs import common
from zsnapdb.jobs.common import Instance
from zsnapdb.model import Flavour
from zsnapdb.mysql.probe import channels
from zsnapdb.mysql.session import Session
from zsnapdb.planning.facts import Channel, ServerFacts

_STOP_SECONDS = 60.0


def _marker(instance: Instance) -> Path:
    """A file that says we stopped the applier: should this process be killed, the next run starts it again. A reboot clears it, and starts the server."""
    return common.RUN_FOLDER / f"applier-{instance.name}"


def start_forgotten(instance: Instance, session: Session, facts: ServerFacts) -> str | None:
    """Start an applier that a killed run of ours left stopped; return what was done, for a warning."""
    marker = _marker(instance)
    if not marker.exists():
        return None
    session.query(facts.dialect.start_applier)
    marker.unlink()
    return "a killed run had left the applier stopped; it was started again"


@contextlib.contextmanager
def stopped(instance: Instance, session: Session, facts: ServerFacts) -> Iterator[tuple[Channel, ...]]:
    """Stop the applier for the block if the configuration asks for it; yield the channels, then exactly at their source's positions.

    LockNotGranted while replicated temporary tables are open: a restored replica could not go on from there (refman 8.4, "Replication
    and Temporary Tables"). PreflightError where a stop may leave gaps between parallel appliers.
    """
    if not (instance.settings.lock.stop_applier and any(channel.applying for channel in facts.channels)):
        yield channels(session, facts.dialect) if facts.channels else ()
        return
    _refuse_gaps(facts)
    _marker(instance).touch()
    try:
        session.query(facts.dialect.stop_applier)
        yield _when_stopped(session, facts)
    finally:
        session.query(facts.dialect.start_applier)
        _marker(instance).unlink(missing_ok=True)


def _refuse_gaps(facts: ServerFacts) -> None:
    """Raise PreflightError where parallel appliers of MySQL may stop with gaps between them (refman 8.4, "replica_preserve_commit_order")."""
    if facts.flavour is not Flavour.MYSQL:
        return
    workers = facts.variables.get("replica_parallel_workers", facts.variables.get("slave_parallel_workers", "0"))
    keeps_order = facts.variables.get("replica_preserve_commit_order", facts.variables.get("slave_preserve_commit_order", "ON"))
    if int(workers) > 1 and keeps_order in ("OFF", "0"):
        raise PreflightError(
            f"lock.stop_applier: {workers} workers that do not preserve the commit order may stop with gaps between them",
            hint="set replica_preserve_commit_order = ON, or leave stop_applier out",
        )


def _when_stopped(session: Session, facts: ServerFacts) -> tuple[Channel, ...]:
    deadline = time.monotonic() + _STOP_SECONDS
    while True:
        found = channels(session, facts.dialect)
        if not any(channel.applying for channel in found):
            break
        if time.monotonic() > deadline:
            raise ServerError(f"the applier did not stop within {_STOP_SECONDS:.0f} s", hint="a long transaction is being applied; see SHOW REPLICA STATUS")
        time.sleep(0.05)
    open_tables = sum(int(row[1]) for row in session.query("SHOW GLOBAL STATUS WHERE variable_name IN ('Slave_open_temp_tables', 'Replica_open_temp_tables')"))
    if open_tables:
        raise LockNotGranted(
            f"the applier stopped with {open_tables} replicated temporary table(s) open, which a restored replica would not have",
            hint="it is tried again within lock.budget; binlog_format = ROW on the source avoids them",
        )
    return found
