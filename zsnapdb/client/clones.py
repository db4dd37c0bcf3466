"""Clones for programs: made, reset and destroyed by the commands of this host, whose JSON says what became of them.

As root it is `zsnapdb clone`; for a member of the group of `zsnapdb-clone` it is that, by sudo. Nothing of a server, a
pool or a configuration is read here.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Unpack

from zsnapdb.client.errors import CloneCommandError as CloneCommandError
from zsnapdb.client.exchange import CloneOptions, given_options
from zsnapdb.client.holder import HEARTBEAT, CloneHolder, holding
from zsnapdb.client.models import CloneReset, D, MadeClone, ReachableClone, failure_in, parsed, reachable

ROOT = ("zsnapdb", "clone")
MEMBER = ("sudo", "-n", "zsnapdb-clone")
_SECONDS = 3600.0
"""The longest that a command may take: a clone of a backup that must be received first takes as long as that."""


@dataclass(frozen=True)
class LocalClones:
    """The clones of this host. `command` is how they are asked for (None: `ROOT` for root, else `MEMBER`)."""

    command: Sequence[str] | None = None
    _holders: dict[str, CloneHolder] = field(init=False, repr=False, compare=False, default_factory=dict)
    """The processes that hold clones for a block, by the ids of the clones."""

    @property
    def _words(self) -> tuple[str, ...]:
        return tuple(self.command) if self.command is not None else ROOT if os.geteuid() == 0 else MEMBER

    def create(
        self,
        instance: str,
        name: str,
        **options: Unpack[CloneOptions],
    ) -> ReachableClone:
        """Return a new clone of the instance of that name. CloneCommandError says why there is none."""
        words = [instance, name] if "zsnapdb-clone" in self._words[-1] else [instance, "--name", name]
        for option, value in given_options(options).items():
            words += [f"--{option}"] if value is True else [f"--{option}", value]
        return reachable(self._document(MadeClone, "create", *words), "127.0.0.1")

    def reset(self, clone: ReachableClone) -> int | None:
        """Give the clone its first data again. Address and password stay, sessions end.

        Return how many changes of rows were undone; None if its data was replaced. Where a process holds the clone, it
        does that, and no command need start.
        """
        holder = self._holders.get(clone.id)
        if holder is None or not holder.is_there:
            return self._document(CloneReset, "reset", clone.name).undone
        return parsed(CloneReset, holder.ask("reset", _SECONDS), f"`{self._words[-1]} keep`").undone

    def beat(self, clone: ReachableClone) -> None:
        """Say that the holder of the clone is there."""
        self._run("heartbeat", clone.name)

    def destroy(self, clone: ReachableClone) -> None:
        """Destroy the clone. One that is gone is no error."""
        self._run("destroy", clone.name)

    @contextlib.contextmanager
    def clone(
        self,
        instance: str,
        name: str,
        **options: Unpack[CloneOptions],
    ) -> Iterator[ReachableClone]:
        """Yield a new clone, which a process holds until the block ends; then it is destroyed.

        If this process is killed, that one ends, and the clone goes with the next `zsnapdb reap` after `heartbeat`
        seconds.
        """
        options.setdefault("heartbeat", HEARTBEAT)
        made = self.create(instance, name, **options)
        try:
            with holding([*self._words, "keep", made.name, "--json"]) as holder:
                self._holders[made.id] = holder
                yield made
        finally:
            self._holders.pop(made.id, None)
            self.destroy(made)

    def _document(self, model: type[D], verb: str, *words: str) -> D:
        return parsed(model, self._run(verb, *words), f"`{self._words[-1]} {verb}`")

    def _run(self, verb: str, *words: str) -> str:
        """Run a command and return its JSON. CloneCommandError if it does not end with 0."""
        argv = [*self._words, verb, *words, "--json"]
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
                env=dict(os.environ),
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CloneCommandError(f"running {argv[0]}: {error}", "is zsnapdb installed on this host?") from error
        if done.returncode == 0:
            return done.stdout
        raise failure_in(done.stdout, done.stderr, done.returncode)
