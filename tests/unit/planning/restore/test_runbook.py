"""Every step of a restore has its page in the runbook; what is printed is what would be executed."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from datetime import UTC, datetime
from html import unescape
from html.parser import HTMLParser
from typing import get_args

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.jobs.restore.runbook import Runbook
from zsnapdb.planning.restore.plan import ArchivedTransaction, RestoreLayout, RestorePlan, RestorePoint
from zsnapdb.planning.restore.runbook import Commands, Look, entries, pinned
from zsnapdb.planning.restore.steps import (
    CheckServer,
    CloneSnapshot,
    LeaveStopped,
    LogPart,
    MakeReplica,
    MakeTop,
    MountPart,
    MountVolumes,
    ParallelRun,
    Preflight,
    Promote,
    PromotePart,
    ReadOnlyStart,
    Receive,
    Recover,
    Replay,
    ResumedRun,
    Step,
)
from zsnapdb.planning.trial.drill import Timing
from zsnapdb.report import runbook as report

AT = datetime(2026, 11, 21, 10, 11, 12, tzinfo=UTC)
BACKUP = "20261121T101112Z-7f3a"
TOP = "tank/zsnapdb/restored/main"
MOUNT = "/var/lib/zsnapdb/restored/main"
LAYOUT = RestoreLayout(
    TOP,
    {"data": f"{TOP}/data", "logs": f"{TOP}/logs"},
    {"data": f"{MOUNT}/data", "logs": f"{MOUNT}/logs"},
    MOUNT,
    {"data": ("tank/d", "/d")},
)
MIB = 1 << 20
STEPS: tuple[Step, ...] = (
    Preflight(
        "tank",
        "tank/zsnapdb/restored",
        200 * MIB,
        100 * MIB,
        0x1000004,
        "zfs-2.3.9-1",
        Flavour.MYSQL,
        "8.4.3",
        (BACKUP,),
    ),
    MakeTop(TOP),
    Receive(BACKUP, "data", f"{TOP}/data", f"{MOUNT}/data", f"zsnapdb-{BACKUP}", 4711, None, 200 * MIB, 100 * MIB),
    CloneSnapshot(
        BACKUP, "data", f"{TOP}/data", f"{MOUNT}/data", f"tank/d@zsnapdb-{BACKUP}", f"zsnapdb-{BACKUP}", 4711
    ),
    MountVolumes(
        (MountPart("data", f"{TOP}/data", f"{MOUNT}/data", f"zsnapdb-{BACKUP}", 4711, {"recordsize": "16384"}),)
    ),
    Recover("u:1-10", "binlog.000003", 99),
    Replay(1, (LogPart("a", "binlog.000003", 5 * MIB, 99, 500),), "u:1-20"),
    ResumedRun(2, "u:1-20"),
    CheckServer("u:1-20"),
    LeaveStopped(7),
    ReadOnlyStart(7),
    ParallelRun(8, 33070),
    Promote(
        (PromotePart("data", f"{TOP}/data", "tank/d", "tank/d-old", "/d"),),
        (("tank/d", "tank/d-old"), (f"{TOP}/data", "tank/d")),
        "i",
    ),
    MakeReplica(9, 33071, "db1", 3306, "replica", "/etc/zsnapdb/replica.password"),
)
PLAN = RestorePlan(
    restore_id=BACKUP,
    instance="main",
    repository="r1",
    requested="2026-11-21 10:12:00 UTC",
    created=AT,
    flavour=Flavour.MYSQL,
    server_version="8.4.3",
    server_id=1,
    server_uuid="u",
    variables={},
    backup_id=BACKUP,
    point=RestorePoint(
        "u:1-20",
        ArchivedTransaction("u:20", AT, "binlog.000003", 500),
        ArchivedTransaction("u:21", AT, "binlog.000003", 600),
        ("a note <with> marks",),
    ),
    layout=LAYOUT,
    steps=STEPS,
)
COMMANDS = Commands("main", pinned(PLAN), TOP, ("--as", "main"), ("--handover", "run"), None)
HISTORY = [Timing("receive", 10.0, 100 * MIB), Timing("recover", 4.0, 0), Timing("recover", 6.0, 0)]


def book(plan: RestorePlan = PLAN) -> Runbook:
    contacts = ("Database on call: +49 30 5550100",)
    return Runbook(
        plan,
        entries(plan, COMMANDS, HISTORY),
        (Look("zpool list -H -o health tank", "ONLINE"), Look("echo '<b>'", "<b>")),
        contacts,
        "s3://backups/lab",
        3,
    )


def test_the_plan_tried_here_has_every_kind_of_step() -> None:
    assert {type(step) for step in STEPS} == set(get_args(Step))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.kind)
def test_every_step_has_a_command_what_it_does_a_way_to_see_it_and_what_to_do_if_not(step: Step) -> None:
    entry = next(entry for entry, other in zip(book().entries, STEPS, strict=True) if other is step)
    words = shlex.split(entry.command)
    assert words[:3] == ["zsnapdb", "restore", "main"]
    assert words[words.index("--stop-after") + 1] == step.name
    assert entry.underneath
    assert entry.if_not
    assert entry.looks or isinstance(step, Preflight)


def test_a_restore_in_place_of_the_server_says_why_and_how_its_replicas_are_made_anew() -> None:
    (page,) = [page for page in entries(PLAN, COMMANDS, []) if page.title.startswith("Replace the old server")]
    steps = "\n".join(page.underneath)
    for words in ("SHOW REPLICAS", "transactions that the server lacks", "--handover replica", "--replicas-rebuilt"):
        assert words in steps


def test_the_first_command_makes_the_plan_and_the_others_go_on_with_it() -> None:
    first, *others = (shlex.split(entry.command) for entry in book().entries)
    assert first[first.index("--to") + 1] == PLAN.requested
    assert "--resume" not in first
    assert all(
        "--resume" in words and "--to" not in words and words[words.index("--target") + 1] == TOP for words in others
    )


def test_stopped_server_is_started_without_its_option_file() -> None:
    (page,) = [page for page, step in zip(book().entries, STEPS, strict=True) if isinstance(step, LeaveStopped)]
    (start,) = [line for line in page.underneath if line.startswith("to start it")]
    assert "--continue-to here --handover run" in start
    assert "--defaults-file" not in start, "the server's account may have changed this file"


def test_what_is_to_be_restored_means_the_same_later() -> None:
    alone = replace(PLAN, requested="latest", steps=tuple(step for step in STEPS if not isinstance(step, Replay)))
    assert pinned(alone) == BACKUP
    assert pinned(PLAN) == PLAN.requested


def test_durations_are_those_of_past_drills_and_unknown_without_one() -> None:
    seconds = {step.kind: entry.seconds for entry, step in zip(book().entries, STEPS, strict=True)}
    assert (seconds["receive"], seconds["recover"], seconds["replay"]) == (20.0, 5.0, None)
    text = report.markdown(book())
    assert "Expected: 20 s." in text
    assert "Expected: unknown." in text


def test_both_forms_say_the_same_commands_and_the_whole_story() -> None:
    text, page = report.markdown(book()), report.html(book())
    shell = re.findall(r"```sh\n(.*?)\n```", text, re.DOTALL)
    assert shell == [unescape(command) for command in re.findall(r'<pre class="sh">(.*?)</pre>', page, re.DOTALL)]
    assert [command for command in shell if command.startswith("zsnapdb restore")] == [
        entry.command for entry in book().entries
    ]
    for fact in ("Database on call: +49 30 5550100", "s3://backups/lab", "u:21 committed", PLAN.backup_id, "u:1-20"):
        assert fact in text
        assert fact in page
    assert "a note <with> marks" in text
    assert "a note &lt;with&gt; marks" in page


@pytest.mark.parametrize(
    ("variables", "lines"),
    [
        ({}, []),
        ({"datadir": "/d/", "innodb_log_group_home_dir": "./", "aria_log_dir_path": "/d/"}, ["datadir = /d"]),
        (
            {"datadir": "/d/data/", "innodb_log_group_home_dir": "/d/", "log_bin_basename": "/d/binlog"},
            ["datadir = /d/data", "innodb_log_group_home_dir = /d", "log_bin = /d/binlog"],
        ),
    ],
)
def test_promotion_names_the_places_of_the_lost_option_file(variables: dict[str, str], lines: list[str]) -> None:
    (last,) = [step for step in STEPS if isinstance(step, Promote)]
    text = report.markdown(book(replace(PLAN, variables=variables, steps=(last,))))
    assert re.findall(r"its option file must have: ([^`]*)`", text) == lines


def test_the_page_is_well_formed() -> None:
    open_tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag != "meta":
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    reader = Reader()
    reader.feed(report.html(book()))
    reader.close()
    assert open_tags == []


def test_the_json_form_has_every_step_with_its_command() -> None:
    document = json.loads(report.RunbookView(book()).document())
    assert (document["version"], document["kind"]) == (1, "runbook")
    assert [(step["name"], step["command"]) for step in document["steps"]] == [
        (step.name, entry.command) for step, entry in zip(STEPS, book().entries, strict=True)
    ]
