"""Estimates the effects of a log device, a compressor, or a new size of buffer pool, ARC, L2ARC or records. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.base.quantities import size
from zsnapdb.planning.advice.facts import VolumeFacts
from zsnapdb.planning.load_counters import Histogram, Load

LEAST_PAGE_REQUESTS = 1000
"""The minimum number of page requests in the period. With fewer requests, the load is too small for advice."""
_LEAST_MISSES = 50
"""The minimum number of misses in the period. With fewer misses, a percentage would be meaningless."""
_SMALL_SHARE = 0.001
"""If the share of misses is below this value, fewer misses would bring no gain."""
_FREE_SHARE = 0.05
_AMPLIFIED = 1.5
"""A smaller record is worth a trial if the disks read more than this many times the bytes that the server requested."""
_BUSY = 0.8
"""If the processors are busy for more than this share of the time, a stronger compressor would cost time."""
_WAITS = 10
"""A log device would bring no gain if the ZFS intent log has fewer commits per second than this."""


class Topic(StrEnum):
    """The topics about which advice is given."""

    BUFFER_POOL = "buffer pool"
    ARC = "ARC"
    L2ARC = "L2ARC"
    LOG_DEVICE = "log device"
    RECORD_SIZE = "record size"
    COMPRESSION = "compression"


class EffectEstimate(StrEnum):
    """The estimated effect of a change, computed from the counters."""

    GAIN = "gain"
    NO_GAIN = "no gain"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class LoadSetting:
    """The current page size and buffer pool of the server in bytes, its data volumes, and the pool's devices.

    If `bypasses_arc` is set, the server's reads bypass the ARC. This happens with O_DIRECT on OpenZFS 2.3 or later,
    unless the property `direct` is disabled.
    """

    page_size: int
    buffer_pool: int
    data_volumes: tuple[VolumeFacts, ...] = ()
    has_log_device: bool = False
    has_cache_device: bool = False
    bypasses_arc: bool = False


@dataclass(frozen=True)
class LoadAdvice:
    """A line of advice, with the effect of a change, the figures for it, and facts that the counters do not show.

    The period had `of` events, and the change would have avoided at most `saved` of these events. Both are None if
    unknown.
    """

    topic: Topic
    prospect: EffectEstimate
    text: str
    figures: tuple[str, ...] = ()
    unknown: str = ""
    saved: int | None = None
    of: int | None = None


def judge_load(load: Load, setting: LoadSetting) -> tuple[LoadAdvice, ...]:
    """Return a line of advice for each topic, in the order of the topics."""
    idle = _idle(load)
    if idle:
        return tuple(LoadAdvice(topic, EffectEstimate.UNKNOWN, idle) for topic in Topic)
    return tuple(rule(load, setting) for rule in _RULES)


def _idle(load: Load) -> str:
    """Return why no estimates are possible for the period; empty if they are possible."""
    if load.server is None:
        return "the server was restarted meanwhile: its counters were reset"
    requests = load.server.get("Innodb_buffer_pool_read_requests", 0)
    if requests < LEAST_PAGE_REQUESTS:
        return (
            f"too little traffic: the server asked for {requests} pages in {load.seconds:.0f} s, and fewer than"
            f" {LEAST_PAGE_REQUESTS} show nothing"
        )
    return ""


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "none"


def _milliseconds(nanoseconds: int | None) -> str:
    return f"{nanoseconds / 1e6:.2g} ms" if nanoseconds is not None else "unknown"


def _latency(histogram: Histogram | None) -> str:
    """Return upper bounds, at most twice the real values, of the median and 99th percentile request time on disk."""
    if histogram is None or not histogram.total:
        return "no request reached a disk"
    return (
        f"{histogram.total} requests; half took at most {_milliseconds(histogram.percentile(0.5))} on disk, 99 % at"
        f" most {_milliseconds(histogram.percentile(0.99))}"
    )


def _buffer_pool(load: Load, setting: LoadSetting) -> LoadAdvice:
    assert load.server is not None
    requests = load.server.get("Innodb_buffer_pool_read_requests", 0)
    misses = min(load.server.get("Innodb_buffer_pool_reads", 0), requests)
    total, free = (load.server_now.get(f"Innodb_buffer_pool_pages_{name}", 0) for name in ("total", "free"))
    waits = load.server.get("Innodb_buffer_pool_wait_free", 0)
    figures = (
        f"{size(setting.buffer_pool)}, {_share(free, total)} of its pages free",
        (
            f"{misses} of {requests} requests of pages were not answered by it: {_share(misses, requests)},"
            f" {load.rate(misses):.1f} per second"
        ),
        *((f"{waits} requests waited for a clean page",) if waits else ()),
    )
    if total and free > total * _FREE_SHARE:
        text = "a larger buffer pool changes nothing: the present one is not full"
        return LoadAdvice(Topic.BUFFER_POOL, EffectEstimate.NO_GAIN, text, figures, saved=0, of=requests)
    if misses < _LEAST_MISSES or misses < requests * _SMALL_SHARE:
        text = "a larger buffer pool saves next to nothing: the present one answers almost everything"
        return LoadAdvice(Topic.BUFFER_POOL, EffectEstimate.NO_GAIN, text, figures, saved=misses, of=requests)
    text = f"a larger buffer pool saves at most {load.rate(misses):.1f} reads per second"
    unknown = "how many of them a given size saves: the server does not count what it would have kept"
    return LoadAdvice(Topic.BUFFER_POOL, EffectEstimate.GAIN, text, figures, unknown, saved=misses, of=requests)


def _arc_counts(load: Load) -> tuple[int, int, int] | None:
    """Return three counts: demand hits, demand misses, and misses of blocks that the ARC had recently evicted."""
    if load.arc is None:
        return None
    hits, misses = (
        sum(load.arc.get(f"demand_{what}_{kind}", 0) for what in ("data", "metadata")) for kind in ("hits", "misses")
    )
    ghosts = sum(load.arc.get(f"{which}_ghost_hits", 0) for which in ("mru", "mfu"))
    return hits, misses, min(ghosts, misses)


def _arc(load: Load, setting: LoadSetting) -> LoadAdvice:
    counts = _arc_counts(load)
    if counts is None:
        return LoadAdvice(Topic.ARC, EffectEstimate.UNKNOWN, "arcstats cannot be read, or were reset")
    hits, misses, ghosts = counts
    now, target, most = (load.arc_now.get(name, 0) for name in ("size", "c", "c_max"))
    figures = (
        f"{size(now)} of at most {size(most)}",
        f"{misses} of {hits + misses} reads were not answered by it: {_share(misses, hits + misses)}",
        f"{ghosts} of these misses were blocks that it had given up not long ago (ghost hits)",
    )
    host = "the counters are those of the whole host, not of this server alone"
    if setting.bypasses_arc:
        text = "reads of the server's data go past the ARC (O_DIRECT): a larger one does not help them"
        return LoadAdvice(Topic.ARC, EffectEstimate.NO_GAIN, text, figures, host, saved=0, of=hits + misses)
    if misses < _LEAST_MISSES or misses < (hits + misses) * _SMALL_SHARE:
        text = "a larger ARC saves next to nothing: the present one answers almost everything that reaches it"
        return LoadAdvice(Topic.ARC, EffectEstimate.NO_GAIN, text, figures, host, saved=misses, of=hits + misses)
    if now < target * (1 - _FREE_SHARE):
        text = "a larger ARC changes nothing: the present one is not full; its misses are first reads"
        return LoadAdvice(Topic.ARC, EffectEstimate.NO_GAIN, text, figures, host, saved=0, of=hits + misses)
    if ghosts < _LEAST_MISSES:
        text = "an ARC of up to twice the size saves next to nothing: what is missed was not read before for long"
        return LoadAdvice(Topic.ARC, EffectEstimate.NO_GAIN, text, figures, host, saved=ghosts, of=hits + misses)
    text = f"an ARC of up to twice the size saves at most {load.rate(ghosts):.1f} reads per second"
    unknown = f"what more than twice the size saves; {host}"
    return LoadAdvice(Topic.ARC, EffectEstimate.GAIN, text, figures, unknown, saved=ghosts, of=hits + misses)


def _l2arc(load: Load, setting: LoadSetting) -> LoadAdvice:
    counts = _arc_counts(load)
    if counts is None or load.arc is None:
        return LoadAdvice(Topic.L2ARC, EffectEstimate.UNKNOWN, "arcstats cannot be read, or were reset")
    _, misses, ghosts = counts
    latency = f"reads: {_latency(load.reads)}"
    if setting.bypasses_arc:
        text = "reads of the server's data bypass the ARC (O_DIRECT), so the data never enters an L2ARC"
        return LoadAdvice(Topic.L2ARC, EffectEstimate.NO_GAIN, text, (latency,), saved=0, of=misses)
    if setting.has_cache_device:
        found = min(load.arc.get("l2_hits", 0), misses)
        figures = (f"it answered {found} of {misses} misses of the ARC: {_share(found, misses)}", latency)
        text = f"there is a cache device; a larger one saves at most {load.rate(misses - found):.1f} reads per second"
        unknown = "whether what it missed was ever in the ARC"
        is_small = misses - found < _LEAST_MISSES
        prospect = EffectEstimate.NO_GAIN if is_small else EffectEstimate.UNKNOWN
        return LoadAdvice(Topic.L2ARC, prospect, text, figures, unknown, saved=misses - found, of=misses)
    figures = (f"{misses} misses of the ARC, {ghosts} of them on blocks that it had given up not long ago", latency)
    if misses < _LEAST_MISSES:
        text = "a cache device has next to nothing to answer"
        return LoadAdvice(Topic.L2ARC, EffectEstimate.NO_GAIN, text, figures, saved=misses, of=misses)
    text = f"a cache device saves at most {load.rate(misses):.1f} reads from the disks per second"
    unknown = (
        "whether the active data fits it: it holds what the ARC gave up, and is filled slowly (l2arc_write_max);"
        " how fast the device is"
    )
    prospect = EffectEstimate.GAIN if ghosts >= _LEAST_MISSES else EffectEstimate.UNKNOWN
    return LoadAdvice(Topic.L2ARC, prospect, text, figures, unknown, saved=misses, of=misses)


def _log_device(load: Load, setting: LoadSetting) -> LoadAdvice:
    if load.intent_log is None:
        return LoadAdvice(Topic.LOG_DEVICE, EffectEstimate.UNKNOWN, "the counters of the intent log cannot be read")
    commits = load.intent_log.get("zil_commit_count", 0)
    on_log, on_main = (load.intent_log.get(f"zil_itx_metaslab_{where}_bytes", 0) for where in ("slog", "normal"))
    figures = (
        (
            f"{commits} waits for the intent log ({load.rate(commits):.1f} per second), {size(on_main)} of it on data"
            f" disks, {size(on_log)} on log devices"
        ),
        f"writes: {_latency(load.writes)}",
    )
    host = "the intent logs of all pools are counted together"
    if setting.has_log_device:
        text = "the pool has a log device; a second one only helps if the first is full or slow"
        unknown = f"how busy the log device is: see `zpool iostat -v`; {host}"
        return LoadAdvice(Topic.LOG_DEVICE, EffectEstimate.UNKNOWN, text, figures, unknown)
    if load.rate(commits) < _WAITS:
        text = "a log device has almost no effect: few requests wait for the intent log"
        return LoadAdvice(Topic.LOG_DEVICE, EffectEstimate.NO_GAIN, text, figures, host, saved=commits, of=commits)
    text = (
        f"a log device makes {load.rate(commits):.1f} waits per second as short as its own writes; it needs power-loss"
        " protection"
    )
    unknown = f"how fast that device writes, and which writes above were of the intent log; {host}"
    return LoadAdvice(Topic.LOG_DEVICE, EffectEstimate.GAIN, text, figures, unknown, saved=commits, of=commits)


def _record_size(load: Load, setting: LoadSetting) -> LoadAdvice:
    assert load.server is not None
    records = {volume.dataset: volume.number("recordsize") or 0 for volume in setting.data_volumes}
    larger = {dataset: record for dataset, record in records.items() if record > setting.page_size}
    asked = load.server.get("Innodb_data_read", 0)
    figures = [
        f"{dataset}: recordsize {size(record)}, pages of {size(setting.page_size)}"
        for dataset, record in records.items()
    ]
    if not records:
        return LoadAdvice(Topic.RECORD_SIZE, EffectEstimate.UNKNOWN, "the record size of the data cannot be read")
    if not larger:
        text = "a smaller record saves no read: a record is no larger than a page"
        unknown = (
            "what a larger record would compress better and cost in rewritten records: try it on a clone of the data;"
            " a record size holds for new files only"
        )
        return LoadAdvice(Topic.RECORD_SIZE, EffectEstimate.NO_GAIN, text, tuple(figures), unknown)
    if load.read_sizes is None or load.read_sizes.total < _LEAST_MISSES:
        text = "too few reads reached the disks to show what large records cost"
        return LoadAdvice(Topic.RECORD_SIZE, EffectEstimate.UNKNOWN, text, tuple(figures))
    # The key of a histogram bucket is the smallest size in it.
    read = sum(count * smallest for smallest, count in load.read_sizes.counts.items())
    figures.append(f"the disks read at least {size(read)} (before decompression), the server asked for {size(asked)}")
    unknown = "which reads were of this server, and how many were read ahead; a record size holds for new files only"
    if read > asked * _AMPLIFIED:
        text = f"records of {size(setting.page_size)} save at most {size(read - asked)} of reads in this while"
        return LoadAdvice(
            Topic.RECORD_SIZE, EffectEstimate.GAIN, text, tuple(figures), unknown, saved=read - asked, of=read
        )
    text = "a smaller record saves little: the disks read about as much as the server asked for"
    return LoadAdvice(
        Topic.RECORD_SIZE,
        EffectEstimate.NO_GAIN,
        text,
        tuple(figures),
        unknown,
        saved=max(read - asked, 0),
        of=max(read, 1),
    )


def _compression(load: Load, setting: LoadSetting) -> LoadAdvice:
    figures = tuple(
        f"{volume.dataset}: compression {volume.properties.get('compression', '?')}, ratio"
        f" {volume.properties.get('compressratio', '?')}"
        for volume in setting.data_volumes
    )
    if load.busy is not None:
        figures += (f"the processors were busy for {100 * load.busy:.0f} % of the time",)
    unknown = (
        "what another compressor makes of this data: copy a table of a clone to a dataset with it, and compare"
        " `zfs get compressratio`"
    )
    is_off = any(volume.properties.get("compression") == "off" for volume in setting.data_volumes)
    if is_off:
        text = "compression is off: lz4 costs next to nothing where data does not compress"
        return LoadAdvice(Topic.COMPRESSION, EffectEstimate.GAIN, text, figures, unknown)
    if load.busy is not None and load.busy > _BUSY:
        text = "a stronger compressor would cost time: the processors are busy"
        return LoadAdvice(Topic.COMPRESSION, EffectEstimate.NO_GAIN, text, figures, unknown)
    text = "the processors have time for a stronger compressor" if load.busy is not None else "nothing is known"
    return LoadAdvice(Topic.COMPRESSION, EffectEstimate.UNKNOWN, text, figures, unknown)


_RULES: tuple[Callable[[Load, LoadSetting], LoadAdvice], ...] = (
    _buffer_pool,
    _arc,
    _l2arc,
    _log_device,
    _record_size,
    _compression,
)
