"""An operator's commands to a fleet: apply its jobs, run, pause, resume or cancel jobs, and read the history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import TypeVar

from temporalio.service import RPCError

from zsnapdb.agent.schedule import Schedule
from zsnapdb.base import run_context
from zsnapdb.base.errors import UnreachableError
from zsnapdb.config.fleet_jobs import FleetJobsSettings
from zsnapdb.config.services import FleetVerb, ScheduleSettings
from zsnapdb.fleet.connection import connect, refusal_error
from zsnapdb.fleet.engine_client import FleetEngine, each
from zsnapdb.planning.fleet.jobs import FleetJob
from zsnapdb.planning.fleet.overview import no_match
from zsnapdb.planning.fleet.schedule_plan import (
    FleetChange,
    FleetChangeKind,
    FleetPlan,
    JobFilter,
    JobRun,
    PausedJob,
    changes,
    is_meant,
    job_of,
    wanted_schedules,
)

_NAME = "operator"
_LOOKED_AT = 10_000
"""How many of the newest runs are searched for selected runs."""
_SECONDS = 900.0
"""Time limit in seconds for an operator's command, without the jobs that it waits for."""
T = TypeVar("T")


def _ask(
    settings: FleetJobsSettings,
    doing: str,
    ask: Callable[[FleetEngine], Coroutine[None, None, T]],
    *,
    waits: bool = False,
) -> T:
    async def asked() -> T:
        engine = FleetEngine(await connect(settings.engine, _NAME))
        try:
            async with asyncio.timeout(None if waits else _SECONDS):
                return await ask(engine)
        except RPCError as error:
            raise refusal_error(error, doing) from error
        except TimeoutError as error:
            raise UnreachableError(
                f"{doing}: the engine of the fleet at {settings.engine.server} has not answered all within"
                f" {_SECONDS:.0f} s",
                hint="check its load and repeat the command; earlier requests may have been executed",
            ) from error

    return asyncio.run(asked())


def plan(settings: FleetJobsSettings, waves: int | None) -> FleetPlan:
    """Return the differences between the settings and the engine's state.

    If `waves` is given, return only the differences of the first waves.

    Raises ConfigError if a schedule cannot be read.
    """
    _check(settings)
    return _ask(settings, "planning", lambda engine: _fleet_plan(engine, settings, waves))


def apply(settings: FleetJobsSettings, waves: int | None, tell: Callable[[str], None]) -> FleetPlan:
    """Change the engine's schedules and limits one by one, until they match the settings. Return the changes."""
    _check(settings)

    async def applied(engine: FleetEngine) -> FleetPlan:
        async def make(change: FleetChange) -> None:
            await _make(engine, change)
            tell(f"{change.kind} {change.name}: {change.reason}")

        planned = await _fleet_plan(engine, settings, waves)
        # Limits are changed before the schedules that need them. A wave starts only after the previous wave is
        # complete.
        for _, together in groupby(planned.changes, lambda change: (change.wave, not change.is_limit)):
            await each(list(together), make)
        return planned

    return _ask(settings, "applying the jobs of the fleet", applied)


def _check(settings: FleetJobsSettings) -> None:
    """Raise ConfigError if the times of a schedule are invalid."""
    for one in {(schedule.cron, schedule.every, schedule.timezone) for schedule in wanted_schedules(settings)}:
        cron, every, timezone = one
        Schedule.of(ScheduleSettings(cron=cron, every=every), timezone)


async def _fleet_plan(engine: FleetEngine, settings: FleetJobsSettings, waves: int | None) -> FleetPlan:
    found = changes(settings, await engine.schedules(), await engine.limits())
    now = tuple(one for one in found if waves is None or one.wave <= waves)
    touched = sum(one.kind is not FleetChangeKind.DELETE for one in found)
    return FleetPlan(now, len(wanted_schedules(settings)) + len(settings.bucket) - touched, len(found) - len(now))


async def _make(engine: FleetEngine, change: FleetChange) -> None:
    if change.is_limit:
        if change.limit is None:
            await engine.remove_limit(change.name)
        else:
            await engine.keep_limit(change.name, change.limit)
    elif change.schedule is None:
        await engine.remove_schedules(change.stale)
    else:
        await engine.make_schedule(change.schedule, change.stale)


