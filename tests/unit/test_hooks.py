"""Hooks: no shell, a documented environment, a time limit for all they start, each with its meaning of failure."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support.events import Recorder
from zsnapdb import hooks
from zsnapdb.base.errors import HookError
from zsnapdb.hooks import Hook, OnFailure, When
from zsnapdb.jobs.backup.hooks import Hooked


def script(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_arguments_go_through_unchanged_and_the_environment_says_what_is_going_on(tmp_path: Path) -> None:
    path = script(tmp_path, "h", 'echo "$1|$ZSNAPDB_HOOK|$ZSNAPDB_INSTANCE|$ZSNAPDB_LOCK|$ZSNAPDB_SNAPSHOTS"')
    variables = hooks.environment(
        When.LOCKED, instance="main", backup_id="b", lock="stage", snapshots=["t/a@x", "t/b@x"]
    )
    assert (
        hooks.run(Hook(When.LOCKED, (path, "a b; $HOME"), 5), variables) == "a b; $HOME|locked|main|stage|t/a@x t/b@x"
    )


def test_a_hook_that_fails_is_named_with_its_status_and_its_words(tmp_path: Path) -> None:
    path = script(tmp_path, "h", "echo the queue is full >&2; exit 3")
    with pytest.raises(HookError, match=r"ended with exit status 3; it printed: the queue is full") as caught:
        hooks.run(Hook(When.BEFORE, (path,), 5), {})
    assert caught.value.exit_code == 12


@pytest.mark.parametrize("when", When)
def test_failed_program_is_named_by_its_purpose(tmp_path: Path, when: When) -> None:
    path = script(tmp_path, "h", "exit 3")
    with pytest.raises(HookError) as failed:
        hooks.run(Hook(when, (path,), 5), {})
    with pytest.raises(HookError) as missing:
        hooks.check(Hook(when, ("/nowhere/h",), 5))
    is_hook = when not in (When.MASK, When.MIGRATION)
    for error in (failed.value, missing.value):
        assert ("hook" in error.message) == is_hook
    assert ("on_failure" in failed.value.hint) == is_hook


def has_ended(number: int) -> bool:
    """Whether a process is gone, or waits only for its parent to ask for its status."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class Interrupted(Exception):
    """What a signal raises in a test, as an operator's Ctrl-C does."""


