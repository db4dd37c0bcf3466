"""No error for people shows a pattern: each pattern of an argument or a setting has a description and an example."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from zsnapdb.base.errors import ConfigError, UsageError
from zsnapdb.base.pattern_words import ALLOWED, allowed, bare
from zsnapdb.config.fleet import FleetSettings
from zsnapdb.config.fleet_jobs import FleetJobsSettings
from zsnapdb.config.settings import Settings
from zsnapdb.config.settings import parse as settings_of
from zsnapdb.jobs.setup.steps import AnswersDocument
from zsnapdb.serve.helper_messages import parse_request
from zsnapdb.serve.page_requests import RefusedPage, parsed
from zsnapdb.verbs import requests as verbs
from zsnapdb.verbs.delegation import parse


def patterns_in(schema: object) -> Iterator[str]:
    """Yield the patterns of all values and keys in a JSON schema."""
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from patterns_in(inner)
    if isinstance(schema, dict):
        yield from (text for text in (schema.get("pattern"),) if isinstance(text, str))
        yield from schema.get("patternProperties", ())


MODELS: tuple[type[BaseModel], ...] = (*verbs.VERBS, Settings, FleetSettings, FleetJobsSettings, AnswersDocument)
OF_MODELS = {pattern for model in MODELS for pattern in patterns_in(model.model_json_schema())}
COMMANDS = (*verbs.COMMANDS.values(), *verbs.SERVED.values())
OF_COMMANDS = {form.pattern for one in COMMANDS for form in (*one.words.values(), *one.accepted.values()) if form}
PATTERNS = sorted({bare(pattern) for pattern in OF_MODELS | OF_COMMANDS})


def test_every_pattern_has_words_and_each_word_a_pattern() -> None:
    assert sorted(ALLOWED) == PATTERNS


@pytest.mark.parametrize("pattern", sorted(ALLOWED))
def test_example_is_allowed(pattern: str) -> None:
    allowed_text = ALLOWED[pattern]
    assert re.match(rf"(?:{pattern})", allowed_text.example)
    assert not re.search(r"\[[^] ]|\\|\{[0-9]", allowed_text.description)


def refusals() -> Iterator[str]:
    """Yield the message of each interface for a wrong name and a wrong duration."""
    wrong: dict[str, Any] = {"name": "Bad Name", "guid": "x", "lease": {"ttl": "4 hours"}}
    for name, fields in (("extend", wrong), ("create", {"wanted": {"instance": "X y", "at": "?"}, "key": " "})):
        line = TypeAdapter(dict[str, Any]).dump_json({"token": "t", "verb": {"kind": f"clone.{name}", **fields}})
        with pytest.raises(UsageError) as refused:
            parse_request(line)
        yield refused.value.message
    with pytest.raises(RefusedPage) as page:
        parsed(verbs.ExtendCloneVerb, wrong)
    yield page.value.failure.message
    for argv in (["extend", "--ttl=soon", "dev"], ["extend", "Bad Name"], ["create", "Main", "dev"]):
        with pytest.raises(UsageError) as parse_error:
            parse(argv, "ada")
        yield parse_error.value.message
    with pytest.raises(ConfigError) as config:
        settings_of('[serve]\naccount = "0 "\n', "zsnapdb.toml")
    yield config.value.message


def test_refusal_says_what_is_allowed_with_an_example() -> None:
    for message in refusals():
        assert "must be" in message, message
        assert "such as" in message, message
        assert not re.search(r"pattern|\[a-z|\{[0-9]", message), message


def test_unknown_pattern_is_not_shown() -> None:
    assert allowed("^[q]+$") == "has another form than expected"
    with pytest.raises(ValidationError):
        verbs.ExtendCloneVerb.model_validate({"name": "Bad"})