def run(
    settings: FleetJobsSettings, verb: FleetVerb, filters: Sequence[JobFilter], tell: Callable[[JobRun], None] | None
) -> tuple[JobRun, ...]:
    """Start a job with this verb on each selected instance now.

    If `tell` is given, return only after all runs have ended.

    The function `tell` is called with a run whenever the run's state or message has changed.

    Raises UsageError if no instance is selected.
    """
    meant = _jobs(settings, (verb,), filters)
    if not meant:
        raise no_match()
    chosen = [job.model_copy(update={"run_id": run_context.new_run_id()}) for job in meant]

    async def begun(engine: FleetEngine) -> tuple[JobRun, ...]:
        names = await each(chosen, engine.begin)
        if tell is not None:
            return tuple(await asyncio.gather(*(_wait_for_run(engine, name, tell) for name in names)))
        at = datetime.now(UTC)
        return tuple(JobRun(name, job, "running", at, None) for job, name in zip(chosen, names, strict=True))

    return _ask(settings, f"beginning {verb}", begun, waits=tell is not None)


async def _wait_for_run(engine: FleetEngine, workflow_id: str, tell: Callable[[JobRun], None]) -> JobRun:
    """Wait for the end of the run, and return it. Call `tell` whenever the run's state or message has changed."""
    last: JobRun | None = None
    async for one in engine.watch(workflow_id):
        if last is None or (one.state, one.message) != (last.state, last.message):
            tell(one)
        last = one
    assert last is not None
    return last


def pause(settings: FleetJobsSettings, filters: Sequence[JobFilter], reason: str) -> tuple[PausedJob, ...]:
    """Pause the selected schedules. Return the schedules that were not paused before.

    Raises UsageError if the filters match nothing.
    """
    return _ask(settings, "pausing", lambda engine: _paused(engine, settings, filters, reason, is_wanted=True))


def resume(settings: FleetJobsSettings, filters: Sequence[JobFilter], reason: str) -> tuple[PausedJob, ...]:
    """Resume the selected schedules. Return the schedules that were paused before.

    Raises UsageError if the filters match nothing.
    """
    return _ask(settings, "resuming", lambda engine: _paused(engine, settings, filters, reason, is_wanted=False))


async def _paused(
    engine: FleetEngine, settings: FleetJobsSettings, filters: Sequence[JobFilter], reason: str, *, is_wanted: bool
) -> tuple[PausedJob, ...]:
    done, is_known = [], bool(_jobs(settings, FleetVerb, filters))
    for one in await engine.schedules():
        schedule = one.schedule
        if schedule is None or not _is_meant(settings, filters, schedule.job):
            continue
        is_known = True
        if one.is_paused == is_wanted:
            continue
        if await (engine.pause if is_wanted else engine.resume)(one.schedule_id, reason):
            done.append(PausedJob(one.name, schedule.job.verb, schedule.job.instance, reason))
    if filters and not is_known:
        raise no_match()
    return tuple(done)


def cancel(settings: FleetJobsSettings, filters: Sequence[JobFilter]) -> tuple[JobRun, ...]:
    """Request that the selected running jobs end, and return these jobs. The hosts stop the jobs within seconds.

    Raises UsageError if the filters match nothing.
    """

    async def cancelled(engine: FleetEngine) -> tuple[JobRun, ...]:
        meant = await _runs(engine, settings, filters, _LOOKED_AT, only_running=True)
        # Even if one run has just ended, the other runs must still be cancelled.
        asked = await each(meant, lambda one: engine.cancel(one.workflow_id))
        return tuple(one for one, runs in zip(meant, asked, strict=True) if runs)

    return _ask(settings, "cancelling", cancelled)


def history(settings: FleetJobsSettings, filters: Sequence[JobFilter], most: int) -> tuple[JobRun, ...]:
    """Return the newest selected runs (at most `most`), newest first, with their hosts and results.

    Raises UsageError if the filters match nothing.
    """

    async def told(engine: FleetEngine) -> tuple[JobRun, ...]:
        return tuple(await each(await _runs(engine, settings, filters, most, only_running=False), engine.told))

    return _ask(settings, "reading the history", told)


async def _runs(
    engine: FleetEngine, settings: FleetJobsSettings, filters: Sequence[JobFilter], most: int, *, only_running: bool
) -> tuple[JobRun, ...]:
    found: list[JobRun] = []
    async for one in engine.runs(_LOOKED_AT, only_running=only_running):
        if len(found) >= most:
            break
        if (one.job is None and not filters) or (one.job is not None and _is_meant(settings, filters, one.job)):
            found.append(one)
    if filters and not found and not _jobs(settings, FleetVerb, filters):
        raise no_match()
    return tuple(found)


def _jobs(settings: FleetJobsSettings, verbs: Iterable[FleetVerb], filters: Sequence[JobFilter]) -> list[FleetJob]:
    """Return the selected jobs of the configured instances."""
    jobs = [job_of(settings, verb, name) for verb in verbs for name in settings.instance]
    return [job for job in jobs if _is_meant(settings, filters, job)]


def _is_meant(settings: FleetJobsSettings, filters: Sequence[JobFilter], job: FleetJob) -> bool:
    known = settings.instance.get(job.instance)
    return is_meant(filters, job, known.host if known is not None else "")
