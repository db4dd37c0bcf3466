"""The configuration as setup writes it: it replaces only a file that it wrote itself and that nobody changed since."""

from __future__ import annotations

import hashlib
from pathlib import Path

from zsnapdb import text_files, whole_file

_KEPT = ".before"


def is_own(file: Path) -> bool:
    """Whether the file is, byte by byte, what an earlier setup wrote there."""
    record = _record(file)
    if not (record.is_file() and file.is_file()):
        return False
    said = text_files.read_text(record, "the record of setup", "run setup as root")
    return said.strip() == _digest(file.read_bytes())


def write(file: Path, text: str) -> None:
    """Write the configuration, readable by its owner alone. One with other words that is there is kept beside it."""
    file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    content = text.encode()
    if file.is_file() and file.read_bytes() != content:
        whole_file.replace(kept(file), file.read_bytes())
    # The record first: a file that it does not describe is never taken for setup's own.
    whole_file.replace(_record(file), f"{_digest(content)}\n".encode())
    whole_file.replace(file, content)


def kept(file: Path) -> Path:
    """Return where the configuration is kept that setup replaces."""
    return file.with_name(file.name + _KEPT)


def _record(file: Path) -> Path:
    return file.with_name(f".{file.name}.setup")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
