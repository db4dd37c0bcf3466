"""What the tools do, without the protocol: clones of one token, their logins while this process runs, and queries."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, IPvAnyAddress, SecretStr, ValidationError

from zsnapdb.base.errors import UsageError
from zsnapdb.mcp.clone_api import ApiFailure, CloneService, is_here
from zsnapdb.mysql.limited_query import LimitedRows, QueryLimits, limited_rows
from zsnapdb.mysql.session import Address
from zsnapdb.mysql.tls import NO_SETTINGS, Tls, TlsMode
from zsnapdb.planning.reader_statement import refusal_of

_SHOWN = ("name", "id", "instance", "backup_id", "phase", "masked", "created", "expires", "port", "bind_address")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_NOT_THERE = 404


class _ReachedClone(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    port: int
    bind_address: IPvAnyAddress


class _CreatedClone(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    clone: _ReachedClone
    user: str
    password: SecretStr


@dataclass(frozen=True)
class CloneLogin:
    """How the server of a clone is reached."""

    address: Address
    password: SecretStr


@dataclass(frozen=True)
class ToolRights:
    """What the person has allowed the agent: to change data, and to see logins. `ttl` is the lease of its clones.

    `host` is where the servers of clones are reached (None: as the service says), `tls` how.
    """

    writes: bool = False
    shows_logins: bool = False
    ttl: str | None = None
    host: str | None = None
    tls: Tls = NO_SETTINGS


@dataclass
class Toolbox:
    """The tools. Each method is a tool; they run in threads. Errors are ZsnapdbError."""

    api: CloneService
    rights: ToolRights = field(default_factory=ToolRights)
    limits: QueryLimits = field(default_factory=QueryLimits)
    ask: Callable[..., LimitedRows] = limited_rows
    _logins: dict[str, CloneLogin] = field(init=False, default_factory=dict)
    _made: list[str] = field(init=False, default_factory=list)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def instances(self) -> Mapping[str, Any]:
        """Return the instances that clones can be made of."""
        return {"instances": self.api.get("/instances").get("instances", [])}

    def clones(self) -> Mapping[str, Any]:
        """Return the clones that the token sees, and whether this session can query them."""
        rows = self.api.get("/clones").get("clones", [])
        return {"clones": [self._shown(row) for row in rows if isinstance(row, dict)]}

    def create(self, wanted: Mapping[str, object]) -> Mapping[str, Any]:
        """Make a clone and keep its login. A name that is made here is remembered before the clone is asked for."""
        is_ours = wanted.get("name") is None
        name = f"mcp-{secrets.token_hex(4)}" if is_ours else _name(str(wanted["name"]))
        ttl = wanted.get("ttl") or self.rights.ttl
        asked = {**wanted, "name": name, "ttl": ttl}
        if is_ours:
            self._remember(name)
        document = self.api.change("POST", "/clones", {key: value for key, value in asked.items() if value is not None})
        self._remember(name)
        login = self._keep_login(document)
        row = document.get("clone")
        shown = self._shown(row if isinstance(row, dict) else {"name": name})
        if login is not None and self.rights.shows_logins:
            shown |= {"user": login.address.user, "password": login.password.get_secret_value()}
        return {"clone": shown}

    def reset(self, name: str) -> Mapping[str, Any]:
        """Give a clone its first data again."""
        document = self.api.change("POST", f"{_path(name)}/reset")
        row = document.get("clone")
        return {"done": "reset", "clone": self._shown(row if isinstance(row, dict) else {"name": name})}

    def destroy(self, name: str) -> Mapping[str, Any]:
        """Destroy a clone."""
        self.api.change("DELETE", _path(name))
        self._forget(name)
        return {"done": "destroyed", "name": name}

    def query(self, name: str, statement: str, database: str | None) -> Mapping[str, Any]:
        """Run one statement on a clone that this session has made, over the clone's own login."""
        refusal = refusal_of(statement) if not self.rights.writes else ""
        if refusal:
            raise UsageError(refusal, hint="data is changed only if the person starts `zsnapdb mcp --writes`")
        with self._lock:
            login = self._logins.get(name)
        if login is None:
            raise UsageError(
                f"this session has no login of a clone {_name(name)}",
                hint="make a clone with create_clone; a login is told once, to who makes the clone",
            )
        found = self.ask(
            login.address, login.password, statement, self.limits, database=database, writes=self.rights.writes
        )
        return {"columns": list(found.columns), "rows": [list(row) for row in found.rows], "left_out": found.left_out}

    def end(self) -> Sequence[str]:
        """Destroy what this session has made. Return what could not be destroyed, and why."""
        with self._lock:
            made = list(reversed(self._made))
        left = []
        for name in made:
            try:
                self.destroy(name)
            except ApiFailure as failure:
                if failure.status != _NOT_THERE:
                    left.append(f"clone {name}: {failure.message}")
        return left

    def _remember(self, name: str) -> None:
        with self._lock:
            if name not in self._made:
                self._made.append(name)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._logins.pop(name, None)
            with contextlib.suppress(ValueError):
                self._made.remove(name)

    def _keep_login(self, document: Mapping[str, Any]) -> CloneLogin | None:
        try:
            made = _CreatedClone.model_validate(document)
        except ValidationError:
            # Its server was not started, or the service is of another release: it is a clone without queries.
            return None
        login = CloneLogin(
            Address(
                made.user, host=self._host(str(made.clone.bind_address)), port=made.clone.port, tls=self.rights.tls
            ),
            made.password,
        )
        with self._lock:
            self._logins[made.clone.name] = login
        return login

    def _host(self, bind_address: str) -> str:
        """Return where the server of a clone is reached that listens on an address of the service's host."""
        if self.rights.host is not None:
            return self.rights.host
        return (
            self.api.host
            if ipaddress.ip_address(bind_address).is_unspecified or is_here(self.api.host)
            else bind_address
        )

    def _shown(self, row: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            can_query = row.get("name") in self._logins
        return {key: row[key] for key in _SHOWN if key in row} | {"can_query": can_query}


def tls_of(mode: str | None, authority: Any) -> Tls:
    """Return how servers of clones are reached. None: by TLS with a certificate that is verified, but on this host."""
    return Tls(mode=TlsMode(mode) if mode is not None else None, ca=authority)


def _name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise UsageError("the name of a clone has small letters, digits, - and _", hint="at most 32 of them")
    return name


def _path(name: str) -> str:
    return f"/clones/{quote(_name(name), safe='')}"
