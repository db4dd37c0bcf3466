"""What a run of `restore` whose id its caller chose has made: the journal of the restore has the id.

A finished restore is the answer. An interrupted one goes on, as by --resume, while it stands beside the server. One
that may have begun to exchange the datasets of production goes on only if a person says so: since then somebody may
have looked at the server, mended it, or written to it. So does one that would replace the server with a state that was
chosen long ago.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

from zsnapdb.base.errors import PreflightError
from zsnapdb.base.model import backup_time
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.restore import machine, run
from zsnapdb.jobs.restore.machine import MachineRestoreResult
from zsnapdb.jobs.restore.restore_run import Confirm, always
from zsnapdb.jobs.restore.run import RestoreResult
from zsnapdb.jobs.steps.journal import J
from zsnapdb.jobs.steps.restore_journal import Journals, MachineJournals, RestoreJournal

_RECENT = timedelta(hours=1)
"""For so long after it was planned a repeated command may go on to replace the server with what was chosen then."""


def restored(
    settings: Settings, instance: Instance, confirm: Confirm = always, stop_after: str | None = None
) -> RestoreResult | None:
    """Return the restore that the run of this id made, or go on with it. None if it left nothing.

    PreflightError if it was interrupted in the exchange of the server's datasets, or replaces them and is not recent.
    """
    journals = Journals(settings.restore.journal)
    done = _of_run(journals.finished(), instance)
    if done is not None:
        return run.result_of(done)
    left = _of_run(journals.readable(instance.name), instance)
    if left is None:
        return None
    # Judged under the lock of the restore: somebody may just have gone on with it, and been killed.
    return run.resume(
        settings, instance, left.top, confirm, stop_after, judge=partial(_refuse_exchange, instance.host.now())
    )


def restored_machine(
    settings: Settings, instance: Instance, confirm: Confirm = always, stop_after: str | None = None
) -> MachineRestoreResult | None:
    """Do as `restored` for a virtual machine, which never replaces the one that was backed up."""
    journals = MachineJournals(settings.restore.journal)
    done = _of_run(journals.finished(), instance)
    if done is not None:
        return MachineRestoreResult(done.plan, done.done)
    left = _of_run(journals.readable(instance.name), instance)
    return machine.resume(settings, instance, left.top, confirm, stop_after) if left is not None else None


def _of_run(journals: list[J], instance: Instance) -> J | None:
    own = instance.host.run_id()
    return next((one for one in journals if (one.run_id, one.plan.instance) == (own, instance.name)), None)


def _refuse_exchange(now: datetime, journal: RestoreJournal) -> None:
    promotion, following = journal.plan.promotion, journal.next_step
    if promotion is None:
        return
    if following is not None and following.name == promotion.name:
        when = "was interrupted when it was about to replace the server, or while it did"
    elif now - backup_time(journal.plan.restore_id) > _RECENT:
        when = "would replace the server with a state that was chosen more than an hour ago"
    else:
        return
    raise PreflightError(
        f"the restore of {journal.plan.instance} that run {journal.run_id} began {when}",
        hint=f"look at the server; then `zsnapdb restore {journal.plan.instance} --resume --target {journal.top}`",
    )
