"""A program hears of a command at least every few seconds, also while a step has no measure of itself."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tools.references.commands import commands

from tests.unit.support.command_line import ENVIRONMENT
from zsnapdb.cli.log_options import wants_json_progress
from zsnapdb.cli.progress import EVERY_SECONDS
from zsnapdb.cli.schema import printed_documents

WORK = """
import threading, time
from collections import Counter
from zsnapdb.cli import log_writer
from zsnapdb.cli.progress import Terminal
from zsnapdb.cli.progress import PULSE
terminal, written, beats = Terminal(), log_writer.write, Counter()
def counted(level, text, **fields):
    written(level, text, **fields)
    beats[text] += fields.get("event") == "progress"
def wait_for(step):
    while beats[step] < 2:
        time.sleep(0.01)
log_writer.write = counted
with PULSE.beating("restore main", every=0.2):
    wait_for("restore main")
    terminal.tell("recover: start the server once")
    wait_for("recover: start the server once")
print(threading.active_count())
"""


def test_while_nothing_is_told_a_line_says_what_the_command_does_and_for_how_long() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORK],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "ZSNAPDB_JSON_PROGRESS": "1"},
        timeout=60,
        check=True,
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    beats = [(one["step"], one["seconds"]) for one in lines if one.get("event") == "progress"]
    steps = [step for step, _ in beats]
    assert list(dict.fromkeys(steps)) == ["restore main", "recover: start the server once"]
    assert min(steps.count(step) for step in set(steps)) >= 2
    assert next(seconds for _, seconds in beats) > 0
    assert done.stdout == "1\n", "no thread is left"


def test_five_seconds_pass_between_two_lines_at_most() -> None:
    assert EVERY_SECONDS <= 5


@pytest.mark.parametrize(
    ("words", "variable", "is_wanted"),
    [((), "", False), (("backup", "--json-progress"), "", True), ((), "1", True), ((), "no", False)],
)
def test_people_get_none(words: tuple[str, ...], variable: str, is_wanted: bool) -> None:
    assert wants_json_progress(["zsnapdb", *words], {"ZSNAPDB_JSON_PROGRESS": variable}) is is_wanted


WITHOUT_DOCUMENT = {
    ("agent",): "it works until it is told to end",
    ("clone", "tunnel"): "ssh replaces it, and runs until Ctrl-C",
    ("fleet", "control"): "it works until it is told to end",
    ("fleet", "dev"): "it works until it is told to end",
    ("fleet", "worker"): "it works until it is told to end",
    ("mcp",): "its stdout speaks the protocol",
    ("serve",): "it works until it is told to end",
    ("serve-helper",): "it works until it is told to end",
    ("schema",): "what it prints is a schema in JSON",
    ("completion",): "what it prints is for a shell",
}


def test_every_command_prints_a_document_for_programs() -> None:
    known = [command for command in commands() if not command.is_group]
    without = {
        one.words for one in known if not any("--json" in option.names for option in one.options)
    } - WITHOUT_DOCUMENT.keys()
    assert without == set()
    hidden = {"unpin", "forget", "advise"}
    named = {" ".join(one.words) for one in known if one.words not in WITHOUT_DOCUMENT} - hidden
    assert named <= printed_documents().keys()
