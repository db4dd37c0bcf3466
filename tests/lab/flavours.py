"""Selection of the tests that a whole run executes on one server flavour only.

A test with the mark `any_server` does not depend on the flavour: it needs a server only because a backup needs one. A
whole run executes it on one flavour, and all other tests on both. All marked tests of a file run on the same flavour,
so that their fixtures are set up once. A run of named files, or with `--all-flavours`, executes every test on both.

A test with the mark `seldom` is slow and shows on a real host what another test of the same run shows faster; the
mark's reason names that test. A whole run skips it. It runs if its file is named, and with `--all-flavours`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

FLAVOURS = ("mariadb", "mysql")
MARK = "any_server"
SELDOM = "seldom"
WHOLE_FILE = f"\npytestmark = pytest.mark.{MARK}\n"
"""All tests of a file with this line are marked."""
ENVIRONMENT = "LAB_ANY_SERVER"
"""Variable with the files whose marked tests run here, separated by commas. If it is not set, all tests run."""
CAMPAIGN = "\nANY_SERVER = True\n"
"""A campaign with this line does not depend on the server flavour."""
_COST = {"mariadb": 1.0, "mysql": 4.0}
"""Weight of a test's seconds per flavour.

A test takes half as long again on MySQL, whose servers start slower in a guest. So MySQL gets only a fifth of the
marked tests. It gets some, because a mark may be wrong.
"""


def marked(files: Sequence[Path], sign: str = MARK) -> list[str]:
    """Return the names of the files that contain the mark (or another sign), in order."""
    return [path.name for path in files if sign in path.read_text()]


def dealt(files: Sequence[str], seconds: Mapping[str, float]) -> dict[str, list[str]]:
    """Assign each file to one flavour, so that MySQL gets about a fifth of the seconds.

    `seconds` has the duration of a file's marked tests, where known. The assignment is deterministic.
    """
    hands: dict[str, list[str]] = {flavour: [] for flavour in FLAVOURS}
    loads = dict.fromkeys(FLAVOURS, 0.0)
    for name in sorted(files, key=lambda name: (-seconds.get(name, 30.0), name)):
        after = {flavour: loads[flavour] + seconds.get(name, 30.0) * _COST[flavour] for flavour in FLAVOURS}
        flavour = min(FLAVOURS, key=lambda flavour: after[flavour])
        hands[flavour].append(name)
        loads[flavour] = after[flavour]
    return hands


def environment(hand: Sequence[str]) -> dict[str, str]:
    """Return the variables that make pytest run the marked tests of these files only (and all unmarked tests)."""
    return {ENVIRONMENT: ",".join(hand)}


def runs_here(file: str, *, is_marked: bool, here: str | None) -> bool:
    """Return whether a test of the file runs if the variable has the value `here`."""
    return not is_marked or here is None or file in here.split(",")


def leave_to_the_other(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the marked tests of the other flavour, and those that a whole run skips."""
    here = os.environ.get(ENVIRONMENT)
    chosen = {
        item: runs_here(item.path.name, is_marked=item.get_closest_marker(MARK) is not None, here=here)
        and (here is None or item.get_closest_marker(SELDOM) is None)
        for item in items
    }
    if left := [item for item in items if not chosen[item]]:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if chosen[item]]


def without_flavour(items: Sequence[pytest.Item]) -> list[str]:
    """Return the marked tests without a flavour in their name: deselected, they would run nowhere."""
    return [
        item.nodeid
        for item in items
        if item.get_closest_marker(MARK) is not None and not any(flavour in item.name for flavour in FLAVOURS)
    ]
