"""The names of the global variables of recorded releases, one file for each in `recorded/variables/`.

A line is a name, followed by a tab and `-` if no option of that server sets the variable (`--verbose --help`). MySQL
9.7 and MariaDB 11.8 had all plugins and components of their packages loaded, if they start without others.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "recorded" / "variables"


def releases() -> list[str]:
    """Return the names of the recorded releases, which are those of the files."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def variables_of(release: str) -> dict[str, bool]:
    """Return the variables of a release, and whether an option sets each of them."""
    lines = (FOLDER / f"{release}.txt").read_text().splitlines()
    return {line.partition("\t")[0]: not line.endswith("\t-") for line in lines}


def all_variables() -> frozenset[str]:
    """Return the variables of all recorded releases."""
    return frozenset(name for release in releases() for name in variables_of(release))
