"""Rows, cards and sentences of pages, from the helper's documents. The functions are pure; `now` is an argument."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import urlencode

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, SecretStr, ValidationError

from zsnapdb.base.errors import ConsistencyError
from zsnapdb.base.quantities import format_duration, format_setting, is_full, quantity, size
from zsnapdb.documents.api import ListedClone, ShownLogin
from zsnapdb.jobs.clone.credentials import Login, client_host
from zsnapdb.jobs.dataset_copies.properties import CopyPhase, owner_text
from zsnapdb.serve.page_requests import RefusedPage
from zsnapdb.serve.roles import USERS, Role, VerbKind, may_change, may_see_unmasked, sees_all

_SOON_SECONDS = 3600.0
_TIME_OF_ID = 16
"""Length of the time, such as 20260102T000000Z, at the start of a snapshot set's id."""
_NEWEST = ("latest", "latest-backup")
_UNDER_WAY = (CopyPhase.MAKING, CopyPhase.CHANGING, CopyPhase.DESTROYING)
Document = Mapping[str, JsonValue]
Model = TypeVar("Model", bound=BaseModel)


class Facts(BaseModel):
    """Base class of models with the fields that are read from an answer. The answer may contain more fields."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class CloneLimits(Facts):
    """The maximum number of the subject's clones, and their usual and longest lease in seconds."""

    most: int
    ttl: float
    longest_lease: float


class Person(Facts):
    """The person who is logged in, and the expiry time of the token (None if it has not been read yet)."""

    subject: str
    role: Role
    expires: AwareDatetime | None = None
    clones: CloneLimits

    @property
    def may_change(self) -> bool:
        return may_change(self.role)

    @property
    def sees_all(self) -> bool:
        return sees_all(self.role)

    @property
    def chooses_masking(self) -> bool:
        """Whether the person may choose between a masked and an unmasked clone."""
        return may_see_unmasked(self.role)

    @property
    def reads_evidence(self) -> bool:
        return self.role in USERS[VerbKind.EVIDENCE_LIST]

    @property
    def sees_fleet(self) -> bool:
        return self.role in USERS[VerbKind.FLEET_LIST]

    @property
    def usual_lease(self) -> str:
        """The lease that a clone gets if the person requests none, in the format of a request."""
        return format_setting(self.clones.ttl)

    @property
    def longest_lease(self) -> str:
        """The longest permitted lease, in the format of a request."""
        return format_setting(self.clones.longest_lease)

    def owns(self, owner: str) -> bool:
        return owner == owner_text(self.subject)


class InstanceRow(Facts):
    """An instance that can have clones, and whether the person may create clones of it."""

    name: str
    masked: bool
    pool: bool = False
    clones_allowed: bool


@dataclass(frozen=True)
class CloneRow:
    """A clone at a given time, as a page shows it."""

    facts: ListedClone
    now: datetime
    is_mine: bool

    @property
    def state(self) -> str:
        if self.facts.phase in _UNDER_WAY:
            return self.facts.phase
        if self.facts.pid is not None or self.facts.elsewhere:
            return "running"
        return "never started" if self.facts.phase == CopyPhase.NEW else "stopped"

    @property
    def can_start(self) -> bool:
        """Whether the clone's server is stopped or was never started."""
        return self.state in _NOT_RUNNING

    @property
    def can_stop(self) -> bool:
        """Whether the clone's server runs and this host can stop it."""
        return self.state == "running" and not self.facts.elsewhere

    @property
    def stopped_because(self) -> str:
        """The reason why the server is stopped, and the remedy; "" if the reason is unknown or the server runs."""
        if self.state != "stopped" or not is_full(self.facts.own_bytes, self.facts.quota):
            return ""
        return (
            f"its quota is full ({self.own_bytes} of {self.most_bytes}); reset the clone, or ask an administrator for a"
            " larger quota"
        )

    @property
    def asked_for(self) -> str:
        """The requested point in time; "" if no point was requested."""
        return "" if self.facts.requested in (*_NEWEST, self.facts.backup_id) else self.facts.requested

    @property
    def data_time(self) -> str:
        """The time in the id of the snapshot set or commit; "" if the person requested a point in time."""
        created = time_of_set(self.facts.backup_id)
        return created.isoformat() if created is not None and not self.asked_for else ""

    @property
    def age(self) -> str:
        made = moment(self.facts.created)
        return format_duration(max(0.0, (self.now - made).total_seconds())) if made is not None else "unknown"

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the clone's lease ends (None if unknown)."""
        ends = moment(self.facts.expires)
        return (ends - self.now).total_seconds() if ends is not None else None

    @property
    def left(self) -> str:
        seconds = self.seconds_left
        if seconds is None:
            return "unknown"
        return f"in {format_duration(seconds)}" if seconds > 0 else "over"

    @property
    def is_expired(self) -> bool:
        """Whether `reap` will destroy the clone, because its lease has ended and nothing protects the clone."""
        protected = moment(self.facts.protected_until or "")
        is_protected = protected is not None and protected > self.now
        return self.seconds_left is not None and self.seconds_left <= 0 and not is_protected

    @property
    def own_bytes(self) -> str:
        return size(self.facts.own_bytes) if self.facts.own_bytes is not None else "unknown"

    @property
    def most_bytes(self) -> str:
        """The clone's quota; "" if there is none."""
        return size(self.facts.quota) if self.facts.quota else ""

    @property
    def tunnel(self) -> str:
        """The command with which clients on other hosts reach the clone; "" if they can reach it directly."""
        return _tunnel(self.facts.name) if self.facts.local_only else ""

    @property
    def searched(self) -> tuple[str, ...]:
        """The fields of a clone that a search compares with the searched text."""
        facts = self.facts
        return (facts.name, facts.id, facts.owner, facts.instance or "", facts.backup_id or "", self.state)

    @property
    def concerns(self) -> str:
        """The problems of the clone as sentences; "" if it has none."""
        return " ".join(filter(None, (self._lease_concern, self._server_concern)))

    @property
    def _lease_concern(self) -> str:
        name, seconds = self.facts.name, self.seconds_left
        if self.is_expired:
            return f"The lease of {name} is over: it will be removed."
        if seconds is not None and seconds < self._soon_seconds and not self.facts.protected_until:
            return f"The lease of {name} ends in {format_duration(seconds)}."
        return ""

    @property
    def _soon_seconds(self) -> float:
        """The number of remaining seconds below which the lease ends soon: at most half of the lease."""
        begun, ends = moment(self.facts.created), moment(self.facts.expires)
        if begun is None or ends is None:
            return _SOON_SECONDS
        return min(_SOON_SECONDS, (ends - begun).total_seconds() / 2)

    @property
    def _server_concern(self) -> str:
        name = self.facts.name
        reason = self.stopped_because or f"it is {self.state}"
        return f"The server of {name} does not run: {reason}." if self.can_start else ""


