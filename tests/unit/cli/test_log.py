"""The log says for people and for programs what a run did, and all of it has the id of the run."""

from __future__ import annotations

import json
import re
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.unit.support.command_line import zsnapdb
from zsnapdb.base import run_context
from zsnapdb.base.domain_types import Progress
from zsnapdb.cli import log_writer, progress
from zsnapdb.report.log_lines import LogFormat, LogLevel, LogRecord, journal_message, json_line, text_line

AT = datetime(2026, 11, 22, 12, 0, 0, 5000, tzinfo=UTC)
ID = "20261122T120000Z-0123abcd"
RECORD = LogRecord(AT, LogLevel.WARNING, "two\nlines \x1b[2J", ID, {"instance": "main", "exit_code": None})


def test_a_line_for_people_is_printable() -> None:
    assert text_line(RECORD) == "zsnapdb: warning: two\nlines \\x1b[2J"


def test_a_line_for_programs_is_one_line_of_json() -> None:
    line = json_line(RECORD)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-11-22T12:00:00.005+00:00",
        "level": "warning",
        "run_id": ID,
        "message": RECORD.text,
        "instance": "main",
    }


def test_a_message_of_the_journal_has_the_length_of_a_value_of_several_lines() -> None:
    text = b"two\nlines \\x1b[2J"
    assert journal_message(RECORD).split(b"PRIORITY")[0] == b"MESSAGE\n" + bytes([len(text)]) + bytes(7) + text + b"\n"
    assert b"\nPRIORITY=4\nSYSLOG_IDENTIFIER=zsnapdb\n" in journal_message(RECORD)
    assert journal_message(RECORD).endswith(f"ZSNAPDB_RUN_ID={ID}\nZSNAPDB_INSTANCE=main\n".encode())


@pytest.mark.parametrize("words", [("--log-format", "json", "list"), ("list", "--log-format", "json")])
def test_options_of_the_log_stand_before_or_after_the_command(words: tuple[str, ...]) -> None:
    done = zsnapdb(*words, config="/none", **{run_context.VARIABLE: ID})
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["run_id"] for line in lines] == [ID, ID]
    assert [line["level"] for line in lines] == ["error", "info"]
    assert (lines[-1]["event"], lines[-1]["exit_code"], done.returncode) == ("ended", 3, 3)


def test_a_quiet_command_says_errors_and_a_verbose_one_how_it_ended() -> None:
    quiet, verbose = zsnapdb("list", "-q", config="/none").stderr, zsnapdb("list", "-v", config="/none").stderr
    assert "reading the configuration /none" in quiet
    assert "ended" not in quiet
    assert re.search(r"debug: zsnapdb list ended with 3 after [0-9.]+ s, run 2\S+\n$", verbose)
    assert zsnapdb("list", "--log-level", "loud").returncode == 2


def test_a_variable_sets_the_style_of_the_log() -> None:
    assert log_writer.LogStyle.of({}) == log_writer.LogStyle()
    assert log_writer.LogStyle.of({log_writer.LEVEL: "?", log_writer.FORMAT: "?"}) == log_writer.LogStyle()
    chosen = log_writer.LogStyle.of({log_writer.LEVEL: "error", log_writer.FORMAT: "journal"})
    assert chosen == log_writer.LogStyle(LogLevel.ERROR, LogFormat.JOURNAL)
    assert (chosen.shows(LogLevel.WARNING), chosen.shows(LogLevel.ERROR)) == (False, True)


def test_progress_for_programs_has_bytes_and_rate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(log_writer.PROGRESS, "1")
    monkeypatch.setattr(progress, "_JSON_SECONDS", 0.0)
    terminal = progress.Terminal()
    terminal.progress(Progress("send data", 1 << 20, None))
    terminal.progress(Progress("send data", 2 << 20, 4 << 20))
    terminal.tell("half")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line.get("event"), line.get("done"), line.get("total")) for line in lines] == [
        ("progress", 1 << 20, None),
        ("progress", 2 << 20, 4 << 20),
        (None, None, None),
    ]
    assert all(line["step"] == "send data" and line["bytes_per_second"] > 0 for line in lines[:2])


def test_a_quiet_command_shows_no_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(log_writer.LEVEL, "warning")
    terminal = progress.Terminal()
    terminal.progress(Progress("send data", 1 << 20, None))
    terminal.tell("told")
    terminal.warn("careful")
    assert capsys.readouterr().err == "zsnapdb: warning: careful\n"


def test_the_journal_gets_the_fields_and_without_a_journal_the_line_goes_to_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(log_writer.FORMAT, "journal")
    monkeypatch.setattr(log_writer, "JOURNAL", tmp_path / "journal")
    log_writer.write(LogLevel.INFO, "to people")
    assert capsys.readouterr().err == "zsnapdb: to people\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "journal"))
        log_writer.write(LogLevel.INFO, "to the journal", backup_id="20261122T120000Z-0123")
        assert b"\nZSNAPDB_BACKUP_ID=20261122T120000Z-0123\n" in journal.recv(4096)
    assert capsys.readouterr().err == ""
