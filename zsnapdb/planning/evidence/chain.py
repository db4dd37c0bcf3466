"""Verification of a chain of records: every altered, removed or reordered record is found. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

NOTHING = "0" * 64
"""The hash of the previous record in the first record."""


@dataclass(frozen=True)
class StoredLink:
    """A stored record: its number, its SHA-256, and the SHA-256 of the previous record that it contains.

    `problem` is the reason why the record itself is invalid, such as a bad signature; "" if it is valid.
    """

    number: int
    sha256: str
    previous: str
    problem: str = ""


@dataclass(frozen=True)
class RememberedLink:
    """The newest record that a host knows, from its own files or from an earlier report."""

    number: int
    sha256: str


@dataclass(frozen=True)
class ChainFinding:
    """A problem at a record."""

    number: int
    text: str


def findings(links: Sequence[StoredLink], remembered: RememberedLink | None = None) -> tuple[ChainFinding, ...]:
    """Return the problems of the chain by number; none if it is complete.

    If a record in the middle is altered, the hash in the next record no longer matches. The last record is protected
    only by its signature or by `remembered`. Without them neither its change nor the removal of the newest records is
    found.
    """
    return (*_of_chain(links), *_of_end(links, remembered))


def _of_chain(links: Sequence[StoredLink]) -> Iterator[ChainFinding]:
    expected, before = 1, NOTHING
    for link in sorted(links, key=lambda link: link.number):
        if link.number > expected:
            last = link.number - 1
            which = f"record {expected} is" if last == expected else f"records {expected} to {last} are"
            yield ChainFinding(expected, f"{which} missing")
        elif link.previous != before and not link.problem:
            what = (
                "the first record refers to an earlier one" if expected == 1 else f"record {expected - 1} was altered"
            )
            yield ChainFinding(link.number, f"{what}: record {link.number} follows a record with another content")
        if link.problem:
            yield ChainFinding(link.number, f"record {link.number} is not valid: {link.problem}")
        expected, before = link.number + 1, link.sha256


def _of_end(links: Sequence[StoredLink], remembered: RememberedLink | None) -> Iterator[ChainFinding]:
    if remembered is None:
        return
    known = {link.number: link.sha256 for link in links}
    newest = max(known, default=0)
    if remembered.number > newest:
        yield ChainFinding(
            remembered.number, f"records {newest + 1} to {remembered.number}, which existed, are missing"
        )
    elif known.get(remembered.number, remembered.sha256) != remembered.sha256:
        yield ChainFinding(remembered.number, f"record {remembered.number} is not the one that was written")
