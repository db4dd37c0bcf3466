"""Signs of a fault: the exit code of `zsnapdb status`, metrics, a ping, and /readyz. Each is watched independently."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.lab.inside.zygote import Zygote

_SAMPLE = re.compile(r'^(zsnapdb_\w+)\{.*?(?:objective="([a-z-]+)".*)?\} ([-0-9.e+]+)$', re.MULTILINE)


class Sign(StrEnum):
    """A way to notice a fault."""

    STATUS = "status"
    METRICS = "metrics"
    PING = "ping"
    READY = "readyz"


@dataclass(frozen=True)
class Sample:
    """The state of a sign from `began` to `ended`, by the guest's clock."""

    sign: Sign
    began: float
    ended: float
    is_red: bool
    words: str


@dataclass(frozen=True)
class Told:
    """A notification to the webhook: its event (broken, met, failure…), its subject, and its arrival."""

    event: str
    subject: str
    at: float


@dataclass
class Receiver:
    """A service on this host that accepts pings at /ping and JSON documents at /hook."""

    silence: float
    """Seconds without a ping after which the dead man's switch is red."""
    told: list[Told] = field(default_factory=list)
    ping: str = "never"
    pinged: float = 0.0

    def __post_init__(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, path: str, body: bytes) -> None:
        if path.startswith("/ping"):
            self.ping, self.pinged = path, time.time()
            return
        document = json.loads(body)
        self.told.append(Told(document["event"], document["subject"], time.time()))

    def look(self) -> tuple[bool, str]:
        """Return whether the dead man's switch is red, and why."""
        silence = time.time() - self.pinged
        if silence > self.silence:
            return True, f"silent for {silence:.0f} s"
        return self.ping != "/ping", self.ping


@dataclass(frozen=True)
class Metrics:
    """The metrics file, evaluated like the shipped alert rules."""

    file: Path
    stale: float
    """Seconds after which metrics are too old. The shipped rule has an hour, for a check every five minutes."""

    def deadlines(self) -> dict[str, float]:
        """Return the time at which each objective about an age breaks."""
        return {
            objective: float(value)
            for name, objective, value in _SAMPLE.findall(self._text())
            if name == "zsnapdb_objective_deadline_timestamp_seconds"
        }

    def look(self) -> tuple[bool, str]:
        """Return whether an alert fires, and which."""
        now, reasons = time.time(), []
        for name, objective, text in _SAMPLE.findall(self._text()):
            value = float(text)
            reasons += {
                "zsnapdb_objective_verdict": [f"{objective} broken"] if value == 2 else [],
                "zsnapdb_verdict": ["broken"] if value == 2 else [],
                "zsnapdb_repository_readable": ["unreadable"] if value == 0 else [],
                "zsnapdb_objective_deadline_timestamp_seconds": [f"{objective} overdue"] if now > value else [],
                "zsnapdb_status_timestamp_seconds": ["stale"] if now - value > self.stale else [],
            }.get(name, [])
        return bool(reasons), ", ".join(reasons)

    def _text(self) -> str:
        try:
            return self.file.read_text()
        except FileNotFoundError:
            return "zsnapdb_status_timestamp_seconds{} 0\n"


@dataclass
class Signs:
    """Samples of all signs, each taken by its own thread."""

    receiver: Receiver
    metrics: Metrics
    ready: str
    """The address of /readyz."""
    folder: Path
    samples: list[Sample] = field(default_factory=list)

    def start(self) -> None:
        """Start sampling."""
        zygote = Zygote(self.folder / "zygote")

        def status() -> tuple[bool, str]:
            try:
                code, _, said = zygote.run(["status", "--all"], os.environ, 120)
            except subprocess.TimeoutExpired:
                return True, "no answer"
            return code not in (0, 1), f"{code}" + (f": {said.strip()[-300:]}" if code not in (0, 1, 2, 6, 7) else "")

        looks: dict[Sign, Callable[[], tuple[bool, str]]] = {
            Sign.STATUS: status,
            Sign.METRICS: self.metrics.look,
            Sign.PING: self.receiver.look,
            Sign.READY: self._ready,
        }
        for sign, look in looks.items():
            threading.Thread(target=self._watch, args=(sign, look), daemon=True).start()

    def last(self, sign: Sign) -> Sample | None:
        """Return the newest sample of the sign."""
        return next((sample for sample in reversed(self.samples) if sample.sign is sign), None)

    def since(self, sign: Sign, moment: float) -> list[Sample]:
        """Return the samples of the sign that started at the moment or later."""
        return [sample for sample in list(self.samples) if sample.sign is sign and sample.began >= moment]

    def until_now(self, sign: Sign, moment: float) -> list[Sample]:
        """Return the samples of the sign that ended at the moment or later, including one in progress at the moment."""
        return [sample for sample in list(self.samples) if sample.sign is sign and sample.ended >= moment]

    def are_green(self, moment: float) -> bool:
        """Whether every sign was read since the moment, and is green."""
        newest = [self.last(sign) for sign in Sign]
        return all(sample is not None and sample.began >= moment and not sample.is_red for sample in newest)

    def _watch(self, sign: Sign, look: Callable[[], tuple[bool, str]]) -> None:
        while True:
            began = time.time()
            try:
                is_red, words = look()
            except Exception as error:
                # A sign that cannot be read is red, and is read again.
                is_red, words = True, f"{type(error).__name__}: {error}"
            self.samples.append(Sample(sign, began, time.time(), is_red, words))
            time.sleep(3.0 if sign is Sign.STATUS else 1.0)

    def _ready(self) -> tuple[bool, str]:
        try:
            with urllib.request.urlopen(self.ready, timeout=10):
                return False, "200"
        except urllib.error.HTTPError as error:
            return True, f"{error.code}: {' '.join(error.read().decode().split())[:300]}"
        except OSError as error:
            return True, str(error)
