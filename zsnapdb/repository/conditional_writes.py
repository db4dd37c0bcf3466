"""Proofs that a store keeps conditional writes. Without them two writers cannot be kept apart.

Some S3 servers, and gateways in front of good ones, take a condition and do not look at it: `If-None-Match: *`, with
which only a new object is written, or `If-Match`, with which only a certain version is replaced. A proof is a write
that must be refused, so it changes nothing in a good store. Its bytes must differ from those of the object: a repeated
request whose first answer was lost would take the object for its own.
"""

from __future__ import annotations

import contextlib
import secrets

from zsnapdb.base.errors import ChangedError, ExistsError, PreflightError, RepositoryError
from zsnapdb.repository import layout
from zsnapdb.repository.layout import Key
from zsnapdb.repository.objects import RepositoryObjects
from zsnapdb.store.base import CONDITIONS_HINT

_OTHER_DIGITS = str.maketrans("0123456789abcdefABCDEF", "123456789abcdef0BCDEFA")


def never(tag: str) -> str:
    """Return a tag of the same form that no version has."""
    return tag.translate(_OTHER_DIGITS)


def prove_absence(objects: RepositoryObjects, key: Key, body: bytes) -> None:
    """Raise PreflightError if the store writes `body` in the place of an object that exists (If-None-Match)."""
    with contextlib.suppress(ExistsError):
        objects.put(key, body)
        raise PreflightError(
            f"the store ignored a conditional write (If-None-Match) and overwrote {objects.place(key)}",
            hint=CONDITIONS_HINT,
        )


def prove_version(objects: RepositoryObjects, key: Key, body: bytes, tag: str) -> None:
    """Raise PreflightError if the store writes `body` in the place of another version than that of the tag (If-Match).

    `tag` is not that of the object.
    """
    with contextlib.suppress(ChangedError):
        objects.replace(key, body, tag=tag)
        raise PreflightError(
            f"the store ignored a conditional write (If-Match) and overwrote {objects.place(key)}, which had another"
            " version",
            hint=CONDITIONS_HINT,
        )


def prove_replacements(objects: RepositoryObjects) -> None:
    """Raise PreflightError unless the store replaces the version that a tag names, and no other.

    The proof is made with an object of its own, which every role that writes may write. It is removed where that is
    allowed.
    """
    key = layout.PROBE
    try:
        with contextlib.suppress(ExistsError):
            objects.put_alone(key, _some_bytes())
        tag = objects.read_version(key).tag
        prove_version(objects, key, _some_bytes(), never(tag))
        try:
            objects.replace(key, _some_bytes(), tag=tag)
        except ChangedError as error:
            raise PreflightError(
                f"the store refused to replace the version of {objects.place(key)} that it named itself (If-Match)",
                hint=CONDITIONS_HINT,
            ) from error
    finally:
        with contextlib.suppress(RepositoryError):
            objects.delete(key)


def note_of_removed(objects: RepositoryObjects) -> str:
    """Return what a person should know of a store that refuses a new object in the place of a removed one.

    "" if the store writes it, or if this account may not remove objects.
    """
    key = layout.PROBE
    try:
        objects.overwrite(key, _some_bytes())
        objects.delete(key)
        objects.put(key, _some_bytes())
        objects.delete(key)
    except ExistsError:
        if not objects.exists(key):
            return (
                "the store refuses a new object in the place of a removed one (If-None-Match): never remove a lease"
                " (*.lock) by hand; if one was removed, remove every version of it"
            )
    except RepositoryError:
        pass
    return ""


def _some_bytes() -> bytes:
    return secrets.token_hex(8).encode()
