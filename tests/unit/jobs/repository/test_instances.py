"""Errors name a wrong address or name, and a repository lists its instances without a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.command_line import zsnapdb
from tests.unit.support.stored_backups import Site
from zsnapdb.base.errors import NotFound, UsageError
from zsnapdb.config.settings import parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.repository import inventory, protection_status, verify
from zsnapdb.jobs.repository.inventory import list_instances
from zsnapdb.report.repository.list import StoredInstancesView
from zsnapdb.repository.verifications import Depth


def test_instances_of_a_repository_are_listed_without_a_name(site: Site) -> None:
    _, newest = site.fill([None, 0])
    (site.folder / "Not an instance").mkdir()
    here, there = list_instances(parse(site.text(), "test"), site.host, None)
    assert [(one.name, one.backups, one.newest) for one in here.instances] == [("main", 2, newest)]
    assert there.error is not None
    assert "there" in there.error.message
    shown = StoredInstancesView([here, there])
    assert shown.text().splitlines()[1].split() == ["here", "main", "2", newest]
    document = shown.fields()["repositories"]
    assert document[0]["instances"] == [{"name": "main", "backups": 2, "newest": newest}]
    assert document[1]["error"]["code"] == "not-there"


def test_repository_that_is_not_configured_is_wrong_usage(site: Site) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        list_instances(parse(site.text(), "test"), site.host, "nowhere")


READERS: tuple[Callable[[Instance], object], ...] = (
    inventory.inventory,
    protection_status.status,
    lambda instance: verify.verify(instance, Depth.LISTED),
)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("made", [True, False], ids=["empty", "missing"])
def test_wrong_prefix_asks_for_the_address(site: Site, reader: Callable[[Instance], object], made: bool) -> None:
    site.fill([None])
    other = site.folder / "prefx"
    if made:
        other.mkdir()
    own = site.instance()
    lost = replace(own, repository=own.repository.model_copy(update={"url": f"file://{other}"}))
    with pytest.raises(NotFound, match="no repository was found at the address") as caught:
        reader(lost)
    assert f"file://{other}" in caught.value.message
    assert "zsnapdb init" not in f"{caught.value.message} {caught.value.hint}"
    assert f"this host stored 1 backup of main at file://{site.folder}, the newest" in caught.value.message


@pytest.mark.parametrize(
    "words", ["list", "verify", "restore --plan", "drill --plan", "show main", "status", "pin main latest"]
)
def test_wrong_prefix_on_the_command_line_leads_to_the_list(words: str, site: Site, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    config = tmp_path / "zsnapdb.toml"
    config.write_text(replace(site, url=f"file://{tmp_path}/empty").text())
    more = ["--reason", "audit"] if words.startswith("pin") else []
    done = zsnapdb(*words.split(), *more, config=str(config))
    assert done.returncode == 6
    assert "no repository was found at the address" in done.stderr
    assert f"file://{tmp_path}/empty" in done.stderr
    assert "`zsnapdb list --instances`" in done.stderr


def test_list_instances_ends_with_6_where_nothing_is(site: Site, tmp_path: Path) -> None:
    site.fill([None])
    (Path(f"{site.folder}-there")).mkdir(exist_ok=True)
    config = tmp_path / "zsnapdb.toml"
    config.write_text(site.text())
    done = zsnapdb("list", "--instances", config=str(config))
    assert (done.returncode, done.stdout.splitlines()[1].split()[:3]) == (6, ["here", "main", "1"])
    assert "it has no instance" in done.stderr
    assert "run `zsnapdb backup`" in done.stderr
    # It must not name itself.
    assert "zsnapdb list --instances" not in done.stderr
    assert zsnapdb("list", "--instances", "--repository", "here", config=str(config)).returncode == 0
    assert zsnapdb("list", "main", "--instances", config=str(config)).returncode == 2
