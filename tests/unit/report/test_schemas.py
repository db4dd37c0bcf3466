"""Each command that prints JSON has a published schema, and prints nothing else."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tools.references.commands import commands

import zsnapdb
from tests.documents import WrongDocument, check, check_printed, closed
from tests.unit.report.test_views import views
from tests.unit.support.command_line import zsnapdb as run
from zsnapdb.cli.schema import printed_documents, whole_schema
from zsnapdb.report.schemas import DocumentType
from zsnapdb.report.view import ErrorDocument

CLI = Path(zsnapdb.__file__).parent / "cli"
DOCUMENTS = printed_documents()
PUBLISHED = {one.kind for types in DOCUMENTS.values() for one in types}


def test_every_command_that_takes_json_has_a_schema_and_no_other_has() -> None:
    taking = {" ".join(c.words) for c in commands() if any("--json" in option.names for option in c.options)}
    assert set(DOCUMENTS) == taking


def test_every_view_is_published() -> None:
    assert {view.kind for view in views()} <= PUBLISHED


def test_every_view_that_the_command_line_shows_is_a_document_of_a_command() -> None:
    known = {view.__name__: view.kind for view in views()}
    shown = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for path in CLI.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute | ast.Name)
    }
    assert {kind for name, kind in known.items() if name in shown} >= PUBLISHED - {"answer", "difference"}


def test_the_schemas_are_schemas_and_their_patterns_are_patterns() -> None:
    schema = whole_schema()
    Draft202012Validator.check_schema(schema)
    for kind in PUBLISHED:
        assert kind in schema["$defs"]


def test_a_name_of_a_definition_means_the_same_in_every_document() -> None:
    seen: dict[str, Any] = {}
    for types in DOCUMENTS.values():
        for one in types:
            for name, part in one.schema().get("$defs", {}).items():
                assert seen.setdefault(name, part) == part, name
    assert not PUBLISHED & set(seen)


def test_no_field_of_a_document_can_be_anything() -> None:
    def free(schema: Any) -> bool:
        return isinstance(schema, dict) and not set(schema) & {"type", "anyOf", "$ref", "const", "enum"}

    def names(schema: Any, path: str) -> list[str]:
        found = []
        for key, one in schema.get("properties", {}).items():
            found += [f"{path}.{key}"] if free(one) or free(one.get("items", {"type": 1})) else []
            found += names(one, f"{path}.{key}") + names(one.get("items", {}), f"{path}.{key}")
        return found

    assert [name for kind, part in whole_schema()["$defs"].items() for name in names(part, kind)] == []


def test_a_document_with_a_field_too_many_too_few_or_of_another_type_is_seen() -> None:
    good = {
        "version": 1,
        "kind": "error",
        "error": {"code": "c", "message": "m", "hint": "h"},
        "exit_code": 1,
        "retry": "twice",
    }
    check(good, {"error"}, "backup")
    for bad in (
        {**good, "more": 1},
        {**good, "exit_code": "1"},
        {**good, "error": {"code": "c", "message": "m"}},
        {**good, "version": 2},
    ):
        with pytest.raises(WrongDocument):
            check(bad, {"error"}, "backup")
    with pytest.raises(WrongDocument):
        check(good, {"backup"}, "backup")


def test_a_published_schema_allows_fields_of_later_releases() -> None:
    open_schema = DocumentType("error", ErrorDocument).schema()
    assert "additionalProperties" not in open_schema
    assert closed(open_schema)["additionalProperties"] is False


def test_zsnapdb_schema_prints_the_schema_of_a_command() -> None:
    shown = json.loads(run("schema", "clone", "list").stdout)
    assert shown["title"] == "zsnapdb clone list --json"
    assert shown["oneOf"] == [{"$ref": "#/$defs/clones"}, {"$ref": "#/$defs/error"}]
    assert json.loads(run("schema").stdout) == whole_schema()


def test_zsnapdb_schema_names_the_commands_that_print_documents() -> None:
    done = run("schema", "completion")
    assert done.returncode == 2
    assert f"choose from: {', '.join(sorted(DOCUMENTS)[:4])}," in done.stderr


@pytest.mark.parametrize("words", [("example", "--json"), ("example", "doctor.md", "--json"), ("list", "--json")])
def test_what_a_command_prints_is_as_its_schema_says(words: tuple[str, ...]) -> None:
    done: subprocess.CompletedProcess[str] = run(*words)
    assert done.stdout
    check_printed(words, done.stdout)
