"""The pages, from what a browser sends to the commands that the helper runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.support.page_browser import Page, PageBrowser
from tests.unit.support.serve_host import ServeHost
from zsnapdb.serve.page_app import create_site
from zsnapdb.serve.roles import Role

SUBJECT = "ci:shop/web"
MINE = {"name": "mine", "owner": SUBJECT, "instance": "main", "phase": "ready", "pid": 7}
THEIRS = {"name": "theirs", "owner": "ann"}


@pytest.fixture
def browser(host: ServeHost) -> PageBrowser:
    return logged_in(host)


def before(host: ServeHost) -> PageBrowser:
    return PageBrowser(create_site(host.client))


def logged_in(host: ServeHost, role: Role = Role.DEVELOPER, subject: str = SUBJECT) -> PageBrowser:
    browser = before(host)
    answer = browser.log_in(host.token(subject, role))
    assert (answer.status_code, answer.headers["Location"]) == (303, "/"), answer.text
    return browser


def test_a_clone_from_log_in_to_its_end(host: ServeHost) -> None:
    browser = before(host)
    assert browser.get("/").headers["Location"] == "/login"
    assert browser.log_in(host.token(SUBJECT)).headers["Location"] == "/"
    overview = browser.page("/")
    assert "You have 0 clones of at most 10" in overview.text
    assert {"/new?instance=main", "/new?instance=masked"} < {one.get("href") for one in overview.all("a")}

    begun = browser.submit("/new?instance=main", "/clones", instance="main", name="mine", at="2h", ttl="3h", profile="")
    made = browser.to_its_end(begun)
    for shown in (
        "127.0.0.1",
        "23070",
        "secret of the clone",
        "mysql://zsnapdb_clone:secret%20of%20the%20clone@127.0.0.1:23070/",
    ):
        assert shown in Page(made.text).text
    command = "MYSQL_PWD='secret of the clone' mysql --host=127.0.0.1 --port=23070 --user=zsnapdb_clone"
    assert command in Page(made.text).text
    again = browser.get(begun.headers["Location"])
    assert (again.status_code, "secret" in again.text, "Show the login" in again.text) == (200, False, True)

    assert browser.to_its_end(browser.submit("/clones", "/clones/mine/extend")).status_code == 200
    assert browser.to_its_end(browser.submit("/clones/mine", "/clones/mine/extend", ttl="4h")).status_code == 200
    for doing in ("reset", "destroy"):
        where = f"/clones/mine/{doing}"
        assert where in {one.get("href") for one in browser.page("/clones").all("a")}
        assert browser.to_its_end(browser.submit(where, where)).status_code == 200
    assert "You have no clones" in browser.page("/clones").text
    calls = [call.words[1:] for call in host.changes()]
    assert calls == [
        ("create", "--name=mine", f"--owner={SUBJECT}", "--ttl=10800.000s", "--at=2h", "--json", "main"),
        ("extend", "--ttl=7200.000s", "--json", "mine"),
        ("extend", "--ttl=14400.000s", "--json", "mine"),
        ("reset", "--json", "mine"),
        ("destroy", "--json", "mine"),
    ]


def test_only_the_session_that_began_a_clone_sees_its_login(host: ServeHost, browser: PageBrowser) -> None:
    begun = browser.submit("/new", "/clones", instance="main")
    other, stranger = browser.another(), logged_in(host, subject="user:eve@example.org")
    other.log_in(host.token(SUBJECT))
    other.to_its_end(begun)
    assert "secret" not in other.get(begun.headers["Location"]).text
    assert stranger.get(begun.headers["Location"]).status_code == 404
    assert "secret of the clone" in browser.to_its_end(begun).text


def test_operation_in_progress_has_a_link_to_reload(tmp_path: Path) -> None:
    host = ServeHost(tmp_path)
    host.let("slow", "60")
    with host.helper() as desk:
        browser = logged_in(host)
        begun = browser.submit("/new", "/clones", instance="main")
        first = browser.page(begun.headers["Location"])
        assert [one for one in first.all("meta") if "http-equiv" in one] == []
        assert begun.headers["Location"] in {one.get("href") for one in first.all("a")}
        assert "Making a clone of main" in first.text
        host.let("go", "")
        desk.operations.settle(20)
        ended = browser.page(begun.headers["Location"])
    assert begun.headers["Location"] not in {one.get("href") for one in ended.all("a")}
    assert "secret of the clone" in ended.text


def test_a_form_that_is_sent_twice_begins_one_clone(host: ServeHost, browser: PageBrowser) -> None:
    fields = {**browser.page("/new").form("/clones").fields, "instance": "main"}
    places = {browser.post("/clones", fields).headers["Location"] for _ in range(3)}
    assert len(places) == 1
    assert "secret of the clone" in browser.to_its_end(browser.post("/clones", fields)).text
    assert "secret of the clone" not in browser.to_its_end(browser.post("/clones", fields)).text
    assert len(host.changes()) == 1


def test_a_failed_operation_has_message_hint_and_code(host: ServeHost, browser: PageBrowser) -> None:
    host.let("fails", json.dumps({"error": {"code": "exists", "message": "it <b>exists</b>", "hint": "`rename` it"}}))
    failed = browser.to_its_end(browser.submit("/new", "/clones", instance="main"))
    assert failed.status_code == 409
    page = Page(failed.text)
    assert "Making a clone of main failed" in page.text
    for said in ("it <b>exists</b>", "rename it", "Code: exists"):
        assert said in page.text
    assert ("<b>" in failed.text, "<code>rename</code>" in failed.text) == (False, True)


def test_a_refused_clone_keeps_what_was_written(host: ServeHost, browser: PageBrowser) -> None:
    refused = browser.submit("/new", "/clones", instance="secret", at="3h", name="mine", profile="tiny")
    page = Page(refused.text)
    assert (refused.status_code, "only an operator may have one" in page.text) == (403, True)
    written = {one["name"]: one.get("value", "") for one in page.all("input") if one.get("type") != "radio"}
    assert (written["at"], written["name"]) == ("3h", "mine")
    assert [one["value"] for one in page.all("input") if "checked" in one] == ["secret"]
    assert [one["value"] for one in page.all("option") if "selected" in one] == ["tiny"]
    assert host.changes() == []


def test_anothers_clone_is_as_one_that_is_not_there(host: ServeHost, browser: PageBrowser) -> None:
    host.clones(THEIRS)
    csrf = browser.page("/new").form("/clones").fields["csrf"]
    for path in ("", "/reset", "/destroy"):
        theirs, nothing = (browser.get(f"/clones/{name}{path}") for name in ("theirs", "nothing"))
        assert theirs.status_code == nothing.status_code == 404
        assert theirs.text.replace("theirs", "nothing") == nothing.text
    for path in ("reset", "destroy", "extend"):
        fields = {"csrf": csrf, "guid": "1"}
        theirs, nothing = (browser.post(f"/clones/{name}/{path}", fields) for name in ("theirs", "nothing"))
        assert theirs.status_code == nothing.status_code == 404
        assert theirs.text.replace("theirs", "nothing") == nothing.text
    assert "theirs" not in browser.get("/clones").text
    assert host.changes() == []


@pytest.mark.parametrize("doing", ["reset", "destroy"])
def test_a_later_clone_of_the_name_is_not_the_one_that_was_confirmed(
    host: ServeHost, browser: PageBrowser, doing: str
) -> None:
    where = f"/clones/mine/{doing}"
    host.clones(MINE)
    fields = browser.page(where).form(where).fields
    host.clones({**MINE, "guid": "2"})
    assert browser.post(where, fields).status_code == 404
    assert host.changes() == []


def test_fifty_clones_have_pages_and_a_search(host: ServeHost, browser: PageBrowser) -> None:
    host.clones(*({**MINE, "name": f"shop-{number:02}"} for number in range(50)))
    first = browser.page("/clones")
    (following,) = (one["href"] for one in first.all("a") if "after=" in one.get("href", ""))
    seen = [one.get("href") for page in (first, browser.page(following)) for one in page.all("a")]
    names = [f"/clones/shop-{number:02}" for number in range(50)]
    assert [one for one in seen if one in names] == names
    found = browser.page("/clones?q=HOP-4")
    assert {one["href"] for one in found.all("a") if one.get("href") in names} == set(names[40:])
    assert "No clone matches the search" in browser.page("/clones?q=nothing").text
    assert browser.get("/clones?after=-1").status_code == 422
    assert browser.page("/clones?q=shop&after=25").text.count("Previous page") == 1


def test_branch_is_created_from_a_commit_on_the_page(host: ServeHost, browser: PageBrowser) -> None:
    host.clones(MINE)
    commit = {"id": "20260101T000000Z-aaaa", "created": "2026-01-01T00:00:00Z", "message": "<b>first</b>"}
    listed = [{"name": name, "head": commit["id"], "created": None, "message": None} for name in ("main", "try")]
    host.prints(
        "branch-list", {"clone": "mine", "current": "main", "branches": [{**listed[0], "current": True}, listed[1]]}
    )
    host.prints("branch-log", {"clone": "mine", "of": "main", "commits": [commit], "begins": None})
    host.prints("branch-create", {"kind": "clone-branches"})
    host.prints("branch-switch", {"kind": "clone-switched"})
    where = "/clones/mine/branches"
    page = browser.page(f"{where}?from={commit['id']}")
    assert [one["value"] for one in page.all("option") if "selected" in one] == [commit["id"]]
    assert "<b>first</b>" in page.text
    assert browser.to_its_end(browser.submit(where, where, branch="fix", **{"from": commit["id"]})).status_code == 200
    assert browser.to_its_end(browser.submit(where, "/clones/mine/switch")).status_code == 200
    changes = [call.words[1:] for call in host.changes() if call.words[2] not in ("list", "log")]
    assert changes == [
        ("branch", "create", f"--from={commit['id']}", "--json", "mine", "fix"),
        ("branch", "switch", "--json", "mine", "try"),
    ]
    viewer = logged_in(host, Role.VIEWER)
    assert [one.action for one in viewer.page(where).forms] == ["/logout"]


def landmarks(page: Page) -> list[tuple[str, str]]:
    """Return role and name of each landmark (HTML-AAM; a section is one if it has a name)."""
    found = []
    for one in page.elements:
        given = one.attributes
        name = given.get("aria-label", "") or given.get("aria-labelledby", "")
        role = given.get("role", "") or {"main": "main", "header": "banner", "nav": "navigation"}.get(one.tag, "")
        if one.tag == "section" and name and not role:
            role = "region"
        if role in ("main", "banner", "navigation", "region", "search"):
            found.append((role, name))
    return found


def test_landmarks_of_every_page_are_unique_and_have_one_main(host: ServeHost) -> None:
    host.clones(MINE, THEIRS)
    browser = logged_in(host, Role.OPERATOR)
    for path in (
        "/",
        "/clones",
        "/clones/mine",
        "/new",
        "/new?instance=main",
        "/fleet",
        "/drills",
        "/restore",
        "/nothing",
    ):
        found = landmarks(Page(browser.get(path).text))
        assert len(set(found)) == len(found), (path, found)
        assert [role for role, _ in found].count("main") == 1, path
    assert "Not found" in browser.get("/nothing").text


def test_roles_see_what_they_may(host: ServeHost) -> None:
    host.clones(MINE, THEIRS)
    seen = {}
    for role in Role:
        browser = logged_in(host, role)
        clones, overview = browser.page("/clones"), browser.page("/")
        new = browser.get("/new")
        seen[role] = (
            *("theirs" in clones.text, "/clones/mine/extend" in {one.action for one in clones.forms}),
            *("/new" in {one.get("href") for one in overview.all("a")}, new.status_code, "Mask the data" in new.text),
        )
    assert seen == {
        Role.VIEWER: (False, False, False, 403, False),
        Role.DEVELOPER: (False, True, True, 200, False),
        Role.OPERATOR: (True, True, True, 200, True),
        Role.AUDITOR: (True, False, False, 403, False),
    }
    viewer = logged_in(host, Role.VIEWER)
    csrf = viewer.page("/").form("/logout").fields["csrf"]
    for path, fields in (
        ("/clones", {"instance": "main"}),
        ("/clones/mine/extend", {"guid": "1"}),
        ("/clones/mine/destroy", {"guid": "1"}),
    ):
        answer = viewer.post(path, {**fields, "csrf": csrf})
        assert (answer.status_code, "may not use" in answer.text or "makes no clones" in answer.text) == (403, True)
    assert host.changes() == []


def test_an_operator_says_whether_a_clone_is_masked(host: ServeHost) -> None:
    operator = logged_in(host, Role.OPERATOR)
    operator.to_its_end(operator.submit("/new", "/clones", instance="masked", mask="on"))
    operator.to_its_end(operator.submit("/new", "/clones", instance="masked"))
    developer = logged_in(host)
    developer.to_its_end(developer.submit("/new", "/clones", instance="masked"))
    assert ["--mask" in call.words for call in host.changes()] == [True, False, True]


def test_login_leads_to_the_requested_page(host: ServeHost) -> None:
    host.clones(MINE)
    browser = before(host)
    login_page = browser.get("/clones?q=mi&after=0").headers["Location"]
    assert login_page == "/login?next=%2Fclones%3Fq%3Dmi%26after%3D0"
    wrong = browser.submit(login_page, "/login", token="wrong")
    (again,) = [one for one in Page(wrong.text).forms if one.action == "/login"]
    done = browser.post("/login", {**again.fields, "token": host.token(SUBJECT)})
    assert (done.status_code, done.headers["Location"]) == (303, "/clones?q=mi&after=0")
    assert browser.get(login_page).headers["Location"] == "/clones?q=mi&after=0"


@pytest.mark.parametrize(
    "page",
    [
        *("//evil.example", "/\\evil.example", "https://evil.example", "evil.example", "javascript:alert(1)", "/\tx"),
        *("/clones\r\nX: y", '/"><b>', "/login/one", "/./x", "/%2f%2fevil.example", "/" + "x" * 600),
    ],
)
def test_login_leads_to_no_other_site(host: ServeHost, page: str) -> None:
    browser = before(host)
    done = browser.post("/login", {"next": page, "token": host.token(SUBJECT)})
    assert (done.status_code, done.headers["Location"]) == (303, "/")


def test_error_page_shows_the_pages_of_the_role_and_the_way_back(host: ServeHost, browser: PageBrowser) -> None:
    host.clones(MINE)

    def links(text: str) -> set[str]:
        return {one.get("href", "") for one in Page(text).all("a")}

    refused = browser.submit("/clones/mine", "/clones/mine/extend", ttl="soon")
    assert (refused.status_code, "such as '4h'" in Page(refused.text).text) == (422, True)
    assert {"/clones/mine", "/new", "/"} <= links(refused.text)
    assert "/clones/gone" not in links(browser.get("/clones/gone").text)
    host.prints("extend", {"code": "preflight", "message": "too long", "hint": "", "exit_code": 4}, 4)
    assert "/clones/mine" in links(browser.to_its_end(browser.submit("/clones/mine", "/clones/mine/extend")).text)
    viewer = logged_in(host, Role.VIEWER)
    viewer.get("/")
    assert "/new" not in links(viewer.get("/clones/gone").text)


def test_pages_show_the_limit_instead_of_a_new_clone(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, per_subject=1)
    with host.helper():
        host.clones(MINE)
        browser = logged_in(host)
        pages = [browser.page(path) for path in ("/", "/clones", "/new")]
    assert "limit reached" in pages[0].text
    for page in pages:
        assert "You have 1 clone, and may have at most 1: destroy one" in page.text
        assert [one["href"] for one in page.all("a") if "/new" in one["href"]] == ["/new"], "the navigation"
    assert not [form for form in pages[2].all("form") if form["action"] == "/clones"]


def test_login_page_says_that_a_session_ended(host: ServeHost, browser: PageBrowser) -> None:
    browser.site = create_site(host.client)
    assert browser.get("/").headers["Location"] == "/login"
    ended = browser.get("/login")
    assert (ended.status_code, "your session has ended" in ended.text) == (200, True)
    assert "your session has ended" not in before(host).get("/login").text


def test_page_of_an_expired_clone_offers_what_is_accepted(host: ServeHost, browser: PageBrowser) -> None:
    host.clones({**MINE, "expires": "2020-01-01T00:00:00Z"})
    branches = [{"name": "main", "head": None, "current": True}, {"name": "b", "head": None}]
    host.prints("branch-list", {"clone": "mine", "current": "main", "branches": branches})
    commit = {"id": "20260101T000000Z-0001", "created": "2026-01-01T00:00:00Z", "message": "one"}
    host.prints("branch-log", {"clone": "mine", "of": "main", "commits": [commit], "begins": None})
    offered = set[str]()
    for path in ("/clones", "/clones/mine", "/clones/mine/branches"):
        page = browser.page(path)
        offered |= {one.action for one in page.forms} | {one["href"].partition("?")[0] for one in page.all("a")}
        assert path == "/clones" or "The lease is over" in page.text
    assert [one.action for one in page.forms] == ["/logout"]
    refused = ("login", "login/new", "start", "commit", "switch", "reset")
    assert offered.isdisjoint({f"/clones/mine/{one}" for one in refused})
    assert {"/clones/mine/extend", "/clones/mine/destroy"} <= offered
    assert browser.get("/clones/mine/reset").headers["Location"] == "/clones/mine"


def test_new_clone_page_can_refuse_the_pool(host: ServeHost, browser: PageBrowser) -> None:
    browser.to_its_end(browser.submit("/new", "/clones", instance="main", fresh="on"))
    assert "--fresh" in host.changes()[0].words
    assert browser.submit("/new", "/clones", instance="main", fresh="off").status_code == 303


def test_the_overview_names_what_needs_somebody(host: ServeHost, browser: PageBrowser) -> None:
    host.clones(MINE)
    assert "No clone needs attention" in browser.page("/").text
    host.clones({**MINE, "pid": None})
    assert "The server of mine does not run: it is stopped." in browser.page("/").text
    host.clones({**MINE, "expires": "2020-01-01T00:00:00Z"})
    assert "The lease of mine is over" in browser.page("/").text


def test_without_a_helper_a_page_says_so(tmp_path: Path) -> None:
    host = ServeHost(tmp_path)
    with host.helper():
        browser = logged_in(host)
    for path in ("/", "/clones", "/new"):
        answer = browser.get(path)
        assert (answer.status_code, "the helper does not answer" in answer.text) == (503, True)
    assert before(host).log_in("x").status_code == 503


def test_an_answer_of_another_form_is_a_problem_and_no_traceback(host: ServeHost, browser: PageBrowser) -> None:
    host.clones({**MINE, "own_bytes": "many"})
    answer = browser.get("/clones")
    assert (answer.status_code, "has an unknown form" in answer.text) == (500, True)


def test_the_api_stays_what_it_is_beside_the_pages(host: ServeHost, browser: PageBrowser) -> None:
    assert browser.get("/api/v1/clones").status_code == 401, "the cookie of a browser is no token"
    answer = browser.get("/api/v1/nothing")
    assert (answer.status_code, answer.headers["Content-Type"]) == (404, "application/problem+json")
    token = host.token(SUBJECT)
    assert browser.send("GET", "/api/v1/clones", {"Authorization": f"Bearer {token}"}).json() == {"clones": []}


PAGES = ("/login", "/", "/clones", "/new", "/clones/mine", "/clones/mine/reset", "/clones/mine/destroy", "/nothing")


def test_pages_can_be_used_by_keyboard_and_ear(host: ServeHost) -> None:
    host.clones(MINE)
    browser = logged_in(host, Role.OPERATOR)
    for path in PAGES:
        check_usable((browser.another() if path == "/login" else browser).get(path).text)


def check_usable(text: str) -> None:
    page = Page(text)
    assert (page.all("html")[0]["lang"], len(page.all("h1")), len(page.all("main"))) == ("en", 1, 1)
    assert text.index("<title>") < text.index("<body>")
    assert "#content" in {one.get("href") for one in page.all("a")}
    named = {one.get("for") for one in page.all("label")}
    for field in (*page.all("input"), *page.all("select"), *page.all("textarea")):
        assert field.get("type") == "hidden" or field["id"] in named, field
    ids = [one.attributes["id"] for one in page.elements if "id" in one.attributes]
    assert len(ids) == len(set(ids))
    for one in page.elements:
        for name in ("aria-describedby", "aria-labelledby"):
            assert one.attributes.get(name, ids[0]) in ids
        assert one.attributes.get("tabindex", "0") in ("0", "-1")
    assert {one.get("scope") for one in page.all("th")} <= {"col", "row"}
    assert "tr" not in {one.tag for one in page.elements} or page.all("th")
