"""Where a restore takes its volumes from, and what keeps it from cloning snapshots on the host."""

from __future__ import annotations

import pytest

from zsnapdb.base.domain_types import Snapshot
from zsnapdb.base.errors import PreflightError
from zsnapdb.planning.restore.plan import RestoreOrigin, choose_origin

ID = "20261120T100000Z-0001"
GUIDS = {"data": 11, "parent": 12}
HERE = {
    "data": Snapshot("tank/mysql/data", f"zsnapdb-{ID}", 11, 5),
    "parent": Snapshot("tank/mysql", f"zsnapdb-{ID}", 12, 5),
}


def test_with_every_snapshot_on_the_host_nothing_is_fetched_unless_the_repository_is_requested() -> None:
    for requested in (RestoreOrigin.AUTO, RestoreOrigin.LOCAL):
        choice = choose_origin(requested, ID, GUIDS, HERE, "tank/restored")
        assert choice.snapshots == {role: snapshot.full_name for role, snapshot in HERE.items()}
        assert "nothing of it is fetched" in choice.reason
    assert choose_origin(RestoreOrigin.REPOSITORY, ID, GUIDS, HERE, "tank/restored").snapshots == {}


@pytest.mark.parametrize(
    ("here", "target", "why"),
    [
        ({"data": HERE["data"]}, "tank/restored", "no snapshot of volume parent"),
        ({**HERE, "data": Snapshot("tank/mysql/data", f"zsnapdb-{ID}", 99, 5)}, "tank/restored", "its GUID is 99"),
        (HERE, "other/restored", "in another pool than the target other/restored"),
    ],
)
def test_a_snapshot_that_is_missing_replaced_or_in_another_pool_is_named(
    here: dict[str, Snapshot], target: str, why: str
) -> None:
    assert why in choose_origin(RestoreOrigin.AUTO, ID, GUIDS, here, target).reason
    assert choose_origin(RestoreOrigin.AUTO, ID, GUIDS, here, target).snapshots == {}
    with pytest.raises(PreflightError, match=why) as refused:
        choose_origin(RestoreOrigin.LOCAL, ID, GUIDS, here, target)
    assert "--origin repository" in refused.value.hint
