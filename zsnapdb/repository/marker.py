"""The marker: the one object that names a repository. Every fact in the marker is also in the manifests."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace

from zsnapdb.errors import DamagedError, ExistsError, PreflightError, RepositoryError
from zsnapdb.repository import layout
from zsnapdb.repository.objects import RepositoryObjects

FORMAT = 1


@dataclass(frozen=True)
class Marker:
    """Format and id of a repository, and the recipients of its backups when the marker was last written."""

    format: int
    id: str
    recipients: tuple[str, ...]

    @classmethod
    def parse(cls, body: bytes, name: str) -> Marker:
        """Return the marker. DamagedError if `body` is not a marker, or has another format."""
        try:
            document = json.loads(body)
            marker = cls(
                int(document["format"]),
                str(document["id"]),
                tuple(str(text) for text in document.get("recipients", ())),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(
                f"{name} cannot be read", hint="check that the url is that of a zsnapdb repository"
            ) from error
        if marker.format != FORMAT:
            raise DamagedError(
                f"the repository has format {marker.format}, this zsnapdb reads format {FORMAT}",
                hint="use the version of zsnapdb that wrote the repository, or a newer version",
            )
        return marker

    @classmethod
    def read(cls, objects: RepositoryObjects) -> Marker:
        """Return the repository's marker. NotThere if the repository has none."""
        return cls.parse(objects.get(layout.MARKER), objects.place(layout.MARKER))

    def encode(self) -> bytes:
        """Return the stored form: JSON, UTF-8."""
        return json.dumps(
            {"format": self.format, "id": self.id, "recipients": list(self.recipients)}, indent=1
        ).encode()

    def write(self, objects: RepositoryObjects) -> None:
        """Write the marker. ExistsError if the repository has one.

        PreflightError, and the marker is removed again, if the store does not keep conditional writes.
        """
        objects.put(layout.MARKER, self.encode())
        try:
            prove_conditional_writes(objects)
        except PreflightError:
            with contextlib.suppress(RepositoryError):
                objects.delete(layout.MARKER)
            raise

    def with_recipients(self, recipients: tuple[str, ...]) -> Marker:
        """Return a copy of the marker with these recipients."""
        return replace(self, recipients=recipients)


def prove_conditional_writes(objects: RepositoryObjects) -> None:
    """Raise PreflightError if the store overwrites an object in spite of a conditional write.

    Two writers could not be kept apart in such a store. Some S3 servers accept `If-None-Match: *` and ignore it. The
    test writes the marker again with one more line end. With exactly the same bytes, a repeated request whose first
    answer was lost would take the existing marker for its own. NotThere if there is no marker.
    """
    try:
        objects.put(layout.MARKER, objects.get(layout.MARKER) + b"\n")
    except ExistsError:
        return
    raise PreflightError(
        f"the store ignored a conditional write (If-None-Match) and overwrote {objects.place(layout.MARKER)}",
        hint=(
            "use an S3 server with conditional writes, or a folder; without them two writers could destroy each other's"
            " backups"
        ),
    )
