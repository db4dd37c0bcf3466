"""Copies are equal to their files, and nothing that the owner of the files can plant leads out of the folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zsnapdb.base.errors import ConsistencyError, PreflightError
from zsnapdb.jobs.host.tree_copy import compare, copy_entries, fingerprint, keep_only


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "shop").mkdir(parents=True)
    (folder / "ibdata1").write_bytes(os.urandom((2 << 20) + 7))
    (folder / "shop" / "orders.ibd").write_bytes(b"rows")
    (folder / "shop" / "orders.ibd").chmod(0o640)
    (folder / "shop").chmod(0o750)
    os.utime(folder / "shop" / "orders.ibd", ns=(5 * 10**9, 7 * 10**9))
    (tmp_path / "target").mkdir()
    return folder


def test_a_copy_has_the_content_the_permissions_and_the_times_of_its_file(source: Path) -> None:
    target = source.with_name("target")
    os.mkfifo(source / "server.sock")
    copied = copy_entries(source, {"ibdata1", "shop", "server.sock"}, target)
    compare(source, copied, target)
    assert sorted(str(file.relative_to(target)) for file in target.rglob("*")) == ["ibdata1", "shop", "shop/orders.ibd"]
    assert (target / "ibdata1").read_bytes() == (source / "ibdata1").read_bytes()
    status = (target / "shop" / "orders.ibd").stat()
    assert (status.st_mode & 0o777, status.st_mtime_ns) == (0o640, 7 * 10**9)
    assert (target / "shop").stat().st_mode & 0o777 == 0o750


def test_a_copy_made_again_replaces_what_was_half_made(source: Path) -> None:
    target = source.with_name("target")
    (target / "shop").mkdir()
    (target / "shop" / "gone.ibd").write_bytes(b"x")
    (target / "ibdata1").symlink_to("/etc/passwd")
    (target / "other").write_bytes(b"x")
    keep_only(target, {"ibdata1", "shop"})
    compare(source, copy_entries(source, {"ibdata1", "shop"}, target), target)
    assert sorted(file.name for file in target.rglob("*")) == ["ibdata1", "orders.ibd", "shop"]
    assert not (target / "ibdata1").is_symlink()


@pytest.mark.parametrize("plant", ["ibdata2", "shop/link.ibd"])
def test_a_link_is_not_followed(source: Path, plant: str) -> None:
    (source / plant).symlink_to("/etc/passwd")
    with pytest.raises(PreflightError, match="is not a regular file"):
        copy_entries(source, set(os.listdir(source)), source.with_name("target"))


@pytest.mark.parametrize("folder", ["source", "target"])
def test_a_file_that_differs_from_its_copy_is_found(source: Path, folder: str) -> None:
    target = source.with_name("target")
    copied = copy_entries(source, {"ibdata1", "shop"}, target)
    with (source.with_name(folder) / "shop" / "orders.ibd").open("r+b") as file:
        file.write(b"R" if folder == "target" else b"more rows")
    with pytest.raises(ConsistencyError, match=r"orders\.ibd"):
        compare(source, copied, target)


def test_a_fingerprint_stays_when_the_folder_is_renamed_and_read_and_changes_with_every_file(source: Path) -> None:
    before = fingerprint(source)
    (source / "ibdata1").read_bytes()
    renamed = source.rename(source.with_name("source.before-zfs"))
    assert fingerprint(renamed) == before
    with (renamed / "shop" / "orders.ibd").open("r+b") as file:
        file.write(b"R")
    os.utime(renamed / "shop" / "orders.ibd", ns=(5 * 10**9, 7 * 10**9))
    changed = fingerprint(renamed)
    assert changed != before
    (renamed / "shop" / "new.ibd").write_bytes(b"")
    assert fingerprint(renamed) not in (before, changed)
