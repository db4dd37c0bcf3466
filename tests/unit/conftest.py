"""Settings of all unit tests."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.unit.support import only_own_folder, own_surroundings
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.report.view import View

# How long an example takes depends on the machine and its load, and no law is about that. A whole run makes the same
# examples each time, as it gives a campaign one seed: what it says depends on the change. `make laws` looks further.
settings.register_profile("unit", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile("unit")

own_surroundings.take()
only_own_folder.watch()


def pytest_collection_finish() -> None:
    """Leave what was collected out of the collections of garbage: going through it took a fifth of all the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def this_host_has_its_files_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands that a test runs in this process keep their locks, records and caches in a folder of the tests."""
    folder = tmp_path_factory.mktemp("host")
    folders = {name: value for name, value in vars(THIS_HOST).items() if isinstance(value, Path)}
    for name in folders:
        object.__setattr__(THIS_HOST, name, folder / name)
    yield
    for name, value in folders.items():
        object.__setattr__(THIS_HOST, name, value)


@pytest.fixture(autouse=True)
def no_test_knows_the_clocks_of_another() -> None:
    """A test with a time of its own would make the real time of a later test look set back."""
    (THIS_HOST.clocks / "clock.json").unlink(missing_ok=True)


@pytest.fixture(scope="session", autouse=True)
def this_host_has_no_zfs() -> Iterator[None]:
    """What a test's own `zfs` says is not mixed with what the library and the module of this host would say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zsnapdb.zfs.libzfs.load", lambda: None)
        patch.setattr("zsnapdb.zfs.datasets.alternate_root", lambda pool: None)
        for name in ("MODULE", "POOLS"):
            patch.setattr(f"zsnapdb.zfs.kernel_facts.{name}", Path("/nonexistent"))
        yield


@pytest.fixture(scope="session", autouse=True)
def every_document_is_as_its_schema_says() -> Iterator[None]:
    """Check each document that a view of zsnapdb makes in any unit test."""
    make = View.document

    def checked(view: View) -> str:
        text = make(view)
        if type(view).__module__.startswith("zsnapdb."):
            from tests.documents import DOCUMENTS, check

            check(json.loads(text), {one.kind for types in DOCUMENTS.values() for one in types})
        return text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(View, "document", checked)
        yield
