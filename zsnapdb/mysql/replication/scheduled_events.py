"""Restores the states of a server's scheduled events after a replay, because the applier disables events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from zsnapdb.base.domain_types import Flavour
from zsnapdb.mysql.session import Session
from zsnapdb.planning.binlog.event_states import EventKey, EventState, EventStates
from zsnapdb.planning.server_family import family
from zsnapdb.planning.sql_quoting import quoted

_CODECS = {"latin1": "cp1252", "utf8": "utf-8", "utf8mb3": "utf-8", "utf8mb4": "utf-8"}
"""Character sets in which a statement with non-ASCII characters can be sent."""
_IN_TABLE = {EventState.REPLICA: "SLAVESIDE_DISABLED"}
_WORDS = {EventState.ENABLED: "ENABLE", EventState.DISABLED: "DISABLE", EventState.REPLICA: "DISABLE ON SLAVE"}


@dataclass(frozen=True)
class ScheduledEvent:
    """A scheduled event, which runs as the account `definer`.

    The server with the server_id `originator` created the event.
    """

    schema: str
    name: str
    state: EventState
    definer: str
    originator: int
    client: str
    collation: str
    altered: int

    @property
    def key(self) -> EventKey:
        return self.schema, self.name.lower()

    def statement(self, state: EventState) -> str:
        """Return the statement that sets this state without changing the definer."""
        user, _, host = self.definer.rpartition("@")
        return f"ALTER DEFINER = {quoted(user)}@{quoted(host)} EVENT {quoted(self.schema, self.name)} {_WORDS[state]}"


def scheduled_events(session: Session) -> list[ScheduledEvent]:
    """Return all scheduled events of the server."""
    rows = session.query(
        "SELECT event_schema, event_name, status, definer, originator, character_set_client, collation_connection,"
        " UNIX_TIMESTAMP(last_altered) FROM information_schema.events"
    )
    return [
        ScheduledEvent(
            str(schema), str(name), EventState.of(str(status)), str(definer), int(server), str(client), str(collation),
            int(altered or 0),
        )
        for schema, name, status, definer, server, client, collation, altered in rows
    ]  # fmt: skip


def states_of(session: Session) -> EventStates:
    """Return the states of all scheduled events."""
    return {event.key: event.state for event in scheduled_events(session)}


def give_back_definers(session: Session, flavour: Flavour, account: str, before: Sequence[ScheduledEvent]) -> list[str]:
    """Restore the definers of events that a client altered as `account`. Return the events that still have `account`.

    ALTER EVENT makes its caller the definer, and no binlog tool prints the previous definer. An event is returned if
    its previous definer is unknown because the same replay created it, or if its statement cannot be sent. The
    statements are not written to the binlog.
    """
    known = {event.key: event.definer for event in before}
    unknown = []
    session.query("SET SESSION sql_log_bin = 0")
    for event in scheduled_events(session):
        if event.definer != account:
            continue
        mended = replace(event, definer=known.get(event.key, account))
        if mended.definer == account or not _can_send(mended):
            unknown.append(quoted(event.schema, event.name))
        else:
            _set(session, flavour, mended, event.state)
    session.query("SET SESSION sql_log_bin = 1")
    return unknown


def give_back(session: Session, flavour: Flavour, server_id: int, before: EventStates, after: EventStates) -> list[str]:
    """Set each event that the replay disabled to the state that it has on the source.

    The binlog does not record the changes.

    `before` contains the states before the replay, and `after` the states that result from the replayed statements.
    `server_id` is the source's server id. If the source had replicated an event from another server, the event stays
    disabled. Return an ALTER statement for each event whose state on the source is unknown.
    """
    unknown = []
    session.query("SET SESSION sql_log_bin = 0")
    for event in scheduled_events(session):
        if event.state is not EventState.REPLICA or before.get(event.key) is EventState.REPLICA:
            continue
        state = after.get(event.key)
        if state is None or event.originator != server_id or not _can_send(event):
            unknown += [] if state is EventState.REPLICA else [event.statement(EventState.ENABLED)]
        elif state is not EventState.REPLICA:
            _set(session, flavour, event, state)
    session.query("SET SESSION sql_log_bin = 1")
    return unknown


def _can_send(event: ScheduledEvent) -> bool:
    return event.client in _CODECS or event.statement(EventState.ENABLED).isascii()


def _set(session: Session, flavour: Flavour, event: ScheduledEvent, state: EventState) -> None:
    if family(flavour).has_event_table:
        _set_in_table(session, event, state)
    else:
        _alter(session, event, state)


def _set_in_table(session: Session, event: ScheduledEvent, state: EventState) -> None:
    """Update the event's row in MariaDB's event table.

    Without `created = created`, the row's first timestamp would change.
    """
    session.query(
        "UPDATE mysql.event SET status = %s, definer = %s, created = created, modified = modified"
        " WHERE db = %s AND name = %s",
        (_IN_TABLE.get(state, state.value), event.definer, event.schema, event.name),
    )


def _alter(session: Session, event: ScheduledEvent, state: EventState) -> None:
    """Alter the event in a session with the settings and time of its creator, because the server records them."""
    (before,) = session.query("SELECT @@GLOBAL.server_id")[0]
    text = event.statement(state).encode(_CODECS.get(event.client, "ascii")).decode("utf-8", "surrogateescape")
    session.query("SET GLOBAL server_id = %s", (event.originator,))
    session.query(
        "SET SESSION timestamp = %s, character_set_client = %s, collation_connection = %s",
        (event.altered, event.client, event.collation),
    )
    session.query(text)
    session.query(
        "SET SESSION timestamp = DEFAULT, character_set_client = utf8mb4, collation_connection = utf8mb4_general_ci"
    )
    session.query("SET GLOBAL server_id = %s", (before,))
