"""Files in folders where another account can plant links, pipes and hard links."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from zsnapdb.base import safe_open
from zsnapdb.base.safe_open import UnsafeFileError

USES: dict[str, Callable[[Path], object]] = {
    "read": lambda file: safe_open.open_to_read(file).close(),
    "change": lambda file: safe_open.open_to_change(file).close(),
    "append": lambda file: safe_open.open_to_append(file, None).close(),
    "read text": safe_open.read_text,
    "rewrite": lambda file: safe_open.rewrite_text(file, "ours"),
    "give": lambda file: safe_open.give(file, None, 0o640),
}


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder that another account can change."""
    folder = tmp_path / "datadir"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file outside of that folder."""
    file = tmp_path / "victim"
    file.write_text("root's")
    file.chmod(0o600)
    return file


@pytest.mark.parametrize("use", USES)
def test_a_link_in_the_place_of_a_file_is_refused(use: str, planted: Path, victim: Path) -> None:
    (planted / "file").symlink_to(victim)
    with pytest.raises(UnsafeFileError, match="symbolic link"):
        USES[use](planted / "file")
    assert victim.read_text() == "root's"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600


@pytest.mark.parametrize("use", USES)
def test_a_link_in_the_place_of_a_folder_is_refused(use: str, planted: Path, victim: Path) -> None:
    (planted / "folder").symlink_to(victim.parent)
    with pytest.raises(UnsafeFileError, match="symbolic link in a folder that uid"):
        USES[use](planted / "folder" / "victim")
    assert victim.read_text() == "root's"


@pytest.mark.parametrize("use", USES)
def test_a_pipe_neither_blocks_nor_is_read(use: str, planted: Path) -> None:
    os.mkfifo(planted / "file")
    with pytest.raises((UnsafeFileError, OSError)):
        USES[use](planted / "file")


@pytest.mark.parametrize("use", ["change", "append", "give"])
def test_a_file_with_a_second_name_is_not_changed(use: str, planted: Path, victim: Path) -> None:
    (planted / "file").hardlink_to(victim)
    with pytest.raises(UnsafeFileError, match="second name"):
        USES[use](planted / "file")
    assert victim.read_text() == "root's"


def test_a_file_is_written_in_the_place_of_a_link(planted: Path, victim: Path) -> None:
    (planted / "file").symlink_to(victim)
    safe_open.write_text(planted / "file", "ours", None)
    assert (planted / "file").read_text() == "ours"
    assert not (planted / "file").is_symlink()
    assert victim.read_text() == "root's"
    assert [path.name for path in planted.iterdir()] == ["file"]


def test_a_new_file_is_not_made_where_a_link_leads(planted: Path, victim: Path) -> None:
    (planted / "file").symlink_to(victim.with_name("new"))
    with pytest.raises((UnsafeFileError, FileExistsError)):
        safe_open.create(planted / "file")
    assert not victim.with_name("new").exists()


def test_removal_takes_a_link_and_leaves_what_it_names(planted: Path, victim: Path) -> None:
    for remove in (safe_open.remove, safe_open.remove_tree):
        for target in (victim, victim.parent):
            (planted / "gone").symlink_to(target)
            remove(planted / "gone")
            assert not (planted / "gone").is_symlink()
    (planted / "tree").mkdir()
    (planted / "tree" / "link").symlink_to(victim.parent)
    safe_open.remove_tree(planted / "tree")
    safe_open.remove_tree(planted / "tree")
    assert victim.exists()
    assert not (planted / "tree").exists()


def test_a_folder_is_not_made_where_a_link_is(planted: Path, victim: Path) -> None:
    (planted / "tmp").symlink_to(victim.parent)
    with pytest.raises(UnsafeFileError, match="symbolic link"):
        safe_open.make_folder(planted / "tmp", None)
    safe_open.make_folder(planted / "new", None)
    safe_open.make_folder(planted / "new", None)
    assert stat.S_IMODE((planted / "new").stat().st_mode) == 0o700


def test_a_link_that_only_root_can_make_is_followed(planted: Path, victim: Path) -> None:
    """Hosts have /var/lib/mysql -> /tank/mysql, and /var/run -> /run."""
    around = victim.parent / "var"
    around.mkdir()
    around.chmod(0o755)
    (around / "lib").symlink_to("../datadir")
    (around / "mysql").symlink_to(planted)
    (planted / "file").write_text("theirs")
    assert safe_open.read_text(around / "lib" / "file") == "theirs"
    assert safe_open.read_text(around / "mysql" / "file") == "theirs"


def test_links_that_lead_to_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(OSError, match="Not a directory"):
        safe_open.read_text(tmp_path / "one" / "file")


def test_a_rewritten_file_keeps_its_permissions(tmp_path: Path) -> None:
    file = tmp_path / "index"
    file.write_bytes(b"old \xff\n")
    file.chmod(0o640)
    safe_open.rewrite_text(file, safe_open.read_text(file).replace("old", "new"))
    assert file.read_bytes() == b"new \xff\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


@pytest.mark.parametrize("place", ["data", "data/inner", "data/inner/deep"])
def test_no_link_may_lead_to_a_place_in_a_received_tree_whoever_made_it(tmp_path: Path, place: str) -> None:
    (tmp_path / "etc/inner/deep").mkdir(parents=True)
    (tmp_path / "top").mkdir()
    (tmp_path / "top/data").symlink_to(tmp_path / "etc")
    with pytest.raises(UnsafeFileError, match="top/data is a symbolic link"):
        safe_open.refuse_links(tmp_path / "top" / place, tmp_path / "top")
    safe_open.refuse_links(tmp_path / "top", tmp_path / "top")
    safe_open.refuse_links(tmp_path / "top/logs/inner", tmp_path / "top")


OTHER, FORMER = safe_open.Owner(54321, 54322), safe_open.Owner(12345, 12345)


@pytest.fixture
def foreign(planted: Path) -> Path:
    """The folder as a tree of another account: files in folders, a file of root's, links that lead out."""
    (planted / "data" / "ledger").mkdir(parents=True)
    for name in ("binlog.000001", "data/ibdata1", "data/ledger/accounts.ibd", "of root"):
        (planted / name).write_text(name)
    for file in (planted, *planted.rglob("*")):
        _be_of(file, 12345)
    _be_of(planted / "of root", 0)
    return planted


