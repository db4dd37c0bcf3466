"""S3 error answers as errors of zsnapdb: missing, refused for now, refused for good, not known to the provider."""

from __future__ import annotations

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    SSLError,
)
from botocore.exceptions import ConnectionError as S3ConnectionError

from zsnapdb.base.errors import ExistsError, NotThere, RepositoryError, UnreachableError, ZsnapdbError
from zsnapdb.store.base import CONDITIONS_HINT
from zsnapdb.store.s3_client import error_code, http_status
from zsnapdb.store.s3_parts import (
    AGAIN,
    CHECKSUM_REFUSED,
    CONDITION_FAILED,
    DENIED,
    EXPIRED,
    MISSING,
    UNKNOWN_REQUEST,
)

DENIED_HINT = "check the credentials and the bucket's policy (`zsnapdb example iam-policy.json`)"
_LATER = "see the provider's status; the next run continues"


def zsnapdb_error(
    error: Exception, failed: str, *, renewed_in: str, is_conditional: bool, denied_hint: str
) -> ZsnapdbError:
    """Return the error to raise for a failed request. `failed` names the request and the bucket.

    `renewed_in`: the place where temporary credentials are renewed. `is_conditional`: whether the request was a
    conditional write. `denied_hint`: the hint if the account lacks the right.
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
        return NotThere(message, hint=f"create the bucket {bucket}, or correct the repository's url")
    if code in MISSING:
        return NotThere(message)
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
