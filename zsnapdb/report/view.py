"""A result as text for people and as a document for programs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, ClassVar

from zsnapdb.documents.base import Document
from zsnapdb.report.document import document

Fields = Mapping[str, Any]
"""The fields of a document, by name."""


class View(ABC):
    """A result that can be printed as text for a person or as one JSON document for a program."""

    kind: ClassVar[str]
    document_class: ClassVar[type[Document]]
    read_from: ClassVar[str] = ""
    """The attribute of the view whose attributes are the fields of the document ("": the view's own)."""

    @abstractmethod
    def text(self) -> str:
        """Return the result in lines for a person, without a newline at the end."""

    def fields(self) -> Fields:
        """Return the fields of the document, without `version` and `kind`."""
        return self.document_class.of_result(attrgetter(self.read_from)(self) if self.read_from else self).json_fields()

    def document(self) -> str:
        """Return the result as one line of JSON."""
        return document(self.kind, **self.fields())
