"""The definitions of tables, views and programs at two states, and how they differ. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

_COUNTER = re.compile(r" AUTO_INCREMENT=\d+")


def definition(text: str) -> str:
    """Return what the server says of a table's definition, without its counter."""
    return _COUNTER.sub("", text)


def schema_difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the difference of all definitions by name, as diff(1) writes it; "" if there is none."""
    lines: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        old, new = (given.get(name, "").splitlines() for given in (before, after))
        lines += difflib.unified_diff(old, new, f"{name} before", f"{name} after", n=1, lineterm="")
    return "\n".join(lines)
