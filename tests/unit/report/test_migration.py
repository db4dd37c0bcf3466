"""What a migration does is shown as text, and as Markdown in which names and messages are no markup."""

from __future__ import annotations

from dataclasses import replace

from zsnapdb.config.services import MigrationSettings
from zsnapdb.jobs.clone.migration import CheckedMigration
from zsnapdb.planning.clone.migration_findings import (
    LoadFindings,
    MigrationFindings,
    MigrationRun,
    SecondRun,
    TableAccess,
    TableEffect,
    TableWait,
    TouchedTable,
    problems,
)
from zsnapdb.planning.sql_quoting import TableName
from zsnapdb.report.clone.migration import MigrationView

ORDERS = TableName("shop", "new_orders")
CHECKED = CheckedMigration(
    backup_id="20261127-040000-aaaaaaaa",
    command=("/srv/shop/manage.py", "migrate"),
    tables=(TouchedTable(ORDERS, frozenset({TableEffect.REDEFINED, TableEffect.REWRITTEN})),),
    findings=MigrationFindings(
        MigrationRun(2.5), (TableWait(ORDERS, TableAccess.WRITE, 1.25, 0.01, 90),), 0.02, SecondRun.FAILS
    ),
    difference="--- shop.new_orders before\n+++ shop.new_orders after\n+  `paid` int",
    unwatched=0,
    own_bytes=1 << 20,
    is_masked=True,
    problems=("a write of shop.new_orders waits 1.25 s",),
)


def test_the_text_ends_with_the_problems_and_the_verdict() -> None:
    lines = MigrationView(CHECKED).text().splitlines()
    assert "shop.new_orders  redefined, rewritten  -             1.250 s" in lines
    assert lines[-2:] == ["  problem  a write of shop.new_orders waits 1.25 s", "the migration has problems"]
    assert MigrationView(replace(CHECKED, problems=())).text().endswith("the migration keeps to the limits")


def test_markdown_shows_names_as_they_are_and_its_fence_cannot_be_closed_from_inside() -> None:
    evil = replace(CHECKED, difference="+  COMMENT '\n```\n<script>'", problems=("table `a|b`: *x* <b> &lt;",))
    lines = MigrationView(evil, as_markdown=True).text().splitlines()
    assert lines[0] == "### The migration has problems"
    assert "- table \\`a\\|b\\`: \\*x\\* \\<b\\> \\&lt;" in lines
    assert "| shop.new\\_orders | redefined, rewritten | - | 1.250 s |" in lines
    start = lines.index("``````diff")
    assert lines[start + 1 :] == ["+  COMMENT '", "```", "<script>'", "``````"]


def test_the_recorded_load_beside_it_is_shown_with_how_late_it_was_and_what_stopped_it() -> None:
    load = LoadFindings("20261127T040000Z-aaaa", 912, 61.4, 2.25, 0.5, is_through=False)
    loaded = replace(CHECKED, findings=replace(CHECKED.findings, load=load))
    view = MigrationView(loaded)
    assert "912 transactions of 61 s of production at the same time; up to 2.2 s late (0.5 s before" in view.text()
    assert view.fields()["load"] == {
        "transactions": 912,
        "seconds": 61.4,
        "late_seconds": 2.25,
        "late_before_seconds": 0.5,
        "through": False,
        "error": "",
    }
    assert MigrationView(CHECKED).fields()["load"] is None
    stopped = replace(loaded.findings, load=replace(load, error="no such column"))
    assert "the recorded load stops after 912 transactions: no such column" in problems(stopped, MigrationSettings())
