"""The results of `zsnapdb restore` runs to which the callers gave an id. The journal of the restore contains the id.

If the restore is finished, its result is returned. An interrupted restore that does not replace the server continues,
as with --resume. If a restore may have begun to exchange the datasets of production, only a person can continue it.
Since then, an administrator may have inspected, repaired or changed the server. For the same reason, only a person can
continue a restore that would replace the server according to an old plan.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from zsnapdb.base.domain_types import backup_time
from zsnapdb.base.errors import PreflightError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.restore import machine_restore, server_restore
from zsnapdb.jobs.restore.machine_restore import MachineRestoreResult
from zsnapdb.jobs.restore.run_lifecycle import Confirm, confirm_every_step
from zsnapdb.jobs.restore.server_restore import RestoreResult
from zsnapdb.jobs.steps.journal import J
from zsnapdb.jobs.steps.restore_journal import Journals, MachineJournals, RestoreJournal
from zsnapdb.planning.clock_guard import TOLERANCE, RemovalTime

_RECENT = timedelta(hours=1)
"""The maximum age of a plan whose state may still replace the server when the command is repeated."""
_CLOCKS = timedelta(seconds=TOLERANCE)


def restored(
    settings: Settings, instance: Instance, confirm: Confirm = confirm_every_step, stop_after: str | None = None
) -> RestoreResult | None:
    """Return the result of the restore with the run's id, or continue that restore; None if it does not exist.

    Raises:
        PreflightError: the restore was interrupted while it exchanged the server's datasets, or it would exchange them
            according to a plan that is too old or of unknown age.
    """
    journals = Journals(settings.restore.journal)
    done = _of_run(journals.finished(), instance)
    if done is not None:
        return server_restore.result_of(done)
    left = _of_run(journals.readable(instance.name), instance)
    if left is None:
        return None
    # Check the journal under the restore's lock, because another process may just have continued the restore and been
    # killed.
    return server_restore.resume(
        settings, instance, left.top, confirm, stop_after, judge=partial(_refuse_exchange, removal_time(instance.host))
    )


def restored_machine(
    settings: Settings, instance: Instance, confirm: Confirm = confirm_every_step, stop_after: str | None = None
) -> MachineRestoreResult | None:
    """Do the same as `restored` for a virtual machine. A restored machine never replaces the original machine."""
    journals = MachineJournals(settings.restore.journal)
    done = _of_run(journals.finished(), instance)
    if done is not None:
        return MachineRestoreResult(done.plan, done.done)
    left = _of_run(journals.readable(instance.name), instance)
    return machine_restore.resume(settings, instance, left.top, confirm, stop_after) if left is not None else None


def _of_run(journals: list[J], instance: Instance) -> J | None:
    own = instance.host.run_id()
    return next((one for one in journals if (one.run_id, one.plan.instance) == (own, instance.name)), None)


def _refuse_exchange(time: RemovalTime, journal: RestoreJournal) -> None:
    promotion, following = journal.plan.promotion, journal.next_step
    if promotion is None:
        return
    if following is not None and following.name == promotion.name:
        when = "was interrupted when it was about to replace the server, or while it did"
    elif time.latest - (chosen := backup_time(journal.plan.restore_id)) > _RECENT:
        when = "would replace the server with a state that was chosen more than an hour ago"
    elif (time.doubt and time.wall < time.proven) or time.latest - chosen < -_CLOCKS:
        why = time.doubt or "the clock was set back"
        when = f"would replace the server with a state whose age is not known: {why}"
    else:
        return
    raise PreflightError(
        f"the restore of {journal.plan.instance} that run {journal.run_id} began {when}",
        hint=f"check the server, then run `zsnapdb restore {journal.plan.instance} --resume --target {journal.top}`",
    )
