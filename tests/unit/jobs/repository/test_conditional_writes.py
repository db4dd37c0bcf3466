"""The doctor and every writer find a store that takes conditions and does not look at them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.s3 import bucket, s3, s3_that_ignores
from tests.unit.support.world import World, made
from zsnapdb.base.errors import RepositoryError
from zsnapdb.jobs.backup import run as backup
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.doctor import instance_checks
from zsnapdb.planning.backup.fitness import Severity
from zsnapdb.store.base import Store


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with made(tmp_path) as world, bucket():
        yield world


def stored_in(world: World, store: Store) -> Instance:
    host = replace(world.instance.host, open_store=lambda settings, tell: (store, ""))
    return replace(world.instance, host=host)


def stored() -> dict[str, bytes]:
    return {item.key: s3().get(item.key) for item in s3().list("")}


def test_the_doctor_proves_a_good_store_and_changes_nothing_in_it(world: World) -> None:
    instance = stored_in(world, s3())
    backup.backup(instance, opener=world.open_source)
    before = stored()
    (finding,) = [found for found in instance_checks.describe_stored(instance) if found.what == "repository"]
    assert finding.severity is Severity.OK
    assert stored() == before


@pytest.mark.parametrize("header", ["If-Match", "If-None-Match"])
def test_the_doctor_calls_a_store_unfit_whose_gateway_began_to_lose_a_condition(world: World, header: str) -> None:
    backup.backup(stored_in(world, s3()), opener=world.open_source)
    (finding,) = instance_checks.describe_stored(stored_in(world, s3_that_ignores(header)))
    assert finding.severity is Severity.UNFIT
    assert f"ignored a conditional write ({header})" in finding.detail


def test_a_backup_stores_nothing_where_another_writer_would_be_let_in(world: World) -> None:
    backup.backup(stored_in(world, s3()), opener=world.open_source)
    before = set(stored())
    with pytest.raises(RepositoryError, match="does not exclude other writers") as caught:
        backup.backup(stored_in(world, s3_that_ignores("If-Match")), opener=world.open_source)
    assert caught.value.exit_code == 6
    assert set(stored()) == before
