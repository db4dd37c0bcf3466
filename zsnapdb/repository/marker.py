"""The marker: the one object that names a repository. It holds nothing that manifests do not hold too."""

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
    """Format, id, and the public keys that backups were encrypted to when it was last written."""

    format: int
    id: str
    recipients: tuple[str, ...]

    @classmethod
    def parse(cls, body: bytes, name: str) -> Marker:
        """Return the marker. DamagedError if it is none, or of another format."""
        try:
            document = json.loads(body)
            marker = cls(
                int(document["format"]),
                str(document["id"]),
                tuple(str(text) for text in document.get("recipients", ())),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"{name} cannot be read", hint="is this the prefix of a zsnapdb repository?") from error
        if marker.format != FORMAT:
            raise DamagedError(
                f"the repository has format {marker.format}, this zsnapdb reads {FORMAT}",
                hint="use the zsnapdb that wrote it, or a newer one",
            )
        return marker

    @classmethod
    def read(cls, objects: RepositoryObjects) -> Marker:
        """Return the repository's marker; NotThere if there is none."""
        return cls.parse(objects.get(layout.MARKER), objects.place(layout.MARKER))

    def encode(self) -> bytes:
        """Return the stored form: JSON, UTF-8."""
        return json.dumps(
            {"format": self.format, "id": self.id, "recipients": list(self.recipients)}, indent=1
        ).encode()

    def write(self, objects: RepositoryObjects) -> None:
        """Write it where there is none; ExistsError if there is one.

        PreflightError, with nothing left, if the store cannot keep two writers apart.
        """
        objects.put(layout.MARKER, self.encode())
        try:
            prove_conditional_writes(objects)
        except PreflightError:
            with contextlib.suppress(RepositoryError):
                objects.delete(layout.MARKER)
            raise

    def with_recipients(self, recipients: tuple[str, ...]) -> Marker:
        """Return the marker with other recipients."""
        return replace(self, recipients=recipients)


def prove_conditional_writes(objects: RepositoryObjects) -> None:
    """Raise PreflightError if the store writes over an object although it was asked not to.

    Nothing would keep two writers apart there.

    Some S3 servers take `If-None-Match: *` and do not look at it. It is tried on the marker, with what it says and a
    line end more: were it the very same bytes, a repeated request whose first answer was lost would take the marker for
    its own work. NotThere without a marker.
    """
    try:
        objects.put(layout.MARKER, objects.get(layout.MARKER) + b"\n")
    except ExistsError:
        return
    raise PreflightError(
        f"the store wrote over {objects.place(layout.MARKER)} although it was asked to write only where nothing is (If-None-Match)",
        hint=(
            "it cannot keep two writers apart, so backups there are not safe; use an S3 server with conditional writes,"
            " or a folder"
        ),
    )
