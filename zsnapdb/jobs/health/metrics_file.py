"""The file that the textfile collector of node_exporter reads."""

from __future__ import annotations

from pathlib import Path

from zsnapdb.base import whole_file
from zsnapdb.base.errors import UsageError, ZsnapdbError

_SUFFIX = ".prom"


def check_name(file: Path) -> None:
    """Raise UsageError if node_exporter would not read a file of this name."""
    if file.suffix != _SUFFIX:
        raise UsageError(f"{file}: node_exporter reads only files that end in {_SUFFIX}", hint=f"name it *{_SUFFIX}")


def write(file: Path, text: str) -> None:
    """Replace the file by one with this text, at once: a reader sees the old file or the new one.

    A link in its place is replaced, not followed. ZsnapdbError if the folder cannot be written.
    """
    try:
        whole_file.replace(file, text.encode(), 0o644)
    except OSError as error:
        raise ZsnapdbError(
            f"writing the metrics to {file}: {error.strerror}",
            hint="name a file in the folder of node_exporter's textfile collector, which must exist",
        ) from error
