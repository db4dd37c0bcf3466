"""Example files, and grants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.base.model import Flavour
from zsnapdb.documents.setup import ExampleDocument, ExamplesDocument, GrantsDocument
from zsnapdb.jobs.shell.examples import Example
from zsnapdb.report.view import View


@dataclass(frozen=True)
class ExamplesView(View):
    """The names of all examples."""

    examples: tuple[Example, ...]
    kind: ClassVar[str] = "examples"
    document_class = ExamplesDocument

    def text(self) -> str:
        return "\n".join(example.name for example in self.examples)


@dataclass(frozen=True)
class ExampleView(View):
    """The text of one example."""

    example: Example
    kind: ClassVar[str] = "example"
    document_class = ExampleDocument
    read_from = "example"

    def text(self) -> str:
        return self.example.text.rstrip("\n")


@dataclass(frozen=True)
class GrantsView(View):
    """The statements that make the account of zsnapdb on a server."""

    flavour: Flavour
    statements: str
    kind: ClassVar[str] = "grants"
    document_class = GrantsDocument

    def text(self) -> str:
        return self.statements.rstrip("\n")
