"""The hooks of an instance: around a snapshot, and at the end of a backup.

Each hook has a setting `on_failure`, which decides whether a failure of the hook is an error or a warning.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from zsnapdb import hooks
from zsnapdb.base.errors import HookError
from zsnapdb.hooks import BackupEnd, Hook, OnFailure, When
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.snapshot_set_properties import snapshot_name


class Hooked:
    """The hooks of one snapshot. If a hook with on_failure = "warn" fails, `events` receives a warning."""

    def __init__(
        self, instance: str, configured: tuple[Hook, ...], backup_id: str, snapshots: tuple[str, ...], events: Events
    ) -> None:
        self.snapshots = snapshots
        self.events = events
        self._instance = instance
        self._hooks = configured
        self._backup_id = backup_id
        self._lock = ""

    @property
    def is_any(self) -> bool:
        return bool(self._hooks)

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Run the `before` hooks, the block, and then the `after` hooks. The `after` hooks always run.

        All `after` hooks run even if one of them fails or is interrupted. If the block fails, its error is raised.

        Raises:
            HookError: a hook with on_failure = "abort" failed.
        """
        try:
            self._run(When.BEFORE)
            yield
        except BaseException as error:
            for failed in self._run_all_after("failed"):
                error.add_note(str(failed))
            raise
        failures = self._run_all_after("ok")
        if failures:
            # If an interrupt and a failed hook occur together, raise the interrupt.
            raise next((error for error in failures if not isinstance(error, HookError)), failures[0])

    def locked(self, lock: str, remaining: float) -> None:
        """Run the `locked` hooks for at most `remaining` seconds.

        Raises:
            HookError: a hook with on_failure = "abort" failed.
        """
        self._lock = lock
        self._run(When.LOCKED, remaining)

    def _run(self, when: When, limit: float | None = None) -> None:
        for hook in self._hooks:
            if hook.when is when:
                self._run_one(hook, "", limit)

    def _run_all_after(self, outcome: str) -> list[BaseException]:
        chosen = [hook for hook in self._hooks if hook.when is When.AFTER]
        return _run_all(chosen, lambda hook: self._run_one(hook, outcome, None))

    def _run_one(self, hook: Hook, outcome: str, limit: float | None) -> None:
        variables = hooks.environment(
            hook.when,
            instance=self._instance,
            backup_id=self._backup_id,
            lock=self._lock,
            snapshots=self.snapshots,
            outcome=outcome,
        )
        _run_or_warn(hook, variables, self.events, limit)


class DoneHooks:
    """The `done` hooks of a run of `zsnapdb backup`. The method `begins` records the backup that the run is making."""

    def __init__(self, instance: str, configured: tuple[Hook, ...], events: Events) -> None:
        self._instance = instance
        self._hooks = [hook for hook in configured if hook.when is When.DONE]
        self._events = events
        self._backup_id = ""
        self._snapshots: tuple[str, ...] = ()

    def begins(self, backup_id: str, volumes: Mapping[str, str]) -> None:
        """Record the id of the backup that the run is making, and the dataset of each volume by role."""
        self._backup_id = backup_id
        self._snapshots = tuple(f"{dataset}@{snapshot_name(backup_id)}" for _, dataset in sorted(volumes.items()))

    @contextlib.contextmanager
    def at_the_end(self) -> Iterator[None]:
        """Run the block. Then run every `done` hook with the result of the block: success, failure or stop.

        If the block fails, its error is raised, with a note for each failed hook.

        Raises:
            HookError: the block succeeded, but a hook with on_failure = "abort" failed.
        """
        try:
            yield
        except BaseException as error:
            for failed in self._run(BackupEnd.by(error)):
                error.add_note(str(failed))
            raise
        failures = self._run(BackupEnd())
        if failures:
            # If an interrupt and a failed hook occur together, raise the interrupt.
            first = next((error for error in failures if not isinstance(error, HookError)), failures[0])
            first.add_note(f"backup {self._backup_id} is in the repository")
            raise first

    def _run(self, ended: BackupEnd) -> list[BaseException]:
        variables = {
            **hooks.environment(
                When.DONE,
                instance=self._instance,
                backup_id=self._backup_id,
                lock="",
                snapshots=self._snapshots,
                outcome=ended.outcome,
            ),
            **ended.environment(),
        }
        return _run_all(self._hooks, lambda hook: _run_or_warn(hook, variables, self._events))


def _run_all(chosen: Iterable[Hook], run: Callable[[Hook], None]) -> list[BaseException]:
    """Run every hook and return the errors.

    If a hook is interrupted, it runs again, because it may have to thaw an application.
    """
    failures: list[BaseException] = []
    for hook in chosen:
        for _ in range(2):
            try:
                run(hook)
                break
            except HookError as error:
                failures.append(error)
                break
            except BaseException as error:
                failures.append(error)
    return failures


def _run_or_warn(hook: Hook, variables: Mapping[str, str], events: Events, limit: float | None = None) -> None:
    """Run the hook. If the hook has on_failure = "warn" and fails, warn and raise no error.

    Raises:
        HookError: the hook failed and has on_failure = "abort".
    """
    try:
        hooks.run(hook, variables, limit=limit)
    except HookError as error:
        if hook.on_failure is OnFailure.ABORT:
            raise
        events.warn(error.message)
