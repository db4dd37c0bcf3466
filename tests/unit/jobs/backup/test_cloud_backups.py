"""A repository in Azure (Azurite) or Google: init, backups, list, verify and restore by the jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.unit.support.cloud_servers import azurite_settings, google_server
from tests.unit.support.world import made
from zsnapdb.base.errors import PreflightError
from zsnapdb.config.repository import RepositorySettings
from zsnapdb.config.settings import Settings, parse
from zsnapdb.jobs.repository import init
from zsnapdb.jobs.repository.verify import verify
from zsnapdb.repository.verifications import Depth
from zsnapdb.store.layers import open_store


@contextlib.contextmanager
def at_azure(folder: Path) -> Iterator[RepositorySettings]:
    yield azurite_settings(folder)


@contextlib.contextmanager
def at_google(folder: Path) -> Iterator[RepositorySettings]:
    with google_server(folder) as (_, settings):
        yield settings


PLACES: dict[str, Callable[[Path], AbstractContextManager[RepositorySettings]]] = {"azure": at_azure, "gs": at_google}


def configuration(repository: RepositorySettings) -> Settings:
    scheme, provider = repository.address.scheme, repository.provider
    assert provider is not None
    return parse(
        f'[repository.r]\nurl = "{scheme}://{repository.address.bucket}"\n'
        f'{scheme} = {{ endpoint = "{provider.endpoint}", credentials_file = "{provider.credentials_file}" }}\n'
        '[instance.main]\nsocket = "/x"\nvolumes = { data = "tank/data" }\nrepository = "r"\n',
        "test",
    )


@pytest.mark.parametrize("kind", PLACES)
def test_cloud_backups_are_listed_verified_and_restored(kind: str, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    with PLACES[kind](tmp_path) as repository, made(tmp_path / "host") as world:
        settings = configuration(repository)
        init.init(settings, None)
        init.prove(settings, None)
        world.local, prefix = open_store(settings.repository["r"])
        assert prefix == ""
        for _ in range(3):
            world.backup()
        assert len(world.ids()) == 3
        assert verify(world.instance, Depth.LISTED).is_whole
        world.check_settled()
        key = next(item.key for item in world.local.list("main/chunks/"))
        world.local.delete(key)
        assert not verify(world.instance, Depth.LISTED).is_whole
        assert init.init(settings, None).step is not init.InitStep.CREATE


def test_init_refuses_a_cloud_that_ignores_conditions(tmp_path: Path) -> None:
    with google_server(tmp_path) as (served, repository):
        served.ignores_conditions = True
        with pytest.raises(PreflightError, match="ignored a conditional write"):
            init.init(configuration(repository), None)
        assert not served.objects
