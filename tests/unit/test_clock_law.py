"""No removal and no expiry reads the wall clock: each asks the guard of the clock.

`Host.latest` stamps what begins or is used, `removal_time` says what time removals count with. Whoever reads the wall
clock itself has a reason here, which says why nothing is removed, and nothing ends, by it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "zsnapdb"

GUARD = "the guard itself reads the clock"
SHOWN = "people are shown the time, or an age"
NOTED = "it is noted when something was done; no age of the note is judged"
WANTED = "a person asks for a time, such as ten minutes ago"
SCHEDULE = "it says when a job runs, not what goes"
OBJECTIVE = "objectives judge ages, and remove nothing"
KEEPS = "a wrong time makes more work, or keeps something; it removes nothing"

ALLOWED = {
    "agent/daemon.py": {"serve": SCHEDULE},
    "agent/web.py": {"overview": SHOWN, "ready": SHOWN},
    "agent/records.py": {"pause": SCHEDULE, "note": NOTED},
    "agent/schedule.py": {"run_now": SCHEDULE},
    "base/run_context.py": {"new_run_id": NOTED},
    "cli/clone/lifecycle.py": {"list_clones": SHOWN, "show_clone": SHOWN},
    "cli/config_commands.py": {"check": SHOWN},
    "cli/fleet.py": {"worker": SCHEDULE, "dev": SCHEDULE},
    "cli/fork_server.py": {"main": NOTED},
    "cli/log_writer.py": {"write": NOTED},
    "cli/serve.py": {
        "_clones": SHOWN,
        "_credentials": "issuers' keys age, and id tokens end",
        "serve": SHOWN,
        "serve_helper": "operations note when they began",
        "list_tokens": SHOWN,
        "revoke_token": NOTED,
    },
    "cli/inventory.py": {"_show": SHOWN},
    "cli/vm.py": {"list_machines": SHOWN},
    "fleet/engine_client.py": {"_engine_schedule": SCHEDULE},
    "fleet/operator_orders.py": {"begun": SCHEDULE},
    "jobs/backup/store_local_set.py": {"snapshot_during_outage": NOTED},
    "jobs/backup/local_snapshot.py": {"snapshot": NOTED},
    "jobs/backup/run.py": {"backup_of_run": KEEPS, "_write_journal": NOTED},
    "jobs/backup/plan.py": {"base_among": KEEPS},
    "jobs/base/host.py": {"system_now": GUARD},
    "jobs/base/clock_record.py": {"removal_time": GUARD},
    "jobs/binlog/archiver.py": {"_look_now": NOTED, "_begin": NOTED},
    "jobs/binlog/purge.py": {"_read": NOTED},
    "jobs/clone/migration.py": {"_set_of": WANTED, "start_load": WANTED},
    "jobs/clone/query.py": {"find_moment": WANTED},
    "jobs/doctor/rule_facts.py": {"gather": SHOWN},
    "jobs/repository/fleet_status.py": {"status": OBJECTIVE, "_repository": NOTED},
    "jobs/repository/fleet_reader.py": {"read": OBJECTIVE, "_seen": OBJECTIVE},
    "jobs/health/evidence_records.py": {"recorded_keys": NOTED, "note_end": NOTED, "_draft": NOTED},
    "jobs/health/recovery_coverage.py": {"read": OBJECTIVE},
    "jobs/host/object_locks.py": {"extend_locks": KEEPS},
    "jobs/host/affected_replicas.py": {"note": NOTED},
    "jobs/record/idempotency_records.py": {"begin": NOTED, "end": NOTED, "note_given_up": NOTED},
    "jobs/repository/evidence_report.py": {"report": SHOWN},
    "jobs/repository/prune.py": {"plan": "a person said in this command that the clock is right"},
    "jobs/repository/protection_status.py": {"status_of": OBJECTIVE},
    "jobs/repository/verify.py": {"chosen": KEEPS, "__init__": NOTED},
    "jobs/restore/backup_selection.py": {"choose": WANTED, "choose_by_descriptions": WANTED},
    "jobs/restore/retrieval.py": {"plan": WANTED},
    "jobs/restore/roll_forward.py": {"plan": WANTED},
    "jobs/restore/restore_inputs.py": {"newest_backup": WANTED},
    "jobs/restore/machine_restore.py": {"make": WANTED},
    "jobs/restore/replaced_server.py": {"stop": NOTED, "is_up": NOTED},
    "jobs/restore/plan.py": {"make": WANTED, "_without_steps": NOTED},
    "jobs/restore/run_lifecycle.py": {"_run_steps": NOTED},
    "jobs/restore/rewind.py": {"plan": WANTED},
    "jobs/trial/drill.py": {"execute": NOTED, "store": NOTED},
    "jobs/trial/machine_drill.py": {"execute": NOTED},
    "notify/occasions.py": {"occasion": NOTED, "send_test": NOTED, "send_failed_unit": NOTED},
    "repository/backup_marks.py": {"pin": NOTED},
    "repository/writer_lease.py": {"_after": "people read it; beats end a lease", "lease": NOTED},
    "serve/page_app.py": {"create_site": SHOWN},
    "store/s3.py": {"_lock": "the store refuses requests of a host whose clock is wrong"},
    "store/s3_bucket.py": {"hold_of": SHOWN},
}
"""Why each function may read the wall clock, by module."""

CLOCKS = {"host", "_host", "THIS_HOST", "clock", "datetime"}


def _readings(node: ast.AST, function: str = "") -> Iterator[str]:
    """Yield the function of each reading of the wall clock."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        function = node.name
    if isinstance(node, ast.Attribute):
        owner = node.value
        word = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
        if (node.attr == "now" and word in CLOCKS) or (node.attr, word) == ("time", "time"):
            yield function
    for child in ast.iter_child_nodes(node):
        yield from _readings(child, function)


def test_wall_clock_is_read_only_where_nothing_goes_by_it() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), function)
        for path in PACKAGE.rglob("*.py")
        for function in _readings(ast.parse(path.read_text()))
    }
    allowed = {(module, function) for module, functions in ALLOWED.items() for function in functions}
    assert sorted(found - allowed) == [], "stamp with `Host.latest`, remove by `removal_time`"
    assert sorted(allowed - found) == [], "these need no exception"


@pytest.mark.parametrize("text", ["instance.host.now()", "time.time()", "datetime.now(UTC)", "Thing(THIS_HOST.now)"])
def test_reading_of_the_wall_clock_is_found(text: str) -> None:
    assert list(_readings(ast.parse(text)))
