"""The data of a pool clone is of the datasets and the history that the server has now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.support.clone_pool import origin
from tests.unit.support.manifests import manifest
from zsnapdb.config.settings import parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import pool_filling
from zsnapdb.planning.clone import pool
from zsnapdb.planning.clone.masking import MaskingWay
from zsnapdb.planning.clone.pool import PoolSlot

SLOT = PoolSlot("a", datetime(2026, 11, 20, tzinfo=UTC), "key", True, "", "normal", "127.0.0.1")
RECEIVED = "20261120T100002Z-0001"
"""The backup from which the slot was made."""
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
    seen = _planned(monkeypatch, configured, with_volumes=lambda given: given.with_volumes(discovered))
    assert seen == [is_current]


@pytest.mark.parametrize(
    ("here", "second", "unchosen", "is_current"),
    [
        (None, (3, 1), (), False),
        (None, (3, 2), (), True),
        (None, (3, 2), (RECEIVED,), False),
        (["tank/mysql"], (3, 1), (), True),
    ],
    ids=["production was rolled back", "it continued", "production was restored", "production is here"],
)
def test_slot_of_abandoned_backup_is_replaced_without_production(
    monkeypatch: pytest.MonkeyPatch,
    here: list[str] | None,
    second: tuple[int, int],
    unchosen: tuple[str, ...],
    is_current: bool,
) -> None:
    stored = [manifest(f"20261120T10000{guid}Z-0001") for guid in (1, 2, 3)]
    lineage = ((1, None), (2, 1), second)
    backups = [
        one.model_copy(update={"volumes": (one.volumes[0].model_copy(update={"guid": guid, "from_guid": base}),)})
        for one, (guid, base) in zip(stored, lineage, strict=True)
    ]
    known = SimpleNamespace(backups=backups), SimpleNamespace(unchosen=dict.fromkeys(unchosen, "a reason"))
    monkeypatch.setattr(Instance, "open_repository", lambda _: None)
    fakes = {"production_here": lambda *_: here, "checked_backups": lambda *_: known}
    configured = 'volumes = { data = "tank/mysql" }'
    assert _planned(monkeypatch, configured, with_volumes=lambda given: given, **fakes) == [is_current]


def _planned(monkeypatch: pytest.MonkeyPatch, configured: str, **fakes: Callable[..., Any]) -> list[bool]:
    """Return whether each slot of the pool is current in the plan to fill it."""
    seen = list[bool]()
    settings = parse(CONFIGURED.format(more=configured), "the test")
    info: Any = SimpleNamespace(name=SLOT.name, origin=origin(), original=RECEIVED)
    source = SimpleNamespace(masking=SimpleNamespace(way=MaskingWay.NONE), set_id="20261120T100000Z-0001")
    own: dict[str, Callable[..., Any]] = {
        "slots_of": lambda *_: [info],
        "as_slot": lambda *_: SLOT,
        "production_here": lambda *_: ["tank/mysql"],
        "planned_source": lambda *_: source,
        "home_for": lambda *_: "tank/zsnapdb/clones",
        "read_host_room": lambda *_, **__: None,
    }
    for name, fake in {**own, **fakes}.items():
        monkeypatch.setattr(pool_filling, name, fake)
    monkeypatch.setattr(pool, "filling", lambda slots, *_: seen.extend(one.is_current for one in slots))
    pool_filling.plan_fill(settings, Instance.of(settings, "main"))
    return seen
