"""Two clones can have commits with the same id: a subject gets the data of its own commit."""

from __future__ import annotations

import pytest

from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool, origin
from zsnapdb.base import run_context
from zsnapdb.config.settings import CloneSettings, Settings
from zsnapdb.jobs.clone.sources import find_commit

COMMIT = "20261121T100000Z-000c"
SETTINGS = Settings.model_construct(instance={}, repository={}, clones=CloneSettings(dataset=HOME))


@pytest.mark.parametrize("reader", ["ann", "boss", "carl"])
def test_commit_with_an_id_of_two_clones_is_the_readers_own(monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    pool, base = ClonePool(), f"{SOURCE}@zsnapdb-20261120T100000Z-0001"
    pool.install(monkeypatch)
    pool.snapshot(base)
    for owner in ("ann", "boss"):
        revision = pool.clone(f"of-{owner}", base, owner=owner)
        commit = pool.commit(revision, COMMIT)
        facts = {"origin": origin().encode(), "role": "data", "owner": owner, "clone": f"of-{owner}"}
        pool.things[commit].properties |= {f"zsnapdb:{name}": value for name, value in facts.items()}
    monkeypatch.setenv(run_context.AUDIENCE_VARIABLE, reader)
    found = find_commit(SETTINGS, COMMIT)
    assert (found.owner if found is not None else None) == (reader if reader != "carl" else None)
