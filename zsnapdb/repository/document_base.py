"""The base of all stored documents."""

from __future__ import annotations

import threading
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from zsnapdb.base.errors import DamagedError
from zsnapdb.base.patterns import first_problem

_NO_FIELDS: set[str] = set()
_BUILDING = threading.Lock()
"""Some versions of pydantic do not guard the build of a schema against two threads."""


class Part(BaseModel):
    """A part of a stored document. Unknown fields are ignored.

    The schema of a part is built at its first use. Most parts are only read inside a document, whose schema contains
    theirs, and some commands read no document. Threads may only use `decode` first.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    def encode(self) -> bytes:
        """Return the stored form: compact JSON, UTF-8, in one line without its line feed."""
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, body: bytes, name: str) -> Self:
        """Return the document in `body`. `name` is the object in errors.

        Raises: DamagedError if `body` is no such document.
        """
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

    def forget_set_fields(self) -> None:
        """Drop the list of fields that the document had. It takes half the memory of a small part."""
        object.__setattr__(self, "__pydantic_fields_set__", _NO_FIELDS)
