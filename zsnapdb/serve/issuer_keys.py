"""The issuers' public keys. An unprivileged process fetches them; root stores them in one file per issuer.

Keys are fetched at the start, each hour, and when a token refers to an unknown key. They are fetched at most once a
minute. If an issuer does not answer, its stored keys stay valid for a day.
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

from zsnapdb.base import files, run_context
from zsnapdb.base.errors import UnreachableError, ZsnapdbError
from zsnapdb.base.files import make_private
from zsnapdb.base.patterns import Moment
from zsnapdb.base.program_start import Stop
from zsnapdb.config.serve import HttpsUrl, IssuerSettings
from zsnapdb.serve.command_processes import CommandCall, RunCommand
from zsnapdb.serve.helper_messages import FailureAnswer
from zsnapdb.serve.jwks import IssuerKey

_HOUR, _MINUTE = timedelta(hours=1), timedelta(minutes=1)
_LONGEST = timedelta(days=1)
_POLL_SECONDS = 30.0
_FETCH_SECONDS = 45.0
_MOST_BYTES = 1 << 20


class LoginPlaces(BaseModel):
    """The address to which a browser is sent for a login, and the address where a code is exchanged for an id token."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    authorization_endpoint: HttpsUrl
    token_endpoint: HttpsUrl


class FetchedKeys(BaseModel):
    """The keys of an issuer, and the address from which the keys were fetched.

    `login` contains the issuer's login addresses, if people log in through the issuer.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    issuer: Annotated[str, Field(max_length=1000)]
    jwks_url: Annotated[str, Field(max_length=1000)]
    keys: Annotated[tuple[IssuerKey, ...], Field(max_length=100)]
    login: LoginPlaces | None = None


class StoredKeys(BaseModel):
    """The stored keys of an issuer, and the time when they were fetched."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    format: Literal[1] = 1
    fetched: Moment
    found: FetchedKeys

    def are_good(self, issuer: IssuerSettings, now: datetime) -> bool:
        """Return whether the keys belong to this issuer and address, and are younger than a day."""
        is_its_place = issuer.jwks_url in (None, self.found.jwks_url)
        # If the clock was set back, the keys do not stay valid for longer.
        return self.found.issuer == issuer.issuer and is_its_place and abs(now - self.fetched) < _LONGEST


def is_due(fetched: datetime | None, tried: datetime | None, now: datetime, *, wanted: bool) -> bool:
    """Return whether keys must be fetched now.

    `fetched` is the time of the last successful fetch, and `tried` is the time of the last attempt.
    """
    # If the clock was set back, the fetch is not delayed.
    if tried is not None and timedelta(0) <= now - tried < _MINUTE:
        return False
    return wanted or fetched is None or not timedelta(0) <= now - fetched < _HOUR


def fetch_with(run: RunCommand) -> Callable[[str], FetchedKeys]:
    """Return a function that fetches an issuer's keys with `zsnapdb token keys`, or raises UnreachableError."""

    def fetch(name: str) -> FetchedKeys:
        answer = run(CommandCall(("token", "keys", name, "--json"), "", run_context.new_run_id(), _FETCH_SECONDS))
        if isinstance(answer, FailureAnswer):
            raise UnreachableError(answer.message, hint=answer.hint)
        try:
            return FetchedKeys.model_validate(answer.document)
        except ValidationError as error:
            raise UnreachableError("the keys have an unknown form", hint="restart the helper") from error

    return fetch


@dataclass
class IssuerKeys:
    """The keys of every configured issuer. Only `keep_fresh`, which runs in its own thread, fetches keys."""

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
        files.remove_unfinished(self.folder)
        for file in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(OSError, ValidationError), file.open("rb") as opened:
                self._known[file.stem] = StoredKeys.model_validate_json(opened.read(_MOST_BYTES))

    def of(self, name: str, issuer: IssuerSettings) -> tuple[IssuerKey, ...]:
        """Return the keys of this issuer, or an empty result if the keys are unknown or too old."""
        with self._changed:
            known = self._known.get(name)
        return known.found.keys if known is not None and known.are_good(issuer, self.now()) else ()

    def login(self, name: str, issuer: IssuerSettings) -> LoginPlaces | None:
        """Return the login addresses of this issuer; None if they are unknown or not configured for this issuer."""
        with self._changed:
            known = self._known.get(name)
        is_known = issuer.login is not None and known is not None and known.are_good(issuer, self.now())
        return known.found.login if is_known and known is not None else None

    def ask_again(self, name: str) -> None:
        """Request a fetch of this issuer's keys and wait for it, unless a fetch was tried within the last minute.

        Only one caller waits. Other callers continue with the known keys, so tokens with unknown keys cannot occupy the
        helper.
        """
        with self._changed:
            tried = self._tried.get(name)
            if name in self._wanted or not is_due(None, tried, self.now(), wanted=True):
                return
            self._wanted.add(name)
            self._changed.notify_all()
            self._changed.wait_for(lambda: name not in self._wanted, self.patience)

    def keep_fresh(self, stop: Stop) -> None:
        """Fetch due keys until the stop is requested."""
        while not stop.is_set():
            self.fetch_due()
            with self._changed:
                if not self._wanted:
                    self._changed.wait(_POLL_SECONDS)

    def fetch_due(self) -> None:
        configured = self._configured()
        with self._changed:
            # No caller may wait for an issuer that is no longer configured.
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
        except Exception as error:  # any error: the thread must continue to fetch the keys of other issuers
            print(f"the keys of serve.issuer.{name}: {error or type(error).__name__}", file=sys.stderr, flush=True)
        finally:
            with self._changed:
                self._wanted.discard(name)
                self._changed.notify_all()

    def _keep(self, name: str, found: FetchedKeys) -> None:
        stored = StoredKeys(fetched=self.now(), found=found)
        with self._changed:
            self._known[name] = stored
        # If the keys cannot be stored, this helper still has them; only a later helper must fetch them again.
        with contextlib.suppress(OSError):
            files.replace(self.folder / f"{name}.json", stored.model_dump_json().encode())
