"""Runs the hooks of an instance around a snapshot. Each hook says what its failure means."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from zsnapdb import hooks
from zsnapdb.errors import HookError
from zsnapdb.hooks import Hook, OnFailure, When
from zsnapdb.jobs.events import Events


class Hooked:
    """The hooks of one snapshot. Failures of hooks that may fail are warnings in `events`."""

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
        """Whether there is any hook."""
        return bool(self._hooks)

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Run the `before` hooks, the block, and then the `after` hooks. The `after` hooks run in any case.

        HookError if a hook fails that must not fail. All `after` hooks run even if one of them fails or is interrupted.
        If the block fails, the error of the block is raised.
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
            # An interrupt is more important than the failure of a hook.
            raise next((error for error in failures if not isinstance(error, HookError)), failures[0])

    def locked(self, lock: str, remaining: float) -> None:
        """Run the `locked` hooks for at most `remaining` seconds. HookError if one fails that must not fail."""
        self._lock = lock
        self._run(When.LOCKED, remaining)

    def _run(self, when: When, limit: float | None = None) -> None:
        for hook in self._hooks:
            if hook.when is when:
                self._run_one(hook, "", limit)

    def _run_all_after(self, outcome: str) -> list[BaseException]:
        """Run every `after` hook and return the errors.

        A hook that an interrupt ended early runs a second time, as this hook may be the one that thaws an application.
        """
        failures: list[BaseException] = []
        for hook in self._hooks:
            if hook.when is not When.AFTER:
                continue
            for _ in range(2):
                try:
                    self._run_one(hook, outcome, None)
                    break
                except HookError as error:
                    failures.append(error)
                    break
                except BaseException as error:
                    failures.append(error)
        return failures

    def _run_one(self, hook: Hook, outcome: str, limit: float | None) -> None:
        variables = hooks.environment(
            hook.when,
            instance=self._instance,
            backup_id=self._backup_id,
            lock=self._lock,
            snapshots=self.snapshots,
            outcome=outcome,
        )
        try:
            hooks.run(hook, variables, limit=limit)
        except HookError as error:
            if hook.on_failure is OnFailure.ABORT:
                raise
            self.events.warn(error.message)
