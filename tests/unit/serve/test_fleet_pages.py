"""The page of all instances of all hosts: who may see it, red first, filters, links and exports, from what was read."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.unit.serve.test_pages import check_usable
from tests.unit.support.fleet_yard import NOW, FleetYard
from tests.unit.support.page_browser import Page, PageBrowser
from tests.unit.support.serve_host import ServeHost
from zsnapdb.base.errors import DamagedError
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.repository.fleet_reader import LONGEST, SeenFiles, SeenProblem, SeenRepository
from zsnapdb.report.fleet import FleetSnapshot
from zsnapdb.repository.drills import Outcome
from zsnapdb.serve.browser_pages import BrowserPages
from zsnapdb.serve.fleet_pages import csv_of, fleet_of
from zsnapdb.serve.page_app import create_pages
from zsnapdb.serve.roles import Role
from zsnapdb.verbs.requests import FleetQuery, ListFleetVerb

OBJECTIVES = ObjectiveSettings(backup_age=7200.0, drill_age=7 * 86400.0)


@pytest.fixture
def yard(tmp_path: Path) -> FleetYard:
    """Four instances: a good one, one with an old backup, one whose drill failed, one of a silent host."""
    folder = tmp_path / "yard"
    folder.mkdir()
    yard = FleetYard(folder, names=("here",))
    for name, hours, host in (("shop", 1, "db-1"), ("billing", 6, "db-2"), ("ledger", 1, "db-3"), ("old", 100, "db-4")):
        yard.backup(name, hours, host=host, objectives=OBJECTIVES)
        yard.drill(name, hours + 1, Outcome.FAILED if name == "ledger" else Outcome.PASSED, host=host)
    (folder / "fleet.toml").write_text(yard.text())
    yard.status()
    return yard


@pytest.fixture
def fleet_host(tmp_path: Path, yard: FleetYard) -> Iterator[ServeHost]:
    """A host whose helper answers about the fleet of the yard."""
    folder = tmp_path / "helper"
    folder.mkdir()
    look = FleetSnapshot(Host(now=lambda: yard.now), yard.folder / "fleet.toml")
    host = ServeHost(folder, fleet=look, now=NOW)
    with host.helper():
        yield host


def browser_of(host: ServeHost, role: Role) -> PageBrowser:
    browser = PageBrowser(create_pages(BrowserPages(host.client, lambda: host.now)))
    assert browser.log_in(host.token("user:anna@example.org", role)).status_code == 303
    return browser


def rows(page: Page) -> list[str]:
    """Return the instances that a page shows, in order."""
    links = [one["href"] for one in page.all("a")]
    return [parse_qs(urlsplit(link).query)["instance"][0] for link in links if "/fleet?instance=" in link]


def test_operators_auditors_and_viewers_see_it_and_developers_do_not(fleet_host: ServeHost) -> None:
    for role in (Role.OPERATOR, Role.AUDITOR, Role.VIEWER):
        browser = browser_of(fleet_host, role)
        assert "/fleet" in {one["href"] for one in browser.page("/fleet").all("a")}
        assert browser.get("/fleet.csv").status_code == 200
    browser = browser_of(fleet_host, Role.DEVELOPER)
    assert "/fleet" not in {one["href"] for one in browser.page("/clones").all("a")}
    for path in ("/fleet", "/fleet.csv", "/fleet.json"):
        refused = browser.get(path)
        assert (refused.status_code, "instance" in refused.text and "billing" in refused.text) == (403, False)
    assert PageBrowser(browser.site).get("/fleet.csv").headers["Location"] == "/login?next=%2Ffleet.csv"


def test_red_comes_first_with_the_reason_and_since_when(fleet_host: ServeHost) -> None:
    browser = browser_of(fleet_host, Role.VIEWER)
    text = browser.get("/fleet").text
    check_usable(text)
    page = Page(text)
    assert rows(page) == ["old", "billing", "ledger", "shop"]
    words = " ".join(page.text.split())
    assert "4 instances: 3 red, 1 with a warning, 0 met" in words
    assert "1 drill is due" in words
    assert "Host db-4 is silent since 2026-11-23 08:00 UTC: 1 instance" in words
    assert "broken since 2026-11-27 08:00 UTC backup-age: the newest restorable backup" in words
    assert "drill: the newest drill" in words


def test_a_filter_shows_a_part_and_each_row_has_a_page_of_its_own(fleet_host: ServeHost) -> None:
    browser = browser_of(fleet_host, Role.OPERATOR)
    assert rows(browser.page("/fleet?host=db-[12]&sort=instance")) == ["billing", "shop"]
    red = browser.page("/fleet?red=true&sort=host")
    assert rows(red) == ["billing", "ledger", "old"]
    (checkbox,) = [one for one in red.all("input") if one.get("type") == "checkbox"]
    assert "checked" in checkbox
    link = next(one["href"] for one in red.all("a") if "instance=ledger" in one["href"])
    assert rows(browser.page(link)) == ["ledger"]
    assert "No instance matches" in browser.page("/fleet?host=nobody").text
    for wrong in ("sort=best", "host=a%0ab", "after=-1", "more=1", "host=" + "a" * 101, "after=1e9"):
        answer = browser.get(f"/fleet?{wrong}")
        assert (answer.status_code, "cannot be shown" in answer.text) == (422, True), wrong


def test_what_is_exported_is_what_the_filter_shows(fleet_host: ServeHost) -> None:
    browser = browser_of(fleet_host, Role.AUDITOR)
    page = browser.page("/fleet?red=true&sort=instance")
    table, document = (
        next(one["href"] for one in page.all("a") if one["href"].startswith(f"/fleet.{kind}"))
        for kind in ("csv", "json")
    )
    answer = browser.get(table)
    assert answer.headers["Content-Disposition"] == 'attachment; filename="fleet.csv"'
    read = list(csv.DictReader(io.StringIO(answer.text)))
    assert [one["instance"] for one in read] == ["billing", "ledger", "old"]
    assert (read[0]["verdict"], read[0]["backups"], read[1]["drill_passed"]) == ("broken", "1", "no")
    exported = json.loads(browser.get(document).text)
    assert [one["instance"] for one in exported["instances"]] == ["billing", "ledger", "old"]
    assert (exported["chosen"], exported["total"]) == (3, 4)


def test_no_text_of_an_export_is_a_formula(fleet_host: ServeHost) -> None:
    token = fleet_host.token("user:anna@example.org", Role.AUDITOR)
    document = dict(fleet_host.done(token, ListFleetVerb()).document)
    rows = json.loads(json.dumps(document["instances"]))
    for hostile, cell in (
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("  =HYPERLINK(1)", "'  =HYPERLINK(1)"),
        ("\uff1d1+1", "'\uff1d1+1"),
        # Where a decimal has a comma, spreadsheets part the cells of a line at semicolons.
        ("8.4;=HYPERLINK(1)", "8.4;'=HYPERLINK(1)"),
        ('8.4";=HYPERLINK(1)', "8.4\";'=HYPERLINK(1)"),
        ("8.4-community", "8.4-community"),
    ):
        rows[0]["server"] = hostile
        text = csv_of(fleet_of({**document, "instances": rows}, FleetQuery(), NOW))
        (first, *_) = csv.DictReader(io.StringIO(text))
        assert first["server"] == cell
        assert text.startswith('"verdict","instance"'), "each cell is quoted"


def test_a_repository_with_huge_names_fills_no_answer(fleet_host: ServeHost, yard: FleetYard) -> None:
    yard.backup("huge", 200, host="h" * 1_000_000, objectives=OBJECTIVES)
    yard.status()
    token = fleet_host.token("user:anna@example.org", Role.VIEWER)
    document = fleet_host.done(token, ListFleetVerb()).document
    assert document["total"] == 5
    assert len(json.dumps(document)) < 20_000
    assert (yard.folder / "cache" / "here" / "seen.json").stat().st_size < 20_000
    assert len(SeenProblem.of(DamagedError("x" * 2_000_000)).message) == LONGEST


def test_a_viewer_is_told_the_class_of_an_error_and_who_sees_everything_its_text(
    fleet_host: ServeHost, yard: FleetYard
) -> None:
    """Texts of errors can name endpoint, bucket and folders."""
    here = yard.folder / "here"
    manifests = here / "billing" / "manifests"
    manifests.rename(yard.folder / "away")
    manifests.symlink_to(yard.folder / "away")
    yard.status()
    here.rename(yard.folder / "gone")
    yard.status()
    for role in (Role.VIEWER, Role.OPERATOR, Role.AUDITOR):
        browser = browser_of(fleet_host, role)
        answers = [browser.get(f"/fleet{kind}").text for kind in ("", ".csv", ".json")]
        answers.append(
            json.dumps(fleet_host.done(fleet_host.token("user:anna@example.org", role), ListFleetVerb()).document)
        )
        for text in answers:
            assert (str(yard.folder) in text) is (role is not Role.VIEWER)
        words = " ".join(browser.page("/fleet").text.split())
        assert "Repository here could not be read: the reading at 2026-11-27 12:00 UTC failed: " in words
        if role is Role.VIEWER:
            assert re.search(r"12:00 UTC failed: [a-z-]+ What is shown", words)
            assert re.search(r"UTC could not be read: [a-z-]+; backup-age: ", words)


def test_parts_of_many_rows_follow_each_other(fleet_host: ServeHost) -> None:
    token = fleet_host.token("user:anna@example.org", Role.AUDITOR)
    seen = []
    after = 0
    while True:
        asked = FleetQuery(sort="instance", after=after, most=3)
        card = fleet_of(fleet_host.done(token, ListFleetVerb(asked=asked)).document, asked, NOW)
        seen += [row.told.instance for row in card.rows]
        if card.following is None:
            break
        after = int(parse_qs(urlsplit(card.following).query)["after"][0])
    assert seen == ["billing", "ledger", "old", "shop"]
    assert card.before == "/fleet?sort=instance"


def test_what_was_read_is_parsed_again_only_if_it_was_read_again(
    fleet_host: ServeHost, yard: FleetYard, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, parsed = fleet_host.token("user:anna@example.org", Role.AUDITOR), []
    read = SeenFiles.repository

    def noted(files: SeenFiles) -> SeenRepository | None:
        parsed.append(files.folder.name)
        return read(files)

    monkeypatch.setattr(SeenFiles, "repository", noted)
    for _ in range(3):
        fleet_host.done(token, ListFleetVerb())
    assert parsed == ["here"]
    yard.backup("newest", 0.5, host="db-9", objectives=OBJECTIVES)
    yard.status()
    parsed.clear()
    told = fleet_host.done(token, ListFleetVerb(asked=FleetQuery(instance="newest"))).document
    assert (parsed, told["chosen"]) == (["here"], 1)


def test_without_a_configuration_it_says_how_to_get_one(fleet_host: ServeHost, yard: FleetYard) -> None:
    (yard.folder / "fleet.toml").unlink()
    browser = browser_of(fleet_host, Role.VIEWER)
    assert "zsnapdb example fleet.toml" in browser.page("/fleet").text
    assert browser.get("/fleet.csv").status_code == 404


def test_a_reading_that_is_old_is_said(fleet_host: ServeHost, yard: FleetYard) -> None:
    fleet_host.pass_time(7200)
    yard.now = fleet_host.now
    text = " ".join(browser_of(fleet_host, Role.VIEWER).page("/fleet").text.split())
    assert "Repository here was read last 2026-11-27 12:00 UTC" in text
