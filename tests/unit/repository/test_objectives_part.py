"""The objectives in a manifest are read by an older and by a newer zsnapdb."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.unit.support.manifests import manifest
from tests.unit.support.world import made
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.repository.manifest import ObjectivesPart, decode


def test_a_backup_names_its_host_and_the_objectives_of_its_configuration(tmp_path: Path) -> None:
    with made(tmp_path) as world:
        made_id = world.backup().manifest.backup_id
        stored = world.repository.manifest("main", made_id)
    assert (stored.host, stored.objectives) == (socket.gethostname(), ObjectivesPart())


def test_copies_stay_with_the_configuration_that_names_their_repositories() -> None:
    settings = ObjectiveSettings(backup_age=60.0, copies={"offsite": 60.0})
    assert ObjectivesPart.of(settings) == ObjectivesPart(backup_age=60.0)


def test_an_objective_of_a_newer_zsnapdb_is_passed_over_and_an_older_manifest_has_none() -> None:
    document = json.loads(manifest().encode())
    newer = {**document, "objectives": {"backup_age": 60.0, "thing_of_2030": "soon", "copies": {"../x": 1}}}
    assert decode(json.dumps(newer).encode(), "x").objectives == ObjectivesPart(backup_age=60.0)
    older = {key: value for key, value in document.items() if key not in ("objectives", "host")}
    assert (decode(json.dumps(older).encode(), "x").objectives, decode(json.dumps(older).encode(), "x").host) == (
        None,
        "",
    )


@pytest.mark.parametrize("limit", [-1, 0, 1e30, "x"])
def test_a_limit_that_is_none_is_refused(limit: object) -> None:
    with pytest.raises(ValidationError):
        ObjectivesPart.model_validate({"backup_age": limit})
