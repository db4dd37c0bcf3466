"""Views of clones: the list, one clone, its login, its log, and the ports reserved for clones."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING

from zsnapdb.base.quantities import is_full, size
from zsnapdb.documents import clone as documents
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.planning.clone.branches import current_of
from zsnapdb.planning.clone.lease import remaining, stamp
from zsnapdb.planning.clone.pool import PoolMark
from zsnapdb.report.view import Part, Table, TabularView, View, columns, unreadable_lines

if TYPE_CHECKING:
    from zsnapdb.jobs.clone.clone_info import CloneInfo
    from zsnapdb.jobs.clone.credentials import Login
    from zsnapdb.jobs.clone.kept_ports import KeptPorts
    from zsnapdb.jobs.clone.lifecycle import ServerLog
    from zsnapdb.jobs.clone.sources import Commit
    from zsnapdb.jobs.dataset_copies.catalogue import UnreadableCopy


_REQUEST_WIDTH = 40


def _shortened(request: str) -> str:
    return request if len(request) <= _REQUEST_WIDTH else f"{request[: _REQUEST_WIDTH - 1]}…"


class ClonesView(TabularView, kind="clones", document=documents.ClonesDocument):
    """All clones."""

    clones: Sequence[CloneInfo]
    now: datetime
    unreadable: Sequence[UnreadableCopy] = ()

    def parts(self) -> Sequence[Part]:
        cells: Mapping[str, Callable[[CloneInfo], str]] = {
            "CLONE": lambda c: c.label,
            "INSTANCE": lambda c: c.instance,
            "DATA OF": lambda c: c.backup_id,
            "REQUESTED": lambda c: _shortened(c.requested),
            "MASKED": lambda c: "yes" if c.masked is not None else "no",
            "OWNER": lambda c: c.owner,
            "CREATED": lambda c: c.created,
            "EXPIRES": lambda c: remaining(c.lease, self.now),
            "PROTECTED": lambda c: "yes" if c.lease.protected_until else "no",
            "ADDRESS": lambda c: c.address,
            "SERVER": state,
            "OWN BYTES": lambda c: f"{size(c.own_bytes)} of {size(c.quota)}" if c.quota else size(c.own_bytes),
        }
        table = columns(self.clones, cells, "no clones: `zsnapdb clone create` makes one")
        return [table, *unreadable_lines(self.unreadable)]


class CloneDetailView(View, kind="clone-detail", document=documents.CloneDetailDocument):
    """One clone and its commits."""

    info: CloneInfo
    commits: Sequence[Commit]
    now: datetime

    @property
    def branch(self) -> str | None:
        """The current branch of the clone (None if unknown)."""
        return current_of(self.info.branches)

    def text(self) -> str:
        info, beats = self.info, self.info.lease.heartbeat
        protected = f", protected until {stamp(info.lease.protected_until)}" if info.lease.protected_until else ""
        lines = [
            f"clone     {info.label} of {info.instance}, made {info.created} by {info.owner}, profile {info.profile}",
            (
                f"server    {info.origin.flavour} {info.origin.version}, {state(info)}, {info.bind_address}:"
                f"{info.port}, server_id {info.server_id}"
            ),
            *([f"address   {port(info)}"] if info.kept_port is not None else []),
            f"reach     {reach(info.label, info)}",
            f"data      as of {info.backup_id} ({info.source}), requested as {info.requested}: {info.position}",
            f"original  {info.original}, requested as {info.original_request}",
            f"masking   {masking(info)}",
            f"lease     until {stamp(info.lease.expires)}, {remaining(info.lease, self.now)}{protected}"
            + (f"; a heartbeat is due each {beats.every} s, the last was at {stamp(beats.last)}" if beats else ""),
            f"dataset   {info.top}, mounted at {info.mount}, {size(info.own_bytes)} of its own"
            + (f", at most {size(info.quota)}" if info.quota else "")
            + (", independent" if info.is_independent else ""),
        ]
        if state(info) == _FULL:
            lines.append(
                f"quota     full: run `zsnapdb clone reset {info.label}`, or `zsnapdb clone extend {info.label} --quota"
                f" SIZE` and `zsnapdb clone start {info.label}`"
            )
        if info.branches:
            lines.append(f"branch    {self.branch or 'cannot be read'}")
        if info.set_name:
            lines.append(f"set       {info.part} of {info.set_name}")
        for made in self.commits:
            cloned = f", cloned as {', '.join(made.clones)}" if made.clones else ""
            lines.append(f"commit    {made.set.backup_id} {made.created} {made.message}{cloned}")
        return "\n".join(lines)


_FULL = "stopped, quota full"
_POOL_STATES = {
    PoolMark.WAITS: "waiting",
    PoolMark.HANDED_OUT: "running",
    PoolMark.NOT_GOOD: "refused",
    PoolMark.REPLACED: "replaced",
}


def state(info: CloneInfo) -> str:
    """Return the state of the clone's server, or the phase of a clone that is not complete."""
    if info.phase in (CopyPhase.MAKING, CopyPhase.DESTROYING, CopyPhase.CHANGING):
        return info.phase
    if info.pid is not None:
        return f"{'running' if info.pool is None else _POOL_STATES[info.pool]} ({info.pid})"
    if info.elsewhere:
        return f"running {info.elsewhere}"
    if info.phase is CopyPhase.NEW:
        return "never started"
    return _FULL if is_full(info.own_bytes, info.quota) else "stopped"


