"""Texts about a job: progress in steps that do not fill a screen, and how long a job took."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.planning.fleet.jobs import JobAnswer, JobProgress, answer_text, progress_text


@given(st.integers(0, 2**62), st.integers(1, 2**62))
def test_progress_with_total_names_a_tenth(done: int, total: int) -> None:
    text = progress_text(JobProgress(host="db1", step="sending", done=done, total=total))
    tenths = min(100, 100 * done // total) // 10
    assert text == f"sending {tenths}0 %".replace("sending 00 %", "sending 0 %")


def test_progress_without_total_or_step_has_no_number() -> None:
    assert progress_text(JobProgress(host="db1", step="sending", done=5)) == "sending"
    assert progress_text(JobProgress(host="db1", done=5, total=9)) == ""


def test_answer_says_how_long_it_took_or_who_did_it() -> None:
    assert answer_text(JobAnswer(host="db1", exit_code=0, seconds=754.2)) == "took 12 min 34 s"
    assert answer_text(JobAnswer(host="db1", exit_code=0, seconds=1, served="a1")) == "run a1 had done it"
