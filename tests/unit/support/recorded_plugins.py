"""The plugins of recorded releases, one file for each in `recorded/plugins/`.

A line is a plugin with its kind and its library, from a server with every library of its packages loaded. Or it is a
library alone that cannot be loaded in this way (components, loadable functions, libraries that need more options). A
plugin without a library is built in and can be switched. MariaDB 11.8 had all of Debian's plugin packages.
"""

from __future__ import annotations

from pathlib import Path

from zsnapdb.planning.server_facts import COMPONENT, FUNCTION, Plugin

FOLDER = Path(__file__).parents[1] / "recorded" / "plugins"


def releases() -> list[str]:
    """Return the names of the recorded releases, which are those of the files."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def plugins_of(release: str) -> list[Plugin]:
    """Return the plugins of a release. A library alone is a component or has loadable functions, by its name."""
    rows = [line.split("\t") for line in (FOLDER / f"{release}.txt").read_text().splitlines()]
    return [
        Plugin(name=name, kind=kind, library=library)
        if name
        else Plugin(
            name=library.removesuffix(".so"),
            kind=COMPONENT if library.startswith("component_") else FUNCTION,
            library=library,
        )
        for name, kind, library in rows
    ]
