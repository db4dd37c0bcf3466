"""The data of a pool clone is of the datasets that the server uses now, also where no volumes are configured."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.support.clone_pool import origin
from zsnapdb.config.settings import parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import pool_filling
from zsnapdb.planning.clone import pool
from zsnapdb.planning.clone.masking import MaskingWay
from zsnapdb.planning.clone.pool import PoolSlot

SLOT = PoolSlot("a", datetime(2026, 11, 20, tzinfo=UTC), "key", True, "", "normal", "127.0.0.1")
CONFIGURED = (
    '[repository.r]\nurl = "file:///r"\n[instance.main]\nrepository = "r"\n{more}\n[instance.main.pool]\nsize = 1\n'
)


@pytest.mark.parametrize(
    ("configured", "discovered", "is_current"),
    [
        ("", {"data": "tank/mysql"}, True),
        ("", {"data": "tank/other"}, False),
        ("", {"data": "tank/mysql", "redo": "tank/redo"}, False),
        ('volumes = { data = "tank/other" }', {"data": "tank/other"}, True),
    ],
)
def test_slot_of_other_discovered_volumes_is_replaced(
    monkeypatch: pytest.MonkeyPatch, configured: str, discovered: Mapping[str, str], is_current: bool
) -> None:
    seen = list[bool]()
    settings = parse(CONFIGURED.format(more=configured), "the test")
    instance = Instance.of(settings, "main")
    info: Any = SimpleNamespace(origin=origin())
    source = SimpleNamespace(masking=SimpleNamespace(way=MaskingWay.NONE), set_id="20261120T100000Z-0001")
    for name, fake in {
        "slots_of": lambda *_: [info],
        "as_slot": lambda *_: SLOT,
        "with_volumes": lambda given: given.with_volumes(discovered),
        "planned_source": lambda *_: source,
        "home_for": lambda *_: "tank/zsnapdb/clones",
        "read_host_room": lambda *_, **__: None,
    }.items():
        monkeypatch.setattr(pool_filling, name, fake)
    monkeypatch.setattr(pool, "filling", lambda slots, *_: seen.extend(one.is_current for one in slots))
    pool_filling.plan_fill(settings, instance)
    assert seen == [is_current]
