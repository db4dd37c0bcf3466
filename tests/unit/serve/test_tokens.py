"""A token is shown once, and what is stored of it opens nothing."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.errors import ConfigError, UnknownNameError, UsageError
from zsnapdb.base.patterns import is_subject
from zsnapdb.jobs.dataset_copies.properties import owner_text
from zsnapdb.serve.roles import Role
from zsnapdb.serve.tokens import TokenBook

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def book(tmp_path: Path) -> TokenBook:
    return TokenBook(tmp_path / "serve")


def test_a_token_is_good_until_it_expires(book: TokenBook) -> None:
    made = book.create("ci:shop/web", Role.DEVELOPER, 86400.0, NOW)
    text = made.text.get_secret_value()
    assert book.holder(text, NOW + DAY - timedelta(seconds=1)) == made.stored
    assert book.holder(text, NOW + DAY) is None


def test_clock_that_jumps_makes_no_token_good_and_removes_no_session(tmp_path: Path) -> None:
    removal = [NOW]
    book = TokenBook(tmp_path / "serve", lambda: removal[0])
    made = book.create("ci:shop/web", Role.DEVELOPER, 86400.0, NOW + 400 * DAY).text.get_secret_value()
    assert book.holder(made, NOW + 400 * DAY) is not None
    assert book.holder(made, NOW) is None, "it was made while the clock was ahead"
    session = book.open_session(
        "user:ann@example.org", Role.DEVELOPER, "https://issuer", 3600.0, NOW
    ).text.get_secret_value()
    book.open_session("user:bob@example.org", Role.DEVELOPER, "https://issuer", 3600.0, NOW + 40 * DAY)
    assert book.holder(session, NOW) is not None
    removal[0] = NOW + 40 * DAY
    book.open_session("user:bob@example.org", Role.DEVELOPER, "https://issuer", 3600.0, NOW + 40 * DAY)
    assert book.holder(session, NOW) is None


def test_spelling_of_a_subject_gives_it_no_more_sessions(book: TokenBook) -> None:
    for number in range(14):
        subject = ("user:bob@example.org", "user:Bob@Example.org")[number % 2]
        book.open_session(subject, Role.DEVELOPER, "https://issuer", 3600.0, NOW)
    assert len(book.tokens()) == 10


def test_a_revoked_token_is_good_no_more_and_stays_in_the_list(book: TokenBook) -> None:
    made, other = (book.create("unix:ann", Role.DEVELOPER, 86400.0, NOW) for _ in range(2))
    revoked = book.revoke(made.stored.id, NOW)
    assert book.holder(made.text.get_secret_value(), NOW) is None
    assert book.holder(other.text.get_secret_value(), NOW) == other.stored
    assert book.revoke(made.stored.id, NOW + DAY) == revoked
    assert book.tokens() == (revoked, other.stored)
    with pytest.raises(UnknownNameError):
        book.revoke("00000000", NOW)


@pytest.mark.parametrize("text", ["", "zsnapdb_", "x", "zsnapdb_" + "A" * 43])
def test_no_other_text_is_a_token(book: TokenBook, text: str) -> None:
    assert book.holder(text, NOW) is None
    stored = book.create("ci:shop", Role.OPERATOR, 86400.0, NOW).stored
    for other in (text, stored.id, stored.sha256):
        assert book.holder(other, NOW) is None


def test_the_file_has_no_token_and_nobody_else_reads_it(book: TokenBook) -> None:
    text = book.create("ci:shop", Role.DEVELOPER, 86400.0, NOW).text.get_secret_value()
    assert text not in book.file.read_text()
    assert book.file.stat().st_mode & 0o777 == 0o600
    assert book.folder.stat().st_mode & 0o777 == 0o700
    book.file.chmod(0o644)
    with pytest.raises(ConfigError, match="other accounts may read"):
        book.holder(text, NOW)


def test_an_altered_file_opens_nothing(book: TokenBook) -> None:
    text = book.create("ci:shop", Role.DEVELOPER, 86400.0, NOW).text.get_secret_value()
    book.file.write_text(book.file.read_text().replace("developer", "root"))
    with pytest.raises(ConfigError, match="altered"):
        book.holder(text, NOW)


def test_tokens_that_are_made_at_once_are_all_kept(book: TokenBook) -> None:
    makers = [
        threading.Thread(target=book.create, args=(f"ci:shop/{number}", Role.DEVELOPER, 60.0, NOW))
        for number in range(12)
    ]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert len({token.id for token in book.tokens()}) == 12


SUBJECTS = ("unix:ann", "user:ann.b+c@example.org", "ci:shop", "ci:shop/web/main", "ci:a.b-c_d/x")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_subject_can_own_a_clone(subject: str) -> None:
    assert is_subject(subject)
    assert owner_text(subject) in (subject, subject.removeprefix("unix:"))


@pytest.mark.parametrize(
    "subject",
    [
        *("", "ann", "unix:", "unix:a b", "unix:-x", "unix:unix:ann", "user:ann", "user:a@", "root:x", " ci:a"),
        *("ci:", "ci:/x", "ci:a//b", "ci:a/", "ci:../x", "ci:a/../b", "ci:a\n", "ci:a\0", "ci:ä", "the pool"),
        "ci:" + "a/" * 60 + "a",
    ],
)
def test_what_is_no_subject_gets_no_token(book: TokenBook, subject: str) -> None:
    with pytest.raises(UsageError):
        book.create(subject, Role.DEVELOPER, 60.0, NOW)
    assert book.tokens() == ()


@given(st.text(max_size=20), st.sampled_from(["", "unix:", "user:", "ci:"]))
def test_every_subject_is_one_short_line_with_a_kind(text: str, kind: str) -> None:
    if is_subject(kind + text):
        assert owner_text(kind + text)
        assert (kind + text).isprintable()
        assert " " not in kind + text
        assert (kind + text).partition(":")[0] in ("unix", "user", "ci")
