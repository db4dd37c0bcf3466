"""The base of all stored documents."""

from __future__ import annotations

import threading
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from zsnapdb.base.errors import DamagedError
from zsnapdb.base.patterns import first_problem

_BUILDING = threading.Lock()
"""Not every pydantic guards the building of a schema against two threads."""


class Part(BaseModel):
    """A part of a stored document. Unknown fields are ignored.

    The schema of a part is built at its first use: most are only ever read inside a document, whose schema has theirs,
    and a command that reads no document needs none. Threads may use `decode` first, and nothing else.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    def encode(self) -> bytes:
        """Return the stored form: compact JSON, UTF-8, in one line without its line feed."""
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, body: bytes, name: str) -> Self:
        """Return the document in `body`. DamagedError names the object if `body` is no such document."""
        if not cls.__pydantic_complete__:
            with _BUILDING:
                cls.model_rebuild()
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            raise DamagedError(
                f"{name} cannot be read: {first_problem(error)}",
                hint="the object was altered, or a newer zsnapdb wrote it",
            ) from error
