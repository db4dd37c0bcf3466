"""Setup of botocore: session, credentials, options, event handlers, time limits, and error codes."""

from __future__ import annotations

import base64
import configparser
import contextlib
import functools
import hashlib
import os
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, cast

import botocore.session
from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)
from botocore.credentials import (
    Credentials,
    EnvProvider,
    ReadOnlyCredentials,
    RefreshableCredentials,
    SharedCredentialProvider,
)
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    SSLError,
)
from botocore.exceptions import ConnectionError as S3ConnectionError
from botocore.loaders import Loader
from botocore.utils import parse_timestamp

from zsnapdb.base.deadline import ExchangeLimit, timed, within
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
from zsnapdb.base.name_resolution import addresses_of
from zsnapdb.base.timed_tls import with_timed_sockets
from zsnapdb.store.base import ARCHIVED_HINT, CONDITIONS_HINT

REQUEST_SECONDS = 60.0
"""Time limit in seconds for the first bytes of an answer, and for small requests as a whole."""
LEAST_RATE = 16 << 10
"""Minimum number of bytes per second for a request's body and answer. A slower store is treated as unreachable."""
_MOST_ANSWER = 64 << 20
"""The size limit in bytes for an answer that does not contain an object.

A listing of a thousand keys is about a megabyte long.
"""


class _TimedConnection(AWSHTTPConnection):
    def _new_conn(self) -> Any:
        _resolve(self.host)
        return timed(super()._new_conn())


class _TimedTlsConnection(AWSHTTPSConnection):
    def _new_conn(self) -> Any:
        _resolve(self.host)
        return super()._new_conn()

    def connect(self) -> None:
        if self.ssl_context is not None:
            with_timed_sockets(self.ssl_context)
        super().connect()


def _resolve(host: str) -> None:
    # Callers expect the library's own error about an unknown name.
    with contextlib.suppress(socket.gaierror):
        addresses_of(host)


# botocore limits the time of each socket read, but not of a whole request. botocore creates its connections from these
# classes.
AWSHTTPConnectionPool.ConnectionCls = _TimedConnection
AWSHTTPSConnectionPool.ConnectionCls = _TimedTlsConnection


def request_limit() -> AbstractContextManager[ExchangeLimit]:
    """Limit the time of a request with a small answer. The request's body may have any size."""
    return within(REQUEST_SECONDS, rate=LEAST_RATE, most_bytes=_MOST_ANSWER)


def transfer_limit(size: int) -> AbstractContextManager[ExchangeLimit]:
    """Limit the time of a request that reads an object of at most `size` bytes.

    The object may be read a second time.
    """
    return within(REQUEST_SECONDS, rate=LEAST_RATE, most_bytes=2 * size + _MOST_ANSWER)


def error_code(error: ClientError) -> str:
    """Return the S3 code of an error answer, such as NoSuchKey.

    Without a code, return the HTTP status; without both, "".
    """
    code = error.response.get("Error", {}).get("Code")
    return str(code or http_status(error) or "")


def http_status(error: ClientError) -> int:
    """Return the HTTP status of an error answer; 0 if the answer has no status."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def without_expect(params: dict[str, Any], **_: object) -> None:
    """Remove a request's Expect header (event handler)."""
    # This header costs a round trip before every chunk, and saves only the upload of a refused chunk.
    params["headers"].pop("Expect", None)


