"""JSON schemas of the documents that commands print with `--json`. The fields come from the types of the views.

A field may be added to a document at any time, so the schemas allow additional fields. A removed or changed field needs
a new `version` of the document format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from zsnapdb.report.view import VERSION, ErrorDocument

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _WithoutTitles(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's
        """Omit the titles of fields, because they only repeat the fields' names."""
        return False


class PrintedView(Protocol):
    """A view that prints documents of one kind."""

    kind: ClassVar[str]
    document_class: ClassVar[type]


@dataclass(frozen=True)
class DocumentType:
    """A kind of document, and the model of its fields."""

    kind: str
    fields: type

    @classmethod
    def of(cls, view: type[PrintedView]) -> DocumentType:
        """Return the document type of a view."""
        return cls(view.kind, view.document_class)

    def schema(self) -> dict[str, Any]:
        """Return the schema of one document, including the fields `version` and `kind` of every document."""
        schema = TypeAdapter(self.fields).json_schema(
            mode="serialization", by_alias=True, schema_generator=_WithoutTitles
        )
        frame = {"version": {"const": VERSION}, "kind": {"const": self.kind}}
        return {
            **schema,
            "properties": {**frame, **schema["properties"]},
            "required": [*frame, *schema.get("required", ())],
        }


ERROR = DocumentType("error", ErrorDocument)


def schema(title: str, types: tuple[DocumentType, ...]) -> dict[str, Any]:
    """Return one schema for documents of several kinds. It defines each kind and its parts."""
    kinds, parts = {}, {}
    for one in types:
        made = one.schema()
        parts.update(made.pop("$defs", {}))
        kinds[one.kind] = made
    return {
        "$schema": DIALECT,
        "title": title,
        "oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in kinds],
        "$defs": {**kinds, **dict(sorted(parts.items()))},
    }
