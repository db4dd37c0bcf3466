"""A dataset is cloned of the snapshot that was chosen, not of what has its name by then."""

from __future__ import annotations

import pytest

from tests.unit.support.clone_pool import SOURCE, ClonePool, Thing
from zsnapdb.base.errors import ConsistencyError
from zsnapdb.zfs import datasets


class Cloning(ClonePool):
    """A pool that can clone, and lets somebody replace the snapshot right before."""

    replaces = False

    def _clone(self, words: list[str]) -> str:
        base, name = words[-2:]
        if self.replaces:
            self.snapshot(base)
        self.things[name] = Thing(origin=base)
        return ""


@pytest.mark.parametrize("replaces", [False, True])
def test_clone_of_a_replaced_snapshot_is_refused(monkeypatch: pytest.MonkeyPatch, replaces: bool) -> None:
    pool = Cloning()
    pool.install(monkeypatch)
    base = pool.snapshot(f"{SOURCE}@daily")
    pool.replaces, guid = replaces, pool.things[base].txg
    if not replaces:
        datasets.clone(base, guid, "tank/c", {})
        assert datasets.origin_guid("tank/c") == guid
        return
    with pytest.raises(ConsistencyError, match="is another snapshot than a moment ago"):
        datasets.clone(base, guid, "tank/c", {})
