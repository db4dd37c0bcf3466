"""Id tokens: who is believed, and which hostile ones are not."""

from __future__ import annotations

import hmac
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.support.issuers import AUDIENCE, EC, ISSUER, OTHER, RSA, RULES, FakeIssuer, jwk, part, signed
from zsnapdb.config.issuer import IssuerSettings
from zsnapdb.config.serve import ServeSettings
from zsnapdb.serve.claims import IdTokenHolder, IdTokenRefusal, judged
from zsnapdb.serve.id_tokens import IdTokens
from zsnapdb.serve.issuer_keys import FetchedKeys
from zsnapdb.serve.jwks import IssuerKey, keys_in
from zsnapdb.serve.roles import Role

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
HOLDER = IdTokenHolder("ci:shop/web", Role.DEVELOPER, ISSUER)


@pytest.fixture
def issuer(tmp_path: Path) -> FakeIssuer:
    made = FakeIssuer(tmp_path / "issuers", NOW)
    made.known.fetch_due()
    return made


def refusal(issuer: FakeIssuer, token: str) -> str:
    """Return what the log is told when a token is refused."""
    issuer.said.clear()
    issuer.tokens._told.clear()
    assert issuer.tokens.holder(token, issuer.now) is None
    return issuer.said[0].partition(" is refused: ")[2] if issuer.said else "nothing"


@pytest.mark.parametrize("key", [RSA, EC], ids=["RS256", "ES256"])
def test_a_token_stands_for_the_subject_of_the_first_rule_that_fits(issuer: FakeIssuer, key: Any) -> None:
    assert issuer.tokens.holder(issuer.token(key), NOW) == HOLDER
    assert issuer.tokens.holder(issuer.token(key, aud=["https://other.example.org", AUDIENCE]), NOW) == HOLDER
    assert issuer.said == []


def test_a_person_is_known_by_a_mail_address_that_is_verified(issuer: FakeIssuer) -> None:
    person: dict[str, Any] = {
        "repository": None,
        "groups": ["dev", "dba"],
        "email": "anna@example.org",
        "email_verified": True,
    }
    known = issuer.tokens.holder(issuer.token(**person), NOW)
    assert known == IdTokenHolder("user:anna@example.org", Role.OPERATOR, ISSUER)
    for changed in (
        {"email_verified": False},
        {"email_verified": "true"},
        {"email_verified": None},
        {"email": None},
        {"email": ["anna@example.org"]},
        {"email": "anna@example.org\nroot"},
        {"email": "unix:root"},
        {"email": "an na@example.org"},
    ):
        assert refusal(issuer, issuer.token(**{**person, **changed})) == IdTokenRefusal.EMAIL


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"aud": "https://other.example.org"}, IdTokenRefusal.AUDIENCE),
        ({"aud": AUDIENCE + "/"}, IdTokenRefusal.AUDIENCE),
        ({"aud": []}, IdTokenRefusal.AUDIENCE),
        ({"aud": [[AUDIENCE]]}, IdTokenRefusal.CLAIMS),
        ({"aud": None}, IdTokenRefusal.CLAIMS),
        ({"aud": {AUDIENCE: 1}}, IdTokenRefusal.CLAIMS),
        ({"exp": NOW.timestamp() - 61}, IdTokenRefusal.EXPIRED),
        ({"exp": 0}, IdTokenRefusal.EXPIRED),
        ({"exp": None}, IdTokenRefusal.CLAIMS),
        ({"exp": True}, IdTokenRefusal.CLAIMS),
        ({"exp": "9999999999"}, IdTokenRefusal.CLAIMS),
        ({"nbf": NOW.timestamp() + 61}, IdTokenRefusal.EARLY),
        ({"nbf": "0"}, IdTokenRefusal.CLAIMS),
        ({"iat": NOW.timestamp() + 61}, IdTokenRefusal.EARLY),
        ({"iat": NOW.timestamp() - 3661, "exp": 10**400}, IdTokenRefusal.OLD),
        ({"iat": -(10**400)}, IdTokenRefusal.OLD),
        ({"iat": None}, IdTokenRefusal.CLAIMS),
        ({"repository": "shop/web2"}, IdTokenRefusal.RULE),
        ({"repository": "evil/web"}, IdTokenRefusal.RULE),
        ({"repository": None}, IdTokenRefusal.RULE),
        ({"repository": {"shop/web": 1}}, IdTokenRefusal.RULE),
        ({"ref": "refs/heads/main2"}, IdTokenRefusal.RULE),
        ({"iss": ISSUER + "/"}, "nothing"),
        ({"iss": None}, "nothing"),
        ({"iss": [ISSUER]}, "nothing"),
    ],
)
def test_a_signed_token_with_other_claims_is_refused(
    issuer: FakeIssuer, changed: Mapping[str, Any], why: IdTokenRefusal
) -> None:
    assert refusal(issuer, issuer.token(**changed)) == why


