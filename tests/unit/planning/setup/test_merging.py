"""Laws of a configuration to which setup adds its keys: everything else stays, byte by byte."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.setup_plans import ANSWERS
from zsnapdb.planning.setup.configuration import ServerLogin, SetupSurroundings, merged_configuration, surroundings
from zsnapdb.planning.setup.facts import SetupAnswers, WrittenTables
from zsnapdb.planning.setup.merge import Merge, document_of, value_at

LOGIN = ServerLogin("/run/m.sock", "zsnapdb")
NAMES = st.sampled_from(["main", "shop", "a-b", "site", "agent", "repository"])
PLACES = st.sampled_from(["s3://bucket/prefix", "file:///srv/backups", "s3://other/place"])
WAYS = st.sampled_from([None, "dba@example.net", "https://hooks.example.net/x", "/usr/local/bin/tell"])
SETUPS = st.builds(SetupAnswers, PLACES, NAMES, notify=WAYS)
PERSONS = st.lists(
    st.sampled_from(
        [
            "instance.shop.port = 1\n",
            "# a comment [instance.main]\n",
            "\n",
            '[instance.mine]\nrepository = "mine"\n',
            '[repository.mine] # mine\nurl = "s3://mine/there"\n',
            '[repository.backups]\nurl = "s3://bucket/prefix"\ns3.region = "x"\n',
            "[site]\ncontacts = [\n  '''a\n[instance.shop]\n''',\n]\n",
            "[doctor]\nsilenced = [\n[1],\n]\n",
            '[instance.main]\nuser = """\n[instance.main]\n"""\n',
            "[instance.main.keep]  # mine\n  last = 3\n",
            '[instance.main.agent]\nbackup = { cron = "1 1 * * *" }\r\n',
            '[instance.shop.objectives]\nrpo = "1h"',
            'instance.a-b.socket = "/s"\n',
            "[agent]\n",
        ]
    ),
    unique=True,
).map("\n".join)


def merged(
    text: str, answers: SetupAnswers, keys: frozenset[tuple[str, ...]] = frozenset(), *, prunes: bool = True
) -> tuple[Merge, SetupSurroundings] | None:
    """Return the configuration after a setup with these answers; None if the text is not valid TOML."""
    around = surroundings(text or None, answers, WrittenTables((), keys))
    return (merged_configuration(answers, LOGIN, None, around=around, prunes=prunes), around) if around else None


def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not isinstance(value, dict):
        return {path: value}
    return {key: leaf for name, inner in value.items() for key, leaf in leaves(inner, (*path, name)).items()}


@given(PERSONS, SETUPS)
def test_merge_adds_keys_and_changes_no_other_byte(text: str, answers: SetupAnswers) -> None:
    made = merged(text, answers)
    if made is None or not text:
        return
    merge, _ = made
    lines, rest = text.splitlines(keepends=True), iter(merge.text.splitlines())
    assert all(line.rstrip("\r\n") in rest for line in lines if line.strip()), "each line stays, in its order"
    before, after = tomllib.loads(text), tomllib.loads(merge.text)
    assert {path: value_at(after, path) for path in leaves(before)} == leaves(before)
    new = set(leaves(after)) - set(leaves(before))
    assert all(any(leaf[: len(path)] == path for path in merge.keys) for leaf in new)


@given(PERSONS, SETUPS)
def test_merge_lacks_nothing_afterwards_and_a_second_one_is_the_same(text: str, answers: SetupAnswers) -> None:
    made = merged(text, answers)
    if made is None or made[0].failed:
        return
    merge, _ = made
    document = document_of(merge.text)
    assert all(value_at(document, path) is not None for path in merge.keys)
    again = merged(merge.text, answers, merge.keys)
    assert again is not None
    assert (again[0].text, again[0].added, again[0].failed) == (merge.text, (), ())


@given(SETUPS, st.data())
def test_key_that_a_user_removed_or_changed_is_left_alone(answers: SetupAnswers, data: st.DataObject) -> None:
    first = merged("", replace(answers, notify=None))
    assert first is not None
    lines = first[0].text.split("\n")
    own = [
        line for line in lines if line.startswith(("snapshot", "drill", "verify", "rpo", "backup ", "last", "daily"))
    ]
    line = data.draw(st.sampled_from(own))
    for text in (first[0].text.replace(f"{line}\n", "", 1), first[0].text.replace(line, f"{line.split(' = ')[0]} = 3")):
        again = merged(text, replace(answers, notify=None), first[0].keys)
        assert again is not None
        assert again[0].text == text
        assert len(again[0].stays) == (0 if line.startswith(("last", "daily")) else 1)


def test_retention_of_a_person_is_not_completed() -> None:
    for text in ("[instance.main.keep]\nyearly = 7\n", '[instance.main]\nkeep = { last = 1 }\nrepository = "r"\n'):
        made = merged(text, ANSWERS)
        assert made is not None
        assert value_at(document_of(made[0].text), ("instance", "main", "keep")) in ({"yearly": 7}, {"last": 1})
        assert value_at(document_of(made[0].text), ("instance", "main", "agent", "prune")) is not None
    shared = f'[instance.main]\nrepository = "r"\n[repository.r]\nurl = "{ANSWERS.repository}"\nkeep = {{ last = 1 }}\n'
    made = merged(shared, ANSWERS)
    assert made is not None
    assert "last = 7" not in made[0].text


def test_login_of_a_person_is_not_completed() -> None:
    for login in ('user = "dba"', 'password_env = "PASS"', 'user = "zsnapdb"\npassword_file = "/etc/p"'):
        made = merged(f'[instance.main]\nsocket = "/other"\n{login}\n', ANSWERS)
        assert made is not None
        assert 'socket = "/other"' in made[0].text
        assert not made[1].knows_login(LOGIN)
    made = merged('[instance.main]\nhost = "localhost"\n', ANSWERS)
    assert made is not None
    assert "socket" not in made[0].text


def test_form_that_nothing_can_be_added_to_is_reported() -> None:
    made = merged("instance = { main = { port = 1 } }\n", ANSWERS)
    assert made is not None
    assert next(table.path for table in made[0].failed) == ("instance", "main")
