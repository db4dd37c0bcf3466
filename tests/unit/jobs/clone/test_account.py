"""The account of the servers of clones is apart from that of the source, or no clone is made."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass

import pytest

from zsnapdb.base.errors import PreflightError
from zsnapdb.config.settings import CloneSettings, ServerSettings
from zsnapdb.jobs.clone import create_plan
from zsnapdb.jobs.clone.volumes import settings_of_clone

GROUPS = {"zsnapdb-clone": [990], "mysql": [27], "in-group": [991, 27], "toor": [0], "twin": [27]}


@dataclass(frozen=True)
class Entry:
    """An account as `pwd` describes it."""

    pw_name: str
    pw_uid: int
    pw_gid: int


ENTRIES = [
    Entry("root", 0, 0),
    Entry("mysql", 27, 27),
    Entry("zsnapdb-clone", 990, 990),
    Entry("in-group", 991, 991),
    Entry("toor", 0, 0),
    Entry("twin", 27, 27),
]


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with these accounts alone."""
    known = {each.pw_name: each for each in ENTRIES}
    monkeypatch.setattr(pwd, "getpwnam", lambda name: known[name])
    monkeypatch.setattr(pwd, "getpwall", lambda: ENTRIES)
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: GROUPS[name])


def test_clones_run_under_a_configured_account_that_is_apart() -> None:
    clones = CloneSettings(server_user="zsnapdb-clone")
    create_plan.check_account(ServerSettings(), clones)
    assert settings_of_clone(ServerSettings(), clones).user == "zsnapdb-clone"
    assert settings_of_clone(ServerSettings(user="maria"), CloneSettings()).user == "maria"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nobody-made-it", "does not exist"),
        ("mysql", "is that of mysql"),
        ("twin", "is that of mysql"),
        ("toor", "is that of root"),
        ("in-group", "is in a group of mysql or root"),
    ],
)
def test_an_account_that_reaches_the_source_is_refused(name: str, why: str) -> None:
    with pytest.raises(PreflightError, match=why):
        create_plan.check_account(ServerSettings(), CloneSettings(server_user=name))
