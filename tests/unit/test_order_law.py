"""Only `planning/creation_order.py` compares ids, transaction groups, numbers or times of what was made to order it.

A clock is often wrong and an id is a clock. So whoever needs the latest, the oldest or the next one asks that module. A
comparison elsewhere has a reason here, which says why no clock decides what is latest by it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "zsnapdb"
HOME = "planning/creation_order.py"

PLACES = {
    *("backup_id", "drill_id", "set_id", "restore_id", "incarnation_id", "backup_ids", "drill_ids", "ids"),
    *("createtxg", "data_of", "created", "taken", "when", "began", "backup_time", "time_of", "committed"),
    "incarnation",
}
"""Names of what says when something was made: ids, transaction groups and times."""

ORDERING = {"sorted", "max", "min", "sort", "nlargest", "nsmallest"}

AT_A_TIME = "the state at a requested time is wanted, and the moments of snapshots and commits say what that is"
SERVER_TIME = "it compares times of the server's own files and commits, which restores to a time are about"
AGE = "it judges an age, not an order"
SHOWN = "people read the list by id; nothing is chosen from it"
MEASURED = "it measures a duration within one run"
OTHER = "the word means something else here"

ALLOWED = {
    "agent/children.py": {"orphans": "start times of processes by the kernel's clock since boot"},
    "cli/progress_bars.py": {"_text": MEASURED},
    "jobs/backup/run.py": {"backup_of_run": "whether a run that a scheduler repeats was made since it was due"},
    "jobs/binlog/archiver.py": {
        "_begin": "an incarnation has a number; its time only grows with it, for the time of one that is unreadable",
    },
    "jobs/binlog/undo.py": {"began": SERVER_TIME},
    "jobs/binlog/purge.py": {"_unread": AGE},
    "jobs/clone/catalogue.py": {"known_clones": SHOWN},
    "jobs/clone/query.py": {"reaches_beyond": "GTIDs decide; without them there are only times"},
    "jobs/clone/set_preparation.py": {"forms_of": SHOWN},
    "jobs/clone/migration.py": {"_set_of": AGE},
    "jobs/dataset_copies/sweep.py": {"sweep": OTHER},
    "jobs/host/binlog_spans.py": {"points_of": AT_A_TIME, "point_of": AT_A_TIME},
    "jobs/repository/copy.py": {"_plan": "bases go before increments; the order of the backups stays"},
    "jobs/repository/evidence_report.py": {"_drills": "the drills of the days that a report is about"},
    "jobs/restore/restore_inputs.py": {"_newer_future": "places in an order of `planning/creation_order.py`"},
    "jobs/restore/run_results.py": {"_refuse_exchange": AGE},
    "mysql/binlog/transaction_changes.py": {"add": SERVER_TIME},
    "mysql/binlog/transactions.py": {"commit_time_of": SERVER_TIME},
    "planning/advice/dataset_rules.py": {"_trim": AGE},
    "planning/binlog/route_elements.py": {
        "lost_history_after": "of an unreadable history only the id is known; archivers let the times in ids grow"
    },
    "planning/binlog/route_start.py": {
        "_if_not_left": SERVER_TIME,
        "_begun_before": SERVER_TIME,
        "_only_history": SERVER_TIME,
        "_not_left": SERVER_TIME,
    },
    "planning/binlog/purge.py": {"_one": AT_A_TIME},
    "planning/binlog/row_values.py": {"logged_difference": SERVER_TIME},
    "planning/binlog/recoverable_ranges.py": {"_is_beyond": SERVER_TIME, "_is_on": AT_A_TIME},
    "planning/clone/kept_ports.py": {"choose": OTHER},
    "planning/clone/pool.py": {"objection": AGE},
    "planning/clone/destroy_plan.py": {
        "promote": "the kernel moves the snapshots up to the origin's transaction group"
    },
    "planning/fleet/jobs.py": {"refusal": "times of runs", "served_until": "times of runs"},
    "planning/repository/host_backup_record.py": {
        "with_pinned": SHOWN,
        "with_adopted": "places in an order of `planning/creation_order.py`",
    },
    "planning/repository/local_snapshot_sets.py": {
        "decide": SHOWN,
        "decide_local": "places in the order of the sets that were given",
    },
    "planning/repository/retention.py": {
        "decide": "a backup from the future takes no place of another",
        "_protect": "a backup from the future stays",
        "_needing": "an unreadable manifest that has no place protects by its time, and removes nothing",
    },
    "planning/repository/leftover_sweep.py": {"decide": SHOWN, "decide_binlogs": SHOWN, "_one": AGE},
    "planning/restore/route_choice.py": {
        "_is_before": AT_A_TIME,
        "_choose_in": AT_A_TIME,
        "_choose_time": AT_A_TIME,
    },
    "planning/restore/history_views.py": {"_view": SERVER_TIME},
    "planning/restore/newest_state_check.py": {"_is_covered": "GTIDs decide; a time that does not fit only adds doubt"},
    "planning/restore/replays.py": {"_between": AT_A_TIME},
    "repository/binlog_archive.py": {"sweep": "objects are compared and removed", "stored_sizes": "sizes by key"},
    "repository/repository.py": {"backup_ids": SHOWN},
    "serve/tokens.py": {"is_valid": AGE},
    "zfs/snapshots.py": {"check_one_group": SHOWN},
}
"""Why each function may compare such a name, by module."""


def _words(node: ast.AST) -> set[str]:
    return {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)} | {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name)
    }


def _compared(node: ast.AST) -> list[ast.expr]:
    """Return what the node puts in order; nothing if it orders nothing."""
    if isinstance(node, ast.Compare):
        orders = any(isinstance(op, ast.Lt | ast.Gt | ast.LtE | ast.GtE) for op in node.ops)
        return [node.left, *node.comparators] if orders else []
    if not isinstance(node, ast.Call):
        return []
    called = node.func
    name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
    if name not in ORDERING:
        return []
    own = [called.value] if isinstance(called, ast.Attribute) else []
    return [*own, *node.args, *(keyword.value for keyword in node.keywords)]


def _orderings(node: ast.AST, function: str = "") -> Iterator[tuple[str, int]]:
    """Yield the function and line of each comparison of a place."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        function = node.name
    if any(_words(part) & PLACES for part in _compared(node)):
        yield function, getattr(node, "lineno", 0)
    for child in ast.iter_child_nodes(node):
        yield from _orderings(child, function)


