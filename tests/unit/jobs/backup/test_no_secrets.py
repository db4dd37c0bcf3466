"""Secrets appear in nothing that a backup prints or writes."""

from __future__ import annotations

import os
import traceback

import pytest

from tests.unit.support.secrets import PLANTED, VARIABLES, check_clean
from tests.unit.support.world import World
from zsnapdb.base.errors import DamagedError
from zsnapdb.repository import crypto_keys


def test_an_encrypted_backup_leaves_no_key_in_the_clear_whether_it_ends_or_is_killed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    made: list[bytes] = []
    new_data_key = crypto_keys.new_data_key

    def noted() -> bytes:
        made.append(new_data_key())
        return made[-1]

    monkeypatch.setattr(crypto_keys, "new_data_key", noted)
    identity = world.folder / "identity"
    secret = [line.encode() for line in identity.read_text().splitlines() if line.startswith("AGE-SECRET")]
    world.backup()
    world.end_is_missing = True
    with pytest.raises(DamagedError, match="END") as failed:
        world.backup()
    shown = "".join(traceback.format_exception(failed.value)) + "\n".join(world.reported)
    planted = [*made, *secret, *(value.encode() for value in PLANTED)]
    assert len(made) >= 2
    assert secret
    check_clean(shown.encode(), planted, "what was printed")
    files = [file for file in world.folder.rglob("*") if file.is_file() and file != identity]
    assert {"store", "stored", "journal"} <= {file.relative_to(world.folder).parts[0] for file in files}
    for file in files:
        check_clean(file.read_bytes() + os.fsencode(file), planted, file)
