"""Limits of a listing, whose pages may be slow, empty or endless, and removal of many objects."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError

from zsnapdb.base.errors import RepositoryError, UnreachableError
from zsnapdb.store.s3_client import error_code, http_status, request_limit
from zsnapdb.store.s3_parts import BUSY, MISSING

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


SECONDS = 120.0
"""Time limit for the requests of a listing, in addition to the time for its names."""
LEAST_NAMES = 50
"""Minimum names per second. Providers send a page of a thousand names in less than a second."""
MOST_NAMES = 100_000_000
MOST_TOKEN = 64 << 10


@dataclass
class ListingPace:
    """The time and the number of names of one listing so far. `doing` describes it in errors."""

    doing: str
    seconds: float = 0.0
    names: int = 0
    tokens: set[int] = field(default_factory=set)

    @contextlib.contextmanager
    def page(self) -> Iterator[None]:
        """Measure the request of a page. UnreachableError if all pages together were too slow."""
        began = time.monotonic()
        yield
        self.seconds += time.monotonic() - began
        if self.seconds > SECONDS + self.names / LEAST_NAMES:
            raise UnreachableError(
                f"{self.doing}: {self.names} names in {self.seconds:.0f} s",
                hint="check the endpoint and the network; the next run continues",
            )

    def add(self, names: int) -> None:
        """Count the names of a page. RepositoryError if there are more than any repository has."""
        self.names += names
        if self.names > MOST_NAMES:
            raise RepositoryError(
                f"{self.doing}: more than {MOST_NAMES} names",
                hint="check the bucket and the prefix in the url of the repository",
            )

    def next_token(self, token: str) -> str:
        """Return the token of the next page. RepositoryError if it is repeated: the listing would never end."""
        if hash(token) in self.tokens or len(token) > MOST_TOKEN:
            raise RepositoryError(
                f"{self.doing}: the provider repeats a page", hint="see the endpoint's log; is it an S3 server?"
            )
        self.tokens.add(hash(token))
        return token


BATCH = 1000
"""Maximum number of objects in one request."""
_MOST_REFUSED = 10
"""After this many refusals the rest of a batch is not tried: the account may have no right to remove objects."""
DELETE_HINT = "check that the credentials may delete objects (`zsnapdb example iam-policy-prune.json`)"


@dataclass
class ObjectRemoval:
    """Removes objects from one bucket. `one` removes a single object and raises RepositoryError if it is refused."""

    bucket: str
    one: Callable[[str], None]
    in_batches: bool = True
    """False after the provider refused a batch request but removed a single object."""

    def remove(self, client: S3Client, keys: Sequence[str]) -> None:
        """Remove at most BATCH objects. ClientError if the provider is busy.

        RepositoryError for an object that cannot be removed. The others are removed, unless many are refused.
        """
        if not self.in_batches or len(keys) == 1:
            self._one_by_one(keys)
            return
        left, is_known = self._batch(client, keys)
        self._one_by_one(left)
        # An error of the provider (5xx) may be temporary: the next batch tries a batch request again.
        self.in_batches = is_known

    def _batch(self, client: S3Client, keys: Sequence[str]) -> tuple[list[str], bool]:
        """Return the objects that may be left after a batch request, and whether the provider supports it."""
        try:
            with request_limit():
                answer = client.delete_objects(Bucket=self.bucket, Delete={"Objects": [{"Key": key} for key in keys]})
        except ClientError as error:
            status = http_status(error)
            if error_code(error) in BUSY or status == 429:
                raise
            return list(keys), status >= 500 and status != 501 and "NotImplemented" not in error_code(error)
        except ResponseParserError:
            return list(keys), False
        removed = {item.get("Key") for item in answer.get("Deleted", [])}
        removed |= {item.get("Key") for item in answer.get("Errors", []) if item.get("Code") in MISSING}
        left = [key for key in keys if key not in removed]
        return left, len(left) < len(keys) or bool(answer.get("Errors"))

    def _one_by_one(self, keys: Sequence[str]) -> None:
        refused: list[RepositoryError] = []
        for key in keys:
            try:
                self.one(key)
            except UnreachableError:
                raise
            except RepositoryError as error:
                refused.append(error)
                if len(refused) >= _MOST_REFUSED:
                    break
        if refused:
            raise refused[0]
