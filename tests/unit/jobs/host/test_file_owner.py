"""The files of a copy belong to the account that runs its server, whatever its numbers were on another host."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.safe_open import Owner
from zsnapdb.config.settings import ServerSettings
from zsnapdb.jobs.host.server_copy import Copy, change_of_owner, give_files
from zsnapdb.planning.server_copy.copy_options import PathMap

FORMER = Owner(12345, 12346)
HERE = Owner(pwd.getpwnam("daemon").pw_uid, pwd.getpwnam("daemon").pw_gid)
FILES = ("mysql/user.frm", "shop/orders.ibd", "ibdata1")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


class Killed(Exception):
    """The process ends here."""


def copied(folder: Path, owner: Owner) -> Copy:
    """Return a copy whose data directory lies in one volume, and whose logs lie in another one beside it."""
    for name in (*(f"data/files/{name}" for name in FILES), "logs/binlog.000001", "logs/of root"):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    for file in (folder / "data", folder / "logs", *folder.rglob("*/*")):
        os.chown(file, *((0, 0) if file.name == "of root" else (owner.uid, owner.gid)))
    paths = PathMap((("/srv/data", str(folder / "data")), ("/srv/logs", str(folder / "logs"))))
    variables = {"datadir": "/srv/data/files/"}
    return Copy(Flavour.MYSQL, "9.7.4", variables, paths, folder / "data", ServerSettings(user="daemon"))


def owners(folder: Path) -> set[tuple[int, int]]:
    """Return who owns the files that are not root's."""
    inside = [file for top in ("data", "logs") for file in (folder / top, *(folder / top).rglob("*"))]
    return {(file.stat().st_uid, file.stat().st_gid) for file in inside if file.name != "of root"}


@needs_root
@pytest.mark.parametrize("recorded", [FORMER, None], ids=["recorded", "old backup"])
@given(dies_after=st.integers(0, 12))
def test_all_files_are_given_after_a_kill_anywhere(
    tmp_path_factory: pytest.TempPathFactory, recorded: Owner | None, dies_after: int
) -> None:
    folder = tmp_path_factory.mktemp("copy")
    copy, left = copied(folder, FORMER), dies_after
    real, real_of_folder = os.chown, os.fchown

    def counted(change: object, *words: object, **more: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        change(*words, **more)  # type: ignore[operator]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "chown", lambda *words, **more: counted(real, *words, **more))
        patch.setattr(os, "fchown", lambda *words: counted(real_of_folder, *words))
        try:
            give_files(copy, recorded)
        except Killed:
            left = 10**6
            assert give_files(copy, recorded) > 0
    assert owners(folder) == {(HERE.uid, HERE.gid)}
    assert (folder / "logs" / "of root").stat().st_uid == 0
    assert give_files(copy, recorded) == 0
    shutil.rmtree(folder)


@needs_root
def test_files_of_the_account_here_are_not_touched(tmp_path: Path) -> None:
    copy = copied(tmp_path, Owner(HERE.uid, 999))
    assert give_files(copy) == 0
    assert give_files(copy, HERE) == 0
    assert owners(tmp_path) == {(HERE.uid, 999)}


@needs_root
def test_only_the_group_is_given_if_only_its_number_is_another_one(tmp_path: Path) -> None:
    give_files(copied(tmp_path, Owner(HERE.uid, 999)), Owner(HERE.uid, 999))
    assert owners(tmp_path) == {(HERE.uid, HERE.gid)}


def test_the_plan_names_the_account_only_if_the_files_change_hands() -> None:
    text = f"files are given from uid 12345, gid 12346 to daemon (uid {HERE.uid}, gid {HERE.gid})"
    assert change_of_owner(FORMER, "daemon") == text
    assert change_of_owner(HERE, "daemon") is None
    assert change_of_owner(None, "daemon") is None
