"""Writes the text of the configuration for setup, and removes an instance from this text. Pure."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from zsnapdb.config.notifications import TARGET_NAME
from zsnapdb.planning.setup.facts import SetupAnswers, WrittenTables
from zsnapdb.planning.setup.layout import DEFAULT_USER, UNIT

REPOSITORY = "backups"
TARGET = "admin"
_HEADER = re.compile(r"\[([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\]\s*")

TablePath = tuple[str, ...]


@dataclass(frozen=True)
class SetupSurroundings:
    """The configuration without the tables that setup writes, and the facts on which these tables depend.

    - `before`, `after`: the text around the tables
    - `repository`: the name of the instance's repository
    - `is_shared`, `has_agent`: whether the repository and the agent are already configured, so that setup keeps them
    - `target`: the name of the notification target that setup adds, or "" if it adds none
    - `is_silent`: whether no notification target is configured
    """

    before: str = ""
    after: str = ""
    repository: str = REPOSITORY
    is_shared: bool = False
    has_agent: bool = False
    target: str = ""
    is_silent: bool = True

    def tables(self, instance: str) -> tuple[TablePath, ...]:
        """Return the tables that setup writes for the instance and may replace later."""
        repository = () if self.is_shared else (("repository", self.repository),)
        target = (("notifications", "to", self.target),) if self.target else ()
        return (("instance", instance), *repository, *target)

    def around(self, tables: str) -> str:
        parts = (self.before.rstrip("\n"), tables, self.after.strip("\n"))
        return "\n\n".join(part for part in parts if part) + "\n"


ALONE = SetupSurroundings()
"""The surroundings if there is no configuration yet."""


def surroundings(
    configured: str | None, answers: SetupAnswers, written: WrittenTables | None = None
) -> SetupSurroundings | None:
    """Return the part of the configuration that setup keeps; None if the part cannot be separated.

    The argument `written` contains the tables that an earlier setup wrote for this instance, if they are unchanged. If
    it is None, setup keeps everything except the tables of the instance.
    """
    if configured is None:
        return replace(ALONE, target=_target(answers, {}), is_silent=answers.notify is None)
    document = document_of(configured)
    if document is None:
        return None
    own = [("instance", answers.instance)] if written is None else list(written.tables)
    used = _used_by_others(document, answers.instance)
    own = [one for one in own if _at(document, one) is not None and not (one[0] == "repository" and one[-1] in used)]
    before, after = _cut(configured, own) if own else (configured, "")
    rest = document_of(before + after)
    if rest is None or rest != _less(document, own):
        return None
    repositories, targets = _tables(rest, "repository"), _tables(_tables(rest, "notifications"), "to")
    shared = [name for name, table in repositories.items() if _place(table) == (answers.repository, answers.endpoint)]
    name = REPOSITORY if REPOSITORY not in repositories else f"{REPOSITORY}-{answers.instance}"
    return SetupSurroundings(
        before,
        after,
        shared[0] if shared else name,
        bool(shared),
        "agent" in rest,
        _target(answers, targets),
        not targets and answers.notify is None,
    )


def without(configured: str, instance: str, written: WrittenTables | None) -> str | None:
    """Return the configuration without the tables of an instance; None if these cannot be separated.

    The repository of this instance stays if another instance also uses it.
    """
    document = document_of(configured) or {}
    own = [("instance", instance), *(path for path in (written.tables if written else ()) if path[0] == "repository")]
    own = [path for path in own if path[0] == "instance" or path[-1] not in _used_by_others(document, instance)]
    parts = _cut(configured, own)
    rest = document_of("".join(parts))
    if rest is None or rest != _less(document, own):
        return None
    return "\n\n".join(part.strip("\n") for part in parts if part.strip("\n")) + "\n"


def _used_by_others(document: Mapping[str, Any], instance: str) -> set[str]:
    return set(_strings({name: table for name, table in _tables(document, "instance").items() if name != instance}))


def digest(document: Mapping[str, Any], tables: Sequence[TablePath]) -> str:
    """Return a hash of the given tables of a configuration. The hash does not depend on comments or order."""
    contents = [_at(document, path) for path in tables]
    return hashlib.sha256(json.dumps(contents, sort_keys=True, default=str).encode()).hexdigest()


def document_of(text: str) -> Mapping[str, Any] | None:
    """Return the TOML document in a text; None if it is invalid."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _target(answers: SetupAnswers, targets: Mapping[str, Any]) -> str:
    """Return the name of the notification target to add; "" if none is to be added."""
    if answers.notify is None or answers.notify in set(_strings(targets)):
        return ""
    own = answers.instance if re.match(TARGET_NAME, answers.instance) else f"{TARGET}-2"
    return next(name for name in (TARGET, own, f"{TARGET}-3") if name not in targets or name == f"{TARGET}-3")


