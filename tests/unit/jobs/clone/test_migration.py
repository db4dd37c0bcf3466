"""A migration is not started where it cannot be checked to the end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zsnapdb.base.errors import ConfigError, UsageError
from zsnapdb.config.services import MigrationSettings
from zsnapdb.jobs.clone import migration
from zsnapdb.jobs.clone.migration import MigrationRequest


def test_the_live_state_is_refused_before_a_clone_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its set goes with the first clone, and the second is made of the same set."""

    def no_clone(*_: object) -> None:
        pytest.fail("a clone was made")

    monkeypatch.setattr(migration, "ephemeral_clone", no_clone)
    settings: Any = SimpleNamespace()
    instance: Any = SimpleNamespace(name="main", settings=SimpleNamespace(migration=MigrationSettings()))
    with pytest.raises(UsageError, match="two clones of one snapshot set") as refused:
        migration.check(settings, instance, MigrationRequest(["/bin/true"], tmp_path, "live"))
    assert refused.value.hint == "run `zsnapdb snapshot main`, and leave out --from"


def test_script_of_the_folder_is_found_and_needs_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "manage.py"
    script.write_text("#!/usr/bin/env python3\n")
    words = ("./manage.py", "migrate")
    with pytest.raises(ConfigError, match=r"manage\.py is not executable") as refused:
        migration._hook(words, MigrationSettings(), tmp_path, "main")
    assert refused.value.hint == "run `chmod +x manage.py`, or name its interpreter: `-- python3 manage.py`"
    script.chmod(0o755)
    assert migration._hook(words, MigrationSettings(), tmp_path, "main").argv == (str(script), "migrate")
    with pytest.raises(ConfigError, match="there is no program nothing"):
        migration._hook(("nothing",), MigrationSettings(), tmp_path, "main")
