"""The tools, independent of the protocol.

They create, query and destroy the clones of one token, and keep the clones' logins while this process runs.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from pydantic import SecretStr

from zsnapdb.base.errors import ConfigError, UsageError
from zsnapdb.base.untrusted_text import printed
from zsnapdb.client.api_protocol import CloneOptions
from zsnapdb.client.errors import CloneCommandError
from zsnapdb.client.http import Client
from zsnapdb.client.models import KnownClone, ReachableClone
from zsnapdb.mysql.limited_query import LimitedRows, QueryLimits, limited_rows
from zsnapdb.mysql.session import Address
from zsnapdb.mysql.tls import NO_SETTINGS, Tls, TlsMode
from zsnapdb.planning.sql_quoting import refusal_of

_SHOWN = {"name", "id", "instance", "backup_id", "phase", "masked", "created", "expires", "port", "bind_address"}
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


@dataclass(frozen=True)
class CloneLogin:
    """The address and the login of a clone's server."""

    address: Address
    password: SecretStr


@dataclass(frozen=True)
class ToolRights:
    """The rights that a person gave the AI agent, such as changing data and seeing logins.

    `ttl` is the lease of the agent's clones. The servers of the clones are on `host`, or on the host that the service
    reports if `host` is None. `tls` contains the TLS settings of connections to these servers.
    """

    writes: bool = False
    shows_logins: bool = False
    ttl: str | None = None
    host: str | None = None
    tls: Tls = NO_SETTINGS


@dataclass
class Toolbox:
    """The tools. Each method is a tool and runs in a thread. Methods raise ZsnapdbError and CloneCommandError."""

    api: Client
    rights: ToolRights = field(default_factory=ToolRights)
    limits: QueryLimits = field(default_factory=QueryLimits)
    ask: Callable[..., LimitedRows] = limited_rows
    _logins: dict[str, CloneLogin] = field(init=False, default_factory=dict)
    _made: dict[str, ReachableClone | None] = field(init=False, default_factory=dict)
    """The clones of this session by name, in the order of the requests (None if there is no answer yet)."""
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def instances(self) -> Mapping[str, Any]:
        """Return the instances that can have clones."""
        return {"instances": [one.model_dump() for one in self.api.instances()]}

    def clones(self) -> Mapping[str, Any]:
        """Return the clones that the token can see, and whether this session can query each of them."""
        return {"clones": [self._listed(one) for one in self.api.clones()]}

    def create(self, instance: str, name: str | None = None, **options: Unpack[CloneOptions]) -> Mapping[str, Any]:
        """Create a clone and keep its login.

        A generated name is stored before the request is sent, so that `end` destroys the clone even if the answer is
        lost.
        """
        chosen = f"mcp-{secrets.token_hex(4)}" if name is None else _name(name)
        if name is None:
            self._remember(chosen)
        lease: CloneOptions = {"ttl": options.get("ttl") or self.rights.ttl}
        made = self.api.create(instance, chosen, **(options | lease))
        self._remember(chosen, made)
        return {"clone": self._made_clone(made, self._keep_login(chosen, made))}

    def reset(self, name: str) -> Mapping[str, Any]:
        """Reset a clone to its original data. Return how it was reset, and why not in a faster way."""
        done = self.api.reset(self._meant(name))
        return {"done": "reset", "name": name, **done.model_dump(include={"way", "undone", "reason"})}

    def destroy(self, name: str) -> Mapping[str, Any]:
        """Destroy a clone.

        Raises an error if the clone is unknown, because the AI agent may have chosen the wrong name.
        """
        self.api.destroy(self.api.get(self._meant(name)))
        self._forget(name)
        return {"done": "destroyed", "name": name}

    def query(self, name: str, statement: str, database: str | None) -> Mapping[str, Any]:
        """Run one statement on a clone of this session, with the clone's own login."""
        refusal = refusal_of(statement) if not self.rights.writes else ""
        if refusal:
            raise UsageError(refusal, hint="data is changed only if the person starts `zsnapdb mcp --writes`")
        with self._lock:
            login = self._logins.get(name)
        if login is None:
            raise UsageError(
                f"this session has no credentials for a clone {_name(name)}",
                hint="create a clone with create_clone; a session queries only the clones that it created",
            )
        found = self.ask(
            login.address, login.password, statement, self.limits, database=database, writes=self.rights.writes
        )
        return {"columns": list(found.columns), "rows": [list(row) for row in found.rows], "left_out": found.left_out}

    def end(self) -> Sequence[str]:
        """Destroy the clones of this session. Return the clones that could not be destroyed, with the reasons."""
        with self._lock:
            made = list(reversed(self._made.items()))
        left = []
        for name, clone in made:
            try:
                # Another session may have destroyed the clone, and another clone may have its name now.
                self.api.destroy(clone or name)
            except CloneCommandError as error:
                left.append(f"clone {name}: {printed(error.message)}")
            else:
                self._forget(name)
        return left

    def _meant(self, name: str) -> ReachableClone | str:
        """Return the id of the clone that this session created under the name; the name if there is no such clone.

        The id is used because another session may have destroyed that clone, and a later clone may have its name.
        """
        with self._lock:
            return self._made.get(_name(name)) or name

    def _remember(self, name: str, made: ReachableClone | None = None) -> None:
        with self._lock:
            self._made[name] = made

    def _forget(self, name: str) -> None:
        with self._lock:
            self._logins.pop(name, None)
            self._made.pop(name, None)

    def _keep_login(self, name: str, made: ReachableClone) -> CloneLogin:
        host = self.rights.host if self.rights.host is not None else made.host
        address = Address(made.user, host=host, port=made.port, tls=self.rights.tls)
        login = CloneLogin(address, SecretStr(made.password))
        with self._lock:
            self._logins[name] = login
        return login

    def _made_clone(self, made: ReachableClone, login: CloneLogin) -> Mapping[str, Any]:
        facts = {"name": made.name, "id": made.id, "instance": made.instance, "backup_id": made.backup_id}
        facts |= {"expires": made.expires, "host": login.address.host}
        secret = {"user": made.user, "password": made.password} if self.rights.shows_logins else {}
        return {**facts, "port": made.port, "masked": made.is_masked, "can_query": True, **secret}

    def _listed(self, clone: KnownClone) -> Mapping[str, Any]:
        with self._lock:
            can_query = clone.name in self._logins
        return {**clone.model_dump(include=_SHOWN), "can_query": can_query}


def client_of(authority: Path | None) -> Client:
    """Return a client of the service, with the values of ZSNAPDB_URL and ZSNAPDB_TOKEN.

    Raises ConfigError if a value is missing or invalid. The error's text does not contain the token.
    """
    try:
        return Client(ca_file=authority)
    except CloneCommandError as error:
        raise ConfigError(error.message, hint=error.hint) from error


def tls_of(mode: str | None, authority: Any) -> Tls:
    """Return the TLS settings of connections to the servers of clones.

    If `mode` is None, TLS with a verified certificate is used, except on this host.
    """
    return Tls(mode=TlsMode(mode) if mode is not None else None, ca=authority)


def _name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            "the name of a clone may contain only lowercase letters, digits, - and _", hint="at most 32 of them"
        )
    return name
