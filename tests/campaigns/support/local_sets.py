"""Periodic local snapshot sets for a campaign, with other commands in parallel."""

from __future__ import annotations

import json
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONFIG = Path("/etc/zsnapdb/zsnapdb.toml")
AWAY = Path("/etc/zsnapdb/away.toml")
"""The same configuration with a store that does not answer."""

Command = Callable[..., dict[str, Any]]
"""Runs a command of zsnapdb and returns its JSON document. RuntimeError if it fails."""


def _no_command(*_words: str) -> dict[str, Any]:
    raise RuntimeError("the campaign has not begun")


KEEP = """
[instance.main.keep]
last = 3

[instance.main.local]
last = 500
"""
"""A parallel prune removes backups, but no snapshot set: each set is the start of a point."""


def write_keep() -> None:
    """Add the retention policy to the instance."""
    CONFIG.write_text(f"{CONFIG.read_text()}{KEEP}")


def write_away() -> None:
    AWAY.write_text(CONFIG.read_text().replace("127.0.0.1:7070", "127.0.0.1:7"))


@dataclass
class LocalSets:
    """Runs `zsnapdb snapshot` every `every` seconds until it is stopped, with the commands `beside` in parallel."""

    every: float
    beside: Sequence[Sequence[str]] = ()
    zsnapdb: Command = _no_command
    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        self._threads = [
            threading.Thread(target=self._snapshot, daemon=True),
            threading.Thread(target=self._others, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _snapshot(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            try:
                self.seconds.append(float(self.zsnapdb("snapshot", "main", "--wait", "60s")["seconds"]))
            except (RuntimeError, KeyError) as error:
                self.failures.append(str(error))
            self._over.wait(max(0.0, self.every - (time.monotonic() - began)))

    def _others(self) -> None:
        number = 0
        while self.beside and not self._over.wait(self.every):
            try:
                self.zsnapdb(*self.beside[number % len(self.beside)])
            except RuntimeError as error:
                self.failures.append(str(error))
            number += 1

    def report(self) -> str:
        third = max(1, len(self.seconds) // 3)
        first, last = statistics.median(self.seconds[:third]), statistics.median(self.seconds[-third:])
        return (
            f"{len(self.seconds)} sets, every {self.every:g} s; a set {first:.2f} s median at first, {last:.2f} s at"
            f" the end; failures: {self.failures or 'none'}; leaks: {leaks() or 'none'}"
        )


def leaks() -> list[str]:
    """Return the snapshots of local sets that zsnapdb does not list, and those with holds."""
    listed = subprocess.run(
        ["zsnapdb", "list", "main", "--local", "--json"], capture_output=True, text=True, check=True
    )
    known = {one["backup_id"] for one in json.loads(listed.stdout)["sets"]}
    names = subprocess.run(
        ["zfs", "list", "-H", "-t", "snapshot", "-o", "name,zsnapdb:state,zsnapdb:backup,userrefs"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split("\t") for line in names.stdout.splitlines()]
    return [
        name for name, state, backup, holds in rows if state == "local" and (backup not in known or holds not in "0-")
    ]
