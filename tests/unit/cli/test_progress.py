"""Progress is bars on a terminal, which leave no trace; on a pipe there is none."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
import termios

import pytest

from tests.unit.support.command_line import ENVIRONMENT
from zsnapdb.base.domain_types import Progress
from zsnapdb.cli import progress_bars

WORK = """
import time
from zsnapdb.cli import progress_bars as bars, log_writer, output
from zsnapdb.cli.progress import Terminal
from zsnapdb.base.domain_types import Progress
from zsnapdb.report.log_lines import LogLevel
terminal = Terminal()
def go(step, total):
    for done in range(5):
        terminal.progress(Progress(step, done << 20, total))
        time.sleep(0.06)
go("send data", 8 << 20)
terminal.tell("half")
go("send \x1b]0;owned\x07", None)
log_writer.write(LogLevel.ERROR, "it failed")
"""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def on_a_terminal(**variables: str) -> tuple[str, str]:
    """Return what the work writes to a terminal on its stderr, and to its stdout."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    env = {**ENVIRONMENT, "TERM": "xterm-256color", **variables}
    with (
        os.fdopen(ours, "rb", buffering=0) as reading,
        subprocess.Popen([sys.executable, "-c", WORK], stderr=theirs, stdout=subprocess.PIPE, env=env) as work,
    ):
        os.close(theirs)
        written = b""
        # The other end of a terminal that nobody has open any more cannot be read: EIO.
        with contextlib.suppress(OSError):
            while part := reading.read(65536):
                written += part
        assert work.stdout is not None
        printed = work.stdout.read()
        assert work.wait(60) == 0
    return written.decode(), printed.decode()


def shown(written: str) -> list[str]:
    """Return the lines that a terminal shows in the end."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[([0-9;?]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)", written):
        number, command, back, feed, text = part
        if command == "F":
            row, column = row - int(number), 0
        elif command == "J":
            lines[row:] = [lines[row][:column]]
        elif back:
            column = 0
        elif feed:
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif text:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
            column += len(text)
    return lines


def test_a_terminal_shows_bars_with_bytes_rate_and_what_is_left_and_lines_stay() -> None:
    written, printed = on_a_terminal()
    assert re.search(r"send data .*━.* MiB of 8 MiB, [0-9]+ s left, [0-9]+ MiB/s", COLOUR.sub("", written))
    assert "MiB of an unknown size, " in written
    assert COLOUR.search(written)
    assert "\x1b]0;" not in written
    assert printed == ""
    assert [line for line in shown(written) if line] == ["zsnapdb: half", "zsnapdb: it failed"]


def test_a_terminal_without_colours_shows_bars_without_colours() -> None:
    written, _ = on_a_terminal(NO_COLOR="1")
    assert re.search(r"send data .*━.* MiB of 8 MiB", written)
    assert not re.search(r"\x1b\[[0-9;]*(3[0-9]|4[0-9]|38;5|48;5)[0-9;]*m", written)


def test_a_terminal_that_cannot_go_back_shows_no_bars() -> None:
    written, _ = on_a_terminal(TERM="dumb")
    assert written.splitlines() == ["zsnapdb: half", "zsnapdb: it failed"]


def test_a_pipe_gets_no_progress() -> None:
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert done.stderr.splitlines() == ["zsnapdb: half", "zsnapdb: it failed"]


def test_rich_is_not_imported_before_a_bar_is_due() -> None:
    work = "import sys; from zsnapdb.cli import app, progress; assert not [m for m in sys.modules if m[:5] == 'rich.']"
    subprocess.run([sys.executable, "-c", work], env=ENVIRONMENT, check=True, timeout=60)


@pytest.mark.parametrize(
    ("total", "expected"),
    [(None, "1 MiB of an unknown size, "), (4 << 20, "1 MiB of 4 MiB, 3 s left, "), (1 << 20, "1 MiB, ")],
)
def test_a_size_is_shown_or_said_to_be_unknown(total: int | None, expected: str) -> None:
    assert progress_bars.amount(Progress("send data", 1 << 20, total), 1 << 20) == f"{expected}1 MiB/s"