@pytest.mark.parametrize("changed", [{"exp": NOW.timestamp() - 59}, {"nbf": NOW.timestamp() + 59.5}, {"nbf": None}])
def test_clocks_may_differ_by_a_minute(issuer: FakeIssuer, changed: Mapping[str, Any]) -> None:
    assert issuer.tokens.holder(issuer.token(**changed), NOW) == HOLDER


def _with_header(**header: object) -> Callable[[FakeIssuer], str]:
    return lambda issuer: issuer.token(header=header)


def _hmac_with_the_public_key(issuer: FakeIssuer) -> str:
    before = f"{part({'alg': 'HS256', 'kid': 'rsa', 'typ': 'JWT'})}.{part(issuer.claims())}"
    return f"{before}.{part(hmac.digest(RSA.as_pem(private=False), before.encode(), 'sha256'))}"


def _none(issuer: FakeIssuer) -> str:
    return f"{part({'alg': 'none', 'kid': 'rsa'})}.{part(issuer.claims())}.{part(b'x')}"


def _of_another_key(**header: object) -> Callable[[FakeIssuer], str]:
    return lambda issuer: issuer.token(OTHER, header)


def _cut(issuer: FakeIssuer) -> str:
    head, payload, _ = issuer.token().split(".")
    return f"{head}.{payload}.{issuer.token(ref='refs/heads/x').split('.')[2]}"


def _swapped(issuer: FakeIssuer) -> str:
    head, _, signature = issuer.token().split(".")
    return f"{head}.{part(issuer.claims(exp=9999999999))}.{signature}"


