"""Whether a failed command is worth repeating follows from its exit code and the code of its error."""

from __future__ import annotations

import pytest

from zsnapdb.base.errors import EXIT_CODES, RetryClass, retry_class


def test_each_exit_code_has_the_class_that_is_promised() -> None:
    again, never, twice = {5, 6, 10, 75, 130, 141}, {0, 2, 3, 4, 7, 8, 11}, {1, 9, 12}
    assert again | never | twice == EXIT_CODES.keys()
    for kind, codes in ((RetryClass.AGAIN, again), (RetryClass.NEVER, never), (RetryClass.TWICE, twice)):
        assert {code for code in EXIT_CODES if retry_class(code) is kind} == codes


def test_a_program_that_did_not_end_in_time_is_started_again() -> None:
    assert retry_class(9, "command-timeout") is RetryClass.AGAIN
    assert retry_class(9, "command") is RetryClass.TWICE
    assert retry_class(12, "hook") is RetryClass.TWICE


@pytest.mark.parametrize("code", [-9, 137, 99])
def test_a_code_that_nobody_knows_is_worth_two_attempts(code: int) -> None:
    assert retry_class(code) is RetryClass.TWICE


@pytest.mark.parametrize("code", sorted(EXIT_CODES))
def test_the_code_of_an_error_from_elsewhere_changes_no_other_class(code: int) -> None:
    if code != 9:
        assert retry_class(code, "command-timeout") is retry_class(code)
