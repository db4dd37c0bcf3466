"""A reset gives a clone the data that it was created from, whatever snapshots are called by then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool, origin
from zsnapdb.base.domain_types import Snapshot, SnapshotSet
from zsnapdb.base.errors import ExistsError, PreflightError
from zsnapdb.config.settings import Settings, parse
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.clone import catalogue, data_replacement
from zsnapdb.jobs.clone.sources import CloneSource, key_of
from zsnapdb.planning.clone.lease import SourceKind


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> ClonePool:
    pool = ClonePool()
    pool.install(monkeypatch)
    return pool


@pytest.fixture
def settings() -> Settings:
    return parse(
        '[repository.r]\nurl = "file:///r"\n[instance.main]\nrepository = "r"\n'
        f'volumes = {{ data = "{SOURCE}" }}\n[clones]\ndataset = "{HOME}"\n',
        "the test",
    )


def source(guid: int) -> CloneSource:
    return CloneSource(
        SourceKind.SNAPSHOT, SnapshotSet("daily", {"data": Snapshot(SOURCE, "daily", guid, 1)}), origin()
    )


def test_what_a_renamed_snapshot_was_cloned_to_is_still_the_original(pool: ClonePool, settings: Settings) -> None:
    base = pool.snapshot(f"{SOURCE}@older")
    key = key_of({"data": pool.things[base].txg})
    pool.clone("dev", base, backup="daily", original="@daily @daily", key=key, original_key=key)
    pool.snapshot(f"{SOURCE}@daily")
    info = catalogue.find(settings, THIS_HOST, "dev")
    assert info.has_original
    found = data_replacement._original(settings, THIS_HOST, info)
    assert isinstance(found, CloneSource)
    assert found.set.snapshots["data"].full_name == base


@pytest.mark.parametrize(("original_key", "original"), [(source(8).key, "@daily"), ("", "@daily")])
def test_another_snapshot_of_the_name_is_not_taken_for_the_original(
    pool: ClonePool, settings: Settings, monkeypatch: pytest.MonkeyPatch, original_key: str, original: str
) -> None:
    pool.clone("dev", pool.snapshot(f"{SOURCE}@zsnapdb-20261126T115900Z-0174"), original=f"{original} {original}")
    info = replace(catalogue.find(settings, THIS_HOST, "dev"), key="a", original_key=original_key)
    monkeypatch.setattr(data_replacement, "locate", lambda *_: source(9))
    with pytest.raises(PreflightError, match="the object that now has this name may be"):
        data_replacement._original(settings, THIS_HOST, info)
    monkeypatch.setattr(data_replacement, "locate", lambda *_: source(8))
    if original_key:
        assert data_replacement._original(settings, THIS_HOST, info) == source(8)


def test_a_set_with_the_name_of_a_label_is_not_the_original(pool: ClonePool, settings: Settings) -> None:
    pool.clone("dev", pool.snapshot(f"{SOURCE}@zsnapdb-20261126T115900Z-0174"), key="a", original_key="b")
    assert not catalogue.find(settings, THIS_HOST, "dev").has_original


def test_no_clone_is_called_as_a_set_of_clones(pool: ClonePool, settings: Settings) -> None:
    """Else who destroys one of the two by its name destroys the other."""
    pool.clone("net-1", pool.snapshot(f"{SOURCE}@zsnapdb-20261126T115900Z-0174"), set="net member")
    with pytest.raises(ExistsError, match="net-1"):
        catalogue.refuse_label(catalogue.claims(settings).copies, "net")
    catalogue.refuse_label(catalogue.claims(settings).copies, "net-2")
