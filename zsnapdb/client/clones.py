"""Clones for programs. Commands of this host create, reset and destroy clones, and print the results as JSON.

root runs `zsnapdb clone`. A member of the group of `zsnapdb-clone` runs that program through sudo. This module reads no
server, pool or configuration.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

from zsnapdb.client.api_protocol import CloneOptions, given_options
from zsnapdb.client.clone_holder import HEARTBEAT, NOT_INSTALLED, CloneHolder, holding
from zsnapdb.client.errors import CloneCommandError as CloneCommandError
from zsnapdb.client.models import CloneReset, D, MadeClone, ReachableClone, failure_in, parsed, reachable
from zsnapdb.documents.api import ShownLogin

ROOT = ("zsnapdb", "clone")
MEMBER = ("sudo", "-n", "zsnapdb-clone")
_SECONDS = 3600.0
"""Maximum duration of a command in seconds. A clone of a backup that must be received first can take that long."""

_UNKNOWN = "unknown-name"
"""The error code if no clone has the name, or if another clone now has the name."""


def _words_of(clone: ReachableClone) -> Sequence[str]:
    """Return the arguments that identify exactly this clone, even if a later clone has its name."""
    return [clone.name, "--guid", clone.guid] if clone.guid else [clone.name]


@dataclass(frozen=True)
class LocalClones:
    """The clones of this host.

    The command to run is `command`. If it is None, root runs `ROOT`, and all other accounts run `MEMBER`.
    """

    command: Sequence[str] | None = None
    _holders: dict[str, CloneHolder] = field(init=False, repr=False, compare=False, default_factory=dict)
    """Processes that hold clones during a block, by clone id."""

    @property
    def _words(self) -> tuple[str, ...]:
        return tuple(self.command) if self.command is not None else ROOT if os.geteuid() == 0 else MEMBER

    def create(self, instance: str, name: str, **options: Unpack[CloneOptions]) -> ReachableClone:
        """Return a new clone of the named instance.

        Raises: CloneCommandError if the clone was not created.
        """
        words = [instance, name] if "zsnapdb-clone" in self._words[-1] else [instance, "--name", name]
        for option, value in given_options(options).items():
            words += [f"--{option}"] if value is True else [f"--{option}", value]
        return reachable(self._document(MadeClone, "create", *words), "127.0.0.1")

    def login(self, clone: ReachableClone, *, new: bool = False) -> ReachableClone:
        """Return the clone with its login. With `new`, the clone first gets a new password, and its sessions end."""
        shown = self._document(ShownLogin, "login", *_words_of(clone), *(["--new"] if new else []))
        return replace(clone, port=shown.port, user=shown.user, password=shown.password)

    def reset(self, clone: ReachableClone) -> CloneReset:
        """Reset the clone to its original data. Address and password stay the same; sessions end.

        Return how the clone was reset, and why a faster way was not possible. If a process keeps the clone alive, that
        process resets it, and no command is started.
        """
        holder = self._holders.get(clone.id)
        if holder is None or not holder.is_there:
            return self._document(CloneReset, "reset", *_words_of(clone))
        return parsed(CloneReset, holder.ask("reset", _SECONDS), f"`{self._words[-1]} keep`")

    def beat(self, clone: ReachableClone) -> None:
        self._run("heartbeat", *_words_of(clone))

    def destroy(self, clone: ReachableClone) -> None:
        """Destroy the clone. If the clone no longer exists, no error is raised.

        A later clone with its name is not destroyed.
        """
        try:
            self._run("destroy", *_words_of(clone))
        except CloneCommandError as error:
            if error.code != _UNKNOWN:
                raise

    @contextlib.contextmanager
    def clone(self, instance: str, name: str, **options: Unpack[CloneOptions]) -> Iterator[ReachableClone]:
        """Yield a new clone, and destroy it after the block. During the block, another process keeps it alive.

        If this process is killed, the other process ends too. The clone then expires `heartbeat` seconds after its last
        heartbeat, and the next `zsnapdb reap` destroys it.
        """
        options.setdefault("heartbeat", HEARTBEAT)
        made = self.create(instance, name, **options)
        try:
            with holding([*self._words, "keep", *_words_of(made), "--json"]) as holder:
                self._holders[made.id] = holder
                yield made
        finally:
            self._holders.pop(made.id, None)
            self.destroy(made)

    def _document(self, model: type[D], verb: str, *words: str) -> D:
        return parsed(model, self._run(verb, *words), f"`{self._words[-1]} {verb}`")

    def _run(self, verb: str, *words: str) -> str:
        """Run a command and return its JSON. Raises CloneCommandError if its exit code is not 0."""
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
            raise CloneCommandError(f"running {argv[0]}: {error}", NOT_INSTALLED) from error
        if done.returncode == 0:
            return done.stdout
        raise failure_in(done.stdout, done.stderr, done.returncode)
