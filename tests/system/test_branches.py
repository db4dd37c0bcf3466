"""Branches of a clone: lines of its commits, between which it switches under the same port and login."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from .in_guest import Lab, ask, everything

pytestmark = pytest.mark.usefixtures("first")


@contextlib.contextmanager
def connected(login: dict[str, Any]) -> Iterator[pymysql.Connection]:
    with pymysql.connect(
        host=login["host"], port=login["port"], user=login["user"], password=login["password"], autocommit=True
    ) as connection:
        yield connection


def branch(lab: Lab, verb: str, *words: str) -> dict[str, Any]:
    document: dict[str, Any] = lab.zsnapdb("clone", "branch", verb, "b", *words, "--json").json
    return document


def words_of(login: dict[str, Any]) -> list[Any]:
    with connected(login) as session:
        return [row[0] for row in ask(session, "SELECT word FROM shop.words ORDER BY id")]


PREPARE = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.words (id INT PRIMARY KEY AUTO_INCREMENT, word VARCHAR(20)) ENGINE=InnoDB",
    "INSERT INTO shop.words (word) VALUES ('one'), ('two'), ('three')",
    "CREATE TABLE shop.heap (word VARCHAR(20))",
    "INSERT INTO shop.heap VALUES ('x'), ('y')",
)
ON_FEATURE = (
    "ALTER TABLE shop.words ADD COLUMN length INT",
    "UPDATE shop.words SET word = 'zwei' WHERE id = 2",
    "DELETE FROM shop.words WHERE id = 3",
    "INSERT INTO shop.words (id, word) VALUES (9, 'nine')",
    "INSERT INTO shop.heap VALUES ('z')",
    "CREATE TABLE shop.more (id INT PRIMARY KEY)",
    "CREATE PROCEDURE shop.p() SELECT 1",
)


def test_a_clone_switches_between_branches_under_one_port_and_loses_nothing_that_was_written(lab: Lab) -> None:
    before = everything()
    made = lab.zsnapdb("clone", "create", "main", "--name", "b", "--ttl", "2h", "--json").json["clone"]
    login = lab.zsnapdb("clone", "connect", "b", "--json").json
    try:
        with connected(login) as session:
            for statement in PREPARE:
                ask(session, statement)
        kept = lab.zsnapdb("clone", "commit", "b", "-m", "a shop", "--json").json["id"]

        # The state is committed already: the branch begins there, without a commit of its own.
        seen = branch(lab, "create", "feature/words")
        heads = {one["name"]: one["head"] for one in seen["branches"]}
        assert (heads, seen["current"], seen["made"]) == ({"main": kept, "feature/words": kept}, "main", None)
        # Both are at the same commit, and nothing was written: the server goes on.
        pid = lab.zsnapdb("clone", "show", "b", "--json").json["clone"]["pid"]
        switched = branch(lab, "switch", "feature/words")
        assert (switched["clone"]["pid"], switched["committed"]) == (pid, False)
        with connected(login) as session:
            for statement in ON_FEATURE:
                ask(session, statement)

        # What was written stays with the branch that is left; port and login are as before.
        planned = branch(lab, "switch", "main", "--plan")["steps"]
        assert any("commit what branch feature/words lacks" in step for step in planned)
        back = branch(lab, "switch", "main")
        assert (back["branch"], back["left"], back["committed"], back["clone"]["port"]) == (
            "main", "feature/words", True, made["port"],
        )  # fmt: skip
        assert words_of(login) == ["one", "two", "three"]
        feature = back["left_head"]

        # Nothing was written on main: its head stays, and no commit is made.
        again = branch(lab, "switch", "feature/words")
        assert (again["left_head"], again["committed"], words_of(login)) == (kept, False, ["one", "zwei", "nine"])
        line = branch(lab, "log")
        assert [one["id"] for one in line["commits"]] == [feature, kept]
        assert (line["commits"][0]["branches"], line["begins"]) == (["feature/words"], made["backup_id"])

        difference = branch(lab, "diff", "main", "feature/words", "--limit", "1")
        tables = {one["table"]: one for one in difference["tables"]}
        words = tables["shop.words"]
        assert (words["added"], words["removed"], words["changed"], len(words["changes"])) == (1, 1, 1, 1)
        assert words["changes"][0] == {"change": "changed", "key": [2], "before": [2, "two"], "after": [2, "zwei"]}
        heap, more = tables["shop.heap"], tables["shop.more"]
        assert (heap["by"], heap["same"], heap["rows_before"], heap["rows_after"]) == ("checksum", False, 2, 3)
        assert (more["by"], more["rows_before"], more["rows_after"]) == ("presence", None, 0)
        assert tables["ledger.accounts"]["same"]
        assert {"+  `length` int(11) DEFAULT NULL", "+  `length` int DEFAULT NULL"} & {
            text.rstrip(",") for text in difference["schema_difference"].splitlines()
        }
        assert "procedure shop.p after" in difference["schema_difference"]

        # A reset changes the data and no branch; what is refused changes nothing.
        assert lab.zsnapdb("clone", "reset", "b").code == 0
        assert [one["id"] for one in branch(lab, "log")["commits"]] == [feature, kept]
        for words_, code in (
            (("create", "b", "a b"), 2), (("create", "b", "main"), 8), (("create", "b", feature), 2),
            (("switch", "b", "nowhere"), 2), (("delete", "b", "feature/words"), 4),
            (("create", "b", "x", "--from", "-"), 2),
        ):  # fmt: skip
            assert lab.zsnapdb("clone", "branch", *words_).code == code, words_
        branch(lab, "switch", "main")
        assert words_of(login) == ["one", "two", "three"]
        assert [one["name"] for one in branch(lab, "delete", "feature/words")["branches"]] == ["main"]
    finally:
        assert lab.zsnapdb("clone", "destroy", "b").code == 0
    assert everything() == before
