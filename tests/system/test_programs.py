"""A command asks ZFS once for what it needs to know: it starts few programs, and hardly one of them twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.bench.inside.programs import measured

from .in_guest import Lab

pytestmark = [pytest.mark.usefixtures("first"), pytest.mark.any_server]

MOST = {
    ("backup", "main"): (14, 1),
    ("snapshot", "main"): (9, 0),
    ("status", "main"): (2, 0),
    ("clone", "create", "main", "--name", "few"): (17, 0),
    ("clone", "list"): (2, 0),
    ("clone", "reset", "few"): (2, 0),
    ("clone", "reset", "few", "--replace"): (24, 4),
    ("clone", "destroy", "few"): (9, 0),
    ("query", "main", "SELECT 1"): (24, 1),
    ("doctor", "main"): (18, 1),
}
"""The most programs of each command, and how many of them may be repeated with the same words.

The first clone of a host makes the datasets above it, one by one. Clones and sets that other tests left cost `doctor`
some more: what is here alone needs 12 for it.
"""


def _asked_once(argvs: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the programs, each unmount once: a killed server keeps its files busy for a moment, and it is repeated."""
    listed = list(argvs)
    return [one for at, one in enumerate(listed) if one[:2] != ("zfs", "unmount") or one not in listed[:at]]


def test_each_command_starts_few_programs_and_hardly_one_twice(lab: Lab) -> None:
    del lab
    seen = {}
    for words in MOST:
        argvs = _asked_once(tuple(one["argv"]) for one in measured(words)["programs"])
        seen[words] = (len(argvs), len(argvs) - len(Counter(argvs)))
        print(" ".join(words), *seen[words])
    more = {
        words: counts for words, counts in seen.items() if any(c > m for c, m in zip(counts, MOST[words], strict=True))
    }
    assert more == {}
