"""Describes objects in archive classes: how many there are, and how long and how expensive their retrieval is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zsnapdb.base.errors import UsageError
from zsnapdb.base.quantities import quantity
from zsnapdb.base.quantities import size as size_text


@dataclass(frozen=True)
class RetrievalOption:
    """A way to retrieve objects: its duration in hours, and its prices in USD per GiB and per 1,000 objects."""

    tier: str
    hours: int
    gib: float
    thousand: float

    def cost(self, count: int, size: int) -> float:
        """Return the price in USD for retrieving `count` objects with `size` bytes in total."""
        return self.gib * size / 2**30 + self.thousand * count / 1000


OPTIONS: Mapping[str, tuple[RetrievalOption, ...]] = {
    "GLACIER": (RetrievalOption("Standard", 5, 0.01, 0.05), RetrievalOption("Bulk", 12, 0.0, 0.0)),
    "DEEP_ARCHIVE": (RetrievalOption("Standard", 12, 0.02, 0.10), RetrievalOption("Bulk", 48, 0.0025, 0.025)),
}
"""The options of each archive class of Amazon S3.

The hours are the usual longest duration in the S3 User Guide, "Understanding archive retrieval options". The prices are
approximate list prices of us-east-1, without the storage of the retrieved copies. They only show the order of
magnitude, so messages say "about".
"""


TIERS = tuple(dict.fromkeys(option.tier for options in OPTIONS.values() for option in options))
"""The names of the retrieval options. Each archive class has an option of each name."""


def parse_tier(text: str) -> str:
    """Return the name of a retrieval option. Raises UsageError if no option has this name."""
    if text.capitalize() not in TIERS:
        raise UsageError(f"invalid --tier {text!r}", hint=f"choose one of {', '.join(one.lower() for one in TIERS)}")
    return text.capitalize()


@dataclass(frozen=True)
class ArchivedObjects:
    """The objects of one archive class that cannot be read now. Sizes are in bytes.

    `running` is the number of these objects whose retrieval is running.
    """

    archive_class: str
    count: int
    size: int
    running: int

    def option(self, tier: str) -> RetrievalOption | None:
        """Return the option with this name; None for an archive class without known options."""
        return next((one for one in OPTIONS.get(self.archive_class, ()) if one.tier == tier), None)

    def cost(self, option: RetrievalOption) -> float:
        """Return the approximate price in USD for the objects whose retrieval is not running."""
        left = self.count - self.running
        return option.cost(left, self.size * left // self.count)

    def describe(self) -> str:
        """Return the text for messages, with the duration and cost of each option for a retrieval."""
        what = f"{quantity(self.count, 'object')} ({size_text(self.size)}) in the archive class {self.archive_class}"
        ways = [
            f"{option.tier} up to {option.hours} h, about {self.cost(option):.2f} USD"
            for option in OPTIONS.get(self.archive_class, ())
            if self.count > self.running
        ]
        running = [f"{self.running} of them running"] if self.running else []
        return f"{what} cannot be read before a retrieval ({'; '.join([*running, *ways])})"
