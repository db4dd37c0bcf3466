"""What a job tells reaches the person who waits, once and in order."""

from __future__ import annotations

import pytest

from tests.unit.support.events import Recorder
from zsnapdb.base.domain_types import Progress
from zsnapdb.cli.progress import Terminal
from zsnapdb.jobs.base.events import SILENT, Events, KeptWarnings


class Steps(Recorder):
    def progress(self, progress: Progress) -> None:
        self.lines.append(progress.step)


def everything(events: Events) -> None:
    events.tell("a line")
    events.warn("a warning")
    events.progress(Progress("send data", 1, 2))


def test_kept_warnings_are_passed_on_too() -> None:
    lines: list[str] = []
    events = KeptWarnings(Steps(lines))
    everything(events)
    assert events.warnings == ["a warning"]
    assert lines == ["a line", "a warning", "send data"]


def test_a_silent_job_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    everything(SILENT)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_names_warnings_and_leaves_stdout_to_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    everything(Terminal())
    assert capsys.readouterr() == ("", "zsnapdb: a line\nzsnapdb: warning: a warning\n")
