"""Proves an undo on two clones, which are then destroyed: one right before the transaction, one of the server now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zsnapdb.config import Settings
from zsnapdb.errors import ConsistencyError, PreflightError, ServerError, ZsnapdbError
from zsnapdb.jobs.clone import fetch
from zsnapdb.jobs.clone.create_plan import CloneRequest
from zsnapdb.jobs.clone.ephemeral import OWNER, ephemeral_clone
from zsnapdb.jobs.clone.locate import home_for
from zsnapdb.jobs.clone.sources import LIVE_STATE, with_volumes
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.restore.without_store import host_alone, open_for_restore
from zsnapdb.mysql.row_digests import row_digests
from zsnapdb.mysql.table_shapes import TableShapes
from zsnapdb.planning.binlog import undo as planning
from zsnapdb.planning.binlog.undo import RowChange
from zsnapdb.planning.binlog.undo_proof import StateBefore, questions, tables_of
from zsnapdb.planning.restore.origin import RestoreOrigin
from zsnapdb.planning.restore.steps import RestorePlan

_LONGEST_SECONDS = 86400.0


def prove(settings: Settings, instance: Instance, gtid: str, changes: Sequence[RowChange]) -> StateBefore:
    """Prove that the statements for these changes undo them, and return what was right before the transaction.

    PreflightError if the tables had another definition then, if that state cannot be made, or if the statements undo
    nothing on a clone that is taken now. ConsistencyError if they end well there, and a row is not as it was.
    """
    if instance.settings.masking.required:
        raise PreflightError(
            f"an undo on instance {instance.name} cannot be proved: masking.required masks the rows of every clone",
            hint="restore beside the server, and compare the rows there",
        )
    before = _state_before(settings, instance, gtid, changes)
    request = CloneRequest(OWNER, source=LIVE_STATE)
    with (
        ephemeral_clone(settings, instance, request) as clone,
        clone.session(read_timeout=_LONGEST_SECONDS) as session,
    ):
        try:
            for statement in planning.statements(changes):
                session.query(statement)
        except ServerError as error:
            raise PreflightError(
                f"on a clone of the server the script undoes nothing: {error.message}",
                hint="a row was changed since, or another table refuses its undo; nothing on the server was changed",
            ) from error
        wrong = before.row_difference(row_digests(session, before.questions))
    if wrong is not None:
        raise ConsistencyError(
            f"on a clone of the server, after the undo of transaction {gtid}, {wrong}",
            hint="nothing on the server was changed; rescue the table: `zsnapdb rescue --to before-GTID`",
        )
    return before


def _state_before(settings: Settings, instance: Instance, gtid: str, changes: Sequence[RowChange]) -> StateBefore:
    at = f"before-{gtid}"
    try:
        point = _point(settings, with_volumes(instance), at)
    except ZsnapdbError as error:
        raise PreflightError(
            f"the state right before transaction {gtid} cannot be made, so its undo cannot be proved: {error.message}",
            hint=error.hint or "an undo needs a backup or a `zsnapdb snapshot` from before the transaction",
        ) from error
    request = CloneRequest(OWNER, at=at, point=point)
    with (
        ephemeral_clone(settings, instance, request) as clone,
        clone.session(read_timeout=_LONGEST_SECONDS) as session,
    ):
        reader, tables, asked = TableShapes(session), tables_of(changes), questions(changes)
        before = StateBefore(tuple(reader.read(table.schema, table.table) for table in tables), asked)
        difference = before.definition_difference(tables)
        if difference is not None:
            raise PreflightError(
                f"transaction {gtid} cannot be undone by rows: {difference}",
                hint="restore beside the server, or rescue the table: `zsnapdb rescue --to before-GTID`",
            )
        for statement in planning.SESSION:
            session.query(statement)
        return replace(before, digests=row_digests(session, asked))


def _point(settings: Settings, instance: Instance, at: str) -> RestorePlan:
    """Return the plan that leads to the state: from this host alone if that is enough."""
    home = home_for(settings, list(instance.volumes.values()))
    here = host_alone(instance)
    if here is not None:
        try:
            return fetch.point_plan(settings, instance, here, home, at)
        except ZsnapdbError:
            # The point may lie before the sets on this host.
            here = None
    return fetch.point_plan(settings, instance, open_for_restore(instance, RestoreOrigin.AUTO), home, at)
