"""The text and the JSON document of a notification. docs/notifications.md describes the document."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass

from zsnapdb.config.notifications import NotificationEvent
from zsnapdb.planning.notifications.occasions import Occasion

_WORDS = {
    NotificationEvent.START: "begins",
    NotificationEvent.SUCCESS: "ended well",
    NotificationEvent.FAILURE: "FAILED",
    NotificationEvent.BROKEN: "BROKEN",
    NotificationEvent.MET: "met again",
    NotificationEvent.TEST: "test message",
}


@dataclass(frozen=True)
class Message:
    """An occasion on its way. All attempts have the same `id`, so that a receiver can tell a repetition."""

    id: str
    occasion: Occasion

    @property
    def subject(self) -> str:
        """One line: what happened to what, on which host."""
        about = " ".join(word for word in (self.occasion.subject, self.occasion.instance) if word)
        line = f"zsnapdb on {socket.gethostname()}: {about} {_WORDS[self.occasion.event]}"
        return " ".join(line.split())

    @property
    def text(self) -> str:
        """Everything, for people."""
        occasion = self.occasion
        hint = f"\nhint: {occasion.hint}" if occasion.hint else ""
        where = f"\nrepository: {occasion.repository}" if occasion.repository else ""
        return f"{self.subject}\n\n{occasion.text}{hint}{where}\ntime: {occasion.at:%Y-%m-%d %H:%M:%S} UTC\n"

    @property
    def json(self) -> bytes:
        """Everything, for programs."""
        occasion = self.occasion
        document = {
            "format": 1,
            "id": self.id,
            "event": occasion.event.value,
            "host": socket.gethostname(),
            "instance": occasion.instance or None,
            "subject": occasion.subject,
            "repository": occasion.repository or None,
            "at": occasion.at.isoformat(),
            "exit_code": occasion.exit_code,
            "run_id": occasion.run_id or None,
            "text": occasion.text,
            "hint": occasion.hint,
        }
        return json.dumps(document).encode()
