"""Gives an interrupted restore up: the server that it was to replace is as it was before, then its datasets go."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.exclusion import for_instance
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.interruption import uninterrupted
from zsnapdb.jobs.record.once_record import OnceRecords
from zsnapdb.jobs.restore import exchange
from zsnapdb.jobs.restore.old_server import control_of
from zsnapdb.jobs.restore.plan import copy_of
from zsnapdb.jobs.restore.receiving import tell_what_stays
from zsnapdb.jobs.restore.steps import remove_all
from zsnapdb.jobs.restore.under_way import alone_with_journal, clear_foreign
from zsnapdb.jobs.steps.restore_journal import Journals, RestoreJournal
from zsnapdb.planning.restore.plan import RestorePlan


@dataclass(frozen=True)
class GivenUp:
    """A restore that was given up. `left` says how the server is that it was to replace; "" if it replaced none."""

    plan: RestorePlan
    left: str = ""


def abandon(
    settings: Settings, instance: Instance, top: str | None, *, with_foreign_snapshots: bool = False
) -> GivenUp:
    """Give an interrupted restore up: remove its datasets, each proved to be ours, and its journal.

    A server that a rewind stopped runs again before anything is removed, from its own datasets and with its own option
    file; datasets that were renamed have their names again. PreflightError, before anything is changed, if others made
    snapshots on the datasets and they are not let go, or if the restored datasets are in place of the server's own. An
    error of the old server's start leaves the restore as it is.
    """
    journals = Journals(settings.restore.journal)
    before = journals.find(instance.name, top)
    with _alone(instance, before), alone_with_journal(instance, journals, before.plan.layout.top) as journal:
        planned, left = journal.plan, ""
        clear_foreign(planned, may_go=with_foreign_snapshots)
        step = planned.promotion
        if step is not None:
            with uninterrupted(instance.events.warn):
                old = control_of(instance, journals, journal)
                if old is not None:
                    left = old.bring_back()
                else:
                    exchange.swap_back(planned, step)
        OnceRecords(instance.host).note_given_up(journal.run_id)
        remove_all(planned, copy_of(instance, planned))
        tell_what_stays(instance.events, {planned.layout.top, *planned.layout.datasets.values()})
        journals.forget(planned.layout.top)
    return GivenUp(planned, left)


@contextlib.contextmanager
def _alone(instance: Instance, journal: RestoreJournal) -> Iterator[None]:
    """Be the only run that exchanges the datasets of the instance, if this restore would.

    A rewind waits for an answer without the lock of its restore.
    """
    if journal.plan.promotion is None:
        yield
        return
    with for_instance(instance, "rewind", "giving a rewind up of"):
        yield
