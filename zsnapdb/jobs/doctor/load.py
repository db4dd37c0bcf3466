"""Watches the load of an instance for a while, and says what a change of its memory, pool or records would bring.

Changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from zsnapdb.base.errors import UsageError
from zsnapdb.base.model import pool_of
from zsnapdb.jobs.backup.preflight import observe
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.doctor.advice import gather
from zsnapdb.mysql import variables
from zsnapdb.mysql.session import Session
from zsnapdb.planning.advice.facts import AdviceFacts
from zsnapdb.planning.load.counters import Load, LoadSample, load_between
from zsnapdb.planning.load.rules import LoadAdvice, LoadSetting, judge_load
from zsnapdb.zfs import kernel_facts

SHORTEST = 1.0
LONGEST = 86400.0
_MARGIN = 60.0
"""Seconds that an answer of the server may take beside the while that is watched."""


@dataclass(frozen=True)
class LoadReport:
    """The load of an instance in a while, and the advice that follows from it."""

    instance: str
    load: Load
    advice: tuple[LoadAdvice, ...]


def watch(instance: Instance, seconds: float, sleep: Callable[[float], None] = time.sleep) -> LoadReport:
    """Read all counters, wait, read them again, and judge what happened.

    UsageError if the while is shorter than a second or longer than a day. PreflightError as `backup` would raise it:
    the datasets of an instance are known only if it can be backed up.
    """
    if not SHORTEST <= seconds <= LONGEST:
        raise UsageError(f"advise cannot watch for {seconds:g} s", hint="choose from 1s to 1d, for example --for 10m")
    with instance.session(read_timeout=seconds + _MARGIN) as session:
        observed = observe(instance, session)
        pool = pool_of(next(iter(observed.volumes.values())))
        setting = _setting(gather(instance, session, observed), observed.blocks.page_size)
        begin, began = _sample(session, pool), time.monotonic()
        sleep(seconds)
        end, ended = _sample(session, pool), time.monotonic()
    load = load_between(begin, end, ended - began)
    return LoadReport(instance.name, load, judge_load(load, setting))


def _sample(session: Session, pool: str) -> LoadSample:
    return LoadSample(
        server=variables.load_status(session),
        arc=kernel_facts.arc_counters(),
        intent_log=kernel_facts.intent_log_counters(),
        disks=kernel_facts.disk_requests(pool),
        processor=kernel_facts.processor_ticks(),
    )


def _setting(facts: AdviceFacts, page_size: int) -> LoadSetting:
    pool = facts.pool
    return LoadSetting(
        page_size=page_size,
        buffer_pool=facts.variable_number("innodb_buffer_pool_size") or 0,
        data_volumes=facts.data_volumes,
        has_log_device=pool is not None and bool(pool.devices_of("log")),
        has_cache_device=pool is not None and bool(pool.devices_of("cache")),
        bypasses_arc=_bypasses_arc(facts),
    )


def _bypasses_arc(facts: AdviceFacts) -> bool:
    """Whether the server reads its data past the ARC (zfsprops(7), direct; it came with OpenZFS 2.3)."""
    return (
        facts.zfs_release >= (2, 3)
        and facts.variable_is("innodb_flush_method", "O_DIRECT", "O_DIRECT_NO_FSYNC")
        and any(volume.properties.get("direct", "disabled") != "disabled" for volume in facts.data_volumes)
    )
