"""The states of the files of tables."""

from __future__ import annotations

from pathlib import Path

from zsnapdb.mysql.schema.tablespace_overwrite import states


def test_states_are_those_of_the_files_of_user_schemas(tmp_path: Path) -> None:
    for name in ("shop/people.ibd", "a@002db/t#p#p0.ibd", "mysql/user.MAD", "#innodb_temp/temp_1.ibt", "ibdata1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "shop" / "link.ibd").symlink_to("/etc/passwd")
    assert set(states(tmp_path)) == {"shop/people.ibd", "a@002db/t#p#p0.ibd"}
    before = states(tmp_path)
    (tmp_path / "shop" / "people.ibd").write_text("xy")
    assert states(tmp_path)["shop/people.ibd"] != before["shop/people.ibd"]
