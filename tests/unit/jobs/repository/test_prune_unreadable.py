"""Unreadable or altered manifests, and what may need them, are never removed."""

from __future__ import annotations

import pytest

from tests.unit.support.pruning import plan, prune
from tests.unit.support.rewritten import rewritten
from tests.unit.support.stored_backups import DyingStore, Site
from zsnapdb.base.errors import RepositoryError
from zsnapdb.repository import layout
from zsnapdb.store.local import LocalStore


def test_an_unreadable_manifest_stays_and_so_does_all_it_may_need(site: Site) -> None:
    names = site.fill([None, 0, None, None])
    site.keep = "last = 1"
    key = layout.manifest("main", names[1])
    LocalStore(site.folder).put(key, b"{")
    result = prune(site)
    assert result.removed == (names[2],)
    assert key in site.objects()
    assert {key.split("/")[2] for key in site.objects("main/chunks/")} == {names[0], names[1], names[3]}


def test_a_manifest_that_was_altered_since_it_was_first_read_stays(site: Site) -> None:
    names = site.fill([None, None, None])
    site.keep = "last = 1"
    plan(site)
    key = layout.manifest("main", names[0])
    body = LocalStore(site.folder).get(key)
    LocalStore(site.folder).put(
        key, rewritten(body, (b'"createtxg":2', b'"createtxg":3'), (b'"held_ms":1.5', b'"held_ms":2.5'))
    )
    result = prune(site)
    assert names[0] not in result.removed
    assert key in site.objects()


def test_if_what_would_stay_cannot_be_read_now_nothing_goes(site: Site) -> None:
    """This host has read the newest manifest before. Since then the manifest was damaged without changing its size."""
    names = site.fill([None, None, None])
    site.keep = "last = 1"
    plan(site)
    key = layout.manifest("main", names[2])
    LocalStore(site.folder).put(key, b"x" * len(LocalStore(site.folder).get(key)))
    assert prune(site).removed == ()
    assert len(site.objects("main/manifests/")) == 3


def test_a_manifest_that_may_not_be_read_stops_everything(site: Site) -> None:
    names = site.fill([None, None, None])
    site.keep = "last = 1"

    class Denied(DyingStore):
        def get(self, key: str) -> bytes:
            if key.endswith(f"{names[1]}.json"):
                raise RepositoryError("denied")
            return super().get(key)

    with site.opening(Denied) as made, pytest.raises(RepositoryError, match="denied"):
        prune(site)
    assert not [change for change in made[-1].changes if change[0] == "delete"]
