"""The configuration that setup writes: only what differs from the defaults. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

from zsnapdb.planning.setup.account import DEFAULT_USER
from zsnapdb.planning.setup.facts import SetupAnswers

REPOSITORY = "backups"
RECIPIENT = "AGE-RECIPIENT"
"""Stands for the recipient in the plan, before the identity is made."""


@dataclass(frozen=True)
class ServerLogin:
    """How zsnapdb reaches the server."""

    socket: str
    user: str
    password_file: str | None = None


def configuration_text(
    answers: SetupAnswers,
    login: ServerLogin,
    recipient: str | None,
    identity: str | None = None,
    binary: str = "",
    *,
    archives: bool = True,
) -> str:
    """Return the text of the configuration.

    `recipient`: to whom backups are encrypted, None if they are not. `identity`: the file with which drills read them.
    `binary`: the server program, if it is not the one of the usual folders. `archives`: the server has binlogs.
    """
    lines = [
        "# Written by `zsnapdb setup`. `zsnapdb example zsnapdb.toml` explains every key.",
        "# What is left out has its default.",
        f"[instance.{answers.instance}]",
        _line("socket", login.socket),
        *([_line("user", login.user)] if login.user != DEFAULT_USER else []),
        *([_line("password_file", login.password_file)] if login.password_file is not None else []),
        _line("repository", REPOSITORY),
        "",
        *([f"[instance.{answers.instance}.server]", _line("binary", binary), ""] if binary else []),
        f"[instance.{answers.instance}.keep]",
        "last = 7",
        "daily = 14",
        "weekly = 8",
        "monthly = 12",
        "",
        f"[instance.{answers.instance}.objectives]",
        'backup_age = "26h"',
        *(['archive_lag = "15m"'] if archives else []),
        'drill_age = "8d"',
        'verify_age = "8d"',
        "",
        f"[instance.{answers.instance}.agent]",
        *(["archive = true"] if archives else []),
        'backup = { cron = "15 1 * * *", jitter = "10m" }',
        'prune = { cron = "45 3 * * *" }',
        'verify = { cron = "30 4 * * 6" }',
        'drill = { cron = "30 5 * * 0" }',
        "",
        f"[repository.{REPOSITORY}]",
        _line("url", answers.repository),
        *([_line("endpoint", answers.endpoint)] if answers.endpoint else []),
        *([_line("credentials_file", answers.credentials_file)] if answers.credentials_file else []),
    ]
    if recipient is not None:
        lines += ["", f"[repository.{REPOSITORY}.encryption]", f"recipients = [{json.dumps(recipient)}]"]
        lines += [_line("identity_file", identity)] if identity is not None else []
    return "\n".join(lines) + "\n"


def _line(key: str, value: str) -> str:
    """Return a line of TOML. A string of JSON is a basic string of TOML (TOML 1.0, "String")."""
    return f"{key} = {json.dumps(value)}"
