"""Decides which tables setup adds to the configuration, and which of them the configuration already contains. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from zsnapdb.config.notifications import TARGET_NAME
from zsnapdb.config.repository import DEFAULT_KEEP
from zsnapdb.planning.setup.facts import NOTHING_WRITTEN, SetupAnswers, WrittenTables
from zsnapdb.planning.setup.layout import DEFAULT_USER
from zsnapdb.planning.setup.merge import ConfigTable, Merge, TablePath, all_keys, document_of, merge, strings, subtables

REPOSITORY = "backups"
TARGET = "admin"


@dataclass(frozen=True)
class SetupSurroundings:
    """The existing configuration, and the facts on which the tables of setup depend.

    - `configured`: its text; "" if there is none
    - `own`, `stored_in`: the tables of the instance and of its repository; empty if they are not configured yet
    - `repository`: the name of the instance's repository
    - `is_shared`, `has_agent`: whether the repository and the agent are already configured, so that setup keeps them
    - `target`: the name of the notification target that setup adds, or "" if it adds none
    - `is_silent`: whether no notification target is configured
    - `written`: the keys and tables that earlier setups wrote
    """

    configured: str = ""
    own: Mapping[str, Any] = field(default_factory=dict)
    stored_in: Mapping[str, Any] = field(default_factory=dict)
    repository: str = REPOSITORY
    is_shared: bool = False
    has_agent: bool = False
    target: str = ""
    is_silent: bool = True
    written: WrittenTables = NOTHING_WRITTEN

    @property
    def has_rules(self) -> bool:
        """Whether the configuration says which backups of the instance `prune` keeps."""
        return "keep" in self.own or "keep" in self.stored_in

    @property
    def signers(self) -> tuple[str, ...]:
        """The configured public keys that the host trusts; empty if it trusts only its own signing key."""
        return tuple(strings(subtables(self.stored_in, "encryption").get("signers")))

    @property
    def has_login(self) -> bool:
        """Whether the configuration says how zsnapdb reaches the server. Then the omitted user is the default user."""
        return bool({"socket", "host", "vm"} & set(self.own))

    def knows_login(self, login: ServerLogin) -> bool:
        """Return whether the configuration has this login, or an incomplete form of it."""
        if not self.has_login:
            return True
        files = [str(self.own[key]) for key in ("password_file", "password_env") if key in self.own]
        is_same_user = self.own.get("user", DEFAULT_USER) == login.user
        return is_same_user and "host" not in self.own and files in ([], [login.password_file])

    def created(self, instance: str) -> tuple[TablePath, ...]:
        """Return the tables that setup creates, and that a removal of the instance removes again."""
        repository = () if self.is_shared else (("repository", self.repository),)
        target = (("notifications", "to", self.target),) if self.target else ()
        return (("instance", instance), *repository, *target)


ALONE = SetupSurroundings()
"""The surroundings if there is no configuration yet."""


def surroundings(
    configured: str | None, answers: SetupAnswers, written: WrittenTables | None = None
) -> SetupSurroundings | None:
    """Return the facts about the existing configuration; None if it is not valid TOML.

    The argument `written` contains the keys and tables that earlier setups wrote for this instance.
    """
    document = document_of(configured or "")
    if document is None:
        return None
    own, repositories = subtables(document, "instance", answers.instance), subtables(document, "repository")
    targets = subtables(document, "notifications", "to")
    name, place = own.get("repository"), (answers.repository, answers.endpoint)
    if not isinstance(name, str):
        unused = REPOSITORY if REPOSITORY not in repositories else f"{REPOSITORY}-{answers.instance}"
        name = next((known for known, table in repositories.items() if place_of(table) == place), unused)
    return SetupSurroundings(
        configured or "",
        own,
        subtables(repositories, name),
        name,
        name in repositories,
        "agent" in document,
        _target(answers, targets),
        not targets and answers.notify is None,
        written if written is not None and own else NOTHING_WRITTEN,
    )


def _target(answers: SetupAnswers, targets: Mapping[str, Any]) -> str:
    """Return the name of the notification target to add; "" if none is to be added."""
    if answers.notify is None or answers.notify in set(strings(targets)):
        return ""
    own = answers.instance if re.match(TARGET_NAME, answers.instance) else f"{TARGET}-2"
    return next(name for name in (TARGET, own, f"{TARGET}-3") if name not in targets or name == f"{TARGET}-3")


def provider_of(url: str) -> str:
    """Return the name of the repository's subtable that configures access to the store with this URL."""
    scheme = url.partition("://")[0]
    return scheme if scheme in ("azure", "gs") else "s3"


def place_of(table: Any) -> tuple[Any, Any]:
    """Return the address and the endpoint of a repository's table."""
    if not isinstance(table, dict):
        return None, None
    own = table.get(provider_of(str(table.get("url"))), table)
    return table.get("url"), own.get("endpoint") if isinstance(own, dict) else None


_HEAD = (
    "# Written by `zsnapdb setup`. `zsnapdb example zsnapdb.toml` explains every key.",
    "# What is left out has its default.",
    "",
)
RECIPIENT = "AGE-RECIPIENT"
"""The placeholder for the recipient in the plan if the identity does not exist yet."""
NO_SIGNING = "none"
"""The value of `signing` if the user decided that this host does not sign its documents."""


@dataclass(frozen=True)
class ServerLogin:
    """The login with which zsnapdb connects to the server."""

    socket: str
    user: str
    password_file: str | None = None


@dataclass(frozen=True)
class ServerPlaces:
    """The server program (if it is not in a usual folder), the systemd unit, and the file for a new server_id."""

    binary: str = ""
    server_id_file: str = ""
    service: str = ""


