"""What a fork server and the process that has it say to each other, a packet each."""

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
"""What is written into the pipe of a job that has become a child. A job whose pipe ends without it does nothing."""
Streams = tuple[int, int, int]
"""The descriptors that a process gets as its stdin, stdout and stderr."""


@dataclass(frozen=True)
class StartRequest:
    """A request to start `zsnapdb` with these words and this environment.

    `is_apart`: in the folder /, as the first of a process group of its own. Four descriptors travel with it: those of
    its streams, and the end of a pipe from which the job reads GO.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    is_apart: bool = False

    def packet(self) -> bytes:
        """Return the request as it is sent."""
        return json.dumps(
            {"words": self.words, "environment": dict(self.environment), "is_apart": self.is_apart}
        ).encode()

    @classmethod
    def of_packet(cls, packet: bytes) -> StartRequest:
        """Return the request that was sent. ValueError or KeyError if the packet is not whole."""
        sent = json.loads(packet)
        return cls(tuple(sent["words"]), sent["environment"], sent["is_apart"])
