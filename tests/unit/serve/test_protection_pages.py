"""The pages about protection, and what is done with a clone beside its making, from a browser to the commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.serve.test_pages import check_usable, logged_in
from tests.unit.support.page_browser import Page, PageBrowser
from tests.unit.support.serve_host import ServeHost
from tests.unit.support.told import NEWEST, OLDER, tells
from zsnapdb.serve.clone_documents import OwnedCommit
from zsnapdb.serve.roles import Role
from zsnapdb.verbs.requests import ListInstancesVerb

SUBJECT = "ci:shop/web"
MINE = {"name": "mine", "owner": SUBJECT, "instance": "main", "phase": "ready", "pid": 7}


@pytest.fixture
def browser(host: ServeHost) -> PageBrowser:
    tells(host)
    host.clones(MINE)
    return logged_in(host)


def test_the_overview_begins_with_the_objectives_that_are_not_met(host: ServeHost, browser: PageBrowser) -> None:
    text = " ".join(browser.page("/").text.split())
    assert "Missed objectives main: backup_age of said: the newest backup is old said since" in text
    assert "since 2026-01-02 01:30 UTC, for" in text, "an hour after the newest backup"
    assert "masked: its state is unknown. Code: said" in text
    assert "drill_age of said: soon" in text
    assert re.findall(r"(main|masked|secret) ?(broken|not known|none configured)", text) == [
        *(("main", "broken"), ("masked", "not known"), ("secret", "none configured"))
    ]
    assert text.count("since ") == 1, "what warns is met"
    host.prints(
        "status",
        {"kind": "error", "error": {"code": "busy", "message": "no place", "hint": "later", "audience": SUBJECT}},
        75,
    )
    text = browser.page("/").text
    assert "The state of the objectives is unknown" in text
    assert ("no place" in text, "No clone needs attention" in text) == (True, True)
    calm = {"instance": "main", "verdict": "met", "objectives": []}
    host.prints("status", {"instances": [{"instance": "main", "status": calm, "error": None}]})
    assert "All objectives are met" in browser.page("/").text


def test_a_time_at_an_end_of_the_calendar_hides_no_page(host: ServeHost, browser: PageBrowser) -> None:
    fields = {"objective": "backup_age", "subject": "main", "reason": "of another age", "seconds": 0.0}
    broken = {**fields, "verdict": "broken", "since": "9999-12-31T23:30:00Z", "limit_seconds": 3600.0}
    status = {"instance": "main", "verdict": "broken", "objectives": [broken]}
    host.prints("status", {"instances": [{"instance": "main", "status": status, "error": None}]}, 2)
    assert "of another age" in browser.page("/").text
    begins = {"from": "0001-01-01T00:00:00+14:00", "to": "2026-01-01T10:00:00Z", "backups": [OLDER]}
    host.prints("status", {"instance": "main", "at": "2026-01-02T01:00:00Z", "recoverable": [begins], "gaps": []})
    assert "0001-01-01T00:00:00+14:00" in browser.page("/new?instance=main").text


def test_a_new_clone_is_of_a_state_that_the_page_shows(host: ServeHost, browser: PageBrowser) -> None:
    page = browser.page("/new?instance=main")
    (picture,) = page.all("svg")
    assert picture["role"] == "img"
    bars = [(one["class"], one["x"], one["width"]) for one in page.all("rect")]
    assert bars == [
        ("none", "0", "1000"),
        ("have", "0.0", "400.0"),
        ("have", "420.0", "579.3"),
        ("gap", "400.0", "20.0"),
    ]
    assert len([one for one in page.all("path") if one["class"] == "mark"]) == 1
    assert "2026-01-01 10:00 UTC to 2026-01-01 10:30 UTC: lost said" in " ".join(page.text.split())
    assert [one["value"] for one in page.all("option")][:4] == ["", NEWEST, "said", OLDER]
    begun = browser.submit("/new?instance=main", "/clones", instance="main", **{"from": NEWEST})
    assert "secret of the clone" in browser.to_its_end(begun).text
    assert f"--from={NEWEST}" in host.changes()[0].words
    both = browser.submit("/new?instance=main", "/clones", instance="main", at="2h", **{"from": NEWEST})
    assert (both.status_code, "give from or at, not both" in both.text) == (422, True)
    assert [one["value"] for one in Page(both.text).all("option") if "selected" in one] == [NEWEST, ""]


def test_backup_without_binlogs_is_no_range_of_times(host: ServeHost, browser: PageBrowser) -> None:
    moment = "2026-01-01T10:00:00.000000Z"
    part = {"from": moment, "to": moment, "backups": [OLDER]}
    host.prints("status", {"instance": "main", "at": "2026-01-02T01:00:00Z", "recoverable": [part], "gaps": []})
    text = " ".join(browser.page("/new?instance=main").text.split())
    assert ("backup alone 2026-01-01 10:00 UTC" in text, "10:00 UTC to" in text) == (True, False)


def test_a_new_clone_can_be_asked_for_when_its_states_are_not_known(host: ServeHost, browser: PageBrowser) -> None:
    host.prints(
        "list",
        {"kind": "error", "error": {"code": "busy", "message": "no place", "hint": "later", "audience": SUBJECT}},
        75,
    )
    page = browser.page("/new?instance=main")
    assert ("The restorable times are unknown: no place" in " ".join(page.text.split()), page.all("svg")) == (True, [])
    assert browser.submit("/new?instance=main", "/clones", instance="main").status_code == 303


def test_an_instance_says_whether_one_may_have_clones_of_it(host: ServeHost) -> None:
    allowed = {}
    for role in Role:
        told = host.done(host.token(SUBJECT, role), ListInstancesVerb()).document["instances"]
        assert isinstance(told, list)
        allowed[role] = {one["name"]: one["clones_allowed"] for one in told if isinstance(one, dict)}
    everything = {"main": True, "masked": True, "secret": True}
    nothing = dict.fromkeys(everything, False)
    assert allowed == {
        Role.VIEWER: nothing,
        Role.DEVELOPER: {**everything, "secret": False},
        Role.OPERATOR: everything,
        Role.AUDITOR: nothing,
    }
    page = logged_in(host).page("/new")
    assert [one["value"] for one in page.all("input") if "disabled" in one] == ["secret"]
    assert "so only operators may clone it" in page.text
    overview = logged_in(host).page("/")
    assert "/new?instance=secret" not in {one.get("href") for one in overview.all("a")}


def test_a_clone_is_protected_and_kept_and_its_log_is_shown(host: ServeHost, browser: PageBrowser) -> None:
    host.clones({**MINE, "protected_until": "2026-12-01T00:00:00Z"})
    where = "/clones/mine"
    assert f"{where}/logs" in {one.get("href") for one in browser.page(where).all("a")}
    browser.to_its_end(browser.submit(where, f"{where}/protect", **{"for": "2h"}))
    browser.to_its_end(browser.submit(where, f"{where}/unprotect"))
    assert f"{where}/unprotect" not in {one.action for one in browser.page(where).forms}
    kept = Page(browser.to_its_end(browser.submit(where, f"{where}/commit", message="before it")).text)
    assert "/new?from=20260101T000000Z-aaaa" in {one.get("href") for one in kept.all("a")}
    again = browser.page("/new?from=20260101T000000Z-aaaa")
    assert [one["value"] for one in again.all("option") if "selected" in one][:1] == ["20260101T000000Z-aaaa"]
    assert "[Note] ready\nsaid" in browser.page(f"{where}/logs").text
    assert [call.words[1:3] for call in host.changes()] == [
        ("protect", "--for=7200.000s"),
        ("protect", "--for=0s"),
        ("commit", "--message=before it"),
    ]
    for fields in ({}, {"for": "2d"}, {"for": "--config"}):
        assert browser.submit(where, f"{where}/protect", **fields).status_code == 422


def test_clone_page_stops_a_running_server_and_starts_it_again(host: ServeHost, browser: PageBrowser) -> None:
    where = "/clones/mine"
    for action, other in (("stop", "start"), ("start", "stop")):
        assert f"{where}/{other}" not in {one.action for one in browser.page(where).forms}
        browser.to_its_end(browser.submit(where, f"{where}/{action}"))
    assert f"{where}/stop" in {one.action for one in browser.page(where).forms}
    assert [call.words[1:3] for call in host.changes()] == [("stop", "--json"), ("start", "--json")]


def test_clone_page_has_no_button_for_a_server_that_this_host_cannot_stop(
    host: ServeHost, browser: PageBrowser
) -> None:
    for state in ({"pid": None, "elsewhere": "another mount namespace"}, {"phase": "changing"}):
        host.clones({**MINE, **state})
        forms = {one.action for one in browser.page("/clones/mine").forms}
        assert not {"/clones/mine/start", "/clones/mine/stop"} & forms


def test_a_commit_too_many_and_a_reader_are_refused(host: ServeHost, browser: PageBrowser) -> None:
    host.commits += [OwnedCommit(f"20260101T000000Z-000{n}", SUBJECT) for n in range(3)]
    refused = browser.submit("/clones/mine", "/clones/mine/commit")
    assert (refused.status_code, "serve.commits_per_subject is 3" in refused.text) == (409, True)
    viewer = logged_in(host, Role.VIEWER)
    page = viewer.page("/clones/mine")
    assert [one.action for one in page.forms] == ["/logout"]
    csrf = page.form("/logout").fields["csrf"]
    for path in ("protect", "unprotect", "commit", "start", "stop"):
        fields = {"csrf": csrf, "guid": "1", "for": "1h"}
        assert viewer.post(f"/clones/mine/{path}", fields).status_code in (403, 422)
    assert viewer.post("/clones/mine/protect", {"csrf": csrf, "guid": "1", "for": "1h"}).status_code == 403
    assert "/clones/mine/logs" not in {one.get("href") for one in page.all("a")}
    assert viewer.get("/clones/mine/logs").status_code == 403
    assert host.changes() == []


def test_what_is_under_way_is_cancelled_on_its_page(tmp_path: Path) -> None:
    host = ServeHost(tmp_path)
    host.let("slow", "60")
    with host.helper():
        browser, stranger = logged_in(host), logged_in(host, subject="user:eve@example.org")
        where = browser.submit("/new", "/clones", instance="main").headers["Location"]
        host.waits_for("waits")
        fields = browser.page(where).form(f"{where}/cancel").fields
        csrf = stranger.page("/clones").form("/logout").fields["csrf"]
        assert stranger.post(f"{where}/cancel", {"csrf": csrf}).status_code == 404
        assert browser.post(f"{where}/cancel", {"csrf": csrf}).status_code == 403
        assert browser.get(f"{where}/cancel").status_code == 405
        assert browser.post(f"{where}/cancel", fields).headers["Location"] == where
        ended = browser.get(where)
        assert (ended.status_code, "Making a clone of main was cancelled" in ended.text) == (409, True)
        # What has ended says how, to who cancels it once more.
        host.let("slow", "")
        done = browser.submit("/new", "/clones", instance="main")
        browser.to_its_end(done)
        assert browser.post(f"{done.headers['Location']}/cancel", fields).status_code == 303
        assert ": done" in browser.get(done.headers["Location"]).text
    assert (tmp_path / "fake" / "undone").exists()


def test_drills_have_the_seconds_of_their_steps(host: ServeHost, browser: PageBrowser) -> None:
    page = browser.page("/drills?instance=main")
    assert len(page.all("svg")) == 2
    dots = [one for one in page.all("path") if one["class"].startswith("dot")]
    assert [(one["class"], one["d"]) for one in dots[:2]] == [("dot", "M25.0 46.0h0"), ("dot bad", "M975.0 10.0h0")]
    rows = re.findall(r"2026-01-0(\d) 00:01 UTC(?: to|;)?\s+(passed|failed)\s+said \S+\s+(\S+)\s+(\S+)", page.text)
    assert rows == [("2", "failed", "10.0", "10.00.5"), ("1", "passed", "5.5", "5.50.5")], "a cell beside a cell"
    assert "secret place" not in page.text
    assert ("drills", "main", "--most=30", "--json") in {call.words for call in host.calls()}
    host.prints("drills", {"kind": "drills", "drills": []})
    assert "No drill of main has run yet" in browser.page("/drills").text
    assert browser.get("/drills?instance=nothing").status_code == 422


def test_evidence_comes_in_pages_to_who_may_read_it(host: ServeHost) -> None:
    tells(host)
    seen = {}
    for role in Role:
        browser = logged_in(host, role)
        links = {one.get("href") for one in browser.page("/clones").all("a")}
        seen[role] = ("/evidence" in links, browser.get("/evidence").status_code)
    assert seen == {
        **dict.fromkeys((Role.VIEWER, Role.DEVELOPER), (False, 403)),
        **dict.fromkeys((Role.OPERATOR, Role.AUDITOR), (True, 200)),
    }
    page = logged_in(host, Role.AUDITOR).page("/evidence?instance=main&after=3")
    assert "Record 8: said" in page.text
    assert {"/evidence?instance=main&after=8", "/evidence?instance=main"} < {one.get("href") for one in page.all("a")}
    assert ("report", "records", "main", "--after=3", "--most=50", "--json") in {call.words for call in host.calls()}
    auditor = logged_in(host, Role.AUDITOR)
    for after in ("-1", "x", "999999999"):
        assert auditor.get(f"/evidence?instance=main&after={after}").status_code == 422


def test_a_restore_is_lines_for_a_person(host: ServeHost, browser: PageBrowser) -> None:
    page = browser.page("/restore?instance=main&at=2026-01-02 00:10:00 UTC".replace(" ", "%20"))
    assert "zsnapdb runbook main --to '2026-01-02 00:10:00 UTC'" in page.text
    assert "zsnapdb restore main --to '2026-01-02 00:10:00 UTC' --plan" in page.text
    assert len(page.all("svg")) == 1
    assert "zsnapdb runbook main --to latest" in browser.page("/restore").text
    for query, status in (("at=--plan", 422), ("at=%24(id)", 422), ("at=a;b", 422), ("instance=nothing", 404)):
        answer = browser.get(f"/restore?{query}" if "instance" in query else f"/restore?instance=main&{query}")
        assert (answer.status_code, "zsnapdb runbook" in answer.text) == (status, False), query
    assert host.changes() == []


def test_these_pages_can_be_used_by_keyboard_and_ear(host: ServeHost, browser: PageBrowser) -> None:
    operator = logged_in(host, Role.OPERATOR)
    for path in ("/", "/new?instance=main", "/drills", "/evidence?after=3", "/restore", "/clones/mine/logs"):
        text = operator.get(path).text
        check_usable(text)
        assert [one for one in Page(text).all("svg") if one.get("role") != "img" or not one.get("aria-label")] == []


def test_an_objective_of_an_instance_itself_names_nothing_else(host: ServeHost) -> None:
    tells(host, "")
    page = logged_in(host).page("/")
    assert " of :" not in " ".join(page.text.split())
