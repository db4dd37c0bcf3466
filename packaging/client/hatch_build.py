"""The files of the wheel `zsnapdb-client`: the modules of `zsnapdb/client`, and all modules that they import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "zsnapdb"


def find_file(module: str) -> Path | None:
    """Return the file of a module of the package. None if the name is not a module."""
    path = ROOT.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def imported_names(file: Path) -> Iterator[str]:
    """Yield the names that a file imports from the package, also inside functions. A name may be no module."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def client_files() -> set[Path]:
    """Return the files of the client and of all modules that it needs, with their packages."""
    waiting = [f"{PACKAGE}.client.{file.stem}" for file in (ROOT / PACKAGE / "client").glob("*.py")]
    found = {ROOT / PACKAGE / "py.typed"}
    while waiting:
        module = waiting.pop()
        file = find_file(module) if module.split(".")[0] == PACKAGE else None
        if file is None or file in found:
            continue
        found.add(file)
        parents = module.split(".")[:-1]
        waiting += [".".join(parents[: depth + 1]) for depth in range(len(parents))]
        waiting += imported_names(file)
    return found


class ClientFiles(BuildHookInterface[Any]):
    """Hook of hatchling that adds the files to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Add each file at its path in the source."""
        build_data["force_include"] |= {str(file): str(file.relative_to(ROOT)) for file in sorted(client_files())}
