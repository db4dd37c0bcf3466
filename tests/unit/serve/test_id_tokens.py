"""Id tokens: who is believed, and which hostile ones are not."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.support.issuers import (
    AUDIENCE,
    EC,
    ISSUER,
    OTHER,
    RSA,
    RULES,
    FakeIssuer,
    jwk,
    part,
    refusal,
    signed,
    whom,
)
from zsnapdb.config.serve import IssuerSettings, ServeSettings
from zsnapdb.serve.id_tokens import IdTokenHolder, IdTokenRefusal, IdTokens, judge_claims
from zsnapdb.serve.roles import Role

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
HOLDER = ("ci:shop/web", Role.DEVELOPER, ISSUER)


@pytest.fixture
def issuer(tmp_path: Path) -> FakeIssuer:
    made = FakeIssuer(tmp_path / "issuers", NOW)
    made.known.fetch_due()
    return made


@pytest.mark.parametrize("key", [RSA, EC], ids=["RS256", "ES256"])
def test_a_token_stands_for_the_subject_of_the_first_rule_that_fits(issuer: FakeIssuer, key: Any) -> None:
    assert whom(issuer.tokens.holder(issuer.token(key), NOW)) == HOLDER
    several = issuer.token(key, aud=["https://other.example.org", AUDIENCE], azp=AUDIENCE)
    assert whom(issuer.tokens.holder(several, NOW)) == HOLDER
    tokens = issuer.token(key), issuer.token(key, exp=NOW.timestamp() + 1e9)
    ends = [issuer.tokens.holder(one, NOW) for one in tokens]
    assert [one and (one.expires - NOW).total_seconds() for one in ends] == [300, 3595], "or as old as it may become"
    assert issuer.said == []


def test_a_person_is_known_by_a_mail_address_that_is_verified(issuer: FakeIssuer) -> None:
    person: dict[str, Any] = {
        "repository": None,
        "groups": ["dev", "dba"],
        "email": "anna@example.org",
        "email_verified": True,
    }
    known = issuer.tokens.holder(issuer.token(**person), NOW)
    assert whom(known) == ("user:anna@example.org", Role.OPERATOR, ISSUER)
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


def test_a_rule_that_names_a_mail_address_means_a_verified_one() -> None:
    rule = {"claims": {"email": "boss@example.org"}, "subject": "user:boss@example.org", "role": "operator"}
    settings = IssuerSettings.model_validate({"issuer": ISSUER, "audience": AUDIENCE, "allow": [rule]})
    claims = {"iss": ISSUER, "aud": AUDIENCE, "iat": 1000, "exp": 2000, "email": "boss@example.org"}
    assert isinstance(judge_claims({**claims, "email_verified": True}, settings, 1500.0), IdTokenHolder)
    for said in ({}, {"email_verified": False}, {"email_verified": "true"}, {"email_verified": [True]}):
        assert judge_claims({**claims, **said}, settings, 1500.0) == IdTokenRefusal.EMAIL


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"aud": "https://other.example.org"}, IdTokenRefusal.AUDIENCE),
        ({"aud": AUDIENCE + "/"}, IdTokenRefusal.AUDIENCE),
        ({"aud": []}, IdTokenRefusal.AUDIENCE),
        ({"aud": [AUDIENCE, "https://other.example.org"]}, IdTokenRefusal.PARTY),
        ({"aud": [AUDIENCE, "https://other.example.org"], "azp": "other"}, IdTokenRefusal.PARTY),
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
    assert whom(issuer.tokens.holder(issuer.token(**changed), NOW)) == HOLDER


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
    judgement = judge_claims({**given_claims, **times}, settings, 1500.0)

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
    judgement = judge_claims(claims if nbf is None else {**claims, "nbf": nbf}, settings, 0.0)
    is_good = exp > -60 and -3660 <= iat <= 60 and (nbf is None or nbf <= 60)
    assert isinstance(judgement, IdTokenHolder) is is_good


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


def test_a_rule_has_the_roles_that_a_token_has() -> None:
    for role in Role:
        rule = {"claims": {"a": "b"}, "subject": "ci:shop", "role": role.value}
        assert IssuerSettings.model_validate({"issuer": ISSUER, "audience": AUDIENCE, "allow": [rule]}).allow


def test_a_rule_that_names_the_client_takes_its_tokens_for_several_audiences_and_no_others() -> None:
    rule = {"claims": {"azp": "frontend"}, "subject": "ci:shop/web", "role": "developer"}
    settings = IssuerSettings.model_validate({"issuer": ISSUER, "audience": AUDIENCE, "allow": [rule]})
    claims: dict[str, object] = {"iss": ISSUER, "aud": [AUDIENCE, "other"], "iat": 1000, "exp": 2000}
    assert isinstance(judge_claims({**claims, "azp": "frontend"}, settings, 1000), IdTokenHolder)
    assert judge_claims({**claims, "azp": AUDIENCE}, settings, 1000) is IdTokenRefusal.RULE
