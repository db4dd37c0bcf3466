"""Reads every file of a masked clone and looks for values that must not be there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from zsnapdb.base import server_files
from zsnapdb.base.errors import ConsistencyError
from zsnapdb.planning.clone.masking import Canary, longest

_BLOCK = 8 << 20


def refuse_canaries(root: Path, canaries: tuple[Canary, ...]) -> None:
    """Raise ConsistencyError if a file below `root` contains a canary.

    The error names the file and the number of the canary, never the value. Links are not followed.
    """
    hits = [
        f"canary {number} in {file.relative_to(root)}"
        for file in _files_below(root)
        for number in numbers_in(file, canaries)
    ]
    if hits:
        raise ConsistencyError(
            f"after masking, files of the clone still contain values that must not be there: {'; '.join(hits)}",
            hint='correct the masking files, or write all tables anew with masking.rebuild = "all"; this clone was not'
            " handed out",
        )


def numbers_in(file: Path, canaries: tuple[Canary, ...]) -> list[int]:
    """Return the numbers of the canaries that the file contains."""
    missing, numbers, rest = list(canaries), [], b""
    overlap = longest(canaries) - 1
    with server_files.open_to_read(file) as opened:
        while missing and (block := opened.read(_BLOCK)):
            text = rest + block
            numbers += [canary.number for canary in missing if any(form in text for form in canary.forms)]
            missing = [canary for canary in missing if canary.number not in numbers]
            rest = text[-overlap:]
    return sorted(numbers)


def _files_below(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        for name in sorted(names):
            file = Path(folder) / name
            if file.is_file() and not file.is_symlink():
                yield file
