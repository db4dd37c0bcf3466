"""The public keys of issuers as the helper keeps them: fetched by a child without rights, in a file of root's each.

They are fetched at the start, each hour, and if a token names a key that is not known, but never more often than once a
minute. If an issuer does not answer, its keys go on for a day.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zsnapdb.base import run_id, whole_file
from zsnapdb.base.errors import UnreachableError, ZsnapdbError
from zsnapdb.base.patterns import Moment
from zsnapdb.base.processes import Stop
from zsnapdb.config.serve import HttpsUrl, IssuerSettings
from zsnapdb.jobs.base.private_folder import make_private
from zsnapdb.serve.children import CommandCall, RunCommand
from zsnapdb.serve.jwks import IssuerKey
from zsnapdb.serve.messages import FailureAnswer

_HOUR, _MINUTE = timedelta(hours=1), timedelta(minutes=1)
_LONGEST = timedelta(days=1)
_POLL_SECONDS = 30.0
_FETCH_SECONDS = 45.0
_MOST_BYTES = 1 << 20


class LoginPlaces(BaseModel):
    """Where a browser is sent that logs in, and where a code is exchanged for an id token."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    authorization_endpoint: HttpsUrl
    token_endpoint: HttpsUrl


class FetchedKeys(BaseModel):
    """The keys of an issuer, and from where they are. `login`: where people log in, if they do so by this issuer."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    issuer: Annotated[str, Field(max_length=1000)]
    jwks_url: Annotated[str, Field(max_length=1000)]
    keys: Annotated[tuple[IssuerKey, ...], Field(max_length=100)]
    login: LoginPlaces | None = None


class StoredKeys(BaseModel):
    """The keys of an issuer as they are stored, and when they were fetched."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    format: Literal[1] = 1
    fetched: Moment
    found: FetchedKeys

    def are_good(self, issuer: IssuerSettings, now: datetime) -> bool:
        """Whether they are of this issuer and place, and young enough."""
        is_its_place = issuer.jwks_url in (None, self.found.jwks_url)
        # A clock that was set back keeps no key for longer.
        return self.found.issuer == issuer.issuer and is_its_place and abs(now - self.fetched) < _LONGEST


def is_due(fetched: datetime | None, tried: datetime | None, now: datetime, *, wanted: bool) -> bool:
    """Return whether keys are to be fetched now, by when they were fetched and when that was last tried."""
    # A clock that was set back delays nothing.
    if tried is not None and timedelta(0) <= now - tried < _MINUTE:
        return False
    return wanted or fetched is None or not timedelta(0) <= now - fetched < _HOUR


def fetch_with(run: RunCommand) -> Callable[[str], FetchedKeys]:
    """Return what fetches the keys of the issuer of that name by `zsnapdb token keys`, or raises UnreachableError."""

    def fetch(name: str) -> FetchedKeys:
        answer = run(CommandCall(("token", "keys", name, "--json"), "", run_id.new(), _FETCH_SECONDS))
        if isinstance(answer, FailureAnswer):
            raise UnreachableError(answer.message, hint=answer.hint)
        try:
            return FetchedKeys.model_validate(answer.document)
        except ValidationError as error:
            raise UnreachableError("the keys have another form", hint="restart the helper") from error

    return fetch


@dataclass
class IssuerKeys:
    """The keys of every configured issuer. `keep_fresh` runs in a thread of its own and alone fetches."""

    folder: Path
    issuers: Callable[[], Mapping[str, IssuerSettings]]
    fetch: Callable[[str], FetchedKeys]
    now: Callable[[], datetime]
    patience: float = 10.0
    _known: dict[str, StoredKeys] = field(init=False, default_factory=dict)
    _tried: dict[str, datetime] = field(init=False, default_factory=dict)
    _wanted: set[str] = field(init=False, default_factory=set)
    _changed: threading.Condition = field(init=False, default_factory=threading.Condition)

    def __post_init__(self) -> None:
        make_private(self.folder)
        whole_file.remove_unfinished(self.folder)
        for file in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(OSError, ValidationError), file.open("rb") as opened:
                self._known[file.stem] = StoredKeys.model_validate_json(opened.read(_MOST_BYTES))

    def of(self, name: str, issuer: IssuerSettings) -> tuple[IssuerKey, ...]:
        """Return the keys of the issuer of that name; none if none are known, or if they are too old."""
        with self._changed:
            known = self._known.get(name)
        return known.found.keys if known is not None and known.are_good(issuer, self.now()) else ()

    def login(self, name: str, issuer: IssuerSettings) -> LoginPlaces | None:
        """Return where people log in by the issuer of that name; None if they do not, or if that is not known."""
        with self._changed:
            known = self._known.get(name)
        is_known = issuer.login is not None and known is not None and known.are_good(issuer, self.now())
        return known.found.login if is_known and known is not None else None

    def ask_again(self, name: str) -> None:
        """Have the keys of that issuer fetched, unless that was tried within a minute, and wait until it was.

        One caller waits. Others go on with what is known, so that who sends tokens of unknown keys keeps no place.
        """
        with self._changed:
            tried = self._tried.get(name)
            if name in self._wanted or not is_due(None, tried, self.now(), wanted=True):
                return
            self._wanted.add(name)
            self._changed.notify_all()
            self._changed.wait_for(lambda: name not in self._wanted, self.patience)

    def keep_fresh(self, stop: Stop) -> None:
        """Fetch what is due until the stop is requested."""
        while not stop.is_set():
            self.fetch_due()
            with self._changed:
                if not self._wanted:
                    self._changed.wait(_POLL_SECONDS)

    def fetch_due(self) -> None:
        """Fetch what is due now."""
        configured = self._configured()
        with self._changed:
            # Nobody waits for an issuer that is configured no more.
            self._wanted &= set(configured)
        for name, issuer in configured.items():
            self._refresh(name, issuer)

    def _configured(self) -> Mapping[str, IssuerSettings]:
        try:
            return self.issuers()
        except ZsnapdbError as error:
            print(error, file=sys.stderr, flush=True)
            return {}

    def _refresh(self, name: str, issuer: IssuerSettings) -> None:
        with self._changed:
            known, now = self._known.get(name), self.now()
            is_whole = known is not None and (issuer.login is None or known.found.login is not None)
            fetched = known.fetched if known is not None and is_whole and known.are_good(issuer, now) else None
            if not is_due(fetched, self._tried.get(name), now, wanted=name in self._wanted):
                self._wanted.discard(name)
                self._changed.notify_all()
                return
            self._tried[name] = now
        try:
            self._keep(name, self.fetch(name))
        except Exception as error:  # whatever it is: the thread goes on, and with it the other issuers
            print(f"the keys of serve.issuer.{name}: {error or type(error).__name__}", file=sys.stderr, flush=True)
        finally:
            with self._changed:
                self._wanted.discard(name)
                self._changed.notify_all()

    def _keep(self, name: str, found: FetchedKeys) -> None:
        stored = StoredKeys(fetched=self.now(), found=found)
        with self._changed:
            self._known[name] = stored
        # A disk that refuses costs a later helper a fetch, and this one nothing.
        with contextlib.suppress(OSError):
            whole_file.replace(self.folder / f"{name}.json", stored.model_dump_json().encode())
