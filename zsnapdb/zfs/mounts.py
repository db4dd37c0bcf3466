"""Mounted file systems of all types: a foreign file system below a dataset is visible only in this list."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_WORDS_BEFORE, _WORDS_AFTER = 6, 3
"""The least words of a line before and after its separator (proc(5)). The kernel writes no line with fewer."""


@dataclass(frozen=True)
class MountEntry:
    """One line of the mount table. `is_bind`: the mount shows one folder of its source (mount(8), --bind)."""

    path: str
    fstype: str
    source: str
    is_bind: bool = False


def _plain(word: str) -> str:
    """Undo the octal escapes of the mount table (proc(5): space, tab, newline, backslash)."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(code, char)
    return word


def parse(text: str) -> list[MountEntry]:
    """Return the entries of a mountinfo file (proc(5)), in mount order.

    The kernel escapes space, tab, line feed and backslash. Every other byte is part of a name: a form feed, or bytes
    that are not UTF-8 (they are kept as lone surrogates, see os.fsdecode).
    """
    entries = []
    for line in text.split("\n"):
        if " - " not in line:
            continue
        left, _, right = line.partition(" - ")
        about, of = left.split(" "), right.split(" ")
        if len(about) < _WORDS_BEFORE or len(of) < _WORDS_AFTER:
            continue
        (root, path), (fstype, source) = about[3:5], of[:2]
        entries.append(MountEntry(_plain(path), fstype, _plain(source), root != "/"))
    return entries


def mounted() -> list[MountEntry]:
    """Return the mounts in this process's mount namespace, without the snapshots that ZFS itself mounts."""
    return [
        entry
        for entry in parse(os.fsdecode(Path("/proc/self/mountinfo").read_bytes()))
        if "@" not in entry.source or entry.fstype != "zfs"
    ]
