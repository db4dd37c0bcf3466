"""The newest backup is no data of a production that has no trace of it: other datasets are there by now."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from tests.unit.support.manifests import manifest
from zsnapdb.base.errors import PreflightError
from zsnapdb.config.settings import parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import source_lookup
from zsnapdb.jobs.record import production_restores
from zsnapdb.planning.repository.production_restores import ProductionRestore, ProductionRestoreRecord
from zsnapdb.zfs import datasets, snapshots
from zsnapdb.zfs.datasets import Property
from zsnapdb.zfs.snapshots import SendPoints

PLACE = "tank/other"
TEXT = f'[repository.r]\nurl = "file:///r"\n[instance.main]\nrepository = "r"\nvolumes = {{ data = "{PLACE}" }}\n'
STORED = manifest()
GUID = STORED.volumes[0].guid
OTHER = GUID + 1


@pytest.mark.parametrize(
    ("points", "origin", "is_there", "is_put_back", "is_refused"),
    [
        (SendPoints({}, {}), None, True, False, True),
        (SendPoints({1: "x@y"}, {}), 2, True, False, True),
        (SendPoints({GUID: "x@y"}, {}), None, True, False, False),
        (SendPoints({}, {GUID: "x#y"}), None, True, False, False),
        (SendPoints({}, {}), GUID, True, False, False),
        (SendPoints({}, {}), OTHER, True, False, True),
        (SendPoints({}, {}), None, False, False, False),
        (SendPoints({}, {}), None, True, True, False),
    ],
)
def test_newest_backup_of_other_datasets_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    points: SendPoints,
    origin: int | None,
    is_there: bool,
    is_put_back: bool,
    is_refused: bool,
) -> None:
    made = ProductionRestore(restore_id=STORED.backup_id, base_pool=1, base_group=1, pool=1, group=2)
    record = ProductionRestoreRecord(restores=(made,) if is_put_back else ())

    def known_states(_: Collection[str]) -> tuple[frozenset[int], int | None]:
        return frozenset((*points.names, *([origin] if origin is not None else []))), None

    monkeypatch.setattr(datasets, "exists", lambda _: is_there)
    monkeypatch.setattr(snapshots, "known_states", known_states)
    monkeypatch.setattr(production_restores, "read_production_restores", lambda _: record)
    promoted = {PLACE: {"origin": Property("tank/copy@theirs" if origin is not None else "-", "-")}}
    monkeypatch.setattr(datasets, "properties_of", lambda _names, _keys: promoted)
    instance = Instance.of(parse(TEXT, "the test"), "main")
    if is_refused:
        with pytest.raises(PreflightError, match=f"nothing shows that {PLACE} ever had the state") as refused:
            source_lookup._refuse_other_volumes(instance, STORED)
        assert f"--from {STORED.backup_id}" in refused.value.hint
        takes_back = f"if tank/copy was promoted, `zfs promote {PLACE}` returns the snapshots"
        assert (takes_back in refused.value.hint) == (origin is not None)
    else:
        source_lookup._refuse_other_volumes(instance, STORED)
