"""The configuration that setup writes: only what differs from the defaults. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from zsnapdb.planning.setup.account import DEFAULT_USER
from zsnapdb.planning.setup.facts import SetupAnswers
from zsnapdb.planning.setup.merging import ALONE, SetupSurroundings

_HEAD = (
    "# Written by `zsnapdb setup`. `zsnapdb example zsnapdb.toml` explains every key.",
    "# What is left out has its default.",
    "",
)
RECIPIENT = "AGE-RECIPIENT"
"""Stands for the recipient in the plan, before the identity is made."""
NO_SIGNING = "none"
"""The value of `signing` where a person decided that the host signs nothing."""


@dataclass(frozen=True)
class ServerLogin:
    """How zsnapdb reaches the server."""

    socket: str
    user: str
    password_file: str | None = None


@dataclass(frozen=True)
class ServerPlaces:
    """The server program, if it is not the one of the usual folders, and where a rewind writes a new server_id."""

    binary: str = ""
    server_id_file: str = ""


NO_PLACES = ServerPlaces()


def configuration_text(
    answers: SetupAnswers,
    login: ServerLogin,
    recipient: str | None,
    identity: str | None = None,
    server: ServerPlaces = NO_PLACES,
    around: SetupSurroundings = ALONE,
    *,
    signing: str | None = None,
    archives: bool = True,
) -> str:
    """Return the text of the configuration.

    `recipient`: to whom backups are encrypted, None if they are not. `identity`: the file with which drills read them.
    `signing`: the file of the signing key, or NO_SIGNING; None: the configuration says neither.
    `server`: what of the server has to be configured. `around`: what is configured already.
    `archives`: the server has binlogs.
    """
    lines = [*_instance(answers, login, around.repository, server, archives=archives)]
    if not around.is_shared:
        lines += ["", *_repository(answers, around.repository, recipient, identity, signing)]
    if not around.has_agent:
        lines += ["", "[agent]", 'reap = { every = "15m" }', 'status = { every = "5m" }']
    if around.target and answers.notify is not None:
        lines += ["", f"[notifications.to.{around.target}]", _way(answers.notify)]
    if around.before or around.after:
        return around.around("\n".join(lines))
    return "\n".join((*_HEAD, *lines)) + "\n"


def _instance(
    answers: SetupAnswers, login: ServerLogin, repository: str, server: ServerPlaces, *, archives: bool
) -> Iterator[str]:
    name = answers.instance
    yield f"[instance.{name}]"
    yield _line("socket", login.socket)
    if login.user != DEFAULT_USER:
        yield _line("user", login.user)
    if login.password_file is not None:
        yield _line("password_file", login.password_file)
    yield _line("repository", repository)
    yield ""
    if server.binary:
        yield from (f"[instance.{name}.server]", _line("binary", server.binary), "")
    if server.server_id_file:
        yield from (f"[instance.{name}.control]", _line("server_id_file", server.server_id_file), "")
    yield from (f"[instance.{name}.keep]", "last = 7", "daily = 14", "weekly = 8", "monthly = 12", "")
    # The default warn_at is 0.8: an age that the schedule itself reaches is no warning.
    yield from (f"[instance.{name}.objectives]", 'backup_age = "31h"')
    if archives:
        yield 'archive_lag = "15m"'
    yield from ('drill_age = "9d"', 'verify_age = "9d"', "", f"[instance.{name}.agent]")
    if archives:
        yield "archive = true"
    yield 'backup = { cron = "15 1 * * *", jitter = "10m" }'
    yield 'prune = { cron = "45 3 * * *" }'
    yield 'verify = { cron = "30 4 * * 6" }'
    yield 'drill = { cron = "30 5 * * 0" }'
    yield 'doctor = { cron = "50 5 * * *" }'


def _repository(
    answers: SetupAnswers, name: str, recipient: str | None, identity: str | None, signing: str | None
) -> Iterator[str]:
    yield f"[repository.{name}]"
    yield _line("url", answers.repository)
    if answers.endpoint:
        yield _line("s3.endpoint", answers.endpoint)
    if answers.credentials_file:
        yield _line("s3.credentials_file", answers.credentials_file)
    if recipient is not None or signing is not None:
        yield from ("", f"[repository.{name}.encryption]")
    if recipient is not None:
        yield f"recipients = [{json.dumps(recipient)}]"
        if identity is not None:
            yield _line("identity_file", identity)
    if signing is not None:
        yield _line("signing" if signing == NO_SIGNING else "signing_key_file", signing)


def _way(notify: str) -> str:
    """Return the line that names the way to somebody: a program, a URL, or an address of e-mail."""
    if notify.startswith("/"):
        return f"script = [{json.dumps(notify)}]"
    return _line("webhook", notify) if "://" in notify else f"email = [{json.dumps(notify)}]"


def _line(key: str, value: str) -> str:
    """Return a line of TOML. A string of JSON is a basic string of TOML (TOML 1.0, "String")."""
    return f"{key} = {json.dumps(value)}"
