"""Clients of Azure Blob Storage and Google Cloud Storage: credentials, options, event loop, and errors."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from obstore import exceptions
from obstore.store import AzureStore, GCSStore

from zsnapdb.base.errors import (
    ArchivedError,
    ConfigError,
    ExistsError,
    NotFound,
    RepositoryError,
    UnreachableError,
    ZsnapdbError,
)
from zsnapdb.base.files import secret_in
from zsnapdb.config.repository import ProviderSettings, RepositorySettings

T = TypeVar("T")

REQUEST_SECONDS = 60.0
"""Time limit in seconds for the first bytes of an answer, and for small requests as a whole."""
LEAST_RATE = 16 << 10
"""Minimum number of bytes per second for a request's body and answer. A slower store is treated as unreachable."""

_AZURE_KEYS = {
    "AZURE_STORAGE_ACCOUNT_KEY": "account_key",
    "AZURE_STORAGE_SAS_TOKEN": "sas_key",
    "AZURE_TENANT_ID": "tenant_id",
    "AZURE_CLIENT_ID": "client_id",
    "AZURE_CLIENT_SECRET": "client_secret",
}
"""The names that are allowed in a credentials file for Azure, each with the client option that the name sets."""
_AZURE_KINDS = (
    (frozenset({"account_key"}), "access_key"),
    (frozenset({"sas_key"}), "sas_token"),
    (frozenset({"tenant_id", "client_id", "client_secret"}), "client_secret"),
)
"""The combinations of options that form complete credentials, each with the name of its credential kind."""
_AZURE_HINT = (
    "the file needs a line AZURE_STORAGE_ACCOUNT_KEY=... or AZURE_STORAGE_SAS_TOKEN=..., or the three lines"
    " AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"
)
_GOOGLE_HINT = "create a JSON key of a service account, and name its file"


def azure_credentials(file: Path) -> dict[str, str]:
    """Return the client options for the credentials in a file.

    Raises ConfigError if the file cannot be read or has unknown lines, or if another account may read or change the
    file.
    """
    text = secret_in(file, "credentials_file", _AZURE_HINT).decode(errors="replace")
    lines = [line.strip().partition("=") for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]
    options = {_AZURE_KEYS.get(name.strip(), ""): value.strip().strip('"') for name, _, value in lines}
    kind = next((kind for names, kind in _AZURE_KINDS if names == options.keys()), None)
    if kind is None or not all(options.values()):
        raise ConfigError(f"credentials_file {file} has no credentials of Azure", hint=_AZURE_HINT)
    return {**options, "credential_type": kind}


def google_credentials(file: Path) -> dict[str, str]:
    """Return the client options for the service account in a file.

    Raises ConfigError if the file cannot be read or is not a service account key, or if another account may read or
    change the file.
    """
    content = secret_in(file, "credentials_file", _GOOGLE_HINT)
    try:
        is_key = {"client_email", "private_key"} <= json.loads(content).keys()
    except (ValueError, AttributeError):
        is_key = False
    if not is_key:
        raise ConfigError(f"credentials_file {file} is no key of a service account of Google", hint=_GOOGLE_HINT)
    return {"service_account_key": content.decode()}


