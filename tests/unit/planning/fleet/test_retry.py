"""Whether an attempt of a fleet's job is followed by another, and where."""

from __future__ import annotations

import re

import pytest

from tests.unit.support.command_line import CHECKOUT
from zsnapdb.base.errors import EXIT_CODES, retry_class
from zsnapdb.planning.fleet.jobs import JobVerdict, is_final, verdict


@pytest.mark.parametrize("code", [code for code in EXIT_CODES if code])
def test_a_job_of_one_host_follows_the_class_of_its_exit_code(code: int) -> None:
    assert verdict(code, "", anywhere=False).value == retry_class(code).value


def test_what_one_host_cannot_do_another_may_if_any_host_may_do_it() -> None:
    assert {code for code in EXIT_CODES if verdict(code, "", anywhere=True) is JobVerdict.ELSEWHERE} == {2, 3, 4}
    assert verdict(0, "", anywhere=True) is JobVerdict.DONE


@pytest.mark.parametrize("code", [-9, -15])
def test_a_command_that_a_signal_ended_is_begun_again(code: int) -> None:
    assert verdict(code, "", anywhere=False) is JobVerdict.AGAIN


def test_attempts_end_as_the_verdict_says() -> None:
    last = {kind: next((n for n in range(1, 50) if is_final(kind, n)), None) for kind in JobVerdict}
    assert last == {"done": 1, "never": 1, "twice": 2, "again": None, "elsewhere": 30}


def test_the_page_of_the_fleet_names_each_exit_code_where_it_belongs() -> None:
    text = (CHECKOUT / "docs" / "fleet-jobs.md").read_text()
    rows = dict(re.findall(r"^ *\| (again|twice|never) \| ([0-9, ]+) \|", text, re.MULTILINE))
    known = {kind: {int(code) for code in codes.split(",")} for kind, codes in rows.items()}
    made = {kind: {code for code in EXIT_CODES if code and retry_class(code) == kind} for kind in known}
    assert known == made
    assert set().union(*known.values()) == set(EXIT_CODES) - {0}
