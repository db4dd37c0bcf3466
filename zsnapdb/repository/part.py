"""The base of all stored documents."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A part of a stored document. Unknown fields are ignored.

    The schema of a part is built at its first use: most are only ever read inside a document, whose schema has theirs.
    Not for what threads use first: not every pydantic guards the building of a schema against two threads.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)