def masking(c: CloneInfo) -> str:
    """Return a text about whether the clone is masked."""
    return f"masked at {c.masked}" if c.masked is not None else "not masked"


def port(c: CloneInfo) -> str:
    """Return, as text, the address at which clients reach the clone."""
    if c.kept_port is None:
        return f"port {c.port}"
    if c.is_led_to:
        return f"port {c.kept_port}, which it keeps"
    return f"port {c.port} of its server; HAProxy does not lead port {c.kept_port}, which it keeps, there"


def reach(name: str, of: CloneInfo | Login) -> str:
    """Return the address of the clone as text, with a warning if only clients on its host can reach it."""
    if not of.local_only:
        return of.address
    return f"{of.address}, only from this host; elsewhere run `zsnapdb clone tunnel {name}`"


class AddressesView(TabularView, kind="clone-addresses", document=documents.AddressesDocument, read_from="known"):
    """The ports reserved for clones."""

    known: KeptPorts

    def parts(self) -> Sequence[Part]:
        known = self.known
        rows = []
        for one in known.ports:
            state = "right" if one.is_right else "unknown" if known.error is not None else "wrong"
            clone = one.clone.label if one.clone is not None else "-"
            rows.append((str(one.port), clone, str(one.wanted or "-"), str(one.seen or "-"), state))
        table = Table(("PORT", "CLONE", "MUST LEAD TO", "LEADS TO", "STATE"), rows, "no clone keeps a port")
        return [table, *([known.error.message] if known.error is not None else [])]


class LoginForm(Enum):
    """The format in which a login is printed: lines for a person, a URL, or shell commands."""

    LINES = "lines"
    URL = "url"
    ENVIRONMENT = "environment"


class LoginView(View, kind="clone-login", document=documents.LoginDocument, read_from="login"):
    """The login of a clone: lines, a URL, or shell commands that set the environment of clients on this host."""

    name: str
    login: Login
    form: LoginForm = LoginForm.LINES

    def text(self) -> str:
        login = self.login
        match self.form:
            case LoginForm.URL:
                return login.dsn
            case LoginForm.ENVIRONMENT:
                exports = (f"export {name}={shlex.quote(value)}" for name, value in login.environment().items())
                return "\n".join((f"# {reach(self.name, login)}", *exports))
            case LoginForm.LINES:
                lines = (
                    f"clone     {self.name}",
                    f"reach     {reach(self.name, login)}",
                    f"user      {login.user}",
                    f"password  {login.password.get_secret_value()}",
                    f"dsn       {login.dsn}",
                )
                return "\n".join(lines)


class ServerLogView(View, kind="clone-logs", document=documents.ServerLogDocument, read_from="log"):
    """The last lines of a log."""

    log: ServerLog

    def text(self) -> str:
        return "\n".join(self.log.lines) or "the log is empty"
