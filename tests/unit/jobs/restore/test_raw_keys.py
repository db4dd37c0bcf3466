"""A restore of raw volumes is refused in its plan unless the key file has the key that they had then.

The first records were recorded from `zfs send -L -w` of OpenZFS 2.3.9, with keys that are known.
"""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path

import pytest

from tests.unit.support.stored_backups import Site, volume
from tests.unit.support.streams import end, renamed
from zsnapdb.base.errors import DamagedError
from zsnapdb.config.settings import parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.restore import chain_checks
from zsnapdb.planning.backup.fitness import Severity
from zsnapdb.repository.manifest import Manifest
from zsnapdb.repository.repository import Repository
from zsnapdb.stream.send_stream_checks import parse_begin

RECORDED = Path(__file__).parents[2] / "stream" / "raw-streams.json"
PASSPHRASE = "correct horse\n"


def raw_backup(site: Site) -> tuple[Repository, Manifest]:
    """Store a backup with one raw volume."""
    (backup_id,) = site.fill([None])
    repository = site.instance().open_repository()
    first = bytearray(base64.b64decode(json.loads(RECORDED.read_text())["aes-256-gcm-passphrase"]))
    struct.pack_into("<Q", first, 40, 4711)
    plain = renamed(bytes(first), f"tank/data@zsnapdb-{backup_id}") + end(guid=4711)
    part = volume(repository, backup_id, "data", 4711, None, plain)
    part = part.model_copy(update={"send_flags": ("-L", "-w"), "features": parse_begin(plain).features})
    manifest = repository.manifest("main", backup_id)
    return repository, manifest.model_copy(update={"volumes": (part,)})


def instance(site: Site, key_file: Path | None) -> Instance:
    lines = f'[instance.main.encryption]\nkey_file = "{key_file}"\n' if key_file is not None else ""
    return Instance.at(parse(site.text() + lines, "test"), "main", None)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "repository").mkdir()
    return Site(tmp_path / "repository")


def test_the_key_of_then_is_accepted_and_another_one_is_named(site: Site, tmp_path: Path) -> None:
    repository, manifest = raw_backup(site)
    key = tmp_path / "key"
    for text, words in (
        (PASSPHRASE, "its key is in"),
        ("another passphrase", "has another key than the one of then"),
        ("", "the file is empty"),
        (None, "No such file"),
    ):
        key.unlink(missing_ok=True)
        if text is not None:
            key.write_text(text)
        (finding,) = chain_checks.judge_key(instance(site, key), repository, manifest)
        assert words in finding.detail
        assert (finding.severity is Severity.OK) == (text == PASSPHRASE)
        assert not text or text.strip() not in finding.detail + finding.hint, "no key is shown"
    (finding,) = chain_checks.judge_key(instance(site, None), repository, manifest)
    assert (finding.severity, "no file has its key" in finding.detail) == (Severity.UNFIT, True)


def test_a_damaged_first_chunk_is_named_and_no_key_is_judged_by_it(site: Site, tmp_path: Path) -> None:
    repository, manifest = raw_backup(site)
    key = tmp_path / "key"
    key.write_text(PASSPHRASE)
    (chunk,) = [file for file in site.folder.rglob("*") if file.is_file() and "/data/" in str(file)][:1]
    chunk.write_bytes(bytes(len(chunk.read_bytes())))
    with pytest.raises(DamagedError, match="chunk"):
        chain_checks.judge_key(instance(site, key), repository, manifest)


def test_what_is_not_raw_needs_no_key(site: Site) -> None:
    (backup_id,) = site.fill([None])
    repository = site.instance().open_repository()
    assert chain_checks.judge_key(instance(site, None), repository, repository.manifest("main", backup_id)) == []


def test_zfs_finds_the_key_in_the_file_or_asks_for_it(site: Site) -> None:
    assert chain_checks.key_location(instance(site, None)) == "prompt"
    assert chain_checks.key_location(instance(site, Path("/etc/zfs/key"))) == "file:///etc/zfs/key"