def _tunnel(name: str) -> str:
    return f"zsnapdb clone tunnel {name}"


_NOT_RUNNING = ("stopped", "never started")
_PAGE_ROWS = 25


class ClonesQuery(BaseModel):
    """A search for clones, and the number of rows that precede the shown page."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    q: Annotated[str, Field(max_length=100)] = ""
    after: Annotated[int, Field(ge=0, le=100_000)] = 0


@dataclass(frozen=True)
class ClonesCard:
    """A page of the clones that a search found.

    `chosen` is the number of clones found, and `total` is the number of all clones.
    """

    rows: tuple[CloneRow, ...]
    asked: ClonesQuery
    chosen: int
    total: int

    @property
    def has_search(self) -> bool:
        """Whether the list is so long that a search helps."""
        return self.total > _PAGE_ROWS or bool(self.asked.q)

    @property
    def before(self) -> str | None:
        """The address of the previous page; None if this is the first."""
        return self._path(max(0, self.asked.after - _PAGE_ROWS)) if self.asked.after else None

    @property
    def following(self) -> str | None:
        """The address of the next page; None if this is the last."""
        end = self.asked.after + len(self.rows)
        return self._path(end) if self.rows and end < self.chosen else None

    def _path(self, after: int) -> str:
        fields = {**({"q": self.asked.q} if self.asked.q else {}), **({"after": str(after)} if after else {})}
        return "/clones" + (f"?{urlencode(fields)}" if fields else "")


def clones_page(clones: Sequence[CloneRow], asked: ClonesQuery) -> ClonesCard:
    """Return the page of the clones whose name, owner, instance or state contains the text."""
    wanted = asked.q.casefold()
    found = [one for one in clones if any(wanted in text.casefold() for text in one.searched)]
    return ClonesCard(tuple(found[asked.after : asked.after + _PAGE_ROWS]), asked, len(found), len(clones))


@dataclass(frozen=True)
class LoginCard:
    """The address and the login of a clone. `tunnel` is the command for other hosts; "" if none is needed."""

    host: str
    port: int
    user: str
    password: SecretStr
    tunnel: str = ""

    @property
    def shown_password(self) -> str:
        return self.password.get_secret_value()

    @property
    def command(self) -> str:
        """A command line for a shell.

        It passes the password in an environment variable, because other users can see arguments in the process list.
        """
        words = ("mysql", f"--host={self.host}", f"--port={self.port}", f"--user={self.user}")
        return f"MYSQL_PWD={shlex.quote(self.shown_password)} {shlex.join(words)}"

    @property
    def url(self) -> str:
        return Login(self.host, self.port, Path(), self.user, self.password).dsn


@dataclass(frozen=True)
class ResultCard:
    """The result of an operation. `clone` is None if it was destroyed; `login` is None if the result has no login.

    `commit` is the id of the committed state; "" if there is none.
    """

    clone: CloneRow | None
    login: LoginCard | None
    sentence: str
    commit: str = ""


class _Created(Facts):
    user: str | None = None
    password: str | None = None


class _Reset(Facts):
    undone: int | None = None
    way: str = ""
    reason: str | None = None


class _Committed(Facts):
    id: str = ""


class _Log(Facts):
    lines: tuple[str, ...]


def person_of(document: Document) -> Person:
    """Return the person who is logged in."""
    return read(Person, document)


def instances_of(document: Document) -> tuple[InstanceRow, ...]:
    """Return the instances in an answer."""
    return tuple(read(InstanceRow, row) for row in _rows(document, "instances"))


def clones_of(document: Document, person: Person, now: datetime) -> tuple[CloneRow, ...]:
    """Return the clones in an answer.

    The person's own clones come first; clones are sorted by the end of their lease.
    """
    rows = [_clone(row, person, now) for row in _rows(document, "clones")]
    return tuple(sorted(rows, key=lambda one: (not one.is_mine, one.facts.expires, one.facts.name)))


def clone_of(document: Document, person: Person, now: datetime) -> CloneRow:
    """Return the clone in an answer about one clone."""
    return _clone(document.get("clone"), person, now)


def result_of(document: Document, person: Person, now: datetime) -> ResultCard:
    """Return the result in the document of an ended operation."""
    clone = clone_of(document, person, now) if isinstance(document.get("clone"), Mapping) else None
    reset = read(_Reset, document)
    sentence = ""
    if reset.undone is not None:
        sentence = f"{quantity(reset.undone, 'change')} of rows were undone." if reset.undone else "No row was changed."
    elif reset.reason:
        done = "A waiting clone took its place" if reset.way == "swap" else "Its data was replaced"
        sentence = f"{done}: {reset.reason}"
    committed = read(_Committed, document) if document.get("kind") == "clone-commit" else _Committed()
    return ResultCard(clone, _login(document, clone), sentence, committed.id)


def login_of(document: Document, clone: CloneRow) -> LoginCard:
    """Return the clone's login in an answer."""
    login = read(ShownLogin, document)
    host = login.host if login.local_only else _host_of(login.address)
    tunnel = _tunnel(clone.facts.name) if login.local_only else ""
    return LoginCard(host, login.port, login.user, SecretStr(login.password), tunnel)


