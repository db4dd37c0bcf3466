"""The marker: the one object that names a repository. Every fact in the marker is also in the manifests."""

from __future__ import annotations

import contextlib
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zsnapdb.base.errors import DamagedError, PreflightError, RepositoryError
from zsnapdb.base.patterns import RepositoryId, first_problem
from zsnapdb.repository import conditional_writes, layout, stored_document
from zsnapdb.repository.objects import RepositoryObjects

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
        """Return the marker. DamagedError if `body` is not a marker, has another format, or does not match its digest.

        The marker of an earlier version has several lines and no digest.
        """
        line = stored_document.opened(body, name).line if has_digest(body) else body
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
        """Return the repository's marker. NotThere if the repository has none."""
        return cls.parse(objects.get(layout.MARKER), objects.place(layout.MARKER))

    def encode(self) -> bytes:
        """Return the stored form: JSON, UTF-8, and its digest."""
        return stored_document.with_digest(self.model_dump_json().encode())

    def write(self, objects: RepositoryObjects) -> None:
        """Write the marker. ExistsError if the repository has one.

        PreflightError, and the marker is removed again, if the store does not keep conditional writes.
        """
        objects.put_alone(layout.MARKER, self.encode())
        try:
            prove_conditional_writes(objects)
            conditional_writes.prove_replacements(objects)
        except PreflightError:
            with contextlib.suppress(RepositoryError):
                objects.delete(layout.MARKER)
            raise

    def with_recipients(self, recipients: tuple[str, ...]) -> Marker:
        """Return a copy of the marker with these recipients."""
        return self.model_copy(update={"recipients": recipients})


def has_digest(body: bytes) -> bool:
    """Whether a stored marker has the form that has a digest."""
    return not body.startswith(b"{\n")


def prove_conditional_writes(objects: RepositoryObjects) -> None:
    """Raise PreflightError if the store overwrites the marker in spite of a conditional write (If-None-Match).

    Then the marker has one more line end. NotThere if there is no marker.
    """
    conditional_writes.prove_absence(objects, layout.MARKER, objects.get(layout.MARKER) + b"\n")
