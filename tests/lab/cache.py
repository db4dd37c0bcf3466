"""The cache folder: one subfolder for each product, keyed by a hash of its inputs."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .folders import has_guests


@dataclass(frozen=True)
class Cache:
    """The folder of products, logs and running guests; always outside the checkout."""

    top: Path

    @classmethod
    def default(cls) -> Cache:
        """Return the cache of this user: $ZSNAPDB_LAB_CACHE, else the XDG cache folder."""
        override = os.environ.get("ZSNAPDB_LAB_CACHE")
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(Path(override) if override else base / "zsnapdb-lab")

    def product(self, name: str, key: str) -> Path:
        """Return the folder of a product, which need not exist."""
        return self.top / f"{name}-{key}"

    def log(self, name: str) -> Path:
        """Return the log file of a step; its folder exists."""
        (self.top / "logs").mkdir(parents=True, exist_ok=True)
        return self.top / "logs" / f"{name}.log"

    @property
    def runs(self) -> Path:
        """Parent folder of the running guests' folders."""
        return self.top / "runs"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the cache for one builder; others wait."""
        self.top.mkdir(parents=True, exist_ok=True)
        with (self.top / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def forget_older(self, name: str, key: str) -> None:
        """Remove products of the same name with another key, so that they do not fill the disk.

        They stay while guests run, which may be another checkout's and use these products. A later build removes them.
        """
        if has_guests(self.runs):
            return
        for path in self.top.glob(f"{name}-*"):
            if path.name != f"{name}-{key}" and path.name.count("-") == name.count("-") + 1:
                shutil.rmtree(path, ignore_errors=True)


def digest(*parts: str) -> str:
    """Return a short hash of the parts, in order."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