@dataclass
class CloudClient:
    """A client of one container or bucket. `raw` is the library's client, and `where` is the URL for messages.

    `read` returns the options with the current credentials; None if the library itself finds credentials on this host.
    """

    where: str
    raw: Any
    has_generations: bool = False
    """Whether versions are identified by generations (Google) instead of ETags (Azure)."""
    read: Callable[[], Mapping[str, str]] | None = None
    create: Callable[[Mapping[str, str]], Any] | None = None
    used: Mapping[str, str] = field(default_factory=dict, repr=False)
    endpoint: str | None = None
    credentials: str = "the environment variables or the identity of this host"
    """The place of the credentials, for messages."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def renew(self, refused: Any, *, is_expired: bool) -> bool:
        """Read the credentials again after the provider refused the credentials of a raw client.

        `is_expired`: the provider refused the token of the raw client. The library reuses a token until this host's
        clock says that the token has ended, so a new raw client is created even with the same credentials.

        Return whether the client now has newer credentials or a new token.
        """
        with self._lock:
            # The credentials file may be incomplete while another program writes it. The provider's refusal is then the
            # better error.
            with contextlib.suppress(ConfigError):
                if self.read is not None and self.create is not None and (now := self.read()) != self.used:
                    self.raw, self.used = self.create(now), now
            if is_expired and self.create is not None and self.raw is refused:
                self.raw = self.create(self.used)
            return self.raw is not refused


def _http_options(provider: ProviderSettings) -> dict[str, Any]:
    endpoint = provider.endpoint or ""
    return {
        "allow_http": endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=10),
        # Each request has its own time limit (`finish`), which depends on its size.
        "timeout": timedelta(days=7),
    }


_ONCE = {"max_retries": 0}
"""The library must not repeat requests, because RetryingStore does."""


def connect(settings: RepositorySettings) -> CloudClient:
    """Return the client for the address of the repository. No request is sent yet.

    Raises ConfigError if credentials or options cannot be used.
    """
    address = settings.address
    where, provider = f"{address.scheme}://{address.bucket}", settings.provider or ProviderSettings()
    account, _, container = address.bucket.rpartition("/")
    http, endpoint, file = _http_options(provider), provider.endpoint, provider.credentials_file

    def create(credentials: Mapping[str, str]) -> Any:
        options: dict[str, Any] = dict(credentials)
        try:
            if address.scheme == "gs":
                own = {"base_url": endpoint} if endpoint else {}
                return GCSStore(container, config={**options, **own}, client_options=http, retry_config=_ONCE)
            own = {"account_name": account, **({"endpoint": endpoint} if endpoint else {})}
            return AzureStore(container, config={**options, **own}, client_options=http, retry_config=_ONCE)
        except (exceptions.BaseError, ValueError) as error:
            raise ConfigError(
                f"{where}: {_first_line(error)}", hint="check the credentials and the endpoint of the repository"
            ) from None

    read = None
    if file is not None:
        reader = google_credentials if address.scheme == "gs" else azure_credentials
        read = functools.partial(reader, file)
    first = read() if read is not None else {}
    client = CloudClient(where, create(first), address.scheme == "gs", read, create, first, endpoint)
    return client if file is None else replace(client, credentials=str(file))


@functools.cache
def _loop(_process: int) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="store", daemon=True).start()
    return loop


def finish(request: Callable[[], Awaitable[T]], seconds: float | None) -> T:
    """Return the answer to a request, which runs in the common thread of all requests.

    Raises TimeoutError after `seconds`.

    A signal interrupts the wait and cancels the request. If the library's blocking call were used instead, the signal
    would be delayed.
    """

    async def limited() -> T:
        return await asyncio.wait_for(request(), seconds)

    waiting = asyncio.run_coroutine_threadsafe(limited(), _loop(os.getpid()))
    try:
        return waiting.result()
    finally:
        waiting.cancel()


FAILURES: tuple[type[Exception], ...] = (exceptions.BaseError, FileNotFoundError, ValueError, TimeoutError)
"""The exceptions that a failed request raises."""
_CONDITIONS = {"BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet", "PreconditionFailed"}
_NO_BUCKET = re.compile(r"ContainerNotFound|NoSuchBucket|[Tt]he specified (container|bucket) does not exist")
_ODD_KEY = re.compile(r'object with invalid path: [^"]{0,40}Path "([^"]{1,1000})')
_STATUS = re.compile(r"status code: ([1-5][0-9][0-9])\b|\(code: ([1-5][0-9][0-9])\)")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,80})</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]{1,300})")
_NETWORK = re.compile(r"HTTP error: |error sending request|request or response body error")
_CERTIFICATE = re.compile(r"invalid peer certificate|certificate verify failed", re.IGNORECASE)
_TOKEN = re.compile(r"[Tt]oken request|OAuth|credential|169\.254\.169\.254|metadata")
_AGAIN = {"OperationAborted", "Conflict", "ServerBusy", "InternalError", "OperationTimedOut", "RequestTimeout"}
_LATER = "see the provider's status; the next run continues"


def _first_line(error: BaseException) -> str:
    """Return at most 300 characters of the first line of the library's error message, without the address."""
    line = str(error).partition("\n")[0]
    return re.sub(r"Generic \w+ error: |Error performing (list request: |[A-Z]+ \S+ in \S+ - )", "", line)[:300]


