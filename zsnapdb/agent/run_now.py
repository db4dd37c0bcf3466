"""Runs one job of the agent at once."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.agent.children import StartChild
from zsnapdb.agent.records import Records
from zsnapdb.base import run_id
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.planning.agent.jobs import JobKind, JobName, one_job
from zsnapdb.planning.agent.runs import RunRecord, is_good

_POLL = 0.2


@dataclass(frozen=True)
class RanJob:
    """A job that was run to its end: its exit code, and the file with what it printed."""

    name: JobName
    exit_code: int
    log: Path


def run_now(settings: Settings, kind: str, instance: str | None, start: StartChild, host: Host) -> RanJob:
    """Run the configured job of that kind to its end, keep its result, and return how it ended.

    ConfigError if there is none, or if several instances have one.
    The locks of the job keep two runs apart: while another run is at work, it ends with 75. An interrupt ends the job,
    and its next scheduled run is made up for.
    """
    job, records = one_job(settings, kind, instance), Records(settings.agent.state)
    before = records.run(job.name)
    now = host.now()
    record = RunRecord(
        run_id=run_id.new(),
        scheduled=now,
        started=now,
        failures=before.failures if before is not None else 0,
        succeeded=before.succeeded if before is not None else None,
    )
    child = start(job.words, records.log(job.name), record.run_id)
    code: int | None = None
    try:
        while (code := child.poll()) is None:
            time.sleep(_POLL)
    finally:
        if code is None:
            child.stop()
        judges = job.name.kind in (JobKind.STATUS, JobKind.DOCTOR)
        good = is_good(code, warns_with_one=judges)
        records.set_run(job.name, record.ended(host.now(), code, child.tail(), is_good=good))
    return RanJob(job.name, code, records.log(job.name))