PUBLIC_OTHER = jwk(OTHER, "rsa")
HOSTILE: Mapping[str, tuple[Callable[[FakeIssuer], str], str]] = {
    "alg none": (_none, IdTokenRefusal.ALGORITHM),
    "HS256 with the public key": (_hmac_with_the_public_key, IdTokenRefusal.ALGORITHM),
    "an algorithm that is not configured": (_with_header(alg="RS512"), IdTokenRefusal.ALGORITHM),
    "the algorithm of another type of key": (
        lambda i: signed({"alg": "ES256", "kid": "rsa"}, i.claims(), EC),
        IdTokenRefusal.KEY,
    ),
    "an algorithm in other letters": (
        lambda i: i.token().replace(i.token().split(".")[0], part({"alg": "rs256", "kid": "rsa"})),
        IdTokenRefusal.ALGORITHM,
    ),
    "another key of the same name": (_of_another_key(), IdTokenRefusal.SIGNATURE),
    "its own key": (_of_another_key(jwk=PUBLIC_OTHER), IdTokenRefusal.SIGNATURE),
    "the address of its own key": (_of_another_key(jku="https://evil.example.org/keys"), IdTokenRefusal.SIGNATURE),
    "a certificate": (
        _of_another_key(x5u="https://evil.example.org/cert", x5c=["MIIB"]),
        IdTokenRefusal.SIGNATURE,
    ),
    "a path as the name of its key": (_with_header(kid="../../etc/passwd"), IdTokenRefusal.KEY),
    "a huge name of its key": (_with_header(kid="k" * 2000), IdTokenRefusal.HEADER),
    "no name of its key": (_with_header(kid=None), IdTokenRefusal.HEADER),
    "a number as the name of its key": (_with_header(kid=1), IdTokenRefusal.HEADER),
    "what must be understood": (_with_header(crit=["exp"]), IdTokenRefusal.HEADER),
    "an empty list of what must be understood": (_with_header(crit=[]), IdTokenRefusal.HEADER),
    "nothing that must be understood": (_with_header(crit=None), IdTokenRefusal.SIGNATURE),
    "a payload that is not encoded": (_with_header(b64=False, crit=["b64"]), IdTokenRefusal.HEADER),
    "an access token": (_with_header(typ="at+jwt"), IdTokenRefusal.HEADER),
    "the signature of another token": (_cut, IdTokenRefusal.SIGNATURE),
    "other claims": (_swapped, IdTokenRefusal.SIGNATURE),
    "the same claim twice": (
        lambda i: signed(
            {"alg": "RS256", "kid": "rsa"},
            json.dumps(i.claims(repository="evil/web"))[:-1].encode() + b', "repository": "shop/web"}',
            RSA,
        ),
        "nothing",
    ),
    "NaN": (
        lambda i: signed({"alg": "RS256", "kid": "rsa"}, json.dumps(i.claims(exp=float("nan"))).encode(), RSA),
        "nothing",
    ),
    "claims that are no object": (lambda i: signed({"alg": "RS256", "kid": "rsa"}, b"[]", RSA), "nothing"),
    "claims that are nested deeply": (
        lambda i: signed({"alg": "RS256", "kid": "rsa"}, b"[" * 5000, RSA),
        "nothing",
    ),
    "64 KiB": (lambda i: i.token(padding="x" * 65536), "nothing"),
    "five parts": (lambda i: f"{i.token()}.x.y", "nothing"),
    "two parts": (lambda i: ".".join(i.token().split(".")[:2]), "nothing"),
    "no signature": (lambda i: ".".join([*i.token().split(".")[:2], ""]), "nothing"),
    "padding": (lambda i: f"{i.token()}==", "nothing"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_token_is_refused(issuer: FakeIssuer, name: str) -> None:
    make, why = HOSTILE[name]
    assert refusal(issuer, make(issuer)) == why


def test_the_key_of_another_issuer_with_the_same_name_is_not_tried(issuer: FakeIssuer, tmp_path: Path) -> None:
    other = FakeIssuer(tmp_path / "other", NOW, "there", "https://other.example.org", keys=[jwk(OTHER, "rsa")])
    other.known.fetch_due()
    assert other.tokens.holder(other.token(OTHER), NOW) is not None
    assert refusal(issuer, issuer.token(OTHER)) == IdTokenRefusal.SIGNATURE
    # A token that one issuer has signed and that says to be of the other is good for neither.
    assert other.tokens.holder(issuer.token(OTHER), NOW) is None
    assert refusal(issuer, other.token(OTHER)) == "nothing"


class _UnaskedKeys:
    """Keys that nobody asks for."""


@given(st.text(alphabet="abcXYZ019-_.=", max_size=80) | st.text(max_size=80))
def test_no_text_of_no_issuer_is_believed_or_makes_keys_be_fetched(text: str) -> None:
    settings = IssuerSettings.model_validate({"issuer": ISSUER, "audience": AUDIENCE, "allow": RULES})
    tokens = IdTokens(lambda: {"here": settings}, _UnaskedKeys())  # type: ignore[arg-type]
    assert tokens.holder(text, NOW) is None


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False)
RULE = st.dictionaries(
    st.sampled_from(["repository", "ref", "groups"]), st.booleans() | st.integers(0, 1) | st.sampled_from(["0", "1"])
)


@given(
    RULE.filter(bool),
    st.dictionaries(st.sampled_from(["repository", "ref", "groups"]), VALUES | st.lists(VALUES, max_size=3)),
)
def test_a_rule_fits_only_if_each_of_its_claims_is_there(
    wanted: Mapping[str, bool | int | str], given_claims: Mapping[str, object]
) -> None:
    rule = {"claims": wanted, "subject": "ci:shop", "role": "viewer"}
    settings = IssuerSettings.model_validate({"issuer": ISSUER, "audience": AUDIENCE, "allow": [rule]})
    times = {"iss": ISSUER, "aud": AUDIENCE, "iat": 1000, "exp": 2000}
    judgement = judged({**given_claims, **times}, settings, 1500.0)

    def text(value: object) -> str:
        return json.dumps(value)

    fits = all(
        name in given_claims
        and text(value)
        in ([text(one) for one in found] if isinstance(found := given_claims[name], list) else [text(found)])
        for name, value in wanted.items()
    )
    assert isinstance(judgement, IdTokenHolder) is fits


@given(
    exp=st.integers(-100, 200) | st.floats(allow_nan=False),
    iat=st.integers(-5000, 200),
    nbf=st.none() | st.integers(-100, 200),
)
def test_a_token_is_good_only_in_its_time(exp: float, iat: int, nbf: int | None) -> None:
    settings = IssuerSettings.model_validate({"issuer": ISSUER, "audience": AUDIENCE, "allow": RULES[:1]})
    claims = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "iat": iat,
        "exp": exp,
        "repository": "shop/web",
        "ref": "refs/heads/main",
    }
    judgement = judged(claims if nbf is None else {**claims, "nbf": nbf}, settings, 0.0)
    is_good = exp > -60 and -3660 <= iat <= 60 and (nbf is None or nbf <= 60)
    assert isinstance(judgement, IdTokenHolder) is is_good


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
        assert issuer.tokens.holder(rotated, issuer.now) == HOLDER
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
    assert issuer.tokens.holder(token_of_then, issuer.now) == HOLDER
    later = FakeIssuer(tmp_path / "issuers", NOW + timedelta(hours=23), keys=[])

    def no_network(_name: str) -> FetchedKeys:
        raise OSError("no network")

    later.known.fetch = no_network
    later.known.fetch_due()
    assert later.tokens.holder(later.token(), later.now) == HOLDER, "a helper that starts again has the stored keys"
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


