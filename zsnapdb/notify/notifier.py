"""Delivers occasions in threads, within the bounds of the configuration."""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from zsnapdb.config.notifications import NotificationTarget
from zsnapdb.config.settings import Settings
from zsnapdb.notify import channels
from zsnapdb.notify.document import Message
from zsnapdb.notify.failure import DeliveryFailure
from zsnapdb.notify.memory import MemoryFile
from zsnapdb.planning.notifications.occasions import Occasion, TargetMemory, concerns, is_news

_FIRST_PAUSE = 0.5
"""Seconds between the first attempt and the second; each later pause is twice as long."""

Tell = Callable[[str], None]


@dataclass
class Notifier:
    """Takes occasions for all targets, and delivers them beside the work. `tell` gets a line for each failure.

    No method raises because a target cannot be reached, or waits for one, apart from `close`.
    """

    settings: Settings
    tell: Tell
    _rounds: dict[str, _Round] = field(init=False, default_factory=dict)

    def post(self, occasion: Occasion) -> None:
        """Deliver the occasion to every target that it concerns. Returns at once."""
        for name, target in self.settings.notifications.to.items():
            if concerns(target, occasion):
                self.post_to(name, occasion)

    def post_to(self, name: str, occasion: Occasion) -> None:
        """Deliver the occasion to this target. Returns at once."""
        try:
            if name not in self._rounds:
                self._rounds[name] = _Round(self.settings, name, self.tell)
        except RuntimeError as error:
            self.tell(f"{name} cannot be notified: {error}")
            return
        self._rounds[name].add(occasion)

    def close(self, seconds: float | None = None) -> tuple[str, ...]:
        """Wait at most so many seconds (None: the budget), and return the targets with a notification that failed.

        What is under way then counts as failed, also if it arrives later.
        """
        deadline = time.monotonic() + (self.settings.notifications.budget if seconds is None else seconds)
        for each in self._rounds.values():
            each.end()
        return tuple(name for name, each in self._rounds.items() if not each.was_good(deadline))


class _Round:
    """The deliveries to one target, one after another in a thread of its own."""

    def __init__(self, settings: Settings, name: str, tell: Tell) -> None:
        self._bounds, self._name, self._tell = settings.notifications, name, tell
        self._target: NotificationTarget = settings.notifications.to[name]
        self._file = MemoryFile.of(settings, name)
        self._queue: queue.SimpleQueue[Occasion | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending: list[Occasion] = []
        self._has_failed = False
        self._is_over = False
        # The thread ends with the process, also if a name server never answers.
        self._thread = threading.Thread(target=self._work, name=f"notify-{name}", daemon=True)
        self._thread.start()

    def add(self, occasion: Occasion) -> None:
        with self._lock:
            self._pending.append(occasion)
        self._queue.put(occasion)

    def end(self) -> None:
        self._queue.put(None)

    def was_good(self, deadline: float) -> bool:
        """Wait until the deadline for the end of the deliveries. Return whether all arrived."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            self._is_over = True
            late = tuple(self._pending)
        for occasion in late:
            self._failed(self._file.read(), occasion, "it took longer than the budget of notifications")
        return not (late or self._has_failed)

    def _work(self) -> None:
        while (occasion := self._queue.get()) is not None:
            with self._file.alone(self._bounds.budget):
                memory = self._file.read()
                if is_news(self._target, memory, occasion):
                    self._deliver(memory, occasion)
            with self._lock:
                if self._is_over:
                    return
                self._pending.remove(occasion)

    def _deliver(self, memory: TargetMemory, occasion: Occasion) -> None:
        message, pause = Message(uuid.uuid4().hex, occasion), _FIRST_PAUSE
        for attempt in range(1, self._bounds.attempts + 1):
            try:
                channels.deliver(self._target, message, self._bounds.timeout)
            except DeliveryFailure as error:
                if attempt == self._bounds.attempts or not error.may_work_later:
                    self._failed(memory, occasion, str(error))
                    return
                time.sleep(pause)
                pause *= 2
            else:
                self._keep(memory.arrived(occasion))
                return

    def _failed(self, memory: TargetMemory, occasion: Occasion, error: str) -> None:
        self._has_failed = True
        about = " ".join(word for word in (occasion.subject, occasion.instance) if word)
        self._tell(f"the notification {occasion.event.value} of {about} did not reach {self._name}: {error}")
        self._keep(memory.not_arrived(occasion, error))

    def _keep(self, memory: TargetMemory) -> None:
        try:
            self._file.write(memory)
        except OSError as error:
            self._tell(f"what {self._name} was notified of cannot be kept: {error}")
