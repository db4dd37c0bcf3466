"""Delivery of notifications in background threads, within the configured time limits."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import queue
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from zsnapdb.base import program_start
from zsnapdb.base.deadline import within
from zsnapdb.base.errors import CommandError, ConfigError
from zsnapdb.base.files import secret_in
from zsnapdb.base.program_start import for_site
from zsnapdb.base.timed_http import TimedHttpConnection, TimedHttpsConnection
from zsnapdb.config.notifications import NotificationChannel, NotificationEvent, NotificationTarget
from zsnapdb.config.settings import Settings
from zsnapdb.notify.sent_notifications import MemoryFile
from zsnapdb.planning.health.notification_events import Occasion, TargetMemory, concerns, is_news


class DeliveryFailure(Exception):
    """Raised if a notification did not arrive. If `may_work_later` is set, a later attempt may succeed."""

    def __init__(self, reason: str, *, may_work_later: bool) -> None:
        super().__init__(reason)
        self.may_work_later = may_work_later


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
    """A notification to deliver. All attempts have the same `id`, so that a receiver recognises repetitions."""

    id: str
    occasion: Occasion

    @property
    def subject(self) -> str:
        """One line with host, subject, instance and event."""
        about = " ".join(word for word in (self.occasion.subject, self.occasion.instance) if word)
        line = f"zsnapdb on {socket.gethostname()}: {about} {_WORDS[self.occasion.event]}"
        return " ".join(line.split())

    @property
    def text(self) -> str:
        """The notification's complete text for people."""
        occasion = self.occasion
        hint = f"\nhint: {occasion.hint}" if occasion.hint else ""
        where = f"\nrepository: {occasion.repository}" if occasion.repository else ""
        return f"{self.subject}\n\n{occasion.text}{hint}{where}\ntime: {occasion.at:%Y-%m-%d %H:%M:%S} UTC\n"

    @property
    def json(self) -> bytes:
        """The notification's complete document for programs."""
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


_AGAIN = (408, 425, 429)
"""HTTP statuses after which the same request may succeed later, in addition to 500 and above."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(TimedHttpConnection, request)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(TimedHttpsConnection, request)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Refuse every redirect, so that a signed message is not sent to a different host."""


def post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> None:
    """Post the body, and return after a successful answer (2xx). Raise DeliveryFailure otherwise.

    The time from the connection to the answer's headers is limited to `seconds`. The body of the answer is not read.
    """
    if not url.startswith(("http://", "https://")):
        raise DeliveryFailure("the address is neither http nor https", may_work_later=False)
    try:
        host = urlsplit(url).hostname
    except ValueError:
        raise DeliveryFailure("the address cannot be used", may_work_later=False) from None
    request = urllib.request.Request(url, data=body, headers=dict(headers), method="POST")  # noqa: S310 - see above
    opener = urllib.request.build_opener(_Http, _Https, _NoRedirects)
    try:
        with within(seconds), opener.open(request, timeout=seconds):
            return
    except urllib.error.HTTPError as error:
        error.close()
        may_work = error.code >= 500 or error.code in _AGAIN
        raise DeliveryFailure(f"{host} answered {error.code}", may_work_later=may_work) from None
    except urllib.error.URLError as error:
        raise DeliveryFailure(f"{host}: {error.reason}", may_work_later=True) from None
    except (OSError, http.client.HTTPException) as error:
        raise DeliveryFailure(f"{host}: {error or type(error).__name__}", may_work_later=True) from None
    except ValueError:
        raise DeliveryFailure(f"{host}: the address cannot be used", may_work_later=False) from None


_OUTPUT = 500


def run(argv: Sequence[str], text: bytes, seconds: float) -> None:
    """Run the program with the text on stdin, and return after exit status 0. Raise DeliveryFailure otherwise.

    The program gets the environment of this process without secrets. Its process group is killed after `seconds`.
    """
    with tempfile.TemporaryFile() as content, tempfile.TemporaryFile() as output:
        content.write(text)
        content.seek(0)
        try:
            process = subprocess.Popen(
                argv, stdin=content, stdout=output, stderr=output, env=for_site(), cwd="/", start_new_session=True
            )
        except OSError as error:
            raise DeliveryFailure(f"{argv[0]} cannot be started: {error.strerror}", may_work_later=False) from None
        try:
            status = program_start.wait(process, seconds, output)
        except subprocess.TimeoutExpired:
            raise DeliveryFailure(f"{argv[0]} did not end within {seconds:.1f} s", may_work_later=True) from None
        except CommandError as error:
            raise DeliveryFailure(error.message, may_work_later=True) from None
        finally:
            if process.poll() is None:
                program_start.kill(process, is_group=True)
        output.seek(0)
        said = " ".join(output.read(_OUTPUT).decode(errors="replace").split())
    if status != 0:
        more = f": {said}" if said else ""
        raise DeliveryFailure(f"{argv[0]} ended with exit status {status}{more}", may_work_later=True)


_PATHS = {
    NotificationEvent.START: "/start",
    NotificationEvent.FAILURE: "/fail",
    NotificationEvent.BROKEN: "/fail",
    NotificationEvent.TEST: "/log",
}
"""Suffixes of a ping address, as healthchecks.io defines them. A success has no suffix; with /log, the state of the
check does not change.
"""


