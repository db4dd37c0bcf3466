"""The paths of a server's files are those of the kernel, however the server names them."""

from __future__ import annotations

import os
from pathlib import Path

from zsnapdb.base.domain_types import Flavour
from zsnapdb.mysql.process.written_paths import absolute_tablespaces, written_paths
from zsnapdb.planning.server_facts import ServerFacts


def test_files_are_resolved_as_the_kernel_does(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    for folder in (data / "shop", data / "linked", elsewhere):
        folder.mkdir(parents=True)
    (data / "shop" / "link.ibd").symlink_to(elsewhere / "table.ibd")
    (data / "moved").symlink_to(elsewhere)
    names = (
        *("./shop/t.ibd", "shop/missing.ibd", "shop/link.ibd", "./moved/m.ibd", "ibdata1", "./undo_001", "gone/t.ibd"),
        *(f"{elsewhere}/a.ibd", f"{data}/shop/b.ibd", f"{data}/../elsewhere/c.ibd", "/root.ibd", "../elsewhere/d.ibd"),
    )
    facts = ServerFacts(Flavour.MYSQL, "9.7.0", "uuid", 1, {"datadir": str(data)}, {}, names)
    outside = {name for name in names if not os.path.realpath(data / name).startswith(f"{data}/")}
    assert set(absolute_tablespaces(facts)) == outside
    paths = {path.path for path in written_paths(facts) if path.what == "tablespace"}
    assert paths == {os.path.realpath(data / name) for name in outside}
