"""A whole run starts a test that needs any server on one flavour, and every other test on both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import flavours, suite
from tests.lab.cache import Cache
from tests.lab.guest import CHECKOUT, Lab


def test_every_file_is_dealt_to_exactly_one_flavour_and_always_to_the_same() -> None:
    files = [f"test_{letter}.py" for letter in "abcdefgh"]
    seconds = {"test_c.py": 500.0, "test_d.py": 90.0}
    hands = flavours.dealt(files, seconds)
    assert sorted(name for hand in hands.values() for name in hand) == files
    assert all(hands.values())
    assert flavours.dealt(files[::-1], seconds) == hands


def test_both_flavours_get_files_and_mysql_where_each_takes_longer_gets_a_fifth_of_the_seconds() -> None:
    seconds = {"a": 300.0, "b": 200.0, "c": 100.0, "d": 100.0}
    hands = flavours.dealt(list(seconds), seconds)
    assert hands == {"mariadb": ["a", "b", "d"], "mysql": ["c"]}


@pytest.mark.parametrize(
    ("is_marked", "here", "expected"),
    [
        (False, "", True),
        (False, "test_b.py", True),
        (True, None, True),
        (True, "test_b.py,test_a.py", True),
        (True, "test_b.py", False),
        (True, "", False),
    ],
)
def test_only_a_marked_test_whose_file_was_dealt_elsewhere_does_not_run(
    is_marked: bool, here: str | None, expected: bool
) -> None:
    assert flavours.runs_here("test_a.py", is_marked=is_marked, here=here) is expected


LAB = Lab(Path(), Path(), Path(), {}, Cache(Path()))


def jobs(kind: str, *arguments: str, all_flavours: bool = False) -> dict[str, dict[str, str]]:
    """Return the variables that each job of a kind passes to its tests, by the job's name."""
    made = {"system": suite._system, "faults": suite._faults}[kind](LAB, arguments, all_flavours=all_flavours)
    return {job.name: dict(job.work.args[-1] or {}) for job in made}  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["system", "faults"])
def test_in_a_whole_run_each_file_with_marked_tests_is_at_exactly_one_flavour(kind: str) -> None:
    files = sorted((CHECKOUT / "tests" / kind).glob("test_*.py"))
    dealt: dict[str, set[str]] = {}
    for name, env in jobs(kind).items():
        for file in filter(None, env[flavours.ENVIRONMENT].split(",")):
            dealt.setdefault(file, set()).add(name.rpartition(" ")[2])
    assert sorted(dealt) == flavours.marked(files) != []
    assert all(len(where) == 1 for where in dealt.values()), dealt
    assert set.union(*dealt.values()) == set(flavours.FLAVOURS)


def test_each_file_of_fault_tests_has_its_jobs_and_none_has_a_job_without_a_test() -> None:
    files = sorted((CHECKOUT / "tests/faults").glob("test_*.py"))
    names = [path.name[5:-3] for path in files if path.name != suite.LAB_FAULTS]
    expected = {f"faults {name}{end}" for name in names for end in (", mysql", ", mariadb")}
    whole, every = set(jobs("faults")), set(jobs("faults", all_flavours=True))
    alone = {f"faults {name[5:-3]}" for name in suite.ONE_SERVER}
    assert every == {job for job in expected if job.partition(",")[0] not in alone} | alone
    marked_alone = {f"faults {path.name[5:-3]}" for path in files if flavours.WHOLE_FILE in path.read_text()}
    assert {job.partition(",")[0] for job in every - whole} == marked_alone
    assert {job.partition(",")[0] for job in whole} == {job.partition(",")[0] for job in every}


@pytest.mark.parametrize("kind", ["system", "faults"])
def test_with_all_flavours_nothing_is_left_out(kind: str) -> None:
    assert set(map(str, jobs(kind, all_flavours=True).values())) == {"{}"}


def test_the_guides_have_a_server_that_no_other_test_has_used() -> None:
    made = suite._system(LAB, (), all_flavours=False)
    files = [job.work.args[2] for job in made]  # type: ignore[attr-defined]
    assert [words for words in files if "tests/system/test_guides.py" in words] == [["tests/system/test_guides.py"]]


def test_a_sample_of_a_campaign_runs_on_one_flavour_only_where_any_server_will_do() -> None:
    def names(*arguments: str, all_flavours: bool = False) -> list[str]:
        return [job.name.partition(",")[0] for job in suite._campaigns(LAB, arguments, all_flavours=all_flavours)]

    assert (names().count("silence"), names().count("lockfree")) == (1, 2)
    assert names("tests/campaigns/silence").count("silence") == 2
    assert names(all_flavours=True).count("silence") == 2


def collected(folder: Path, here: str | None) -> list[str]:
    env = {name: value for name, value in os.environ.items() if name != flavours.ENVIRONMENT}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    words = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "-c", "/dev/null"]
    done = subprocess.run(
        [*words, "--rootdir", str(folder), str(folder)],
        cwd=CHECKOUT,
        env={**env, **({} if here is None else {flavours.ENVIRONMENT: here})},
        capture_output=True,
        text=True,
    )
    return sorted(line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line)


CONFTEST = """
from tests.lab import flavours
def pytest_configure(config):
    config.addinivalue_line('markers', 'any_server')
    config.addinivalue_line('markers', 'seldom')
def pytest_collection_modifyitems(config, items): flavours.leave_to_the_other(config, items)
"""


def test_what_is_seldom_runs_by_name_and_with_all_flavours_and_not_in_a_whole_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_a.py").write_text(
        "import pytest\n@pytest.mark.seldom\ndef test_long(): pass\ndef test_short(): pass\n"
    )
    assert collected(tmp_path, None) == ["test_long", "test_short"]
    assert collected(tmp_path, "") == collected(tmp_path, "test_a.py") == ["test_short"]


def test_pytest_leaves_out_exactly_the_marked_tests_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for letter in "ab":
        (tmp_path / f"test_{letter}.py").write_text(
            f"import pytest\n@pytest.mark.any_server\ndef test_{letter}_once(): pass\n"
            f"def test_{letter}_on_both(): pass\n"
        )
    everything = ["test_a_on_both", "test_a_once", "test_b_on_both", "test_b_once"]
    one, other = collected(tmp_path, "test_a.py"), collected(tmp_path, "test_b.py")
    assert collected(tmp_path, None) == everything == sorted({*one, *other})
    assert [name for name in one if name in other] == ["test_a_on_both", "test_b_on_both"]