NO_PLACES = ServerPlaces()


def merged_configuration(
    answers: SetupAnswers,
    login: ServerLogin,
    recipient: str | None,
    identity: str | None = None,
    server: ServerPlaces = NO_PLACES,
    around: SetupSurroundings = ALONE,
    *,
    signing: str | None = None,
    archives: bool = True,
    prunes: bool = True,
) -> Merge:
    """Return the configuration with all tables of setup. Existing values stay.

    If `recipient` is None, backups are not encrypted. The argument `identity` is the file with the key that drills use
    to decrypt backups. The argument `signing` is the file of the signing key, NO_SIGNING, or None if nothing about
    signing is configured. The argument `server` contains the server's places that must be configured, and `around` is
    the existing configuration. If `archives` is set, the server has binlogs. If `prunes` is set, setup schedules
    `prune`, and chooses its rules if the configuration has none.
    """
    tables = [
        *_instance(answers, login, server, around, archives=archives, prunes=prunes),
        *_repository(answers, around, recipient, identity, signing),
    ]
    if not around.has_agent:
        tables.append(ConfigTable(("agent",), ('reap = { every = "15m" }', 'status = { every = "5m" }')))
    if around.target and answers.notify is not None:
        tables.append(ConfigTable(("notifications", "to", around.target), (_way(answers.notify),)))
    if around.configured:
        return merge(around.configured, tables, around.written.keys)
    text = "\n\n".join(table.text for table in tables if table.lines)
    return Merge("\n".join((*_HEAD, text)) + "\n", tuple(tables), keys=all_keys(tables))


PRUNE = 'prune = { cron = "45 3 * * *" }'


def retention_table(instance: str) -> ConfigTable:
    """Return the retention rules that setup chooses for an instance without backups."""
    rules = tuple(f"{name} = {value}" for name, value in DEFAULT_KEEP if name in DEFAULT_KEEP.model_fields_set)
    return ConfigTable(("instance", instance, "keep"), rules)


def retention_rules(instance: str) -> Mapping[str, Any]:
    """Return the rules of `retention_table` as a document."""
    table = retention_table(instance)
    return subtables(document_of(table.text), *table.path)


def _instance(
    answers: SetupAnswers,
    login: ServerLogin,
    server: ServerPlaces,
    around: SetupSurroundings,
    *,
    archives: bool,
    prunes: bool,
) -> Iterator[ConfigTable]:
    path = ("instance", answers.instance)
    lines = []
    if around.knows_login(login):
        lines.append(_line("socket", login.socket))
        if login.user != DEFAULT_USER:
            lines.append(_line("user", login.user))
        if login.password_file is not None:
            lines.append(_line("password_file", login.password_file))
    yield ConfigTable(path, (*lines, _line("repository", around.repository)))
    if server.binary and "binaries" not in subtables(around.own, "server"):
        yield ConfigTable((*path, "server"), (_line("binary", server.binary),))
    unit = "" if "stop" in subtables(around.own, "control") else server.service
    control = {"unit": unit, "server_id_file": server.server_id_file}
    if any(control.values()):
        yield ConfigTable((*path, "control"), tuple(_line(key, value) for key, value in control.items() if value))
    if prunes and not around.has_rules:
        yield retention_table(answers.instance)
    # With these limits and the default `warn_at` of 0.8, the ages that the schedule itself causes lead to no warning.
    points = ('rpo = "15m"', 'archive_lag = "15m"') if archives else ()
    yield ConfigTable((*path, "objectives"), ('backup_age = "31h"', *points, 'drill_age = "9d"', 'verify_age = "9d"'))
    yield ConfigTable(
        (*path, "agent"),
        (
            *(("archive = true",) if archives else ()),
            'snapshot = { every = "1m" }',
            'backup = { cron = "15 1 * * *", jitter = "10m" }',
            *((PRUNE,) if prunes else ()),
            'verify = { cron = "30 4 * * 6" }',
            'drill = { cron = "30 5 * * 0" }',
            'doctor = { cron = "50 5 * * *" }',
        ),
    )


def _repository(
    answers: SetupAnswers, around: SetupSurroundings, recipient: str | None, identity: str | None, signing: str | None
) -> Iterator[ConfigTable]:
    """Yield the tables of a new repository. A configured repository only gets a decision against signing."""
    path = ("repository", around.repository)
    if around.is_shared:
        if signing == NO_SIGNING:
            yield ConfigTable((*path, "encryption"), (_line("signing", signing),))
        return
    provider = provider_of(answers.repository)
    access = {"endpoint": answers.endpoint, "credentials_file": answers.credentials_file}
    lines = [_line(f"{provider}.{key}", value) for key, value in access.items() if value]
    yield ConfigTable(path, (_line("url", answers.repository), *lines))
    keys = []
    if recipient is not None:
        keys.append(f"recipients = [{json.dumps(recipient)}]")
        if identity is not None:
            keys.append(_line("identity_file", identity))
    if signing is not None:
        keys.append(_line("signing" if signing == NO_SIGNING else "signing_key_file", signing))
    if keys:
        yield ConfigTable((*path, "encryption"), tuple(keys))


def _way(notify: str) -> str:
    """Return the configuration line for a notification target, which is a program, a URL or an e-mail address."""
    if notify.startswith("/"):
        return f"script = [{json.dumps(notify)}]"
    return _line("webhook", notify) if "://" in notify else f"email = [{json.dumps(notify)}]"


def _line(key: str, value: str) -> str:
    """Return a line of TOML. A JSON string is a valid basic string of TOML (TOML 1.0, "String")."""
    return f"{key} = {json.dumps(value)}"
