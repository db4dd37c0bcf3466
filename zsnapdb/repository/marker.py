"""The marker, which identifies a repository. The manifests also contain all facts in the marker."""

from __future__ import annotations

import contextlib
import secrets
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zsnapdb.base.errors import ChangedError, DamagedError, ExistsError, PreflightError, RepositoryError
from zsnapdb.base.patterns import RepositoryId, first_problem
from zsnapdb.repository import layout, stored_document
from zsnapdb.repository.layout import Key
from zsnapdb.repository.objects import RepositoryObjects
from zsnapdb.store.base import CONDITIONS_HINT

_OTHER_DIGITS = str.maketrans("0123456789abcdefABCDEF", "123456789abcdef0BCDEFA")


def impossible_version(tag: str) -> str:
    """Return a tag in the format of `tag` that no version of an object has."""
    return tag.translate(_OTHER_DIGITS)


def prove_absence(objects: RepositoryObjects, key: Key, body: bytes) -> None:
    """Raise PreflightError if the store overwrites an existing object with `body` despite If-None-Match."""
    with contextlib.suppress(ExistsError):
        objects.put(key, body)
        raise PreflightError(
            f"the store ignored a conditional write (If-None-Match) and overwrote {objects.place(key)}",
            hint=CONDITIONS_HINT,
        )


def prove_version(objects: RepositoryObjects, key: Key, body: bytes, tag: str) -> None:
    """Raise PreflightError if the store replaces an object although `tag` is not its tag (If-Match)."""
    with contextlib.suppress(ChangedError):
        objects.replace(key, body, tag=tag)
        raise PreflightError(
            f"the store ignored a conditional write (If-Match) and overwrote {objects.place(key)}, which had another"
            " version",
            hint=CONDITIONS_HINT,
        )


def prove_replacements(objects: RepositoryObjects) -> None:
    """Raise PreflightError unless the store replaces only the version with the given tag (If-Match).

    The test uses its own object, which every role with write access may write. The object is removed if this account
    may remove objects.
    """
    key = layout.PROBE
    try:
        with contextlib.suppress(ExistsError):
            objects.put_alone(key, _some_bytes())
        tag = objects.read_version(key).tag
        prove_version(objects, key, _some_bytes(), impossible_version(tag))
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
    """Return a note if the store refuses a new object under the key of a removed object.

    The result is "" if the store accepts the object, or if this account may not remove objects.
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


FORMAT = 1

Recipient = Annotated[str, Field(pattern=r"^age1[0-9a-z]{1,5000}$")]


class _Version(BaseModel):
    format: int


class Marker(BaseModel):
    """Format and id of a repository, and the recipients of its backups when the marker was last written."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = FORMAT
    id: RepositoryId
    recipients: tuple[Recipient, ...] = ()

    @classmethod
    def parse(cls, body: bytes, name: str) -> Marker:
        """Return the marker.

        Raises: DamagedError if `body` is not a marker, has another format, or does not match its digest.

        The marker of an earlier version has several lines and no digest.
        """
        line = stored_document.open_document(body, name).line if has_digest(body) else body
        try:
            version = _Version.model_validate_json(line)
            if version.format != FORMAT:
                raise DamagedError(
                    f"the repository has format {version.format}, this zsnapdb reads format {FORMAT}",
                    hint="use the version of zsnapdb that wrote the repository, or a newer version",
                )
            return cls.model_validate_json(line)
        except ValidationError as error:
            raise DamagedError(
                f"{name} cannot be read: {first_problem(error)}",
                hint="check that the url is that of a zsnapdb repository",
            ) from error

    @classmethod
    def read(cls, objects: RepositoryObjects) -> Marker:
        """Return the repository's marker. Raises NotFound if the repository has no marker."""
        return cls.parse(objects.get(layout.MARKER), objects.place(layout.MARKER))

    def encode(self) -> bytes:
        """Return the stored form: JSON in UTF-8, and the digest."""
        return stored_document.with_digest(self.model_dump_json().encode())

    def write(self, objects: RepositoryObjects) -> None:
        """Write the marker.

        Raises: ExistsError: the repository has a marker. PreflightError: the store ignores conditional writes; the new
        marker was removed.
        """
        objects.put_alone(layout.MARKER, self.encode())
        try:
            prove_conditional_writes(objects)
            prove_replacements(objects)
        except PreflightError:
            with contextlib.suppress(RepositoryError):
                objects.delete(layout.MARKER)
            raise

    def with_recipients(self, recipients: tuple[str, ...]) -> Marker:
        """Return a copy of the marker with the given recipients."""
        return self.model_copy(update={"recipients": recipients})


def has_digest(body: bytes) -> bool:
    """Whether a stored marker has a digest."""
    return not body.startswith(b"{\n")


def prove_conditional_writes(objects: RepositoryObjects) -> None:
    """Raise PreflightError if the store overwrites the marker despite a conditional write (If-None-Match).

    In such a store, this test leaves the marker with an additional line feed at its end. Raises NotFound if the
    repository has no marker.
    """
    prove_absence(objects, layout.MARKER, objects.get(layout.MARKER) + b"\n")
