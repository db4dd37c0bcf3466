"""A migration is not started where it cannot be checked to the end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zsnapdb.base.errors import UsageError
from zsnapdb.config.clones import MigrationSettings
from zsnapdb.jobs.clone import migration
from zsnapdb.jobs.clone.migration import MigrationRequest


def test_the_live_state_is_refused_before_a_clone_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its set goes with the first clone, and the second is made of the same set."""

    def no_clone(*_: object) -> None:
        pytest.fail("a clone was made")

    monkeypatch.setattr(migration, "ephemeral_clone", no_clone)
    settings: Any = SimpleNamespace()
    instance: Any = SimpleNamespace(name="main", settings=SimpleNamespace(migration=MigrationSettings()))
    with pytest.raises(UsageError, match="live state") as refused:
        migration.check(settings, instance, MigrationRequest(["/bin/true"], tmp_path, "live"))
    assert refused.value.hint == "run `zsnapdb snapshot main`, and leave out --from"
