"""A copy whose server could not recover for lack of a key is refused before it is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.config.settings import ServerSettings
from zsnapdb.jobs.host.server_copy import Copy
from zsnapdb.planning.server_copy.copy_options import PathMap

NAME = "MySQLReplicationKey_3b539809-e55b-11f1-8822-4e3318db0587_1"


def copy(folder: Path, *key_files: Path, reads: tuple[Path, ...] = ()) -> Copy:
    paths = PathMap(((str(folder / "live"), str(folder / "copy")),))
    settings = ServerSettings(sandbox_reads=reads)
    return Copy(Flavour.MYSQL, "9.7.4", {}, paths, folder, settings, tuple(map(str, key_files)))


@pytest.fixture
def keyring(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(json.dumps({"elements": [{"data_id": NAME, "data": "00" * 32}]}))
    return file


def test_a_key_that_is_gone_is_named_and_so_is_one_that_the_sandbox_hides(tmp_path: Path, keyring: Path) -> None:
    gone = copy(tmp_path, keyring, reads=(keyring,)).key_objection("another")
    assert gone is not None
    assert "is encrypted with the key 'another', which cannot be read" in gone.message
    hidden = copy(tmp_path, keyring).key_objection(NAME)
    assert hidden is not None
    assert f"its sandbox lacks {keyring}" in hidden.message


def test_nothing_stands_against_a_copy_whose_server_sees_its_key(tmp_path: Path, keyring: Path) -> None:
    assert copy(tmp_path).key_objection(None) is None
    assert copy(tmp_path, keyring, reads=(keyring,)).key_objection(NAME) is None
    assert copy(tmp_path, tmp_path / "live" / "keys").key_objection(NAME) is None