@dataclass(frozen=True)
class CloudFailure:
    """The parts of a failure's text.

    These are the HTTP status (0 if there is none), the provider's code ("" if there is none), and a message.
    """

    status: int
    code: str
    message: str

    @property
    def is_denied(self) -> bool:
        """Whether the provider refused the credentials, or the account lacks the permission."""
        return self.status in (401, 403)

    @property
    def is_expired(self) -> bool:
        """Whether the provider refused the token itself. A missing permission has another status."""
        return self.status == 401

    @classmethod
    def parse(cls, error: BaseException) -> CloudFailure:
        """Return the parts of the library's error message, which contains the provider's answer."""
        answer = str(error).partition("\nDebug source:")[0]
        status, code, message = _STATUS.search(answer), _CODE.search(answer), _MESSAGE.search(answer)
        return cls(
            int(status[1] or status[2]) if status else 0,
            code[1] if code else "",
            message[1].strip() if message else _first_line(error),
        )


def zsnapdb_error(error: Exception, failed: str, bucket: str, *, credentials: str, is_condition: bool) -> ZsnapdbError:
    """Return the error to raise for a failed request. `failed` names the request and the bucket.

    `credentials` names the place of the credentials. `is_condition` says whether the request had a condition on the
    object's version or existence.
    """
    if isinstance(error, TimeoutError):
        return UnreachableError(
            f"{failed}: the answer takes too long", hint="check the endpoint and the network; the next run continues"
        )
    if odd := _ODD_KEY.search(str(error)):
        return RepositoryError(
            f"{failed}: the client library cannot list the object {odd[1]!r}",
            hint="remove this object with the provider's own tools; zsnapdb did not write it",
        )
    told = CloudFailure.parse(error)
    message = f"{failed}: {told.message}" + (f" ({told.code})" if told.code else "")
    if _NO_BUCKET.search(str(error)):
        return NotFound(message, hint=f"create {bucket}, or correct the repository's url")
    if is_condition and _is_failed_condition(error, told):
        return ExistsError(message, hint="another run wrote the object; it was not changed")
    if isinstance(error, FileNotFoundError) or told.status == 404:
        return NotFound(message)
    if told.code in ("BlobArchived", "BlobBeingRehydrated"):
        return ArchivedError(message, hint="move the blobs to an online access tier, then run the command again")
    if told.is_denied:
        hint = f"check the credentials in {credentials}, and the rights of their account to the container or bucket"
        return RepositoryError(message, hint=hint)
    if told.code in _AGAIN or told.status in (408, 429) or told.status >= 500:
        return UnreachableError(message, hint=_LATER)
    if told.status == 0 and _CERTIFICATE.search(str(error)):
        return RepositoryError(
            message, hint="check the endpoint's certificate, and this host's clock and certificate authorities"
        )
    if told.status == 0 and _NETWORK.search(str(error)):
        return UnreachableError(message, hint=_network_hint(str(error)))
    if told.status == 409:
        return RepositoryError(message, hint="check the immutability policies and leases of the container or bucket")
    return RepositoryError(message, hint="see the endpoint's log; is it a server of this provider?")


def _is_failed_condition(error: Exception, told: CloudFailure) -> bool:
    """Whether the request failed because the object has another version or already exists.

    A conflict (409) can have other reasons, such as a policy.
    """
    if not isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
        return told.status == 412
    return told.status in (0, 412) or told.code in _CONDITIONS


def _network_hint(text: str) -> str:
    if _TOKEN.search(text):
        return "set credentials_file of the repository, or check the identity of this host at its provider"
    return "check the endpoint and the network; the next run continues"
