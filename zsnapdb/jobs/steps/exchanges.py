"""Restores of this host that replace a server and are under way: `status` and `doctor` name them, with the ways out.

Nothing in a repository says this, so it is right while the store is away, and right on this host alone.
"""

from __future__ import annotations

from pathlib import Path

from zsnapdb.base.errors import DamagedError, PreflightError
from zsnapdb.jobs.base import exclusion
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.steps.restore_journal import Journals, RestoreJournal
from zsnapdb.mysql.process.service import serving
from zsnapdb.planning.health.facts import ExchangedServer, ExchangeFact
from zsnapdb.planning.restore.exchange import names_in


def under_way(instance: Instance) -> tuple[ExchangeFact, ...]:
    """Return what replaces the server of the instance on this host, by the journals, and whether a server runs.

    A journal that cannot be read, or may not be read by this account, is left out: `restore` names it.
    """
    try:
        journals = Journals(instance.restores).under_way(instance.name)
    except (DamagedError, PreflightError):
        return ()
    return tuple(_fact(journal, instance.host.run) for journal in journals if journal.plan.promotion is not None)


def _fact(journal: RestoreJournal, run: Path) -> ExchangeFact:
    plan, old = journal.plan, journal.old_server
    step = plan.promotion
    # A rewind knows how the server is stopped and started; who restores with --handover promote does it himself.
    is_rewind = old is not None or (step is not None and step.unit is not None)
    onward = f"zsnapdb rewind {plan.instance} --resume" if is_rewind else f"zsnapdb restore {plan.instance} --resume"
    back = f"zsnapdb restore {plan.instance} --abandon --target {plan.layout.top}"
    was_stopped = old.stopped if old is not None else None
    # Who stops the server himself does so before the last step. A rewind notes that it stops the server.
    is_last = not is_rewind and all(journal.is_done(one.name) for one in plan.steps[:-1])
    if not (was_stopped is not None or is_last) or _is_served(Path(plan.variables["datadir"])):
        return ExchangeFact(plan.created, None, (onward, back), ExchangedServer.RUNS)
    locks = (f"rewind-{plan.instance}", f"restore-{plan.layout.top}")
    is_at_work = any(exclusion.is_held(name, run) for name in locks)
    state = ExchangedServer.AWAY if is_at_work else ExchangedServer.LEFT
    return ExchangeFact(plan.created, was_stopped, (onward, back), state)


def _is_served(datadir: Path) -> bool:
    """Whether a server runs there. It may have been started by hand, or between two lines of a run that was killed."""
    try:
        return serving(datadir) is not None
    except PreflightError:
        # Several do.
        return True


def claimed(journals: Journals) -> dict[str, str]:
    """Return every dataset that belongs to a restore under way, and that restore's instance: no other run may touch it.

    DamagedError if a journal cannot be read: then it is not known what belongs to its restore.
    """
    names = {}
    for journal in journals.all_under_way():
        plan, step = journal.plan, journal.plan.promotion
        own = [plan.layout.top, *plan.layout.datasets.values()]
        for name in own + (names_in(step) if step is not None else []):
            names[name] = plan.instance
    return names
