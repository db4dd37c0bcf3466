"""Example files, and grants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.model import Flavour
from zsnapdb.jobs.shell.examples import Example
from zsnapdb.report.view import View


class ExamplesDocument(TypedDict):
    """The names of all examples."""

    examples: list[str]


class ExampleDocument(TypedDict):
    """An example."""

    name: str
    text: str


class GrantsDocument(TypedDict):
    """The statements that make an account."""

    flavour: str
    statements: str


@dataclass(frozen=True)
class ExamplesView(View):
    """The names of all examples."""

    examples: tuple[Example, ...]
    kind: ClassVar[str] = "examples"

    def text(self) -> str:
        return "\n".join(example.name for example in self.examples)

    def fields(self) -> ExamplesDocument:
        return {"examples": [example.name for example in self.examples]}


@dataclass(frozen=True)
class ExampleView(View):
    """The text of one example."""

    example: Example
    kind: ClassVar[str] = "example"

    def text(self) -> str:
        return self.example.text.rstrip("\n")

    def fields(self) -> ExampleDocument:
        return {"name": self.example.name, "text": self.example.text}


@dataclass(frozen=True)
class GrantsView(View):
    """The statements that make the account of zsnapdb on a server."""

    flavour: Flavour
    statements: str
    kind: ClassVar[str] = "grants"

    def text(self) -> str:
        return self.statements.rstrip("\n")

    def fields(self) -> GrantsDocument:
        return {"flavour": self.flavour.value, "statements": self.statements}
