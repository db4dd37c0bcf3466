"""What was prepared, received, pooled or remembered is known by its identity: names are given again to other data."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import zsnapdb

PACKAGE = Path(zsnapdb.__file__).parent
REMEMBERING = (
    "jobs/clone/cached_sets.py",
    "jobs/clone/clone_info.py",
    "jobs/clone/data_replacement.py",
    "jobs/clone/reset.py",
    "jobs/clone/pool.py",
    "jobs/clone/source_fetch.py",
    "jobs/clone/space_limits.py",
    "planning/clone/pool.py",
)
NAMES = {"set_id", "backup_id", "original"}
BY_NAME = {
    # Ids of commits and points are made once on a host, by ourselves.
    "cached_sets.py prepared_commits",
    "cached_sets.py find_point",
    # Clones of older versions have no identity.
    "clone_info.py has_original",
    "data_replacement.py plan",
}


def comparisons(file: Path) -> Iterator[str]:
    """Yield the file and the function of each comparison of a name of data."""
    for function in ast.walk(ast.parse(file.read_text())):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                words = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
                if isinstance(node, ast.Compare) and words & NAMES:
                    yield f"{file.name} {function.name}"


def test_no_other_data_is_taken_for_the_same_because_it_has_its_name() -> None:
    assert {found for name in REMEMBERING for found in comparisons(PACKAGE / name)} == BY_NAME


def test_each_dataset_is_cloned_of_a_snapshot_with_a_proved_guid() -> None:
    """`datasets.clone` asks for the GUID; nobody else runs `zfs clone`."""
    running = []
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        lists = (one for one in ast.walk(ast.parse(text if '"clone"' in text else "")) if isinstance(one, ast.List))
        if any({"ZFS", "'clone'"} <= {ast.unparse(item) for item in one.elts} for one in lists):
            running.append(file.relative_to(PACKAGE).as_posix())
    assert running == ["zfs/datasets.py"]
