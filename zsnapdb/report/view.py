"""A result as text for people and as a document for programs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from zsnapdb.report.document import document

Fields = Mapping[str, object]
"""The fields of a document, by name. Each view names its own TypedDict: the schema of its documents."""


class View(ABC):
    """A result that can be printed as text for a person or as one JSON document for a program."""

    kind: ClassVar[str]

    @abstractmethod
    def text(self) -> str:
        """Return the result in lines for a person, without a newline at the end."""

    @abstractmethod
    def fields(self) -> Fields:
        """Return the fields of the document, without `version` and `kind`."""

    def document(self) -> str:
        """Return the result as one line of JSON."""
        return document(self.kind, **self.fields())
