"""What the agent and its fork server say to each other, a packet each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

LARGEST = 1 << 20
"""The most bytes of a packet."""
READY = b"ready"
"""The server's first packet: it has imported everything. Each later one is the process id of a job, or NOT_STARTED."""
NOT_STARTED = b"none"
GO = b"go"
"""What the agent writes into the pipe of a job that is its child. A job whose pipe ends without it does nothing."""


@dataclass(frozen=True)
class StartRequest:
    """A request to start `zsnapdb` with these words and this environment.

    Two descriptors travel with it: the log of the job, and the end of a pipe from which the job reads GO.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]

    def packet(self) -> bytes:
        """Return the request as it is sent."""
        return json.dumps({"words": self.words, "environment": dict(self.environment)}).encode()

    @classmethod
    def of_packet(cls, packet: bytes) -> StartRequest:
        """Return the request that was sent. ValueError or KeyError if the packet is not whole."""
        sent = json.loads(packet)
        return cls(tuple(sent["words"]), sent["environment"])