@contextlib.contextmanager
def interrupted_by(number: signal.Signals) -> Iterator[None]:
    """Within the block the signal raises Interrupted."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("ignoring", ["", "trap '' TERM"])
def test_a_hook_that_hangs_is_ended_with_all_it_started(tmp_path: Path, ignoring: str) -> None:
    child = script(tmp_path, "child", f"{ignoring}\necho $$ > {tmp_path}/number\nkill -USR1 $1\nsleep 300; true")
    path = script(tmp_path, "h", f"{ignoring}\n{child} $PPID &\nsleep 300; true")
    with pytest.raises(Interrupted), interrupted_by(signal.SIGUSR1):
        hooks.run(Hook(When.BEFORE, (path,), 300), {})
    assert has_ended(int((tmp_path / "number").read_text()))


def test_a_hook_that_is_interrupted_while_it_starts_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = script(tmp_path, "h", "exec sleep 300")
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def interrupted(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*words, **options))
        signal.raise_signal(signal.SIGUSR1)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(Interrupted), interrupted_by(signal.SIGUSR1):
        hooks.run(Hook(When.BEFORE, (path,), 300), {})
    assert has_ended(started[0].pid)


def test_a_hook_is_ended_at_its_limit_and_the_error_says_so(tmp_path: Path) -> None:
    path = script(tmp_path, "h", "trap '' TERM; sleep 300")
    with pytest.raises(HookError, match=r"did not end within 0\.3 s and was ended\n"):
        hooks.run(Hook(When.BEFORE, (path,), 0.3), {})


def test_an_error_names_what_even_a_kill_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process that waits for a network mount that is gone."""
    path = script(tmp_path, "h", "exec sleep 300")
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def noted(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*words, **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", noted)
    monkeypatch.setattr(os, "killpg", lambda group, number: None)
    monkeypatch.setattr(hooks, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(hooks, "KILLED_SECONDS", 0.0)
    try:
        with pytest.raises(HookError) as caught:
            hooks.run(Hook(When.BEFORE, (path,), 0.1), {})
        assert f"was killed, but process {started[0].pid} does not end" in caught.value.message
    finally:
        started[0].kill()
        started[0].wait()


def test_what_is_left_of_the_lock_cuts_a_hook_short(tmp_path: Path) -> None:
    path = script(tmp_path, "h", "sleep 300")
    with pytest.raises(HookError, match=r"did not end within 0\.1 s"):
        hooks.run(Hook(When.LOCKED, (path,), 60), {}, limit=0.1)


def test_much_output_does_not_block_a_hook_and_only_its_end_is_kept(tmp_path: Path) -> None:
    path = script(tmp_path, "h", "seq 1 100000")
    text = hooks.run(Hook(When.BEFORE, (path,), 20), {})
    assert text.endswith("100000")
    assert len(text) <= 4000


@pytest.mark.parametrize("name", ["missing", "relative"])
def test_a_hook_that_cannot_run_is_found_before_anything_is_touched(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / "missing") if name == "missing" else "relative"
    with pytest.raises(HookError) as caught:
        hooks.check(Hook(When.BEFORE, (path,), 5))
    assert caught.value.hint


def test_a_file_that_is_not_executable_is_no_hook(tmp_path: Path) -> None:
    path = Path(script(tmp_path, "h", "true"))
    path.chmod(0o644)
    with pytest.raises(HookError, match="is not an executable file"):
        hooks.check(Hook(When.BEFORE, (str(path),), 5))


def hooked(folder: Path, *hooks_of_site: Hook, lines: list[str] | None = None) -> Hooked:
    return Hooked("main", hooks_of_site, "b", ("t/a@b",), Recorder(lines if lines is not None else []))


def logging(folder: Path, when: When, text: str = "", on_failure: OnFailure = OnFailure.ABORT) -> Hook:
    path = script(
        folder, f"{when}-{len(os.listdir(folder))}", f'echo "$ZSNAPDB_HOOK $ZSNAPDB_OUTCOME" >> {folder}/log\n{text}'
    )
    return Hook(when, (path,), 5, on_failure)


def test_hooks_run_in_their_order_around_the_snapshot(tmp_path: Path) -> None:
    run = hooked(
        tmp_path, logging(tmp_path, When.AFTER), logging(tmp_path, When.LOCKED), logging(tmp_path, When.BEFORE)
    )
    with run.around():
        run.locked("stage", 5.0)
    assert (tmp_path / "log").read_text().splitlines() == ["before ", "locked ", "after ok"]


def test_after_hooks_run_whatever_went_wrong_and_are_told_so(tmp_path: Path) -> None:
    run = hooked(tmp_path, logging(tmp_path, When.AFTER), logging(tmp_path, When.AFTER))
    with pytest.raises(KeyError), run.around():
        raise KeyError("the snapshot")
    assert (tmp_path / "log").read_text().splitlines() == ["after failed", "after failed"]


def test_an_interrupt_during_an_after_hook_skips_neither_it_nor_the_others(tmp_path: Path) -> None:
    # Started in the background of a shell, Python finds the signal ignored and leaves it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    once = f"[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; kill -INT $PPID; sleep 5; }}"
    run = hooked(tmp_path, logging(tmp_path, When.AFTER, once), logging(tmp_path, When.AFTER))
    try:
        with pytest.raises(KeyboardInterrupt), run.around():
            pass
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "log").read_text().splitlines() == ["after ok", "after ok", "after ok"]


def test_a_before_hook_that_fails_ends_it_and_what_it_began_is_undone(tmp_path: Path) -> None:
    run = hooked(tmp_path, logging(tmp_path, When.BEFORE, "exit 1"), logging(tmp_path, When.AFTER))
    reached = []
    with pytest.raises(HookError), run.around():
        reached.append(1)
    assert reached == []
    assert (tmp_path / "log").read_text().splitlines() == ["before ", "after failed"]


def test_a_hook_that_may_fail_is_only_told_of(tmp_path: Path) -> None:
    lines: list[str] = []
    run = hooked(tmp_path, logging(tmp_path, When.BEFORE, "exit 1", OnFailure.WARN), lines=lines)
    with run.around():
        pass
    assert len(lines) == 1
    assert "exit status 1" in lines[0]


def test_an_after_hook_that_fails_fails_the_backup_unless_it_may(tmp_path: Path) -> None:
    run = hooked(tmp_path, logging(tmp_path, When.AFTER, "exit 1"))
    with pytest.raises(HookError), run.around():
        pass


def test_the_first_error_is_the_one_raised_with_the_later_ones_noted(tmp_path: Path) -> None:
    run = hooked(tmp_path, logging(tmp_path, When.AFTER, "exit 1"))
    with pytest.raises(KeyError) as caught, run.around():
        raise KeyError("first")
    assert "exit status 1" in caught.value.__notes__[0]