def _cut(text: str, own: Sequence[TablePath]) -> tuple[str, str]:
    """Split the text at the first of the given tables.

    Return the text before and after the split, both without the given tables.
    """
    parts: tuple[list[str], list[str]] = ([], [])
    has_begun, is_own = False, False
    for line in text.splitlines(keepends=True):
        header = _HEADER.fullmatch(line)
        if header is not None:
            path = tuple(header[1].split("."))
            is_own = any(path[: len(one)] == one for one in own)
            has_begun = has_begun or is_own
        elif is_own and line.lstrip().startswith("#"):
            is_own = False
        if not is_own:
            parts[has_begun].append(line)
    return "".join(parts[0]), "".join(parts[1])


def _less(document: Mapping[str, Any], own: Sequence[TablePath]) -> dict[str, Any]:
    """Return the document without the given tables, and without tables that are empty afterwards."""
    kept: dict[str, Any] = {}
    for key, value in document.items():
        inner = [path[1:] for path in own if path[0] == key]
        if () in inner:
            continue
        less = _less(value, inner) if inner and isinstance(value, dict) else value
        if less or not inner:
            kept[key] = less
    return kept


def _tables(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name)
    return table if isinstance(table, dict) else {}


def _at(document: Mapping[str, Any], path: TablePath) -> Any:
    table: Any = document
    for key in path:
        table = table.get(key) if isinstance(table, dict) else None
    return table


def _provider(url: str) -> str:
    """Return the name of the repository's subtable that configures access to the store with this URL."""
    scheme = url.partition("://")[0]
    return scheme if scheme in ("azure", "gs") else "s3"


def _place(table: Any) -> tuple[Any, Any]:
    if not isinstance(table, dict):
        return None, None
    own = table.get(_provider(str(table.get("url"))), table)
    return table.get("url"), own.get("endpoint") if isinstance(own, dict) else None


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


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

    If `recipient` is None, backups are not encrypted. The argument `identity` is the file with the key that drills use
    to decrypt backups. The argument `signing` is the file of the signing key, NO_SIGNING, or None if nothing about
    signing is configured. The argument `server` contains the server's places that must be configured, and `around` is
    the existing configuration. If `archives` is set, the server has binlogs.
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
    control = {"unit": server.service, "server_id_file": server.server_id_file}
    if any(control.values()):
        yield f"[instance.{name}.control]"
        yield from (_line(key, value) for key, value in control.items() if value)
        yield ""
    yield from (f"[instance.{name}.keep]", "last = 7", "daily = 14", "weekly = 8", "monthly = 12", "")
    # With these limits and the default `warn_at` of 0.8, the ages that the schedule itself causes lead to no warning.
    yield from (f"[instance.{name}.objectives]", 'backup_age = "31h"')
    if archives:
        yield from ('rpo = "15m"', 'archive_lag = "15m"')
    yield from ('drill_age = "9d"', 'verify_age = "9d"', "", f"[instance.{name}.agent]")
    if archives:
        yield "archive = true"
    yield 'snapshot = { every = "1m" }'
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
        yield _line(f"{_provider(answers.repository)}.endpoint", answers.endpoint)
    if answers.credentials_file:
        yield _line(f"{_provider(answers.repository)}.credentials_file", answers.credentials_file)
    if recipient is not None or signing is not None:
        yield from ("", f"[repository.{name}.encryption]")
    if recipient is not None:
        yield f"recipients = [{json.dumps(recipient)}]"
        if identity is not None:
            yield _line("identity_file", identity)
    if signing is not None:
        yield _line("signing" if signing == NO_SIGNING else "signing_key_file", signing)


def _way(notify: str) -> str:
    """Return the configuration line for a notification target, which is a program, a URL or an e-mail address."""
    if notify.startswith("/"):
        return f"script = [{json.dumps(notify)}]"
    return _line("webhook", notify) if "://" in notify else f"email = [{json.dumps(notify)}]"


