"""What the load shows is bounded by what was counted, and too little traffic shows nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.jobs.doctor.rule_facts import LoadReport
from zsnapdb.planning.advice.facts import VolumeFacts
from zsnapdb.planning.advice.load_rules import (
    LEAST_PAGE_REQUESTS,
    EffectEstimate,
    LoadAdvice,
    LoadSetting,
    Topic,
    judge_load,
)
from zsnapdb.planning.load_counters import DiskRequests, Histogram, Load, LoadSample, load_between
from zsnapdb.report.doctor import LoadView

GIB = 1 << 30
DATA = VolumeFacts(
    "tank/mysql/data", {"recordsize": "16384", "compression": "lz4", "compressratio": "2.10x"}, has_data=True
)
SETTING = LoadSetting(page_size=16384, buffer_pool=GIB, data_volumes=(DATA,))
BUSY = Load(
    seconds=60.0,
    server={
        "Innodb_buffer_pool_read_requests": 1_000_000,
        "Innodb_buffer_pool_reads": 60_000,
        "Innodb_buffer_pool_wait_free": 0,
        "Innodb_data_read": 60_000 * 16384,
    },
    server_now={"Innodb_buffer_pool_pages_total": 65536, "Innodb_buffer_pool_pages_free": 100},
    arc={
        "demand_data_hits": 40_000,
        "demand_data_misses": 20_000,
        "demand_metadata_hits": 5_000,
        "demand_metadata_misses": 0,
        "mru_ghost_hits": 3_000,
        "mfu_ghost_hits": 9_000,
        "l2_hits": 0,
    },
    arc_now={"size": GIB, "c": GIB, "c_max": GIB},
    intent_log={
        "zil_commit_count": 30_000,
        "zil_itx_metaslab_normal_bytes": 30_000 * 8192,
        "zil_itx_metaslab_slog_bytes": 0,
    },
    reads=Histogram({262143: 100, 1048575: 19_800, 33554431: 100}),
    writes=Histogram({1048575: 30_000}),
    read_sizes=Histogram({8192: 20_000}),
    write_sizes=Histogram({8192: 30_000}),
    busy=0.3,
)


def of(topic: Topic, load: Load, setting: LoadSetting = SETTING) -> LoadAdvice:
    return next(one for one in judge_load(load, setting) if one.topic is topic)


def with_server(load: Load, **values: int) -> Load:
    assert load.server is not None
    return replace(load, server={**load.server, **{f"Innodb_{name}": value for name, value in values.items()}})


def with_arc(load: Load, **values: int) -> Load:
    assert load.arc is not None
    return replace(load, arc={**load.arc, **values})


def test_every_topic_has_one_line() -> None:
    assert [one.topic for one in judge_load(BUSY, SETTING)] == list(Topic)


@pytest.mark.parametrize(
    ("topic", "prospect", "saved"),
    [
        (Topic.BUFFER_POOL, EffectEstimate.GAIN, 60_000),
        (Topic.ARC, EffectEstimate.GAIN, 12_000),
        (Topic.L2ARC, EffectEstimate.GAIN, 20_000),
        (Topic.LOG_DEVICE, EffectEstimate.GAIN, 30_000),
        (Topic.RECORD_SIZE, EffectEstimate.NO_GAIN, None),
        (Topic.COMPRESSION, EffectEstimate.UNKNOWN, None),
    ],
)
def test_a_busy_server_is_told_what_could_be_saved(topic: Topic, prospect: EffectEstimate, saved: int | None) -> None:
    advice = of(topic, BUSY)
    assert (advice.prospect, advice.saved) == (prospect, saved)
    assert advice.figures


def test_too_little_traffic_shows_nothing_and_says_so() -> None:
    for one in judge_load(with_server(BUSY, buffer_pool_read_requests=LEAST_PAGE_REQUESTS - 1), SETTING):
        assert one.prospect is EffectEstimate.UNKNOWN
        assert one.text.startswith("too little traffic: the server asked for 999 pages in 60 s")
        assert (one.saved, one.figures) == (None, ())


def test_what_is_said_of_every_topic_is_printed_once() -> None:
    idle = with_server(BUSY, buffer_pool_read_requests=3)
    lines = LoadView(LoadReport("main", idle, judge_load(idle, SETTING))).text().split("\n")
    assert lines[0] == "instance main, watched for 60 s"
    assert len(lines) == 2
    busy = LoadView(LoadReport("main", BUSY, judge_load(BUSY, SETTING))).text()
    assert "buffer pool  gain: a larger buffer pool saves at most 1000.0 reads per second" in busy
    assert "               not known: how many of them a given size saves" in busy


def test_a_restarted_server_shows_nothing() -> None:
    begin, end = LoadSample({"Innodb_buffer_pool_reads": 10}), LoadSample({"Innodb_buffer_pool_reads": 3})
    load = load_between(begin, end, 10.0)
    assert {one.text for one in judge_load(load, SETTING)} == {
        "the server was restarted meanwhile: its counters were reset"
    }


def test_a_buffer_pool_with_free_pages_is_large_enough() -> None:
    load = replace(BUSY, server_now={"Innodb_buffer_pool_pages_total": 65536, "Innodb_buffer_pool_pages_free": 30000})
    assert of(Topic.BUFFER_POOL, load).prospect is EffectEstimate.NO_GAIN


def test_a_buffer_pool_that_misses_one_in_ten_thousand_is_large_enough() -> None:
    assert of(Topic.BUFFER_POOL, with_server(BUSY, buffer_pool_reads=100)).prospect is EffectEstimate.NO_GAIN


def test_misses_that_were_never_in_the_arc_are_not_saved_by_a_larger_one() -> None:
    assert of(Topic.ARC, with_arc(BUSY, mru_ghost_hits=0, mfu_ghost_hits=0)).prospect is EffectEstimate.NO_GAIN


def test_an_arc_that_is_not_full_needs_no_more_room() -> None:
    load = replace(BUSY, arc_now={"size": GIB // 2, "c": GIB, "c_max": GIB})
    advice = of(Topic.ARC, load)
    assert (advice.prospect, advice.saved) == (EffectEstimate.NO_GAIN, 0)


def test_reads_past_the_arc_are_helped_by_no_cache_of_zfs() -> None:
    direct = replace(SETTING, bypasses_arc=True)
    assert {of(topic, BUSY, direct).prospect for topic in (Topic.ARC, Topic.L2ARC)} == {EffectEstimate.NO_GAIN}


def test_a_pool_with_a_log_device_is_promised_nothing() -> None:
    assert of(Topic.LOG_DEVICE, BUSY, replace(SETTING, has_log_device=True)).prospect is EffectEstimate.UNKNOWN


def test_a_server_whose_commits_do_not_wait_needs_no_log_device() -> None:
    quiet = replace(BUSY, intent_log={"zil_commit_count": 59})
    assert of(Topic.LOG_DEVICE, quiet).prospect is EffectEstimate.NO_GAIN


def test_records_larger_than_pages_cost_what_the_disks_read_beyond_the_request() -> None:
    large = replace(SETTING, data_volumes=(replace(DATA, properties={**DATA.properties, "recordsize": "131072"}),))
    wasteful = replace(BUSY, read_sizes=Histogram({131072: 60_000}))
    advice = of(Topic.RECORD_SIZE, wasteful, large)
    assert (advice.prospect, advice.saved) == (EffectEstimate.GAIN, 60_000 * (131072 - 16384))
    assert of(Topic.RECORD_SIZE, BUSY, large).prospect is EffectEstimate.NO_GAIN


def test_no_counter_knows_another_compressor_and_busy_processors_speak_against_a_stronger_one() -> None:
    assert "compressratio" in of(Topic.COMPRESSION, BUSY).unknown
    assert of(Topic.COMPRESSION, replace(BUSY, busy=0.95)).prospect is EffectEstimate.NO_GAIN


COUNTS = st.integers(min_value=0, max_value=10**9)
NAMES = {
    "server": (
        "Innodb_buffer_pool_read_requests",
        "Innodb_buffer_pool_reads",
        "Innodb_buffer_pool_wait_free",
        "Innodb_buffer_pool_pages_total",
        "Innodb_buffer_pool_pages_free",
        "Innodb_data_read",
    ),
    "arc": (
        *(f"demand_{what}_{kind}" for what in ("data", "metadata") for kind in ("hits", "misses")),
        *("mru_ghost_hits", "mfu_ghost_hits", "l2_hits", "size", "c", "c_max"),
    ),
    "intent_log": ("zil_commit_count", "zil_itx_metaslab_normal_bytes", "zil_itx_metaslab_slog_bytes"),
}


def counters(part: str) -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES[part], COUNTS))


HISTOGRAMS = st.dictionaries(st.sampled_from([1 << n for n in range(9, 25)]), COUNTS).map(Histogram)
SAMPLES = st.builds(
    LoadSample,
    server=counters("server"),
    arc=counters("arc"),
    intent_log=counters("intent_log"),
    disks=st.builds(DiskRequests, reads=HISTOGRAMS, writes=HISTOGRAMS, read_sizes=HISTOGRAMS, write_sizes=HISTOGRAMS),
    processor=st.tuples(COUNTS, COUNTS),
)
SETTINGS = st.builds(
    LoadSetting,
    page_size=st.sampled_from([4096, 16384, 65536]),
    buffer_pool=COUNTS,
    data_volumes=st.lists(
        st.builds(
            VolumeFacts,
            dataset=st.just("tank/data"),
            properties=st.fixed_dictionaries(
                {}, optional={"recordsize": st.sampled_from(["8192", "16384", "131072", "-"])}
            ),
        ),
        max_size=2,
    ).map(tuple),
    has_log_device=st.booleans(),
    has_cache_device=st.booleans(),
    bypasses_arc=st.booleans(),
)


@given(SAMPLES, SAMPLES, st.floats(min_value=1.0, max_value=86400.0), SETTINGS)
def test_nothing_promises_more_than_was_counted(
    begin: LoadSample, end: LoadSample, seconds: float, setting: LoadSetting
) -> None:
    load = load_between(begin, end, seconds)
    for part in (load.server, load.arc, load.intent_log):
        assert part is None or min(part.values()) >= 0
    assert load.busy is None or 0 <= load.busy <= 1
    for one in judge_load(load, setting):
        assert one.text
        if one.saved is not None:
            assert one.of is not None
            assert 0 <= one.saved <= one.of
        if one.prospect is EffectEstimate.GAIN:
            assert one.figures
            assert one.unknown


@given(SAMPLES, SETTINGS)
def test_nothing_that_did_not_happen_is_advice(sample: LoadSample, setting: LoadSetting) -> None:
    for one in judge_load(load_between(sample, sample, 60.0), setting):
        assert one.prospect is EffectEstimate.UNKNOWN


@given(HISTOGRAMS, st.floats(min_value=0.01, max_value=1.0))
def test_so_many_requests_are_below_a_percentile(histogram: Histogram, share: float) -> None:
    limit = histogram.percentile(share)
    if limit is None:
        assert histogram.total == 0
    else:
        below = sum(count for bucket, count in histogram.counts.items() if bucket <= limit)
        assert below >= share * histogram.total * (1 - 1e-9)
