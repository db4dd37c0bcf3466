"""Options, error codes and request bodies of S3 stores. This module does not import the client."""

from __future__ import annotations

import configparser
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from zsnapdb.base.errors import ConfigError
from zsnapdb.base.text_files import secret_in

_BLOCK = 1 << 20
MISSING = {"NoSuchKey", "404", "NotFound"}
CONDITION_FAILED = {"PreconditionFailed", "ConditionNotMet", "412"}
NOT_ALLOWED = {"AccessDenied", "403", "Forbidden", "AllAccessDisabled"}
DENIED = {*NOT_ALLOWED, "InvalidAccessKeyId", "SignatureDoesNotMatch"}
EXPIRED = {
    *("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken", "RequestExpired"),
    *("InvalidClientTokenId", "UnrecognizedClientException", "AuthFailure"),
}
"""Codes of temporary credentials that have to be renewed."""
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

The provider is busy, the request was in conflict with another, or it was damaged in transfer.
"""

UNKNOWN_REQUEST = {"NotImplemented", "XNotImplemented", "MethodNotAllowed", "UnsupportedOperation", "405", "501"}
"""Codes of a request or header that the provider does not know: the same request never succeeds."""
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
    """Options of a bucket: storage class, encryption by the provider and its key, the checksum, and the prefix.

    `prefix` is the beginning of all keys that this account may list; "": every key. `lock_mode`: how new objects are
    locked (None: they are not), for `lock_period` seconds.
    """

    storage_class: str | None = None
    sse: Literal["AES256", "aws:kms"] | None = None
    sse_key: str | None = None
    checksum: Literal["auto", "sha256", "none"] = "auto"
    prefix: str = ""
    lock_mode: Literal["GOVERNANCE", "COMPLIANCE"] | None = None
    lock_period: float = 0.0


class BlockReader:
    """A memoryview as a file object for the client. It is read in large blocks, without copying them."""

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
    """What signs requests. `token` is the session token of temporary credentials."""

    key_id: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


def credentials_of(file: Path) -> S3Credentials:
    """Return the credentials in the [default] section of a file in the AWS form.

    ConfigError if the file cannot be read, has no such section, or if another account may read or change it.
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