def _line(key: str, value: str) -> str:
    """Return a line of TOML. A JSON string is a valid basic string of TOML (TOML 1.0, "String")."""
    return f"{key} = {json.dumps(value)}"


class RemovalAction(StrEnum):
    """An action of a removal that zsnapdb itself performs. The user performs all other steps."""

    UNSCHEDULE = "unschedule"
    CONFIGURATION = "configuration"


@dataclass(frozen=True)
class RemovalFacts:
    """The existing parts of an instance that will be removed.

    - `rest`: the configuration without the instance; empty if no instance remains, and None if the instance cannot be
      separated
    - `has_agent`: whether systemd has a unit of the agent
    - `own_unit`, `cron`: the unit file and the cron file that a setup created, or ""
    - `account`: the account of zsnapdb on the server, or "" for root
    - `datasets`: the known datasets of the instance
    - `identity`: the file with the keys of backups, or "" if none is configured
    """

    instance: str
    configuration: str
    rest: str | None
    has_agent: bool
    own_unit: str
    cron: str
    account: str
    socket: str
    datasets: tuple[str, ...]
    repository: str
    identity: str
    clones: int = 0


@dataclass(frozen=True)
class RemovalStep:
    """A step of a removal: its title, its shell or SQL lines, and the files that it renames or changes."""

    title: str
    lines: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    action: RemovalAction | None = None


@dataclass(frozen=True)
class RemovalPlan:
    """The steps of a removal, with notes about the data that is kept."""

    facts: RemovalFacts
    steps: tuple[RemovalStep, ...]
    notes: tuple[str, ...]


def plan_removal(facts: RemovalFacts) -> RemovalPlan:
    """Return the plan of a removal. zsnapdb itself does not remove data or keys."""
    notes = ["the server, its datasets, snapshots and backups stay: what follows names them, and removes none"]
    listed = f"`zsnapdb doctor {facts.instance}` lists restored servers, `zsnapdb reap --plan` received sets of clones"
    notes.append(f"remove these before the configuration, if there are any: {listed}")
    if facts.clones:
        notes.append(f"clones of the instance exist ({facts.clones}): `zsnapdb clone list` names them")
    return RemovalPlan(facts, tuple(_steps(facts)), tuple(notes))


def _steps(facts: RemovalFacts) -> Iterator[RemovalStep]:
    act, path = RemovalAction, facts.configuration
    if facts.rest is None:
        title = f"Take the tables of instance {facts.instance} out of {path}, then reload the agent"
        yield RemovalStep(title, (f"systemctl reload {UNIT}",) if facts.has_agent else ())
    elif not facts.rest:
        stop = (f"systemctl disable --now {UNIT}",) if facts.has_agent else ()
        files = tuple(file for file in (facts.own_unit, facts.cron) if file)
        if stop or files:
            title = "Run no more jobs; the files of the schedule are kept next to them as ….before"
            yield RemovalStep(title, stop, files, act.UNSCHEDULE)
        yield RemovalStep(f"Remove the configuration; it is kept as {path}.before-…", (), (path,), act.CONFIGURATION)
    else:
        if facts.cron:
            title = f"Let cron run no job of the instance; the file is kept as {facts.cron}.before"
            yield RemovalStep(title, (), (facts.cron,), act.UNSCHEDULE)
        title = f"Take the instance {facts.instance} out of {path}; all else in it stays"
        yield RemovalStep(title, (), (path,), act.CONFIGURATION)
        reload = (f"systemctl reload-or-restart {UNIT}",) if facts.has_agent else ()
        if reload:
            yield RemovalStep("Run the jobs of the other instances alone", reload, (), act.UNSCHEDULE)
    if facts.account:
        client = shlex.join(["mysql", f"--socket={facts.socket}", "-e", f"DROP USER {facts.account}@localhost"])
        yield RemovalStep("Remove the account of zsnapdb from the server", (client,))
    for dataset in facts.datasets:
        marked = f"zfs list -H -o name -d 1 -t snapshot,bookmark {dataset} | grep '[@#]zsnapdb-'"
        yield RemovalStep(
            f"Destroy the snapshots and bookmarks of {dataset}", (marked, f"{marked} | xargs -n1 zfs destroy")
        )
    yield RemovalStep(f"Remove the repository when none of its backups is needed any more: {facts.repository}")
    if facts.identity:
        yield RemovalStep(f"Keep {facts.identity} as long as one backup is kept: no backup can be read without it")
