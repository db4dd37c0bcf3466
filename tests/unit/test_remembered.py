"""Everything that this host keeps, prepares or remembers has a key that names its data, and a check where it is used.

A name, an id or a clock is no such key: a snapshot is renamed, an object replaced, a server put back. Whoever keeps
something new says here by which key it is found, and what shows that it is still what it was.
"""

from __future__ import annotations

import ast
from pathlib import Path

import zsnapdb
from zsnapdb.jobs.base.host import Host

PACKAGE = Path(zsnapdb.__file__).parent
CONSTANT = "made of the program alone: nothing outside can change it"
ARGUMENTS = "a pure function of its arguments"

IN_MEMORY = {
    ("base/patterns.py", "_is_dataset_form"): ARGUMENTS,
    ("base/run_context.py", "run_id"): "the run of this process; `adopt_run_id` replaces it",
    ("documents/base.py", "_places"): CONSTANT,
    ("fleet/connection.py", "_runtime"): CONSTANT,
    ("fleet/engine_client.py", "_around_changes"): ARGUMENTS,
    ("jobs/clone/catalogue.py", "cache(...)"): "one listing of clones; the next one asks HAProxy again",
    ("jobs/steps/move_state.py", "_form"): CONSTANT,
    ("jobs/steps/restore_journal.py", "_form"): CONSTANT,
    ("jobs/steps/restore_journal.py", "_machine_form"): CONSTANT,
    (
        "mysql/process/process_managers.py",
        "_printed_version",
    ): "the program file by device, inode, size and time of change",
    (
        "mysql/process/process_managers.py",
        "_printed_help",
    ): "the program file by device, inode, size and time of change",
    ("mysql/process/time_zone.py", "_offsets"): ARGUMENTS,
    ("planning/server_copy/variables.py", "_by_name"): CONSTANT,
    ("planning/server_copy/variables.py", "_by_prefix"): CONSTANT,
    ("planning/repository/retention.py", "time_of"): ARGUMENTS,
    ("planning/repository/sizing.py", "kept_backups"): ARGUMENTS,
    ("repository/binlog_description_cache.py", "_files"): CONSTANT,
    ("repository/binlog_description_cache.py", "_segments"): CONSTANT,
    ("repository/catalogue.py", "_cache_file"): CONSTANT,
    ("repository/catalogue.py", "_described"): CONSTANT,
    ("repository/catalogue.py", "_parsed_description"): ARGUMENTS,
    ("repository/manifest.py", "_adapter"): CONSTANT,
    ("store/s3_client.py", "_loader"): "the folders of AWS's service descriptions",
    ("store/cloud_clients.py", "_loop"): "the id of this process",
    ("zfs/libzfs.py", "load"): "the library that this process has loaded",
    ("zfs/version.py", "userland"): "text in evidence: nothing is decided by it",
}
ON_DISK = {
    "run": "locks: held by an open file, gone with the process",
    "cache": "manifests, by repository, instance and what is trusted; used for the version (size, tag) of each object",
    "journals": "interrupted backups, by instance and backup id; used for the GUIDs of their snapshots",
    "records": "backups by repository, id, GUIDs and digest of the manifest; binlogs by digests of descriptions",
    "local_sets": "local sets by id; used for the GUIDs of their snapshots",
    "bases": "snapshots held for a backup; used for their holds, which ZFS has",
    "tails": "how far a binlog was read, by the fingerprint of its head and the end that was read",
    "readers": "replicas to be rebuilt; count while production's volumes have the mark of that restore",
    "put_backs": "restores in place, by pool and transaction group; count while the volumes have their mark",
    "services": "the unit that ran the server of an instance; used while no process serves its data directory",
    "serve": "tokens by hashes; operations by their ids, which the helper gives, for one subject",
    "policies": "the policy that was recorded last; compared with the configured one",
    "runs": "runs by the id that the caller chose, with the deed and its aim: another deed of the id is refused",
    "clocks": "what the clocks said; compared with the steady clock of this boot",
}


def cached_functions() -> set[tuple[str, str]]:
    found = set()
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text()
        if "cache" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and any(
                ast.unparse(each).partition("(")[0].rpartition(".")[2] in ("cache", "lru_cache")
                for each in node.decorator_list
            ):
                found.add((str(file.relative_to(PACKAGE)), node.name))
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("cache", "functools.cache"):
                found.add((str(file.relative_to(PACKAGE)), "cache(...)"))
    return found


def test_every_function_that_remembers_has_a_key() -> None:
    assert cached_functions() == set(IN_MEMORY)


def test_every_file_that_this_host_keeps_has_a_key() -> None:
    kept = {name for name in dir(Host) if isinstance(getattr(Host(), name, None), Path)}
    assert kept == set(ON_DISK)
