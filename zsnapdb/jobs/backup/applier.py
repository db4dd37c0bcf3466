"""Stops a replica's applier for the moment of a snapshot, at a point its source knows, and starts it again whatever happens."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from zsnapdb.errors import LockNotGranted, ServerError
from zsnapdb.jobs.instance import Instance
from zsnapdb.model import Flavour
from zsnapdb.mysql import applier as statements
from zsnapdb.mysql.probe import channels, flavour_and_dialect
from zsnapdb.mysql.session import Session
from zsnapdb.planning.facts import Channel, Dialect, ServerFacts

_STOP_SECONDS = 60.0
_START_ATTEMPTS = 3


def _marker(instance: Instance) -> Path:
    """The channels we stopped: should this process be killed, the next run starts them again.

    A reboot clears it, and starts the server anew.
    """
    return instance.host.run / f"applier-{instance.name}"


def is_forgotten(instance: Instance) -> bool:
    """Whether a run that was killed left the applier stopped (or one that is under way has stopped it)."""
    return _marker(instance).exists()


def start_forgotten(instance: Instance, session: Session) -> str | None:
    """Start the channels that a killed run of ours left stopped; return what was done, for a warning.

    Only with the instance's lock held.
    """
    if not is_forgotten(instance):
        return None
    names = json.loads(_marker(instance).read_text() or "[]")
    _start(instance, *flavour_and_dialect(session), names)
    return "a killed run had left the applier stopped; it was started again"


@contextlib.contextmanager
def stopped(instance: Instance, session: Session, facts: ServerFacts) -> Iterator[tuple[Channel, ...]]:
    """Stop the applier for the block if the configuration asks for it.

    Yield the channels, then exactly at their source's positions.

    Only channels that were applying are stopped, and only those are started again: by a connection of its own, as the
    one that stopped them may have been lost. LockNotGranted while replicated temporary tables are open: a restored
    replica could not go on from there (refman 8.4, "Replication and Temporary Tables").
    """
    found = channels(session, facts.dialect) if facts.channels else ()
    names = [channel.name for channel in found if channel.applying]
    if not (instance.settings.lock.stop_applier and names):
        yield found
        return
    _marker(instance).write_text(json.dumps(names))
    try:
        _stop(instance, facts, names)
        yield _at_rest(session, facts)
    except BaseException as error:
        try:
            _start(instance, facts.flavour, facts.dialect, names)
        except ServerError as second:
            error.add_note(f"and the applier could not be started again: {second.message}; the next run will")
        raise
    _start(instance, facts.flavour, facts.dialect, names)


def _stop(instance: Instance, facts: ServerFacts, names: Sequence[str]) -> None:
    """Stop the channels. The statement waits for the transaction under way; a connection of its own bounds that."""
    with instance.session(read_timeout=_STOP_SECONDS) as session:
        statements.stop(session, facts.flavour, facts.dialect, names)


def _start(instance: Instance, flavour: Flavour, dialect: Dialect, names: Sequence[str]) -> None:
    """Start the channels and forget them. A stop that is still under way is waited for by the server."""
    for attempt in range(_START_ATTEMPTS):
        try:
            with instance.session(read_timeout=_STOP_SECONDS) as session:
                statements.start(session, flavour, dialect, names)
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
            hint="it is tried again within lock.budget; binlog_format = ROW on the source avoids them",
        )
    return channels(session, facts.dialect)