def with_md5(params: dict[str, Any], **_: object) -> None:
    """Add Content-MD5 to a request (event handler). Some servers require it instead of an SDK checksum."""
    body = params["body"]
    digest = hashlib.md5(body if isinstance(body, bytes) else str(body).encode(), usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()


def _timestamp(value: Any) -> datetime:
    """Return the time in a header or document.

    Each object in a listing has a time in ISO 8601. The library's own function takes ten times as long to parse this
    format.
    """
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return parse_timestamp(value)


class _AnyService(list[str]):
    """A list of services that claims to contain every name."""

    def __contains__(self, name: object) -> bool:
        return True


class _Loader(Loader):
    """A loader of service descriptions that skips the listing of all services, which only serves to check names."""

    def list_available_services(self, type_name: str) -> list[str]:  # noqa: ARG002 - the library names it
        """Return a list that seems to contain every service name.

        So every name passes the library's check. Loading a service that does not exist fails later.
        """
        return _AnyService()


@functools.cache
def _loader(folders: str | None) -> Loader:
    """Return the cached loader of AWS service descriptions. Loading them takes most of the time for creating a client.

    `folders` is the setting `data_path`, as in botocore.loaders.create_loader.
    """
    named = folders.split(os.pathsep) if folders else []
    return _Loader(extra_search_paths=[os.path.expanduser(os.path.expandvars(folder)) for folder in named])


def client_core() -> botocore.session.Session:
    """Return the botocore session for clients, with the cached loader and the fast parser of times.

    boto3's session would create the same client and add file transfers, which are not used here. Importing and adding
    the file transfers would take a quarter of the CPU time for creating a client.
    """
    core = botocore.session.get_session()
    core.register_component("data_loader", _loader(core.get_config_variable("data_path")))
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_timestamp)
    return core


_BLOCK = 1 << 20
MISSING = {"NoSuchKey", "404", "NotFound"}
CONDITION_FAILED = {"PreconditionFailed", "ConditionNotMet", "412"}
NOT_ALLOWED = {"AccessDenied", "403", "Forbidden", "AllAccessDisabled"}
WRONG_KEY = {"InvalidAccessKeyId", "SignatureDoesNotMatch"}
"""Codes of an unknown key id, and of a secret that does not belong to it."""
DENIED = {*NOT_ALLOWED, *WRONG_KEY}
EXPIRED = {
    *("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken", "RequestExpired"),
    *("InvalidClientTokenId", "UnrecognizedClientException", "AuthFailure"),
}
"""Codes of temporary credentials that must be renewed."""
BUSY = {
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "RequestLimitExceeded",
    "BandwidthLimitExceeded",
}
AGAIN = {
    *BUSY,
    *("InternalError", "ServiceUnavailable", "RequestTimeout", "OperationAborted", "ConditionalRequestConflict"),
    *("BadDigest", "XAmzContentSHA256Mismatch", "IncompleteBody"),
}
"""Codes after which the same request may succeed (S3 API reference, list of error codes).

The provider is busy, or the request conflicted with another request or was damaged in transfer.
"""

UNKNOWN_REQUEST = {"NotImplemented", "XNotImplemented", "MethodNotAllowed", "UnsupportedOperation", "405", "501"}
"""Codes for a request or header that the provider does not support, so that the same request never succeeds."""
CHECKSUM_REFUSED = {
    *UNKNOWN_REQUEST,
    "InvalidArgument",
    "InvalidRequest",
    "BadRequest",
    "MalformedRequest",
    "SignatureDoesNotMatch",
    "400",
}


@dataclass(frozen=True)
class S3Options:
    """Options of a bucket: storage class, the provider's encryption and its key, checksum, prefix and lock.

    `prefix` is the prefix of the keys that this account may list; "" means every key. `lock_mode` is the mode of the
    lock that new objects get for `lock_period` seconds (None if there is no lock).
    """

    storage_class: str | None = None
    sse: Literal["AES256", "aws:kms"] | None = None
    sse_key: str | None = None
    checksum: Literal["auto", "sha256", "none"] = "auto"
    prefix: str = ""
    lock_mode: Literal["GOVERNANCE", "COMPLIANCE"] | None = None
    lock_period: float = 0.0