def _found(text: str) -> list[tuple[str, int]]:
    return list(_orderings(ast.parse(text)))


def test_nothing_is_ordered_outside_of_the_module_that_orders() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), function): line
        for path in sorted(PACKAGE.rglob("*.py"))
        if str(path.relative_to(PACKAGE)) != HOME
        for function, line in _found(path.read_text())
    }
    allowed = {(module, function) for module, functions in ALLOWED.items() for function in functions}
    wrong = [
        f"{module}:{line} in {function}"
        for (module, function), line in found.items()
        if (module, function) not in allowed
    ]
    assert wrong == [], "ask planning/creation_order.py which one is the latest"
    assert sorted(allowed - set(found)) == [], "these need no exception"


@pytest.mark.parametrize(
    "text",
    [
        "sorted(known, key=lambda one: one.backup_id)",
        "max(one.set_id for one in known)",
        "one.createtxg < other.createtxg",
        "time_of(name) > now",
        "ids.sort()",
        "sorted(repository.backup_ids(name))[-1]",
    ],
)
def test_a_comparison_of_a_place_is_found(text: str) -> None:
    assert _found(text)


@pytest.mark.parametrize("text", ["one.backup_id == other.backup_id", "sorted(roles)", "order.in_order(ids)", "a < b"])
def test_what_orders_nothing_is_left_alone(text: str) -> None:
    assert _found(text) == []
