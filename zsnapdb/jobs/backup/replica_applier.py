"""Stops a replica's applier during a snapshot, and always starts it again.

While the applier is stopped, its position in the binlogs of the replication source does not change. So the recorded
position matches the data in the snapshot.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import LockNotGranted, ServerError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.mysql.probe import channels, flavour_and_dialect
from zsnapdb.mysql.replication import channels as statements
from zsnapdb.mysql.session import Session
from zsnapdb.planning.server_facts import Channel, Dialect, ServerFacts

_STOP_SECONDS = 60.0
_START_ATTEMPTS = 3


def _marker(instance: Instance) -> Path:
    """Return the path of the marker file, which lists the stopped channels.

    If this run is killed, the next run starts these channels. A reboot removes the file, but also restarts the server.
    """
    return instance.host.run / f"applier-{instance.name}"


def is_forgotten(instance: Instance) -> bool:
    """Return whether a run has stopped the applier and has not started it again.

    That run may have been killed or may still be running.
    """
    return _marker(instance).exists()


def start_forgotten(instance: Instance, session: Session) -> str | None:
    """Start the channels that a killed run left stopped. Return the text of a warning; None if no channel was stopped.

    The caller holds the lock of the instance.
    """
    if not is_forgotten(instance):
        return None
    names = json.loads(_marker(instance).read_text() or "[]")
    _start(instance, *flavour_and_dialect(session), names)
    return "a killed run had left the applier stopped; zsnapdb started the applier again"


@contextlib.contextmanager
def stopped_applier(instance: Instance, session: Session, facts: ServerFacts) -> Iterator[tuple[Channel, ...]]:
    """Stop the applier for the block if lock.stop_applier is set, and yield the channels with their positions.

    Only channels that were applying are stopped, and only stopped channels are started again. The channels are started
    over a new connection, because the first connection may be lost.

    Raises:
        LockNotGranted: replicated temporary tables are open. A restored replica could not continue replication (refman
            8.4, "Replication and Temporary Tables").
    """
    running = channels(session, facts.dialect) if facts.channels else ()
    names = [channel.name for channel in running if channel.applying]
    if not (instance.settings.lock.stop_applier and names):
        yield running
        return
    _marker(instance).write_text(json.dumps(names))
    try:
        # STOP waits for the current transaction, at most for the read timeout.
        with instance.session(read_timeout=_STOP_SECONDS) as patient:
            statements.stop_applier(patient, facts.flavour, facts.dialect, names)
        yield _at_rest(session, facts)
    except BaseException as error:
        try:
            _start(instance, facts.flavour, facts.dialect, names)
        except ServerError as second:
            error.add_note(f"the applier could not be started again: {second.message}; the next run tries again")
        raise
    _start(instance, facts.flavour, facts.dialect, names)


def _start(instance: Instance, flavour: Flavour, dialect: Dialect, names: Sequence[str]) -> None:
    """Start the channels and remove the marker file.

    If a channel is still stopping, the server first finishes the stop.
    """
    for attempt in range(_START_ATTEMPTS):
        try:
            with instance.session(read_timeout=_STOP_SECONDS) as session:
                statements.start_applier(session, flavour, dialect, names)
        except ServerError:
            if attempt == _START_ATTEMPTS - 1:
                raise
            time.sleep(1.0)
        else:
            _marker(instance).unlink(missing_ok=True)
            return


def _at_rest(session: Session, facts: ServerFacts) -> tuple[Channel, ...]:
    open_tables = statements.open_temporary_tables(session)
    if open_tables:
        raise LockNotGranted(
            f"the applier stopped with {open_tables} replicated temporary table(s) open, which a restored replica would"
            " not have",
            hint="zsnapdb tries again within lock.budget; set binlog_format = ROW on the source to avoid such tables",
        )
    return channels(session, facts.dialect)
