"""Sessions end in time, and nobody has all of them."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.serve.page_visits import SECONDS, BrowserSessions, OpenedSession, SessionOperations


@dataclass
class Clock:
    seconds: float = 100.0

    def __call__(self) -> float:
        return self.seconds


def opened(
    sessions: BrowserSessions, subject: str = "a", seconds: float = 1e9, *, token: str = "token"
) -> OpenedSession:
    made = sessions.open(token, subject, seconds)
    assert made is not None
    return made


def is_open(sessions: BrowserSessions, one: OpenedSession) -> bool:
    return sessions.find(one.id.get_secret_value()) is one.session


def test_a_session_ends_after_eight_hours_and_with_its_token() -> None:
    clock = Clock()
    sessions = BrowserSessions(clock)
    long, short = opened(sessions), opened(sessions, seconds=60)
    clock.seconds += 59
    assert (is_open(sessions, long), is_open(sessions, short)) == (True, True)
    clock.seconds += 1
    assert (is_open(sessions, long), is_open(sessions, short)) == (True, False)
    clock.seconds += SECONDS - 60
    assert not is_open(sessions, long)


def test_one_subject_takes_no_more_than_its_places_whatever_its_tokens() -> None:
    sessions = BrowserSessions(Clock(), most=30)
    other = opened(sessions, "b")
    mine = [opened(sessions, "aA"[number % 2], token=str(number)) for number in range(40)]
    assert [is_open(sessions, one) for one in mine] == [False] * 20 + [True] * 20
    assert is_open(sessions, other)
    one_more = sessions.open("last", "a", 60)
    assert one_more is not None
    assert [one.get_secret_value() for one in one_more.evicted] == ["20"], "whose token is ended where it is stored"


def test_there_are_no_more_sessions_than_places_until_some_end() -> None:
    clock = Clock()
    sessions = BrowserSessions(clock, most=3)
    for subject in "abc":
        opened(sessions, subject, 60)
    assert sessions.open("token", "d", 60) is None
    clock.seconds += 60
    opened(sessions, "d")


def test_ids_and_marks_of_forms_are_new_each_time_and_the_id_is_not_kept() -> None:
    sessions = BrowserSessions(Clock())
    made = [opened(sessions) for _ in range(5)]
    assert len({one.id.get_secret_value() for one in made} | {one.session.csrf for one in made}) == 10
    for one in made:
        for secret in (one.id.get_secret_value(), one.session.csrf):
            assert secret not in repr(sessions) + repr(one)
    token = opened(sessions, token="zsnapdb_token")
    assert "zsnapdb_token" not in repr(sessions) + repr(token)


def test_a_login_is_shown_once_and_old_operations_are_forgotten() -> None:
    session = opened(BrowserSessions(Clock())).session
    session.began("first", SessionOperations("Making", 1.0))
    assert [session.shows_login(one) for one in ("first", "first", "of another")] == [True, False, False]
    session.began("first", SessionOperations("Making again", 2.0))
    assert (session.shows_login("first"), session.begun("first")) == (False, SessionOperations("Making", 1.0))
    for number in range(200):
        session.began(str(number), SessionOperations("Making", 1.0))
    known = [number for number in range(200) if session.begun(str(number)) is not None]
    assert known == list(range(100, 200))
    assert (session.shows_login("99"), session.shows_login("100")) == (False, True)
