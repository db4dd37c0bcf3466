"""S3 and what speaks like it. The only module that knows boto3."""

from __future__ import annotations

import configparser
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError, NoCredentialsError
from botocore.exceptions import ConnectionError as S3ConnectionError

from zsnapdb.errors import ChangedError, ConfigError, ExistsError, NotThere, RepositoryError
from zsnapdb.store.base import Afterlife, Body, Hold, StoredObject, Version

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef

_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each further attempt at a body that broke off."""

_MISSING = {"NoSuchKey", "404", "NotFound"}
_NOT_AS_ASKED = {"PreconditionFailed", "412", "ConditionalRequestConflict"}
_NO_BATCHES = {"NotImplemented", "MethodNotAllowed", "MissingContentMD5"}
_DELETE_BATCH = 1000
_DENIED = {"AccessDenied", "403", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch"}


def _credentials(file: Path) -> tuple[str, str]:
    """Return key id and secret of the [default] section of a credentials file in the AWS form."""
    parser = configparser.ConfigParser()
    try:
        with file.open() as text:
            parser.read_file(text)
        section = parser["default"]
        return section["aws_access_key_id"], section["aws_secret_access_key"]
    except (OSError, KeyError, configparser.Error) as error:
        raise ConfigError(
            f"credentials_file {file} cannot be used: {type(error).__name__}",
            hint="it needs a [default] section with aws_access_key_id and aws_secret_access_key",
        ) from None


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


class S3Store:
    """Objects in a bucket. Requests are retried by the client for transient faults, five times with back-off."""

    def __init__(
        self,
        bucket: str,
        *,
        endpoint: str | None,
        region: str | None,
        credentials_file: Path | None,
        addressing: Literal["auto", "path", "virtual"],
        connections: int,
    ) -> None:
        self.bucket = bucket
        self.endpoint = endpoint
        key, secret = _credentials(credentials_file) if credentials_file else (None, None)
        config = Config(
            retries={"mode": "standard", "max_attempts": 6},
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=connections + 2,
            s3={"addressing_style": addressing},
            # Providers differ in the newer checksum headers; our own hashes prove every byte.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            self._client: S3Client = boto3.session.Session().client(
                "s3", endpoint_url=endpoint, region_name=region, aws_access_key_id=key, aws_secret_access_key=secret, config=config
            )
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(f"s3://{bucket}: {error}", hint="check endpoint and region of the repository") from error

    @contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        where = f"s3://{self.bucket}" + (f" at {self.endpoint}" if self.endpoint else "")
        try:
            yield
        except ClientError as error:
            code = _code(error)
            message = f"{doing} in {where}: {error.response.get('Error', {}).get('Message') or code} ({code})"
            if code == "NoSuchBucket":
                raise NotThere(message, hint=f"create the bucket {self.bucket}, or correct the repository's url") from error
            if code in _MISSING:
                raise NotThere(message) from error
            if code in _NOT_AS_ASKED:
                raise ExistsError(message, hint="another run wrote it; it was not changed") from error
            if code in _DENIED:
                raise RepositoryError(message, hint="check the credentials and the bucket's policy (configs/iam-policy.json)") from error
            raise RepositoryError(message, hint="see the provider's status; the next run continues") from error
        except NoCredentialsError as error:
            raise RepositoryError(f"{doing} in {where}: no credentials", hint="set credentials_file, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") from error
        except (S3ConnectionError, HTTPClientError) as error:
            raise RepositoryError(f"{doing} in {where}: {error}", hint="check the endpoint and the network; the next run continues") from error
        except BotoCoreError as error:
            raise RepositoryError(f"{doing} in {where}: {error}") from error

    def check(self) -> None:
        """Prove that the bucket can be listed."""
        with self._asking("listing"):
            self._client.list_objects_v2(Bucket=self.bucket, MaxKeys=1)

    def put(self, key: str, body: Body, *, only_if_absent: bool = False) -> None:
        """Store the object; `only_if_absent` is a conditional request (If-None-Match: *)."""
        data = body if isinstance(body, bytes) else bytes(body)
        with self._asking(f"writing {key}"):
            if only_if_absent:
                self._client.put_object(Bucket=self.bucket, Key=key, Body=data, IfNoneMatch="*")
            else:
                self._client.put_object(Bucket=self.bucket, Key=key, Body=data)

    def get(self, key: str) -> bytes:
        """Return the object. A body that breaks off is asked for again: the client's own retries end with the headers."""
        with self._asking(f"reading {key}"):
            return self._read(key).body

    def read_version(self, key: str) -> Version:
        """Return the object with its ETag."""
        with self._asking(f"reading {key}"):
            return self._read(key)

    def _read(self, key: str) -> Version:
        for pause in (*_PAUSES, None):
            try:
                answer = self._client.get_object(Bucket=self.bucket, Key=key)
                return Version(answer["Body"].read(), answer["ETag"])
            except (HTTPClientError, IncompleteReadError):
                if pause is None:
                    raise
                time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        """Store the object if its ETag is still `tag` (If-Match)."""
        data = body if isinstance(body, bytes) else bytes(body)
        with self._asking(f"replacing {key}"):
            try:
                self._client.put_object(Bucket=self.bucket, Key=key, Body=data, IfMatch=tag)
            except ClientError as error:
                # 404 where it is gone; 409 where somebody else writes at this moment.
                if _code(error) in _MISSING | _NOT_AS_ASKED:
                    raise ChangedError(f"object {key} in s3://{self.bucket} was changed meanwhile", hint="another run wrote it; it was not changed") from error
                raise

    def _pages(self, prefix: str, delimiter: str = "") -> Iterator[ListObjectsV2OutputTypeDef]:
        token = ""
        while True:
            with self._asking(f"listing {prefix}"):
                if token:
                    page = self._client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, Delimiter=delimiter, ContinuationToken=token)
                else:
                    page = self._client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, Delimiter=delimiter)
            yield page
            if not page.get("IsTruncated"):
                return
            token = page["NextContinuationToken"]

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects under the prefix, page by page."""
        for page in self._pages(prefix):
            for item in page.get("Contents", []):
                yield StoredObject(item["Key"], item["Size"], item["LastModified"])

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the common prefixes below the prefix, page by page, without what lies in them."""
        for page in self._pages(prefix, "/"):
            for item in page.get("CommonPrefixes", []):
                yield item["Prefix"][len(prefix) : -1]

    def delete(self, key: str) -> None:
        """Remove the object."""
        with self._asking(f"removing {key}"):
            self._client.delete_object(Bucket=self.bucket, Key=key)

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove the objects, a thousand in a request; one by one where the provider has no such request."""
        for start in range(0, len(keys), _DELETE_BATCH):
            batch = keys[start : start + _DELETE_BATCH]
            with self._asking(f"removing {len(batch)} objects, {batch[0]} first,"):
                try:
                    answer = self._client.delete_objects(Bucket=self.bucket, Delete={"Objects": [{"Key": key} for key in batch], "Quiet": True})
                except ClientError as error:
                    if _code(error) not in _NO_BATCHES:
                        raise
                    for key in batch:
                        self._client.delete_object(Bucket=self.bucket, Key=key)
                    continue
            for refused in answer.get("Errors", []):
                if refused.get("Code") not in _MISSING:
                    raise RepositoryError(
                        f"removing {refused.get('Key')} in s3://{self.bucket}: {refused.get('Message') or ''} ({refused.get('Code')})",
                        hint="check that the credentials may delete objects (configs/iam-policy-prune.json)",
                    )

    def hold(self, key: str) -> Hold | None:
        """Return the object's lock or legal hold, as its headers tell it to who may know."""
        with self._asking(f"looking at {key}"):
            try:
                head = self._client.head_object(Bucket=self.bucket, Key=key)
            except ClientError as error:
                if _code(error) in _MISSING:
                    return None
                raise
        if head.get("ObjectLockLegalHoldStatus") == "ON":
            return Hold(None)
        until = head.get("ObjectLockRetainUntilDate")
        return Hold(until) if until is not None and until > datetime.now(UTC) else None

    def afterlife(self) -> Afterlife:
        """Return whether the bucket is versioned, and the days after which a lifecycle rule for all of it removes older versions."""
        try:
            with self._asking("asking for versioning"):
                status = self._client.get_bucket_versioning(Bucket=self.bucket).get("Status")
        except RepositoryError:
            # Many may remove objects and not ask this; it is only told, nothing is decided by it.
            return Afterlife(keeps_versions=None)
        return Afterlife(keeps_versions=True, days=self._version_days()) if status == "Enabled" else Afterlife(keeps_versions=False)

    def _version_days(self) -> int | None:
        try:
            with self._asking("asking for lifecycle rules"):
                rules = self._client.get_bucket_lifecycle_configuration(Bucket=self.bucket)["Rules"]
        except RepositoryError:
            return None
        days = [
            rule["NoncurrentVersionExpiration"]["NoncurrentDays"]
            for rule in rules
            if rule["Status"] == "Enabled"
            and "NoncurrentDays" in rule.get("NoncurrentVersionExpiration", {})
            and not rule.get("Prefix")
            and not any(rule.get("Filter", {}).values())
        ]
        return min(days, default=None)
