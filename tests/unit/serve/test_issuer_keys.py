"""The keys of issuers as the helper keeps them: when they are fetched, which are kept, and how long they are good."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.unit.support.issuers import EC, ISSUER, OTHER, RSA, FakeIssuer, jwk, part, refusal, whom
from zsnapdb.serve.id_tokens import IdTokenRefusal
from zsnapdb.serve.issuer_keys import FetchedKeys
from zsnapdb.serve.jwks import IssuerKey, keys_in
from zsnapdb.serve.roles import Role

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
HOLDER = ("ci:shop/web", Role.DEVELOPER, ISSUER)


@pytest.fixture
def issuer(tmp_path: Path) -> FakeIssuer:
    made = FakeIssuer(tmp_path / "issuers", NOW)
    made.known.fetch_due()
    return made


def test_a_key_that_is_not_known_is_fetched_once_a_minute(issuer: FakeIssuer) -> None:
    issuer.known.patience = 20.0
    stop = threading.Event()
    thread = threading.Thread(target=issuer.known.keep_fresh, args=(stop,))
    thread.start()
    try:
        issuer.keys = [jwk(OTHER, "new")]
        rotated = issuer.token(OTHER, {"kid": "new"})
        # It was tried when the host began, less than a minute ago.
        assert issuer.tokens.holder(rotated, issuer.now) is None
        assert issuer.asked == 1
        issuer.pass_time(61)
        assert whom(issuer.tokens.holder(rotated, issuer.now)) == HOLDER
        assert issuer.asked == 2
        for number in range(20):
            assert issuer.tokens.holder(issuer.token(header={"kid": f"k{number}"}), issuer.now) is None
        assert issuer.asked == 2
    finally:
        stop.set()
        issuer.pass_time(61)
        issuer.known.patience = 0.1
        issuer.known.ask_again(issuer.name)
        thread.join(20)
    assert not thread.is_alive()


def test_who_sends_tokens_of_invented_keys_keeps_no_place(issuer: FakeIssuer) -> None:
    """Nobody fetches here, so whoever waits does so for all of the patience."""
    issuer.known.patience = 3.0

    def seconds(kid: str) -> float:
        began = time.monotonic()
        assert issuer.tokens.holder(issuer.token(header={"kid": kid}), issuer.now) is None
        return time.monotonic() - began

    assert seconds("within-a-minute") < 2
    issuer.pass_time(61)
    with ThreadPoolExecutor(8) as pool:
        waited = sorted(pool.map(seconds, [f"k{number}" for number in range(8)]))
    assert waited[-1] >= 3
    assert waited[-2] < 2


def test_keys_go_on_for_a_day_if_the_issuer_does_not_answer(tmp_path: Path) -> None:
    issuer = FakeIssuer(tmp_path / "issuers", NOW)
    issuer.known.fetch_due()
    token_of_then = issuer.token()
    assert whom(issuer.tokens.holder(token_of_then, issuer.now)) == HOLDER
    later = FakeIssuer(tmp_path / "issuers", NOW + timedelta(hours=23), keys=[])

    def no_network(_name: str) -> FetchedKeys:
        raise OSError("no network")

    later.known.fetch = no_network
    later.known.fetch_due()
    assert whom(later.tokens.holder(later.token(), later.now)) == HOLDER, "a new helper has the stored keys"
    later.pass_time(3601)
    assert refusal(later, later.token()) == IdTokenRefusal.KEY


def test_keys_are_fetched_again_after_an_hour_and_not_before(issuer: FakeIssuer) -> None:
    counts = []
    for minutes in (0, 30, 29, 1, 1, 58):
        issuer.pass_time(minutes * 60)
        issuer.known.fetch_due()
        counts.append(issuer.asked)
    assert counts == [1, 1, 1, 2, 2, 2]
    # A clock that was set back does not keep old keys for ever.
    issuer.pass_time(-7200)
    issuer.known.fetch_due()
    assert issuer.asked == 3


def test_keys_of_another_issuer_of_that_section_are_not_used(issuer: FakeIssuer, tmp_path: Path) -> None:
    changed = FakeIssuer(tmp_path / "issuers", NOW, issuer="https://new.example.org")
    assert refusal(changed, changed.token()) == IdTokenRefusal.KEY
    moved = FakeIssuer(tmp_path / "issuers", NOW, more={"jwks_url": "https://issuer.example.org/elsewhere"})
    assert refusal(moved, moved.token()) == IdTokenRefusal.KEY


def test_only_keys_that_can_check_signatures_are_kept() -> None:
    good = jwk(RSA, "good")
    weak = {"kty": "RSA", "kid": "weak", "n": part(b"\xff" * 128), "e": "AQAB"}
    others: list[object] = [
        weak,
        {**good, "kid": "one", "e": "AQ"},
        {**good, "kid": "zeros", "n": part(b"\0" * 200 + b"\xff" * 128)},
        {**good, "kid": "enc", "use": "enc"},
        {**good, "kid": ""},
        {"kty": "oct", "kid": "secret", "k": "c2VjcmV0"},
        {"kty": "EC", "kid": "mixed", "crv": "P-256", "x": "AA"},
        {"kty": "OKP", "kid": "okp", "crv": "Ed25519", "x": "AA"},
        {k: v for k, v in good.items() if k != "kid"},
        "key",
        None,
    ]
    assert [key.kid for key in keys_in(json.dumps({"keys": [*others, good]}).encode())] == ["good"]
    private = {**RSA.as_dict(private=True), "kid": "private"}
    (kept,) = keys_in(json.dumps({"keys": [private]}).encode())
    assert "d" not in kept.model_dump()
    for body in (b"", b"[]", b"{}", b'{"keys": 1}', b'{"keys": [], "keys": []}', b"[" * 9999, b"\xff"):
        with pytest.raises(ValueError, match=r"^."):
            keys_in(body)
    with pytest.raises(ValueError, match="at most 100"):
        keys_in(json.dumps({"keys": [good] * 101}).encode())


def test_two_keys_of_one_name_check_nothing(issuer: FakeIssuer) -> None:
    issuer.keys = [jwk(OTHER, "rsa"), jwk(RSA, "rsa")]
    issuer.pass_time(3600)
    issuer.known.fetch_due()
    assert refusal(issuer, issuer.token()) == IdTokenRefusal.KEY


def test_the_point_of_a_key_must_be_on_its_curve(issuer: FakeIssuer) -> None:
    bad = {**jwk(EC, "ec"), "x": part(b"\1" * 32)}
    assert IssuerKey.model_validate(bad).is_for("ES256")
    issuer.keys = [bad]
    issuer.pass_time(3600)
    issuer.known.fetch_due()
    assert refusal(issuer, issuer.token(EC)) == IdTokenRefusal.SIGNATURE


def test_a_fetch_that_fails_in_any_way_hinders_no_other_issuer(tmp_path: Path) -> None:
    issuer = FakeIssuer(tmp_path / "issuers", NOW)
    second = issuer.settings().model_copy(update={"issuer": "https://second.example.org"})
    asked: list[str] = []

    def fails(name: str) -> FetchedKeys:
        asked.append(name)
        raise RuntimeError("no thread left")

    issuer.known.issuers = lambda: {"first": issuer.settings(), "second": second}
    issuer.known.fetch = fails
    issuer.known.fetch_due()
    assert asked == ["first", "second"]
