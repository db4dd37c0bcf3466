"""Each file that is opened by its path lies where no other account can plant a link, a pipe or a device.

`base/safe_open.py` and `base/files.py` open all other files. `test_deadlines.py` judges the flags of each os.open.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "zsnapdb"
HOMES = {"base/safe_open.py", "base/files.py"}
METHODS = {"read_text", "read_bytes", "write_text", "write_bytes"}
MODES = {"rb", "wb", "ab", "r", "w", "a", "xb", "r+b"}

OWN = "only the account that runs zsnapdb can write to its folder below /run, /var/lib or /var/cache"
NEW = "its temporary folder was just made, and only this account can enter it"
OPENED = "the file was opened before, without following a link or waiting"
CONFIGURED = "the configuration names the file"
KERNEL = "a file of proc(5) or sysfs(5)"
SHIPPED = "a file of the package, or of the system's packages"

JUDGED: dict[tuple[str, str], str] = {
    ("agent/children.py", "_process"): KERNEL,
    ("agent/children.py", "tail"): OWN,
    ("agent/job_starter.py", "_inherited"): KERNEL,
    ("agent/job_starter.py", "_text"): KERNEL,
    ("agent/records.py", "_read"): OWN,
    ("agent/records.py", "last_configuration"): OWN,
    ("cli/main_process.py", "open_standard_streams"): OPENED,
    ("fleet/connection.py", "_content"): KERNEL,
    ("fleet/host_job.py", "_lines"): OWN,
    ("hooks.py", "_processes"): KERNEL,
    ("jobs/backup/guest_freeze.py", "begin"): OWN,
    ("jobs/backup/guest_freeze.py", "marked"): OWN,
    ("jobs/backup/local_snapshot.py", "_is_due"): OWN,
    ("jobs/backup/local_snapshot.py", "_write"): OWN,
    ("jobs/backup/local_snapshot.py", "read"): OWN,
    ("jobs/backup/replica_applier.py", "start_forgotten"): OWN,
    ("jobs/backup/replica_applier.py", "stopped_applier"): OWN,
    ("jobs/backup/send.py", "release_base_holds"): OWN,
    ("jobs/base/clock_record.py", "_read"): OWN,
    ("jobs/base/instance_snapshots.py", "read_generation"): OWN,
    ("jobs/base/instance_snapshots.py", "recorded_snapshots"): OPENED,
    ("jobs/base/own_document_digests.py", "_parsed"): OWN,
    ("jobs/base/own_document_digests.py", "known_damage"): OWN,
    ("jobs/base/run_locks.py", "is_held"): OWN,
    ("jobs/clone/reset_baseline.py", "read"): OPENED,
    ("jobs/health/evidence_records.py", "_recorded"): OWN,
    ("jobs/host/affected_replicas.py", "_read"): OPENED,
    ("jobs/record/binlog_tail_record.py", "read"): OPENED,
    ("jobs/record/idempotency_records.py", "read"): OWN,
    ("jobs/record/record_file.py", "read"): OWN,
    ("jobs/repository/fleet_reader.py", "_read"): OWN,
    ("jobs/restore/backup_selection.py", "check_engines"): NEW,
    ("jobs/restore/backup_selection.py", "scan"): NEW,
    ("jobs/restore/chain_checks.py", "_text"): CONFIGURED,
    ("jobs/setup/examples.py", "text"): SHIPPED,
    ("jobs/steps/journal.py", "finished"): OWN,
    ("jobs/steps/journal.py", "read"): OWN,
    ("jobs/steps/move_state.py", "recorded"): OWN,
    ("jobs/trial/table_delivery.py", "write_file"): OPENED,
    ("jobs/vm/create.py", "_execute"): OWN,
    ("jobs/vm/create.py", "_printed"): "libvirt writes the log of the serial line in a folder of root",
    ("mysql/process/discovery.py", "_listening"): KERNEL,
    ("mysql/process/discovery.py", "_program"): KERNEL,
    ("mysql/process/discovery.py", "service_of"): KERNEL,
    ("mysql/process/process_managers.py", "inspect_process"): KERNEL,
    ("mysql/process/process_managers.py", "mounted_devices"): KERNEL,
    ("mysql/process/server.py", "_is_ours"): KERNEL,
    ("mysql/process/service.py", "serving"): KERNEL,
    ("mysql/process/time_zone.py", "_bytes"): SHIPPED,
    ("notify/sent_notifications.py", "read"): OWN,
    ("repository/backup_journal.py", "create"): OWN,
    ("repository/backup_journal.py", "go_on"): OWN,
    ("repository/backup_journal.py", "read"): OWN,
    ("repository/binlog_description_cache.py", "read"): OWN,
    ("repository/catalogue.py", "read"): OWN,
    ("repository/crypto_keys.py", "write_secret"): OPENED,
    ("serve/command_processes.py", "_stdin_of"): OPENED,
    ("serve/issuer_keys.py", "__post_init__"): OWN,
    ("serve/issuer_requests.py", "_end_with"): OPENED,
    ("serve/operations.py", "__post_init__"): OWN,
    ("serve/page_app.py", "style_sheet"): SHIPPED,
    ("store/local.py", "_opened"): OPENED,
    ("zfs/kernel_facts.py", "_text"): KERNEL,
    ("zfs/kernel_facts.py", "pool_guid"): KERNEL,
    ("zfs/kernel_facts.py", "version"): KERNEL,
    ("zfs/mounts.py", "_entries_of"): KERNEL,
    ("zfs/mounts.py", "_name"): KERNEL,
    ("zfs/mounts.py", "_parent"): KERNEL,
    ("zfs/streams.py", "is_being_received"): KERNEL,
}
"""Why each function may open a file by its path, by module."""


def _opens(call: ast.Call, imported: set[str]) -> bool:
    """Return whether the call opens a file by its path, outside of the modules that do so safely."""
    called, text = call.func, ast.unparse(call)
    if any(part in text for part in ("'/proc/", "f'/proc/", "os.devnull", "os.open(", "safe_open.")):
        return False
    if isinstance(called, ast.Name):
        return called.id in METHODS | {"open"} and called.id not in imported
    if not isinstance(called, ast.Attribute) or ast.unparse(called.value) == "files":
        return False
    mode = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
    return called.attr in METHODS or (called.attr == "open" and mode in MODES)


def _functions(node: ast.AST, imported: set[str], function: str = "") -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        function = node.name
    if isinstance(node, ast.Call) and _opens(node, imported):
        yield function
    for child in ast.iter_child_nodes(node):
        yield from _functions(child, imported, function)


def _found(text: str) -> set[str]:
    tree = ast.parse(text)
    modules = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    safe = [node for node in modules if node.module in ("zsnapdb.base.safe_open", "zsnapdb.base.files")]
    return set(_functions(tree, {name.asname or name.name for node in safe for name in node.names}))


def test_every_file_opened_by_path_is_judged() -> None:
    readers = {
        (str(path.relative_to(PACKAGE)), function)
        for path in PACKAGE.rglob("*.py")
        if str(path.relative_to(PACKAGE)) not in HOMES
        for function in _found(path.read_text())
    }
    assert sorted(readers - JUDGED.keys()) == [], "open it with base/safe_open.py, or name why no account can plant it"
    assert sorted(JUDGED.keys() - readers) == [], "these need no reason"


def test_law_sees_each_way_to_open_a_file() -> None:
    for call in ("open(file)", "file.open('rb')", "file.read_text()", "Path(x).write_bytes(b'')"):
        assert _found(f"def reader(file, x):\n    {call}\n") == {"reader"}
    for call in ("safe_open.read_text(file)", "files.read_text(file, 'a', 'b')", "store.open(x)"):
        assert _found(f"def reader(file, x, store):\n    {call}\n") == set()
