"""Tries the statements of an undo on a clone of the running server, which is destroyed afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.config import Settings
from zsnapdb.errors import ConsistencyError, PreflightError, ServerError
from zsnapdb.jobs.clone.create_plan import CloneRequest
from zsnapdb.jobs.clone.ephemeral import OWNER, ephemeral_clone
from zsnapdb.jobs.clone.sources import LIVE_STATE
from zsnapdb.jobs.instance import Instance
from zsnapdb.planning.binlog.undo import Expectation

_LONGEST_SECONDS = 86400.0


def try_undo(settings: Settings, instance: Instance, statements: Sequence[str], after: Sequence[Expectation]) -> None:
    """Run the statements in one session of a clone that is taken now, and check what must be true after them.

    PreflightError if the statements undo nothing there. ConsistencyError if they end well, and a row is not as before
    the transaction.
    """
    with (
        ephemeral_clone(settings, instance, CloneRequest(OWNER, source=LIVE_STATE)) as clone,
        clone.session(read_timeout=_LONGEST_SECONDS) as session,
    ):
        try:
            for statement in statements:
                session.query(statement)
        except ServerError as error:
            raise PreflightError(
                f"on a clone of the server the script undoes nothing: {error.message}",
                hint="a row was changed since, or another table refuses its undo; nothing on the server was changed",
            ) from error
        wrong = [one.change for one in after if bool(session.query(one.question)) is one.is_absent]
    if wrong:
        raise ConsistencyError(
            f"on a clone of the server {len(wrong)} rows are not as before the transaction after the undo, the first in"
            f" {wrong[0].shape.name}",
            hint="do not run the script; nothing on the server was changed; report this",
        )
