"""The login of a clone is shown to its owner alone, with a new password if wanted, and is in no record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support.page_browser import Page, PageBrowser
from tests.unit.support.serve_host import ServeHost
from tests.unit.support.served_api import request
from zsnapdb.serve.helper_messages import FailureAnswer, ResultAnswer
from zsnapdb.serve.page_app import create_site
from zsnapdb.serve.roles import Role
from zsnapdb.verbs.requests import VERBS, GetLoginVerb, LoginOfClone, NewLoginVerb

SUBJECT, ANN = "ci:shop/web", "user:ann@example.org"
MINE = {"name": "mine", "owner": SUBJECT, "pid": 7}
PATHS = (("GET", "/clones/mine/login"), ("POST", "/clones/mine/login"))
LOGIN = {
    "host": "127.0.0.1",
    "port": 23070,
    "address": "127.0.0.1:23070",
    "local_only": True,
    "user": "zsnapdb_clone",
    "password": "secret 1 of the clone",
}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ServeHost]:
    made = ServeHost(tmp_path)
    made.clones(MINE)
    with made.helper():
        yield made


def records(host: ServeHost) -> str:
    """Return the text of all files that the helper wrote."""
    return "".join(file.read_text() for file in (host.folder / "state").rglob("*") if file.is_file())


def test_owner_sees_login_again_and_gets_new_password(host: ServeHost) -> None:
    token = host.token(SUBJECT)
    shown = [request(host, method, path, token) for method, path in (PATHS[0], PATHS[1], PATHS[0])]
    assert [one.status_code for one in shown] == [200, 200, 200]
    assert shown[0].json() == LOGIN
    assert [one.json()["password"][:8] for one in shown] == ["secret 1", "secret 2", "secret 2"]
    assert {one.headers["Cache-Control"] for one in shown} == {"no-store"}
    assert [call.words for call in host.calls()] == [
        ("clone", "login", "mine", "--json"),
        ("clone", "login", "--new", "mine", "--json"),
        ("clone", "login", "mine", "--json"),
    ]


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize("role", Role)
def test_other_subject_gets_no_login_with_any_role(host: ServeHost, method: str, path: str, role: Role) -> None:
    refused = request(host, method, path, host.token(ANN, role))
    assert refused.status_code == (403 if role in (Role.OPERATOR, Role.AUDITOR) else 404)
    assert "secret" not in refused.text
    assert host.calls() == []


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize("role", [Role.VIEWER, Role.AUDITOR])
def test_reading_role_of_owner_gets_no_login(host: ServeHost, method: str, path: str, role: Role) -> None:
    assert request(host, method, path, host.token(SUBJECT, role)).status_code == 403
    assert host.calls() == []


def test_unmasked_clone_of_operator_has_no_login_for_lesser_role(host: ServeHost) -> None:
    host.clones({**MINE, "instance": "secret", "masked": False})
    for verb in (GetLoginVerb(name="mine"), NewLoginVerb(name="mine")):
        assert isinstance(host.ask(host.token(SUBJECT, Role.OPERATOR), verb), ResultAnswer)
        refused = host.ask(host.token(SUBJECT), verb)
        assert isinstance(refused, FailureAnswer)
        assert (refused.code, "is not masked" in refused.message) == ("not-allowed", True)
    assert len(host.calls()) == 2


def test_replayed_key_has_no_former_password(host: ServeHost) -> None:
    key = {"Idempotency-Key": "build-7"}
    token = host.token(SUBJECT)
    made = [request(host, "POST", "/clones/mine/login", token, headers=key).json()["password"] for _ in range(2)]
    assert len(set(made)) == 2
    for role in Role:
        assert "secret" not in request(host, "POST", "/clones/mine/login", host.token(ANN, role), headers=key).text
    kept = request(host, "POST", "/clones/mine/reset", token, headers=key)
    assert (kept.status_code, "secret" in kept.text) == (200, False)


def test_no_login_verb_leaves_a_secret_in_files_or_words(host: ServeHost) -> None:
    token = host.token(SUBJECT)
    verbs = [one for one in VERBS if issubclass(one, LoginOfClone)]
    assert len(verbs) == len(PATHS)
    for verb in verbs:
        assert "key" not in verb.model_fields, "an operation would be kept, and its answer with it"
        password = host.done(token, verb.model_validate({"name": "mine"})).document["password"]
        assert isinstance(password, str)
        assert password not in records(host)
        assert all(password not in json.dumps([call.words, dict(call.environment)]) for call in host.calls())


@pytest.mark.parametrize("error", ["the server of clone mine does not run", "the lease of clone mine ended at x"])
def test_refusal_of_the_command_reaches_its_owner(host: ServeHost, error: str) -> None:
    host.let("fails", json.dumps({"error": {"code": "preflight", "message": error, "hint": "extend it"}}))
    for method, path in PATHS:
        refused = request(host, method, path, host.token(SUBJECT))
        assert (refused.status_code, refused.json()["detail"]) == (409, error)


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_body_or_query_names_no_other_account(host: ServeHost, method: str, path: str) -> None:
    token = host.token(SUBJECT)
    for more in ("?new=true", "?owner=ann", "?password=x", "?config=/x"):
        request(host, method, f"{path}{more}", token)
    assert {call.words for call in host.calls()} <= {
        ("clone", "login", "mine", "--json"),
        ("clone", "login", "--new", "mine", "--json"),
    }


def browser_of(host: ServeHost, role: Role = Role.DEVELOPER, subject: str = SUBJECT) -> PageBrowser:
    browser = PageBrowser(create_site(host.client))
    browser.log_in(host.token(subject, role))
    return browser


def test_page_shows_login_again_and_makes_new_password(host: ServeHost) -> None:
    browser = browser_of(host)
    shown = browser.submit("/clones/mine", "/clones/mine/login")
    assert (shown.status_code, "secret 1 of the clone" in shown.text) == (200, True)
    renewed = browser.submit("/clones/mine", "/clones/mine/login/new")
    page = Page(renewed.text)
    assert "secret 2 of the clone" in page.text
    assert "The old password no longer works" in page.text
    assert "zsnapdb clone tunnel mine" in page.text, "only its host reaches it"


def test_page_shows_no_login_without_a_form_of_the_session(host: ServeHost) -> None:
    browser, other = browser_of(host), browser_of(host)
    for path in ("/clones/mine/login", "/clones/mine/login/new"):
        assert browser.get(path).status_code == 405
        fields: dict[str, Any] = dict(other.page("/clones/mine").form(path).fields)
        assert browser.post(path, fields).status_code == 403
    assert host.calls() == []


@pytest.mark.parametrize("role", Role)
def test_page_of_anothers_clone_offers_no_login(host: ServeHost, role: Role) -> None:
    browser = browser_of(host, role, ANN)
    page = Page(browser.get("/clones/mine").text)
    assert "/clones/mine/login" not in {one.get("action") for one in page.all("form")}
    csrf = browser.page("/clones").form("/logout").fields["csrf"]
    for path in ("/clones/mine/login", "/clones/mine/login/new"):
        assert browser.post(path, {"csrf": csrf, "guid": "1"}).status_code in (403, 404)
    assert host.calls() == []


def test_page_of_earlier_clone_shows_no_login_of_later_one(host: ServeHost) -> None:
    browser = browser_of(host)
    fields = browser.page("/clones/mine").form("/clones/mine/login").fields
    host.clones({**MINE, "guid": "2"})
    assert browser.post("/clones/mine/login", fields).status_code == 404
    assert host.calls() == []