class BlockReader:
    """A file object for the client that reads a memoryview in large blocks, without copies."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def __len__(self) -> int:
        return len(self._view)

    def read(self, size: int | None = None) -> memoryview | bytes:
        if size is None or size < 0:
            rest = bytes(self._view[self._at :])
            self._at = len(self._view)
            return rest
        block = self._view[self._at : self._at + max(size, _BLOCK)]
        self._at += len(block)
        return block

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, len(self._view))[whence]
        return self._at

    def tell(self) -> int:
        return self._at


@dataclass(frozen=True)
class S3Credentials:
    """Signing credentials. `token` is the session token of temporary credentials."""

    key_id: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


def credentials_of(file: Path) -> S3Credentials:
    """Return the credentials in the [default] section of a file in AWS format.

    Raises ConfigError if the file cannot be read or has no such section, or if another account may read or change the
    file.
    """
    hint = "the file needs a [default] section with aws_access_key_id and aws_secret_access_key"
    parser = configparser.ConfigParser(interpolation=None)
    body = secret_in(file, "credentials_file", hint)
    try:
        parser.read_string(body.decode())
        section = parser["default"]
        token = section.get("aws_session_token") or None
        return S3Credentials(section["aws_access_key_id"], section["aws_secret_access_key"], token)
    except KeyError as error:
        raise ConfigError(f"credentials_file {file} cannot be used: it has no {error.args[0]}", hint=hint) from None
    except (UnicodeDecodeError, configparser.Error):
        raise ConfigError(f"credentials_file {file} cannot be used: it is not an INI file", hint=hint) from None


DENIED_HINT = "check the credentials and the bucket's policy (`zsnapdb example iam-policy.json`)"
_LATER = "see the provider's status; the next run continues"


def zsnapdb_error(
    error: Exception, failed: str, *, renewed_in: str, is_conditional: bool, denied_hint: str
) -> ZsnapdbError:
    """Return the error to raise for a failed request. `failed` names the request and the bucket.

    `renewed_in` is the file or service in which temporary credentials are renewed. `is_conditional` says whether the
    request was a conditional write. `denied_hint` is the hint for an account that lacks the permission.
    """
    if isinstance(error, ClientError):
        return _refusal(error, failed, renewed_in, is_conditional=is_conditional, denied_hint=denied_hint)
    if isinstance(error, NoCredentialsError):
        return RepositoryError(
            f"{failed}: no credentials", hint="set credentials_file, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if isinstance(error, SSLError):
        kind = RepositoryError if "CERTIFICATE" in str(error).upper() else UnreachableError
        return kind(
            f"{failed}: {error}",
            hint="check the endpoint's certificate, and this host's clock and certificate authorities",
        )
    if isinstance(error, S3ConnectionError | HTTPClientError | IncompleteReadError):
        return UnreachableError(f"{failed}: {error}", hint="check the endpoint and the network; the next run continues")
    if isinstance(error, KeyError):
        return RepositoryError(
            f"{failed}: the provider's answer has no {error.args[0]}",
            hint="see the endpoint's log; is it an S3 server?",
        )
    if isinstance(error, BotoCoreError):
        return RepositoryError(f"{failed}: {error}")
    raise error


def _refusal(
    error: ClientError, failed: str, renewed_in: str, *, is_conditional: bool, denied_hint: str
) -> ZsnapdbError:
    code, status = error_code(error), http_status(error)
    message = f"{failed}: {error.response.get('Error', {}).get('Message') or code} ({code})"
    if code == "NoSuchBucket":
        bucket = failed.partition("s3://")[2].partition(" ")[0]
        return NotFound(message, hint=f"create the bucket {bucket}, or correct the repository's url")
    if code in MISSING:
        return NotFound(message)
    if code == "InvalidObjectState":
        return ArchivedError(message, hint=ARCHIVED_HINT)
    if code in CONDITION_FAILED or status == 412:
        return ExistsError(message, hint="another run wrote the object; it was not changed")
    if code in EXPIRED:
        return RepositoryError(message, hint=f"renew the credentials in {renewed_in}; the next run continues")
    if code == "RequestTimeTooSkewed":
        return RepositoryError(message, hint="set this host's clock: the provider's differs from it")
    if "object lock" in message.lower() and code not in DENIED:
        return RepositoryError(
            message, hint="create the bucket with object lock, or remove object_lock from the configuration"
        )
    if code in WRONG_KEY:
        return RepositoryError(message, hint=f"correct the key id and the secret in {renewed_in}")
    if code in DENIED or status in (401, 403):
        return RepositoryError(message, hint=denied_hint)
    if is_conditional and code in CHECKSUM_REFUSED | UNKNOWN_REQUEST:
        return RepositoryError(message, hint=CONDITIONS_HINT)
    if code in UNKNOWN_REQUEST or status in (405, 501):
        return RepositoryError(
            message, hint="the provider has no such request: use an S3 server that has it, or leave out the setting"
        )
    kind = UnreachableError if code in AGAIN or status == 429 or status >= 500 else RepositoryError
    return kind(message, hint=_LATER)


_USED = "zsnapdb-credentials"
_REFUSED = (400, 401, 403)
"""HTTP statuses of refused credentials. The answer to a HEAD request contains no more specific code."""


class RenewedCredentials(Credentials):
    """Credentials that sign requests until the provider refuses them. Then `read` returns newer credentials.

    Threads may share this object, because a request is never signed with a mix of older and newer credentials.
    """

    def __init__(self, first: S3Credentials, read: Callable[[], S3Credentials | None]) -> None:
        super().__init__(first.key_id, first.secret, first.token, "zsnapdb")
        self._now = first
        self._read = read
        self._lock = threading.Lock()

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        now = self._now
        return ReadOnlyCredentials(now.key_id, now.secret, now.token, None)

    def load_credentials(self) -> RenewedCredentials:
        """Return these credentials. This object is the only credentials provider of its session."""
        return self

    def note_use(self, context: dict[str, Any], **_: object) -> None:
        """Record the credentials that a call uses, before the call starts (event handler)."""
        context[_USED] = self._now

    def is_renewed(
        self, response: tuple[Any, Any] | None, request_dict: dict[str, Any], attempts: int, **_: object
    ) -> int | None:
        """Return 0 (repeat immediately) if the refused credentials were renewed (event handler after an answer).

        None leaves the decision to the client. A request is repeated only once.
        """
        if attempts > 1 or response is None or response[0].status_code not in _REFUSED:
            return None
        with self._lock:
            used = request_dict["context"].get(_USED)
            if used == self._now:
                try:
                    self._now = self._read() or self._now
                except ConfigError:
                    # The credentials file may be incomplete while another program writes it. The provider's refusal is
                    # then the better error.
                    return None
            return 0 if used != self._now else None


def credentials_of_session(core: botocore.session.Session) -> S3Credentials | None:
    """Return the credentials that botocore finds on this host.

    The result is None if there are no credentials, or if botocore renews them itself.
    """
    found = core.get_credentials()
    if found is None or isinstance(found, RefreshableCredentials):
        return None
    key_id, secret, token, *_ = found.get_frozen_credentials()
    return S3Credentials(key_id, secret, token) if key_id and secret else None


def credentials_source(core: botocore.session.Session) -> str:
    """Return the place in which botocore finds the credentials, without their values."""
    found = core.get_credentials()
    if found is None or found.method == EnvProvider.METHOD:
        return "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the environment"
    if found.method == SharedCredentialProvider.METHOD:
        return f"the shared credentials file of AWS, {core.get_config_variable('credentials_file')}"
    return f"botocore's source {found.method}"


def use_credentials(core: botocore.session.Session, credentials: RenewedCredentials) -> None:
    """Let the session sign with the given credentials."""
    core.register_component("credential_provider", cast(Any, credentials))


def watch_refusals(client: Any, credentials: RenewedCredentials) -> None:
    """Let the client repeat a refused request once if the credentials were renewed in the meantime."""
    client.meta.events.register("before-call.s3", credentials.note_use)
    client.meta.events.register_first("needs-retry.s3", credentials.is_renewed)
