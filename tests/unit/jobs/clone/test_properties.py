"""What a user writes becomes a property of a clone."""

from __future__ import annotations

import pytest

from zsnapdb.base.errors import PreflightError
from zsnapdb.jobs.clone.clone_info import requested_text
from zsnapdb.jobs.clone.commits import message_text
from zsnapdb.jobs.dataset_copies.properties import owner_text


@pytest.mark.parametrize("owner", ["a\tb", "a\nb", "\x1b[2J", "", "  ", "unix:", "x" * 101])
def test_an_owner_that_is_not_one_short_line_is_refused(owner: str) -> None:
    with pytest.raises(PreflightError, match="is not a name"):
        owner_text(owner)


@pytest.mark.parametrize("owner", ["ada", "ada lovelace", "ci@host", "łukasz", "user:ada@example.org", "ci:shop"])
def test_a_plain_owner_is_kept(owner: str) -> None:
    assert owner_text(owner) == owner


def test_an_account_is_the_same_owner_with_its_kind_and_without() -> None:
    assert owner_text(" unix:ada ") == owner_text("ada") == "ada"


def test_words_of_a_user_become_one_printable_line() -> None:
    assert message_text("before\tthe\n migration\x1b[2J") == "before the migration?[2J"
    assert requested_text("latest\n\x07") == "latest ?"
