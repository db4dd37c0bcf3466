"""The least pace of a listing: a store whose pages are slow, empty or endless is no store that can be listed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from zsnapdb.base.errors import RepositoryError, UnreachableError

SECONDS = 120.0
"""What the requests of a listing may take besides the time for its names."""
LEAST_NAMES = 50
"""Names per second. Providers send a page of a thousand names in less than a second."""
MOST_NAMES = 100_000_000
MOST_TOKEN = 64 << 10


@dataclass
class ListingPace:
    """What one listing has taken and brought so far. `doing` names it."""

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
            raise RepositoryError(f"{self.doing}: more than {MOST_NAMES} names", hint="is the bucket's prefix right?")

    def next_token(self, token: str) -> str:
        """Return the token of the next page. RepositoryError if a page had it before: the listing would never end."""
        if hash(token) in self.tokens or len(token) > MOST_TOKEN:
            raise RepositoryError(
                f"{self.doing}: the provider repeats a page", hint="see the endpoint's log; is it an S3 server?"
            )
        self.tokens.add(hash(token))
        return token