def test_the_log_is_told_a_reason_once_a_minute_and_nothing_of_the_token(issuer: FakeIssuer) -> None:
    for _ in range(50):
        issuer.tokens.holder(issuer.token(repository="evil\nline"), issuer.now)
    assert issuer.said == [
        "an id token of serve.issuer.here is refused: no rule of serve.issuer.NAME.allow has its claims"
    ]
    issuer.pass_time(61)
    issuer.tokens.holder(issuer.token(repository="evil/web"), issuer.now)
    assert len(issuer.said) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"issuer": "http://issuer.example.org"},
        {"issuer": "https://user@issuer.example.org"},
        {"issuer": "https://issuer.example.org/?x"},
        {"audience": ""},
        {"jwks_url": "file:///etc/passwd"},
        {"algorithms": ["none"]},
        {"algorithms": ["HS256"]},
        {"algorithms": []},
        {"longest_age": "2d"},
        {"allow": []},
        {"allow": [{"claims": {}, "subject": "ci:shop", "role": "viewer"}]},
        {"allow": [{"claims": {"a": 1.5}, "subject": "ci:shop", "role": "viewer"}]},
        {"allow": [{"claims": {"a": "b"}, "subject": "ci:{repository}", "role": "viewer"}]},
        {"allow": [{"claims": {"a": "b"}, "subject": "root", "role": "viewer"}]},
        {"allow": [{"claims": {"a": "b"}, "subject": "ci:shop", "role": "root"}]},
        {
            "issuer": "https://token.actions.githubusercontent.com",
            "allow": [{"claims": {"ref": "refs/heads/main"}, "subject": "ci:shop", "role": "viewer"}],
        },
    ],
    ids=str,
)
def test_a_configuration_that_believes_too_much_is_refused(changed: Mapping[str, object]) -> None:
    good = {"issuer": ISSUER, "audience": AUDIENCE, "allow": RULES}
    IssuerSettings.model_validate(good)
    with pytest.raises(ValidationError):
        IssuerSettings.model_validate({**good, **changed})


def test_an_issuer_has_one_section_and_its_keys_are_not_fetched_by_the_web_process() -> None:
    section = {"issuer": ISSUER, "audience": AUDIENCE, "allow": RULES}
    ServeSettings.model_validate({"issuer": {"one": section, "two": {**section, "issuer": "https://two.example.org"}}})
    for wrong in ({"issuer": {"one": section, "two": section}}, {"fetch_account": "zsnapdb-web"}):
        with pytest.raises(ValidationError):
            ServeSettings.model_validate(wrong)


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


def test_a_rule_has_the_roles_that_a_token_has() -> None:
    for role in Role:
        rule = {"claims": {"a": "b"}, "subject": "ci:shop", "role": role.value}
        assert IssuerSettings.model_validate({"issuer": ISSUER, "audience": AUDIENCE, "allow": [rule]}).allow