def _be_of(file: Path, uid: int) -> None:
    if os.geteuid() == 0:
        os.chown(file, uid, uid, follow_symlinks=False)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@needs_root
def test_a_tree_is_given_with_all_that_is_in_it_but_what_is_roots(foreign: Path) -> None:
    assert safe_open.give_tree(foreign.parent, [foreign.name], OTHER, FORMER) == 6
    owners = {file.name: file.lstat().st_uid for file in (foreign, *foreign.rglob("*"))}
    assert owners.pop("of root") == 0
    assert set(owners.values()) == {OTHER.uid}
    assert safe_open.give_tree(foreign.parent, [foreign.name], OTHER, FORMER) == 0


@needs_root
def test_what_belongs_to_another_account_than_the_servers_stays(foreign: Path) -> None:
    os.chown(foreign / "data" / "ibdata1", 777, FORMER.gid)
    os.link(foreign / "binlog.000001", foreign / "data" / "same binlog")
    safe_open.give_tree(foreign.parent, [foreign.name], OTHER, FORMER, last=foreign / "data")
    owners = {file.name: (file.lstat().st_uid, file.lstat().st_gid) for file in (foreign, *foreign.rglob("*"))}
    assert (owners["ibdata1"], owners["data"]) == ((777, OTHER.gid), (FORMER.uid, FORMER.gid))
    assert owners["same binlog"] == (OTHER.uid, OTHER.gid)
    assert safe_open.give_folder(foreign / "data", OTHER, FORMER) == 1
    assert safe_open.give_folder(foreign / "data", OTHER, FORMER) == 0


@needs_root
def test_nothing_is_given_that_a_link_in_the_tree_names(foreign: Path, victim: Path) -> None:
    (foreign / "to a file").symlink_to(victim)
    (foreign / "data" / "to a folder").symlink_to(victim.parent)
    for link in ("to a file", "data/to a folder"):
        _be_of(foreign / link, 12345)
    before = victim.stat(), victim.parent.stat()
    assert safe_open.give_tree(foreign.parent, [foreign.name], OTHER, FORMER) == 8
    assert [(now.st_uid, now.st_ctime_ns) for now in (victim.stat(), victim.parent.stat())] == [
        (then.st_uid, then.st_ctime_ns) for then in before
    ]
    assert (foreign / "to a file").lstat().st_uid == OTHER.uid


def test_a_link_in_the_way_to_the_tree_is_refused(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "data").symlink_to(tmp_path)
    with pytest.raises(UnsafeFileError, match="symbolic link"):
        safe_open.give_tree(tmp_path / "copy", ["data"], OTHER, FORMER)
    assert victim.stat().st_uid == os.geteuid()


def test_folders_that_no_server_makes_end_in_an_error(planted: Path) -> None:
    deep = planted
    for _ in range(70):
        deep /= "a"
    deep.mkdir(parents=True)
    with pytest.raises(UnsafeFileError, match="more than 64 folders above it"):
        safe_open.give_tree(planted.parent, [planted.name], OTHER, FORMER)


def test_a_path_below_an_open_folder_is_walked_from_that_folder_whatever_its_name_is_now(tmp_path: Path) -> None:
    folder = tmp_path / "volume"
    (folder / "db").mkdir(parents=True)
    (folder / "db" / "a").write_text("here")
    (folder / "link").symlink_to(folder / "db")
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        folder.rename(tmp_path / "renamed")
        root = Path(f"/proc/self/fd/{opened}")
        assert safe_open.read_text(root / "db" / "a") == "here"
        (tmp_path / "renamed" / "top").write_text("top")
        assert safe_open.read_text(root / "top") == "top"
        os.chown(tmp_path / "renamed", 65534, -1)
        with pytest.raises(UnsafeFileError):
            safe_open.read_text(root / "link" / "a")
    finally:
        os.close(opened)
