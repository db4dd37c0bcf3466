"""What people try with pages: forms of other sites, sessions of others, marks in texts, and forms that are none."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tests.unit.support.page_browser import FORM, Page, PageBrowser
from tests.unit.support.serve_host import ServeHost
from tests.unit.support.told import tells
from zsnapdb.serve import page_app
from zsnapdb.serve.page_app import create_site, style_sheet
from zsnapdb.serve.roles import Role

SUBJECT = "ci:shop/web"
MINE = {"name": "mine", "owner": SUBJECT, "instance": "main", "protected_until": "2026-12-01T00:00:00Z"}
MARK = "<img src=x onerror=alert(1)>\"'`{{7*7}}"
SAME = {"Sec-Fetch-Site": "same-origin"}
POLICY = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"


@pytest.fixture
def browser(host: ServeHost) -> PageBrowser:
    host.clones(MINE)
    return logged_in(host)


def before(host: ServeHost, base: str = "http://127.0.0.1:9808") -> PageBrowser:
    return PageBrowser(create_site(host.client), base)


def logged_in(host: ServeHost, role: Role = Role.DEVELOPER, subject: str = SUBJECT) -> PageBrowser:
    browser = before(host)
    assert browser.log_in(host.token(subject, role)).status_code == 303
    return browser


def changes(browser: PageBrowser) -> dict[str, dict[str, str]]:
    """Return each form that changes something, as its page has it."""
    return {
        "/clones": {**browser.page("/new").form("/clones").fields, "instance": "main"},
        "/clones/mine/extend": browser.page("/clones").form("/clones/mine/extend").fields,
        "/clones/mine/protect": {**browser.page("/clones/mine").form("/clones/mine/protect").fields, "for": "1h"},
        "/clones/mine/unprotect": browser.page("/clones/mine").form("/clones/mine/unprotect").fields,
        "/clones/mine/login": browser.page("/clones/mine").form("/clones/mine/login").fields,
        "/clones/mine/login/new": browser.page("/clones/mine").form("/clones/mine/login/new").fields,
        "/clones/mine/start": browser.page("/clones/mine").form("/clones/mine/start").fields,
        "/clones/mine/commit": browser.page("/clones/mine").form("/clones/mine/commit").fields,
        "/clones/mine/reset": browser.page("/clones/mine/reset").form("/clones/mine/reset").fields,
        "/clones/mine/destroy": browser.page("/clones/mine/destroy").form("/clones/mine/destroy").fields,
        "/logout": browser.page("/").form("/logout").fields,
    }


def test_every_answer_has_the_headers(host: ServeHost, browser: PageBrowser, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [browser.get(path) for path in ("/", "/clones", "/new", "/login", "/nothing", "/style.css", "/logout")]
    answers += [browser.another().get(path) for path in ("/", "/login")]
    answers.append(browser.send("POST", "/clones", SAME, content=b"x" * 100_000))
    answers.append(browser.post("/clones", {}))
    monkeypatch.setattr(page_app, "style_sheet", lambda: 1 // 0)
    answers.append(browser.get("/style.css"))
    assert {answer.status_code for answer in answers} == {200, 303, 403, 404, 405, 413, 500}
    for answer in answers:
        assert answer.headers["Content-Security-Policy"] == POLICY
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"


LOOKED_AT = (
    *("/", "/clones", "/new", "/new?instance=main", "/drills", "/restore?instance=main&at=2h"),
    *("/clones/mine", "/clones/mine/logs", "/clones/mine/reset", "/clones/mine/destroy"),
)


def test_a_page_loads_its_style_sheet_and_nothing_else(host: ServeHost, browser: PageBrowser) -> None:
    tells(host)
    for path in (*LOOKED_AT, "/nothing"):
        page = Page(browser.get(path).text)
        assert page.all("link") == [{"rel": "stylesheet", "href": "/style.css"}]
        assert {"script", "style", "img", "iframe", "object"} & {one.tag for one in page.elements} == set()
        for one in page.elements:
            assert not [name for name in one.attributes if name.startswith("on") or name == "style"]
            for name in ("href", "src", "action"):
                assert re.match(r"/(?!/)|#", one.attributes.get(name, "/")), one
    answer = browser.get("/style.css")
    assert answer.headers["Content-Type"] == "text/css; charset=utf-8"
    assert answer.content == style_sheet()
    assert b"url(" not in answer.content
    assert b"@import" not in answer.content


def test_text_of_others_is_text(host: ServeHost) -> None:
    host.clones(
        {**MINE, "instance": MARK, "requested": MARK, "backup_id": MARK, "created": MARK, "expires": MARK},
        {"name": "theirs", "owner": MARK, "position": MARK, "profile": MARK, "bind_address": MARK, "phase": MARK},
        {"name": MARK, "id": "marked", "owner": "ann\u202e\x1b[2J"},
    )
    browser = logged_in(host, Role.OPERATOR)
    texts = [
        browser.get(path).text for path in ("/", "/clones", "/clones/mine", "/clones/theirs", "/clones/marked/destroy")
    ]
    refused = browser.submit("/new", "/clones", instance="main", at=MARK, name=MARK, ttl=MARK, profile=MARK)
    texts += [refused.text, browser.send("GET", "/new", params={"instance": MARK, "at": MARK}).text]
    texts += [browser.get(f"/{where}/%3Cimg%20src=x%3E").text for where in ("operations", "clones", "nothing")]
    for text in texts:
        assert "<img" not in text
        assert "49" not in re.findall(r"`(\d+)", text)
        assert Page(text).all("img") == []
        assert not {"\u202e", "\x1b"} & set(text)
    assert MARK in Page(texts[1]).text
    assert [one["value"] for one in Page(refused.text).all("input") if one.get("name") == "at"] == [MARK]
    assert host.changes() == []


def test_text_of_repositories_and_logs_is_text(host: ServeHost) -> None:
    """Whoever writes to a repository, or uses a clone, chooses words; a person writes into each field."""
    said = f"{MARK}\u202e\x1b[2J"
    tells(host, said)
    host.clones({**MINE, "owner": "ann"})
    host.prints("logs", {"kind": "clone-logs", "clone": "mine", "lines": [said, "</pre>"]})
    host.let("commit-id", said)
    browser = logged_in(host, Role.OPERATOR)
    pages = {
        path: browser.get(path)
        for path in (*LOOKED_AT, "/evidence?instance=main", "/new?instance=main&from=%3Cimg%20src=x%3E")
    }
    texts = [answer.text for answer in pages.values()]
    assert {answer.status_code for answer in pages.values()} == {200}
    for path in ("/", "/new?instance=main", "/drills", "/clones/mine/logs", "/evidence?instance=main"):
        assert MARK in Page(pages[path].text).text, path
    for query in ("instance=%3Cimg%20src=x%3E", "instance=main&at=%3Cimg%20src=x%3E", "instance=main&after=%3Cimg%3E"):
        texts += [browser.get(f"/{page}?{query}").text for page in ("drills", "restore", "evidence", "new")]
    fields = {"csrf": browser.page("/new").form("/clones").fields["csrf"], "guid": "1"}
    for path, name in (("protect", "for"), ("commit", "message"), ("unprotect", "for")):
        answer = browser.post(f"/clones/mine/{path}", {**fields, name: said})
        texts.append((browser.to_its_end(answer) if answer.status_code == 303 else answer).text)
    texts.append(browser.to_its_end(browser.post("/clones/mine/commit", fields)).text)
    for text in texts:
        assert "<img" not in text
        assert text.count("</pre>") == text.count("<pre")
        assert "49" not in re.findall(r"`(\d+)", text)
        assert Page(text).all("img") == []
        assert not {"\u202e", "\x1b"} & set(text)


OTHER_SITES: tuple[Mapping[str, str], ...] = (
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1:9808"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": ""},
    {"Origin": "https://127.0.0.1:9808"},
    {"Origin": "http://127.0.0.1:8000"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": ""},
    {},
)


def test_a_form_of_another_site_changes_nothing(host: ServeHost, browser: PageBrowser) -> None:
    forms, token = changes(browser), host.token(SUBJECT)
    for headers in OTHER_SITES:
        for path, fields in forms.items():
            assert browser.send("POST", path, headers, data=fields).status_code == 403, (headers, path)
        stranger = browser.another()
        assert stranger.send("POST", "/login", headers, data={"token": token}).status_code == 403, headers
        assert stranger.session == ""
    assert browser.get("/").status_code == 200
    assert host.changes() == []


def test_a_browser_that_says_its_origin_alone_is_answered(host: ServeHost) -> None:
    browser = before(host)
    answer = browser.send("POST", "/login", {"Origin": browser.base}, data={"token": host.token(SUBJECT)})
    assert answer.status_code == 303


def test_a_form_without_the_mark_of_its_session_changes_nothing(host: ServeHost, browser: PageBrowser) -> None:
    other = logged_in(host)
    stranger = changes(other)
    for path, fields in changes(browser).items():
        for mark in ("", "x", "é", fields["csrf"][:-1], f"{fields['csrf']}x", stranger[path]["csrf"]):
            assert browser.post(path, {**fields, "csrf": mark}).status_code == 403
        without = {name: value for name, value in fields.items() if name != "csrf"}
        assert browser.post(path, without).status_code == 403
    assert host.changes() == []
    assert browser.get("/").status_code == 200


def test_to_look_changes_nothing(host: ServeHost, browser: PageBrowser) -> None:
    tells(host)
    for path in LOOKED_AT:
        assert browser.get(path).status_code == 200
        assert browser.send("HEAD", path).status_code == 405
    fields = changes(browser)
    for path in ("/logout", *(f"/clones/mine/{one}" for one in ("extend", "protect", "unprotect", "commit"))):
        assert browser.send("GET", path, SAME, params=fields[path]).status_code == 405
    for path in ("/clones/mine/reset", "/clones/mine/destroy", "/clones"):
        assert browser.send("GET", path, SAME, params=fields[path]).status_code == 200
    for method in ("PUT", "DELETE", "PATCH"):
        assert browser.send(method, "/clones/mine", SAME, data=fields["/clones/mine/destroy"]).status_code == 405
    assert browser.get("/").status_code == 200
    assert host.changes() == []


def test_an_id_that_somebody_else_chose_becomes_no_session(host: ServeHost) -> None:
    browser = before(host)
    chosen = "a" * 43
    browser.cookies.set("zsnapdb_session", chosen, domain="127.0.0.1", path="/")
    browser.log_in(host.token(SUBJECT))
    assert browser.session not in ("", chosen)
    victim = browser.another()
    victim.cookies.set("zsnapdb_session", chosen, domain="127.0.0.1", path="/")
    assert victim.get("/").headers["Location"] == "/login"


def test_each_log_in_has_a_new_id_and_ends_the_session_of_before(host: ServeHost, browser: PageBrowser) -> None:
    first = browser.session
    answer = browser.post("/login", {"token": host.token(SUBJECT)})
    assert (answer.status_code, browser.session != first) == (303, True)
    assert with_cookie(browser, first).get("/").headers["Location"] == "/login"
    assert browser.get("/login").headers["Location"] == "/"


def with_cookie(browser: PageBrowser, session: str) -> PageBrowser:
    other = browser.another()
    other.cookies.set("zsnapdb_session", session, domain="127.0.0.1", path="/")
    return other


def test_the_cookie_of_a_session_that_was_left_is_worth_nothing(host: ServeHost, browser: PageBrowser) -> None:
    kept, forms = with_cookie(browser, browser.session), changes(browser)
    answer = browser.post("/logout", forms["/logout"])
    assert answer.headers["Location"] == "/login"
    assert "Max-Age=0" in answer.headers["Set-Cookie"]
    assert browser.session == ""
    for path, fields in forms.items():
        assert kept.post(path, fields).headers["Location"] == "/login"
    assert kept.get("/clones").headers["Location"] == "/login?next=%2Fclones"
    assert host.changes() == []


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_token_that_ends_ends_its_sessions(host: ServeHost, browser: PageBrowser, how: str) -> None:
    forms = changes(browser)
    if how == "revoked":
        host.book.revoke(host.book.tokens()[0].id, host.now)
    else:
        host.pass_time(7200)
    kept = with_cookie(browser, browser.session)
    answer = browser.post("/clones", forms["/clones"])
    assert (answer.status_code, "your token is not valid any more" in answer.text) == (401, True)
    assert browser.session == ""
    assert kept.get("/").headers["Location"] == "/login"
    assert host.changes() == []


def test_who_has_no_token_gets_no_session(host: ServeHost) -> None:
    browser = before(host)
    for token in ("", "x", "a b", "a\r\nSet-Cookie: x=1", "é", "\x00", "<b>" * 5_000):
        answer = browser.post("/login", {"token": token})
        assert (answer.status_code, "a valid token is needed" in answer.text) == (401, True), token
        assert (browser.session, "Set-Cookie" in answer.headers) == ("", False)
        assert len(token) < 2 or token not in Page(answer.text).text


def test_a_cookie_says_where_it_may_go(host: ServeHost) -> None:
    token = host.token(SUBJECT)
    plain = before(host).log_in(token).headers["Set-Cookie"]
    assert re.fullmatch(r"zsnapdb_session=[\w-]{43}; Path=/; Max-Age=3\d\d\d; HttpOnly; SameSite=Strict", plain)
    secure = before(host, "https://db.example.org")
    given = secure.log_in(token).headers["Set-Cookie"]
    assert re.fullmatch(
        r"__Host-zsnapdb_session=[\w-]{43}; Path=/; Max-Age=3\d\d\d; HttpOnly; SameSite=Strict; Secure", given
    )
    assert secure.get("/").status_code == 200
    proxied = before(host).send("POST", "/login", {**SAME, "X-Forwarded-Proto": "https"}, data={"token": token})
    assert proxied.headers["Set-Cookie"].endswith("; Secure")
    # What was given over http is no session over https: an attacker in the network can set such a cookie.
    mixed = PageBrowser(secure.site, "https://db.example.org")
    mixed.cookies.set("zsnapdb_session", secure.session, domain="db.example.org", path="/")
    assert mixed.get("/").headers["Location"] == "/login"


def test_a_cookie_that_is_none_is_no_session(host: ServeHost) -> None:
    name = b"zsnapdb_session"
    for cookie in (name, name + b"=", name + b"=" + b"x" * 9000, b"=;;=,;" + name + b"=\xff" + b"a" * 43, b"a"):
        answer = before(host).send("GET", "/", {"Cookie": cookie})
        assert (answer.status_code, answer.headers["Location"]) == (303, "/login"), cookie


NO_FORMS = (
    ("application/json", b'{"instance": "main"}', 415),
    ("multipart/form-data; boundary=x", b"--x--", 415),
    ("text/plain", b"instance=main", 415),
    ("", b"instance=main", 415),
    (FORM, b"a=" + b"x" * (1 << 20), 413),
    (FORM, b"&".join(b"a%d=1" % number for number in range(1000)), 422),
    (FORM, b"instance=main&instance=secret", 422),
    (FORM, b"instance=%ff%fe", 422),
    (FORM, b"instance=\xff", 422),
    (FORM, b"instance", 422),
)


def test_a_form_that_is_none_is_refused(host: ServeHost, browser: PageBrowser) -> None:
    for kind, body, status in NO_FORMS:
        headers = {**SAME, "Content-Type": kind} if kind else SAME
        answer = browser.send("POST", "/clones", headers, content=body)
        assert (answer.status_code, answer.headers["Content-Type"]) == (status, "text/html; charset=utf-8"), body[:40]
    assert host.changes() == []


NOT_WANTED: tuple[Mapping[str, str], ...] = (
    {"owner": "root"},
    {"instance": "../main"},
    {"instance": "--config=/tmp/x"},
    {"name": "--config"},
    {"name": "x\r\nSet-Cookie: a=b"},
    {"name": "x\x00"},
    {"at": "--from=live"},
    {"ttl": "9999999h"},
    {"ttl": "9d"},
    {"profile": "huge"},
    {"key": "x" * 300},
    {"mask": "no", "bind_address": "0.0.0.0"},
)


def test_what_a_form_cannot_hold_begins_nothing(host: ServeHost, browser: PageBrowser) -> None:
    for written in NOT_WANTED:
        answer = browser.submit("/new", "/clones", **{"instance": "main", **written})
        assert (answer.status_code, "Set-Cookie" in answer.headers) == (422, False), written
        assert "Code: usage" in Page(answer.text).text
    assert host.changes() == []


NO_NAMES = ("..%2Fx", "%00", "x%0D%0ASet-Cookie:a=b", "-x", "A", "a" * 33, "%C3%A4", "{{7*7}}", "%")


def test_a_name_that_is_none_is_as_one_that_is_not_there(host: ServeHost, browser: PageBrowser) -> None:
    csrf = browser.page("/").form("/logout").fields["csrf"]
    for name in NO_NAMES:
        for path in ("", "/reset", "/destroy", "/logs"):
            answer = browser.get(f"/clones/{name}{path}")
            assert (answer.status_code, "Set-Cookie" in answer.headers) == (404, False), name
        for path in ("reset", "destroy", "start", "stop", "extend", "protect", "unprotect", "commit"):
            assert browser.post(f"/clones/{name}/{path}", {"csrf": csrf, "guid": "1"}).status_code == 404, name
        assert browser.get(f"/operations/{name}").status_code == 404, name
        assert browser.post(f"/operations/{name}/cancel", {"csrf": csrf}).status_code == 404, name
    assert host.changes() == []


def test_neither_token_nor_id_is_in_a_page_or_in_what_is_printed(
    host: ServeHost, capfd: pytest.CaptureFixture[str]
) -> None:
    token = host.token(SUBJECT)
    browser = before(host)
    browser.log_in(token)
    for path in ("/", "/clones", "/new", "/nothing"):
        text = browser.get(path).text
        assert token not in text
        assert browser.session not in text
    said = "".join(capfd.readouterr())
    assert token not in said
    assert browser.session not in said
