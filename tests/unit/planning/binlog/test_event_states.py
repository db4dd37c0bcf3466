"""The states of scheduled events after the statements of a binlog."""

from __future__ import annotations

import pytest

from zsnapdb.planning.binlog.event_states import EventState, follow

ON, OFF, REPLICA = EventState.ENABLED, EventState.DISABLED, EventState.REPLICA
E, F = ("d", "e"), ("d", "f")


def after(
    *statements: str, before: dict[tuple[str, str], EventState] | None = None
) -> dict[tuple[str, str], EventState]:
    states = dict(before or {})
    for statement in statements:
        follow(states, "d", statement)
    return states


@pytest.mark.parametrize(
    ("statement", "state"),
    [
        ("CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO SELECT 1", ON),
        ("create event if not exists E on schedule every 1 day disable do select 1", OFF),
        ("CREATE EVENT d.e ON SCHEDULE EVERY 1 DAY DISABLE ON SLAVE DO SELECT 1", REPLICA),
        ("CREATE EVENT `d` . `e` ON SCHEDULE EVERY 1 DAY DISABLE ON REPLICA DO SELECT 1", REPLICA),
        ("CREATE DEFINER=`a`@`b` EVENT `e` ON SCHEDULE EVERY 1 DAY COMMENT 'DISABLE' DO DISABLE", ON),
        ("CREATE DEFINER = event@localhost EVENT e ON SCHEDULE EVERY 1 DAY ENABLE DO SELECT 'DISABLE'", ON),
        ("CREATE DEFINER=CURRENT_USER() EVENT e ON SCHEDULE EVERY 1 DAY DISABLE DO SELECT 1", OFF),
        ("CREATE OR REPLACE EVENT e ON SCHEDULE AT '2030-01-01' + INTERVAL 1 DAY DISABLE COMMENT 'x' DO SELECT 1", OFF),
        (
            "/*!50106 CREATE*/ /*!50117 DEFINER=`a`@`b`*/ /*!50106 EVENT `e` ON SCHEDULE EVERY 1 DAY DISABLE DO x */",
            OFF,
        ),
        ("CREATE /* DISABLE */ EVENT e -- DISABLE\n ON SCHEDULE EVERY 1 DAY # DISABLE\n DO SELECT 1", ON),
        ('CREATE EVENT "d"."e" ON SCHEDULE EVERY 1 DAY COMMENT "it\'s DO" DISABLE DO SELECT 1', OFF),
        ("CREATE EVENT e ON SCHEDULE EVERY 1 DAY COMMENT 'a''b\\' DO' DISABLE DO SELECT 1", OFF),
    ],
)
def test_a_made_event_has_the_state_of_its_statement(statement: str, state: EventState) -> None:
    assert after(statement) == {E: state}


@pytest.mark.parametrize(
    ("statement", "states"),
    [
        ("ALTER EVENT e COMMENT 'DISABLE'", {E: OFF}),
        ("ALTER DEFINER=`x`@`y` EVENT e ON SCHEDULE EVERY 2 DAY", {E: OFF}),
        ("ALTER EVENT E ENABLE", {E: ON}),
        ("ALTER EVENT e RENAME TO f", {F: OFF}),
        ("ALTER EVENT e ON COMPLETION PRESERVE RENAME TO other.E ENABLE COMMENT 'x' DO DISABLE", {("other", "e"): ON}),
        ("ALTER EVENT unknown COMMENT 'x'", {E: OFF}),
        ("CREATE EVENT IF NOT EXISTS e ON SCHEDULE EVERY 1 DAY DO SELECT 1", {E: OFF}),
        ("DROP EVENT IF EXISTS e", {}),
        ("DROP EVENT other.e", {E: OFF}),
        ("DROP DATABASE `d`", {}),
        ("DROP SCHEMA IF EXISTS d", {}),
        ("CREATE OR REPLACE DATABASE d", {}),
        ("CREATE DATABASE IF NOT EXISTS d", {E: OFF}),
        ("CREATE TABLE event (a INT)", {E: OFF}),
        ("CREATE DEFINER=a@b PROCEDURE p() ALTER EVENT e ENABLE", {E: OFF}),
        ("INSERT INTO t VALUES ('DROP EVENT e')", {E: OFF}),
        ("DROP EVENT", {E: OFF}),
        ("CREATE DEFINER=", {E: OFF}),
        ("ALTER EVENT e RENAME TO", {("d", ""): OFF}),
    ],
)
def test_a_known_event_is_followed(statement: str, states: dict[tuple[str, str], EventState]) -> None:
    assert after(statement, before={E: OFF}) == states
