"""Laws of a configuration that setup adds its tables to: everything else stays, byte by byte."""

from __future__ import annotations

import tomllib
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.planning.setup.test_plan import ANSWERS
from zsnapdb.planning.setup.configuration import ServerLogin, configuration_text, digest, document_of, surroundings
from zsnapdb.planning.setup.facts import SetupAnswers, WrittenTables

LOGIN = ServerLogin("/run/m.sock", "zsnapdb")
NAMES = st.sampled_from(["main", "shop", "a-b", "site", "agent", "repository"])
PLACES = st.sampled_from(["s3://bucket/prefix", "file:///srv/backups", "s3://other/place"])
WAYS = st.sampled_from([None, "dba@example.net", "https://hooks.example.net/x", "/usr/local/bin/tell"])
SETUPS = st.builds(SetupAnswers, PLACES, NAMES, notify=WAYS)
PERSONS = st.lists(
    st.sampled_from(
        [
            "# a comment [instance.main]\n",
            "\n",
            '[instance.mine]\nrepository = "mine"\n',
            '[repository.mine] # mine\nurl = "s3://mine/there"\n',
            "[site]\ncontacts = [\n  '''a\n[instance.shop]\n''',\n]\n",
            "[doctor]\nsilenced = [\n[1],\n]\n",
            '[instance.main]\nsocket = """\n[instance.main]\n"""\n',
            "instance.shop.port = 1\n",
        ]
    ),
    unique=True,
).map("\n".join)


def written(text: str, answers: SetupAnswers, earlier: WrittenTables | None = None) -> tuple[str, WrittenTables] | None:
    """Return the configuration after a setup with these answers, and which tables are its own."""
    around = surroundings(text or None, answers, earlier)
    if around is None:
        return None
    return configuration_text(answers, LOGIN, None, around=around), WrittenTables(around.tables(answers.instance))


@given(PERSONS, SETUPS)
def test_tables_are_added_and_no_other_byte_changes(text: str, answers: SetupAnswers) -> None:
    document = document_of(text)
    made = written(text, answers)
    if document is None or answers.instance in document.get("instance", {}) or made is None:
        assert document is None or made is not None or answers.instance in document.get("instance", {})
        return
    after, tables = made
    assert after.startswith(text.rstrip("\n"))
    merged = tomllib.loads(after)
    assert merged["instance"][answers.instance]["repository"] in merged["repository"]
    for path in tables.tables:
        inner = merged
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
    document = {"instance": {}, "repository": {}, **document, "agent": merged["agent"]}
    merged["notifications"] = {} if merged.get("notifications") == {"to": {}} else merged.get("notifications", {})
    assert {"notifications": {}, **document} == {"repository": {}, **merged}


@given(PERSONS, SETUPS, SETUPS)
def test_other_words_for_the_same_instance_lead_to_what_they_lead_to_at_first(
    text: str, first: SetupAnswers, second: SetupAnswers
) -> None:
    second = replace(second, instance=first.instance)
    one, directly = written(text, first), written(text, second)
    if one is None or directly is None or first.instance in (document_of(text) or {}).get("instance", {}):
        return
    corrected = written(one[0], second, one[1])
    if corrected is None:
        assert f"\n[instance.{first.instance}]\n" in text, "a text of several lines that looks like a header"
        return
    assert tomllib.loads(corrected[0]) == tomllib.loads(directly[0])
    again = written(corrected[0], second, corrected[1])
    assert again is not None
    assert again[0] == corrected[0], "the same words again change nothing"


def test_an_instance_that_is_written_in_another_way_is_left_to_a_person() -> None:
    for text in ("instance.main.port = 1\n", "instance = { main = { port = 1 } }\n", '[instance."main"]\nport = 1\n'):
        assert surroundings(text, ANSWERS) is None
        assert surroundings(text, replace(ANSWERS, instance="shop")) is not None


def test_comments_and_order_are_no_change_of_a_table_and_each_value_is() -> None:
    made = written("", ANSWERS)
    assert made is not None
    text, tables = made
    known = digest(tomllib.loads(text), tables.tables)
    parts = text.split("\n\n")
    assert digest(tomllib.loads("\n\n".join(reversed(parts))), tables.tables) == known
    assert digest(tomllib.loads(text.replace("\n", " # mine\n")), tables.tables) == known
    for line in text.split("\n"):
        if " = " in line and not line.startswith(("reap", "status", "#")):
            assert digest(tomllib.loads(text.replace(line + "\n", "", 1)), tables.tables) != known, line
