"""A verify finds a changed byte in each kind of stored document, and a marker that is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.support.kept_repositories import KeptRepository, unpack
from zsnapdb.jobs.repository.verify import check_documents, verify
from zsnapdb.report.repository.prune import VerifyView
from zsnapdb.repository import stored_document
from zsnapdb.repository.verifications import Depth

KINDS = {"zsnapdb.json", "manifests", "drills", "evidence", "binlogs", "checks", "pins", "writer.lock", "unfinished"}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    unpack("mariadb", folder)
    return folder


def documents(folder: Path) -> list[Path]:
    names = [*folder.rglob("*.json"), *folder.rglob("*.lock")]
    return sorted(file for file in names if file.name != "init.lock")


@pytest.fixture
def kept(unpacked: Path, tmp_path: Path) -> KeptRepository:
    """Return a kept repository whose documents have the form that this version writes."""
    shutil.copytree(unpacked, tmp_path / "kept")
    repository = KeptRepository(tmp_path / "kept", "plain")
    for file in documents(tmp_path / "kept/plain"):
        body = file.read_bytes()
        line = b" ".join(body.splitlines()) if body.startswith(b"{\n") else body.partition(b"\n")[0]
        file.write_bytes(stored_document.with_digest(line))
    return repository


def test_verify_finds_a_changed_letter_in_every_document(kept: KeptRepository) -> None:
    instance, folder = kept.instance, kept.folder / "plain"
    repository = instance.open_repository()
    found = check_documents(repository, "main")
    assert (found.damage, found.without_digest) == ({}, 0)
    assert found.read == len(documents(folder))
    kinds = set()
    for file in documents(folder):
        body, name = file.read_bytes(), str(file.relative_to(folder))
        at = body.index(b"\n") // 2
        file.write_bytes(body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])
        assert list(check_documents(repository, "main").damage) == [name]
        file.write_bytes(body)
        kinds |= {part for part in Path(name).parts if part in KINDS}
    assert {"zsnapdb.json", "manifests", "binlogs"} <= kinds


def test_verify_reports_missing_marker_and_documents_without_digest(kept: KeptRepository) -> None:
    folder, instance = kept.folder / "plain", kept.instance
    assert verify(instance, Depth.LISTED).is_whole
    file = next(iter(sorted((folder / "main/manifests").iterdir())))
    file.write_bytes(file.read_bytes().partition(b"\n")[0] + b"\n")
    (folder / "zsnapdb.json").unlink()
    result = verify(instance, Depth.LISTED)
    assert (result.is_whole, result.documents.without_digest) == (False, 1)
    assert result.alarm() is not None
    text = VerifyView(result).text()
    assert "the marker zsnapdb.json is missing" in text
    assert "1 of" in text
    assert "carry no digest" in text
