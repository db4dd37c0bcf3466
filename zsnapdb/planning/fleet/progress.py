"""Texts about the progress and the end of a job of a fleet. Pure."""

from __future__ import annotations

from zsnapdb.base.quantities import format_duration
from zsnapdb.planning.fleet.messages import JobAnswer, JobProgress

_PERCENT_STEP = 10
"""Progress is given in steps of so many percent: a line for each would fill the screen of an operator."""


def progress_text(progress: JobProgress) -> str:
    """Return the step of a job, with its progress in tens of percent; "" if the host named no step."""
    if not progress.step or not progress.total:
        return progress.step
    percent = min(100, 100 * progress.done // progress.total)
    return f"{progress.step} {percent - percent % _PERCENT_STEP} %"


def answer_text(answer: JobAnswer) -> str:
    """Return how a job ended well: how long its command took, or the run that had done the same before."""
    if answer.served:
        return f"run {answer.served} had done it"
    return f"took {format_duration(round(answer.seconds))}"
