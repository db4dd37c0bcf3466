"""While a whole run goes on, a line now and then says how many tests have ended."""

from __future__ import annotations

import threading

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
