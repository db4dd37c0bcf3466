"""The lab takes its package mirror from the machine's apt and says what a machine lacks."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.lab import build, host, shares, suite
from tests.lab.cache import Cache, digest
from tests.lab.folders import new_folder, remove_own

DEB822 = """\
Types: deb
URIs: http://mirror.test/debian-security
Suites: trixie-security
Components: main

Enabled: no
Types: deb
URIs: http://disabled.test/debian
Suites: trixie

Types: deb deb-src
URIs: http://mirror.test/debian/
Suites: trixie trixie-updates
Components: main contrib
"""


def test_deb822_sources_are_read_and_disabled_ones_passed_over() -> None:
    pairs = host._deb822(DEB822)
    assert ("http://mirror.test/debian/", "trixie") in pairs
    assert not [uri for uri, _ in pairs if "disabled" in uri]


def test_one_line_sources_are_read() -> None:
    text = (
        "# deb http://no.test x main\ndeb [arch=amd64 signed-by=/k] http://mirror.test/debian bookworm main\ndeb-src"
        " http://src.test y main\n"
    )
    assert host._one_line(text) == [("http://mirror.test/debian", "bookworm")]


def test_a_list_of_mirrors_in_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "mirrors.list").write_text("# ours\nhttps://mirror.test/debian/ priority:1\nhttps://b.test/debian\n")
    assert host._in_list(f"mirror+file:{tmp_path}/mirrors.list") == "https://mirror.test/debian/"
    assert host._in_list("http://mirror.test/debian") == "http://mirror.test/debian"
    with pytest.raises(host.LabError, match="cannot be read"):
        host._in_list("mirror+file:/none")


def test_folders_of_programs_for_root_are_looked_in_wherever_root_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/usr/sbin")
    host.complete_path()
    assert os.environ["PATH"] == "/usr/bin:/usr/sbin:/usr/local/sbin:/sbin"


def test_a_step_that_has_too_little_disk_says_so_before_it_begins(tmp_path: Path) -> None:
    host.require_space(tmp_path / "not" / "yet", 1, "step base")
    with pytest.raises(host.LabError, match=r"step kernel needs about 999999999 MiB of disk, and \d+ MiB are free"):
        host.require_space(tmp_path, 999_999_999, "step kernel")


def test_an_interrupted_build_leaves_nothing_half_made(tmp_path: Path) -> None:
    def interrupted(builder: build.Builder, out: Path) -> None:
        (out / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build.Builder(Cache(tmp_path)).build(build.Product("thing", (), (), interrupted))
    assert [entry.name for entry in tmp_path.iterdir()] == ["logs"]


def test_an_interrupted_run_removes_the_folders_of_its_own_guests_alone(tmp_path: Path) -> None:
    own, lock = new_folder(tmp_path / "runs", "mysql")
    other, other_lock = new_folder(tmp_path / "runs", "mysql")
    # The same number, which another process has in a namespace of its own.
    (other / "lock").write_text(f"{os.getpid()} 1\n")
    remove_own(tmp_path / "runs")
    assert [folder for folder in (own, other) if folder.exists()] == [other]
    for opened in (lock, other_lock):
        os.close(opened)


def test_a_machine_that_cannot_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(host.LabError) as caught:
        host.require()
    for words in ("an x86-64 Linux (this is Linux aarch64)", "root", "apt-get", "unshare"):
        assert words in str(caught.value)


def test_the_cache_lies_outside_the_checkout_and_can_be_put_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZSNAPDB_LAB_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x/cache")
    assert Cache.default().top == Path("/x/cache/zsnapdb-lab")
    monkeypatch.setenv("ZSNAPDB_LAB_CACHE", "/y")
    assert Cache.default().top == Path("/y")


def test_another_recipe_has_another_key_and_the_old_product_goes(tmp_path: Path) -> None:
    assert digest("a", "b") != digest("ab")
    cache = Cache(tmp_path)
    for name in ("image-mysql-111111111111", "image-mysql-222222222222", "image-mariadb-111111111111"):
        (tmp_path / name).mkdir()
    cache.forget_older("image-mysql", "222222222222")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["image-mariadb-111111111111", "image-mysql-222222222222"]


def test_an_old_product_stays_while_a_guest_of_any_checkout_runs(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (tmp_path / "guest-111111111111").mkdir()
    _, lock = new_folder(cache.runs, "mysql")
    cache.forget_older("guest", "222222222222")
    assert (tmp_path / "guest-111111111111").is_dir()
    os.close(lock)
    cache.forget_older("guest", "222222222222")
    assert not (tmp_path / "guest-111111111111").exists()


def test_a_campaign_without_a_sample_runs_only_where_it_is_named() -> None:
    assert "histories" not in suite.chosen_campaigns([])
    assert set(shares.SAMPLES) == set(suite.chosen_campaigns([]))
    assert suite.chosen_campaigns(["tests/campaigns/histories.py"]) == ["histories"]


def test_the_suites_arguments_reach_the_stages_they_name() -> None:
    assert suite.named_kinds([]) == ["lint", "unit", "system", "attacks", "campaigns", "faults"]
    assert suite.named_kinds(["tests/system/test_clones.py", "-k", "plan"]) == ["system"]
    assert suite.arguments_for("unit", ["-x"]) == ["tests/unit", "-x"]
    assert suite.arguments_for("system", ["tests/system/test_clones.py", "tests/unit", "-x"]) == [
        "tests/system/test_clones.py",
        "-x",
    ]


def test_every_file_is_in_exactly_one_share_and_the_longest_are_apart() -> None:
    files = [f"test_{letter}.py" for letter in "abcdefg"]
    dealt = suite.shared_out(files, 3)
    assert sorted(name for share in dealt for name in share) == [f"tests/system/{name}" for name in files]
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    longest = sorted(shares.SECONDS, key=lambda name: -shares.SECONDS[name])[:2]
    assert all(len(share) == 1 for share in suite.shared_out(longest, 2))


@pytest.mark.parametrize(
    ("processors", "gib", "expected"), [(1, 4, 2), (2, 24, 4), (2, 16, 3), (2, 12, 2), (8, 64, 12), (64, 1024, 12)]
)
def test_as_many_jobs_run_at_once_as_the_machine_has_processors_and_memory_for(
    processors: int, gib: int, expected: int
) -> None:
    assert suite.lanes(processors, gib << 30) == expected


@pytest.mark.parametrize(
    ("processors", "count", "expected"),
    [
        ([0, 1], 4, [{0}, {1}, {0}, {1}]),
        ([0, 1], 3, [{0, 1}, {0}, {1}]),
        ([0, 1], 2, [{0}, {1}]),
        ([2, 5, 7], 2, [{2}, {5}]),
        ([4], 2, [{4}, {4}]),
        ([0, 1], 1, [{0}]),
    ],
)
def test_each_processor_has_as_many_lanes_and_a_lane_beyond_them_has_all(
    processors: list[int], count: int, expected: list[set[int]]
) -> None:
    assert suite.places(processors, count) == expected


def test_what_a_lane_starts_stays_on_its_processors() -> None:
    before, one = os.sched_getaffinity(0), min(os.sched_getaffinity(0))
    seen: list[str] = []
    ask = [sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"]

    def lane() -> None:
        os.sched_setaffinity(0, {one})
        seen.append(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())

    thread = threading.Thread(target=lane)
    thread.start()
    thread.join()
    assert (seen, os.sched_getaffinity(0)) == ([str({one})], before)