def deliver(target: NotificationTarget, message: Message, seconds: float) -> None:
    """Make one attempt to deliver the message, for at most `seconds`.

    Raise DeliveryFailure if the message did not arrive.
    """
    try:
        CHANNELS[target.channel](target, message, seconds)
    except ConfigError as error:
        raise DeliveryFailure(error.message, may_work_later=False) from error


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """Return the value of X-Zsnapdb-Signature, which is the HMAC-SHA256 of the timestamp, a dot and the body."""
    return "sha256=" + hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def _ping(target: NotificationTarget, message: Message, seconds: float) -> None:
    url = target.ping or _secret(target.ping_file, "the address of a ping")
    post(
        url.rstrip("/") + _PATHS.get(message.occasion.event, ""),
        message.text.encode(),
        {"Content-Type": "text/plain; charset=utf-8", "User-Agent": "zsnapdb"},
        seconds,
    )


def _webhook(target: NotificationTarget, message: Message, seconds: float) -> None:
    url = target.webhook or _secret(target.webhook_file, "the address of a webhook")
    body = message.json
    headers = {"Content-Type": "application/json", "User-Agent": "zsnapdb", "X-Zsnapdb-Id": message.id}
    if target.secret_file is not None:
        timestamp = str(int(message.occasion.at.timestamp()))
        secret = _secret(target.secret_file, "the secret of a webhook").encode()
        headers |= {"X-Zsnapdb-Timestamp": timestamp, "X-Zsnapdb-Signature": signature(secret, timestamp, body)}
    post(url, body, headers, seconds)


def _email(target: NotificationTarget, message: Message, seconds: float) -> None:
    mail = EmailMessage()
    mail["Subject"] = message.subject
    mail["To"] = ", ".join(target.email)
    if target.sender is not None:
        mail["From"] = target.sender
    mail["X-Zsnapdb-Id"] = message.id
    # RFC 3834: suppress automatic answers.
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message.text)
    sender = ("-f", target.sender) if target.sender is not None else ()
    run((target.sendmail, "-i", *sender, "--", *target.email), mail.as_bytes(), seconds)


def _script(target: NotificationTarget, message: Message, seconds: float) -> None:
    run(target.script, message.json, seconds)


CHANNELS: Mapping[NotificationChannel, Callable[[NotificationTarget, Message, float], None]] = {
    NotificationChannel.PING: _ping,
    NotificationChannel.WEBHOOK: _webhook,
    NotificationChannel.EMAIL: _email,
    NotificationChannel.SCRIPT: _script,
}


def _secret(file: Path | None, what: str) -> str:
    assert file is not None
    secret = secret_in(file, what, "the file must contain only that, and be readable by the user that runs zsnapdb")
    try:
        text = secret.decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"reading {what} {file}: it is not ASCII", hint="write it on one line") from error
    if not text:
        raise ConfigError(f"reading {what} {file}: it is empty", hint="write it on one line")
    return text


_FIRST_PAUSE = 0.5
"""Seconds between the first and the second attempt; each later pause is twice as long."""

Tell = Callable[[str], None]


@dataclass
class Notifier:
    """Delivers notifications to all targets in the background. The function `tell` gets a line for each failure.

    If a target is unreachable, no method raises an error. Only `close` waits for targets.
    """

    settings: Settings
    tell: Tell
    _rounds: dict[str, _Round] = field(init=False, default_factory=dict)

    def post(self, occasion: Occasion) -> None:
        """Start the delivery of a notification to every target that it concerns. Return immediately."""
        for name, target in self.settings.notifications.to.items():
            if concerns(target, occasion):
                self.post_to(name, occasion)

    def post_to(self, name: str, occasion: Occasion) -> None:
        """Start the delivery of a notification to the target with this name. Return immediately."""
        try:
            if name not in self._rounds:
                self._rounds[name] = _Round(self.settings, name, self.tell)
        except RuntimeError as error:
            self.tell(f"{name} cannot be notified: {error}")
            return
        self._rounds[name].add(occasion)

    def close(self, seconds: float | None = None) -> tuple[str, ...]:
        """Wait at most `seconds` (None means the configured budget) for deliveries.

        Return the targets that did not get all notifications.

        A delivery that is still in progress is treated as failed, even if it arrives later.
        """
        deadline = time.monotonic() + (self.settings.notifications.budget if seconds is None else seconds)
        for each in self._rounds.values():
            each.end()
        return tuple(name for name, each in self._rounds.items() if not each.was_good(deadline))


class _Round:
    """The deliveries to one target. A separate thread delivers them one after the other."""

    def __init__(self, settings: Settings, name: str, tell: Tell) -> None:
        self._bounds, self._name, self._tell = settings.notifications, name, tell
        self._target: NotificationTarget = settings.notifications.to[name]
        self._file = MemoryFile.of(settings, name)
        self._queue: queue.SimpleQueue[Occasion | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending: list[Occasion] = []
        self._has_failed = False
        self._is_over = False
        # A daemon thread ends with the process, even if a name server never answers the thread.
        self._thread = threading.Thread(target=self._work, name=f"notify-{name}", daemon=True)
        self._thread.start()

    def add(self, occasion: Occasion) -> None:
        with self._lock:
            self._pending.append(occasion)
        self._queue.put(occasion)

    def end(self) -> None:
        self._queue.put(None)

    def was_good(self, deadline: float) -> bool:
        """Wait until the deliveries end, or until the deadline. Return whether all notifications arrived."""
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
                deliver(self._target, message, self._bounds.timeout)
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
