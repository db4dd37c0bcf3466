"""While a whole run goes on, a line now and then says how many tests have ended."""

from __future__ import annotations

import threading

from tests.lab.job import reasons
from tests.lab.progress import JobOutput, told_until_ended


def said(*parts: bytes) -> JobOutput:
    output = JobOutput("system 1, mysql")
    for part in parts:
        output.add(part)
    return output


def test_the_letters_of_pytest_are_counted_also_in_a_line_that_is_not_finished() -> None:
    assert said().so_far() == "system 1, mysql: 0"
    started = said(b"." * 70 + b"s.  [ 48%]\n", b"..", b"F.E")
    assert started.so_far() == "system 1, mysql: 77 (2 failed)"
    assert (
        said(b"$ ruff check\nAll checks passed!\n....  [100%]\n=== FAILURES ===\nE   assert 1\n")
        .so_far()
        .endswith(": 4")
    )


def test_lines_are_told_while_a_job_runs_and_none_after_it() -> None:
    ended, heard = threading.Event(), list[str]()

    def tell(line: str) -> None:
        heard.append(line)
        ended.set()

    job = threading.Thread(target=ended.wait, args=(20,))
    job.start()
    told_until_ended([job], lambda: [said(b"..F")], every=0.01, tell=tell)
    assert heard[0].endswith("tests ended: system 1, mysql: 3 (1 failed)")
    assert not job.is_alive()


def test_the_end_of_a_run_says_why_each_test_failed() -> None:
    output = """\
F.E  [100%]
=================================== ERRORS ===================================
_ ERROR at teardown of test_a_name_as_long_as_the_line_is_wide[snapshot] _
test_x.py:6: in broken
E   RuntimeError: teardown
---------------------------- Captured stdout call ----------------------------
=================================== FAILURES ===================================
__________ test_the_first __________
test_x.py:11: in test_the_first
    assert (1, "b") == (2, "c"), "because of this"
E   AssertionError: because of this
E   assert (1, 'b') == (2, 'c')
___________ test_law ___________
  | ExceptionGroup: Hypothesis found 2 distinct failures. (2 sub-exceptions)
    | AssertionError: assert 5 < 5
    | Failing test case: test_law(
    |     x=5,
============================= slowest 10 durations =============================
2 failed, 1 error in 1.38s
"""
    assert reasons(output) == [
        "ERROR at teardown of test_a_name_as_long_as_the_line_is_wide[snapshot]\n    E   RuntimeError: teardown",
        "test_the_first\n    E   AssertionError: because of this\n    E   assert (1, 'b') == (2, 'c')",
        "test_law\n        | AssertionError: assert 5 < 5\n        | Failing test case: test_law(",
    ]
