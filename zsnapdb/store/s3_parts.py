"""Options, credentials, request bodies and error codes of S3 stores."""

from __future__ import annotations

import configparser
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    SSLError,
)
from botocore.exceptions import ConnectionError as S3ConnectionError

from zsnapdb.base.errors import (
    ConfigError,
    ExistsError,
    NotFound,
    RepositoryError,
    UnreachableError,
    ZsnapdbError,
)
from zsnapdb.base.text_files import secret_in
from zsnapdb.store.base import CONDITIONS_HINT
from zsnapdb.store.s3_client import error_code, http_status

_BLOCK = 1 << 20
MISSING = {"NoSuchKey", "404", "NotFound"}
CONDITION_FAILED = {"PreconditionFailed", "ConditionNotMet", "412"}
NOT_ALLOWED = {"AccessDenied", "403", "Forbidden", "AllAccessDisabled"}
DENIED = {*NOT_ALLOWED, "InvalidAccessKeyId", "SignatureDoesNotMatch"}
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

The provider is busy, the request conflicted with another, or it was damaged in transfer.
"""

UNKNOWN_REQUEST = {"NotImplemented", "XNotImplemented", "MethodNotAllowed", "UnsupportedOperation", "405", "501"}
"""Codes of a request or header that the provider does not support: the same request never succeeds."""
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
    """Options of a bucket: storage class, encryption by the provider and its key, checksum, prefix and lock.

    `prefix` limits the keys that this account may list; "": every key. `lock_mode` is the lock of new objects (None: no
    lock), for `lock_period` seconds.
    """

    storage_class: str | None = None
    sse: Literal["AES256", "aws:kms"] | None = None
    sse_key: str | None = None
    checksum: Literal["auto", "sha256", "none"] = "auto"
    prefix: str = ""
    lock_mode: Literal["GOVERNANCE", "COMPLIANCE"] | None = None
    lock_period: float = 0.0


class BlockReader:
    """A memoryview as a file object for the client. It is read in large blocks, without copies."""

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

    ConfigError if the file cannot be read or has no such section, or if another account may read or change it.
    """
    hint = "the file needs a [default] section with aws_access_key_id and aws_secret_access_key"
    parser = configparser.ConfigParser(interpolation=None)
    body = secret_in(file, "credentials_file", hint)
    try:
        parser.read_string(body.decode())
        section = parser["default"]
        token = section.get("aws_session_token") or None
        return S3Credentials(section["aws_access_key_id"], section["aws_secret_access_key"], token)
    except (KeyError, UnicodeDecodeError, configparser.Error) as error:
        raise ConfigError(f"credentials_file {file} cannot be used: {type(error).__name__}", hint=hint) from None


DENIED_HINT = "check the credentials and the bucket's policy (`zsnapdb example iam-policy.json`)"
_LATER = "see the provider's status; the next run continues"


def zsnapdb_error(
    error: Exception, failed: str, *, renewed_in: str, is_conditional: bool, denied_hint: str
) -> ZsnapdbError:
    """Return the error to raise for a failed request. `failed` names the request and the bucket.

    `renewed_in`: the location in which temporary credentials are renewed. `is_conditional`: the request was a
    conditional write. `denied_hint`: the hint if the account lacks the permission.
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
