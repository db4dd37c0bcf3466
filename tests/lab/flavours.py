"""Which tests of a whole run happen on only one flavour of server.

A test with the mark `any_server` checks a promise that does not depend on the flavour of the server: there is a server
only because a backup needs one. A whole run starts such a test on one flavour, and any other test on both. All marked
tests of a file run on the same flavour, so that their fixtures are set up once. A run of named files, and a run with
`--all-flavours`, starts every test on both.

A test with the mark `seldom` takes long and shows on a real host what another test of the same run shows in a shorter
way; the mark's reason says which. A whole run leaves it out. It runs where its file is named, and with
`--all-flavours`.
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
"""A file with this line has no other tests."""
ENVIRONMENT = "LAB_ANY_SERVER"
"""The variable that names the files whose marked tests run here, with commas. Where it is not set, all run."""
CAMPAIGN = "\nANY_SERVER = True\n"
"""A campaign with this line does not depend on the flavour of the server."""
_COST = {"mariadb": 1.0, "mysql": 4.0}
"""A test takes half as long again on MySQL, whose servers start slower in a guest.

So MySQL gets a fifth of what a whole run does once: some of it, for what a mark says of a test may be wrong.
"""


def marked(files: Sequence[Path], sign: str = MARK) -> list[str]:
    """Return the names of the files that contain the mark (or another sign), in order."""
    return [path.name for path in files if sign in path.read_text()]


def dealt(files: Sequence[str], seconds: Mapping[str, float]) -> dict[str, list[str]]:
    """Return each file at exactly one flavour, so that MySQL has about a fifth of the seconds.

    `seconds` says how long the marked tests of a file take, where it is known. The same files are always dealt the
    same way.
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
    """Return the variables that have pytest run the marked tests of these files only (and all unmarked tests)."""
    return {ENVIRONMENT: ",".join(hand)}


def runs_here(file: str, *, is_marked: bool, here: str | None) -> bool:
    """Return whether a test of the file runs where the variable has this value."""
    return not is_marked or here is None or file in here.split(",")


def leave_to_the_other(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the marked tests that run on the other flavour, and those that a whole run leaves out."""
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
    """Return the marked tests that are not run once per flavour: deselected, they would run nowhere."""
    return [
        item.nodeid
        for item in items
        if item.get_closest_marker(MARK) is not None and not any(flavour in item.name for flavour in FLAVOURS)
    ]
