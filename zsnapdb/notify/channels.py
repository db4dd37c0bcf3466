"""The channels that deliver a message: a ping, a webhook, an e-mail, a script.

A new channel is a value of `NotificationChannel`, its settings beside it, and a function in `CHANNELS`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from pathlib import Path

from zsnapdb.base.errors import ConfigError
from zsnapdb.base.text_files import secret_in
from zsnapdb.config.notifications import NotificationChannel, NotificationEvent, NotificationTarget
from zsnapdb.notify import http, programs
from zsnapdb.notify.document import Message
from zsnapdb.notify.failure import DeliveryFailure

_PATHS = {
    NotificationEvent.START: "/start",
    NotificationEvent.FAILURE: "/fail",
    NotificationEvent.BROKEN: "/fail",
    NotificationEvent.TEST: "/log",
}
"""What is added to a ping address, as healthchecks.io has it. A success has nothing; /log changes no state."""


def deliver(target: NotificationTarget, message: Message, seconds: float) -> None:
    """Make one attempt to deliver the message. DeliveryFailure if it did not arrive.

    It takes `seconds` at most.
    """
    try:
        CHANNELS[target.channel](target, message, seconds)
    except ConfigError as error:
        raise DeliveryFailure(error.message, may_work_later=False) from error


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """Return what X-Zsnapdb-Signature says: HMAC-SHA256 of the timestamp, a dot and the body."""
    return "sha256=" + hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def _ping(target: NotificationTarget, message: Message, seconds: float) -> None:
    url = target.ping or _secret(target.ping_file, "the address of a ping")
    http.post(
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
        headers |= {
            "X-Zsnapdb-Timestamp": timestamp,
            "X-Zsnapdb-Signature": signature(secret, timestamp, body),
        }
    http.post(url, body, headers, seconds)


def _email(target: NotificationTarget, message: Message, seconds: float) -> None:
    mail = EmailMessage()
    mail["Subject"] = message.subject
    mail["To"] = ", ".join(target.email)
    if target.sender is not None:
        mail["From"] = target.sender
    mail["X-Zsnapdb-Id"] = message.id
    # RFC 3834: nobody answers automatically.
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message.text)
    sender = ("-f", target.sender) if target.sender is not None else ()
    programs.run((target.sendmail, "-i", *sender, "--", *target.email), mail.as_bytes(), seconds)


def _script(target: NotificationTarget, message: Message, seconds: float) -> None:
    programs.run(target.script, message.json, seconds)


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
