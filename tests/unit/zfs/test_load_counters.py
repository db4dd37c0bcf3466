"""Counters of the kernel and of `zpool iostat` are read in the forms that OpenZFS 2.1 to 2.3 print."""

from __future__ import annotations

from pathlib import Path

from zsnapdb.zfs.kernel_facts import (
    arc_counters,
    histogram,
    intent_log_counters,
    processor_ticks,
)

ARCSTATS = """5 1 0x01 147 39984 5188310338 1262843461211
name                            type data
hits                            4    19000
demand_data_hits                4    1234
c_max                           4    1073741824
arc_state                       7    text of another type
"""
LATENCIES = """tank
1\t0\t0\t0\t0\t0\t0\t0\t0\t0\t0\t0
524287\t7\t5\t6\t4\t3\t0\t0\t1\t0\t0\t0
1048575\t2\t1\t1\t9\t0\t0\t0\t0\t0\t0\t0
"""
SIZES = "512\t1\t2\t0\t0\t4\t8\t0\t0\t0\t0\n1K\t1\t0\t2\t1\t0\t0\t16\t32\t0\t0\n-----\t1\n"


RECORDED_SIZES = """tank
4096\t251\t0\t27\t0\t1\t0\t109\t0\t1\t0\t0\t0\t0\t0
8192\t4\t0\t4\t0\t0\t0\t0\t29\t0\t0\t0\t0\t0\t0
131072\t0\t0\t64\t0\t0\t0\t0\t0\t0\t0\t0\t0\t0\t0
"""
RECORDED_LATENCIES = """tank
262143\t13\t52\t12\t28\t0\t0\t0\t18\t2\t0\t0
134217727\t1\t68\t1\t12\t0\t56\t0\t1\t0\t0\t0
"""
"""Lines of OpenZFS 2.3.9, as the lab's pool gave them."""


def test_lines_of_a_real_pool_are_read() -> None:
    assert histogram(RECORDED_SIZES, (0, 1, 4, 5), 8).counts == {4096: 252, 8192: 4, 131072: 0}
    assert histogram(RECORDED_SIZES, (2, 3, 6, 7), 8).counts == {4096: 136, 8192: 33, 131072: 64}
    assert histogram(RECORDED_LATENCIES, (3,), 8).counts == {262143: 28, 134217727: 12}


def test_a_kstat_is_read_by_name_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    folder = tmp_path / "proc/spl/kstat/zfs"
    folder.mkdir(parents=True)
    (folder / "arcstats").write_text(ARCSTATS)
    assert arc_counters(tmp_path) == {"hits": 19000, "demand_data_hits": 1234, "c_max": 1073741824}
    assert intent_log_counters(tmp_path) == {}


def test_the_ticks_of_guests_are_not_counted_twice(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu  10 1 5 80 4 0 0 0 7 0\ncpu0 10 1 5 80 4 0 0 0 7 0\n")
    assert processor_ticks(tmp_path) == (16, 100)
    assert processor_ticks(tmp_path / "none") == (0, 0)


def test_buckets_of_a_histogram_are_summed_over_columns_and_other_lines_are_left_out() -> None:
    assert histogram(LATENCIES, (2,), 8).counts == {1: 0, 524287: 6, 1048575: 1}
    assert histogram(SIZES, (0, 1, 4, 5), 8).counts == {512: 15, 1024: 1}
    assert histogram("", (0,), 8).total == 0