def log_lines_of(document: Document) -> tuple[str, ...]:
    """Return the lines of a log, oldest first. The text is untrusted: the server and the clone's users wrote it."""
    return read(_Log, document).lines


def reached_limit(clones: Sequence[CloneRow], person: Person) -> str:
    """Return a sentence about the limit if the person has as many clones as this limit allows; else ""."""
    count, most = sum(one.is_mine for one in clones), person.clones.most
    if count < most:
        return ""
    have = f"You have {count} {'clone' if count == 1 else 'clones'}, and may have at most {most}"
    return f"{have}: destroy one before you create another."


def concerns_of(clones: Sequence[CloneRow]) -> tuple[str, ...]:
    """Return a sentence for each clone that needs attention."""
    return tuple(one.concerns for one in clones if one.concerns)


def moment(text: str) -> datetime | None:
    """Return the time in a document in UTC; None if it is not a time, has no zone, or is outside Python's years."""
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def time_of_set(identifier: str) -> datetime | None:
    """Return the time in the id of a snapshot set or commit; None if the id contains no time."""
    return moment(identifier[:_TIME_OF_ID])


def clock_time(text: str) -> str:
    """Return the time in a document as text for people, in UTC. Text that is not a time is returned unchanged."""
    found = moment(text)
    return found.strftime("%Y-%m-%d %H:%M UTC") if found is not None else text


def _login(document: Document, clone: CloneRow | None) -> LoginCard | None:
    created = read(_Created, document)
    if clone is None or clone.facts.port is None or created.user is None or created.password is None:
        return None
    host = _host_of(clone.facts.address) or client_host(clone.facts.bind_address)
    return LoginCard(host, clone.facts.port, created.user, SecretStr(created.password), clone.tunnel)


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _clone(row: JsonValue, person: Person, now: datetime) -> CloneRow:
    facts = read(ListedClone, row)
    return CloneRow(facts, now, person.owns(facts.owner))


def _rows(document: Document, name: str) -> Sequence[JsonValue]:
    rows = document.get(name)
    if not isinstance(rows, list):
        raise _other_form()
    return rows


def read(model: type[Model], fields: object) -> Model:
    """Return the answer as an instance of the model. Raises RefusedPage if the answer has another format."""
    try:
        return model.model_validate(fields)
    except ValidationError:
        raise _other_form() from None


def _other_form() -> RefusedPage:
    return RefusedPage.because(
        ConsistencyError(
            "the answer of the helper has an unknown form", hint="restart zsnapdb-serve and zsnapdb-serve-helper"
        )
    )
