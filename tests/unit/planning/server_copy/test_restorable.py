"""A backup is refused for what every plan of its restore would refuse, and for nothing else."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.planning.server_copy.test_copy_options import VARIABLES
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError
from zsnapdb.mysql.process.written_paths import fixed_links
from zsnapdb.planning.server_copy.copy_options import LoginAccess, PathMap, ServerIdentity, option_file
from zsnapdb.planning.server_copy.version_compatibility import objections_to_files, objections_to_settings

POINTS = ("/var/lib/mysql", "/var/lib/mysql/data", "/srv/extra")
COPY = PathMap(tuple((point, f"/clones/c/{PurePosixPath(point).name}") for point in POINTS))
IDENTITY = ServerIdentity(4711, None, "/clones/c/.zsnapdb", "mysql", LoginAccess.ACCOUNTS)
PLACES = st.sampled_from(
    (
        "",
        "/",
        "/var/lib/mysql/undo",
        "/srv/extra/undo",
        "/var/lib/mysqld",
        "/etc",
        "../undo",
        "../../../../fast",
        ".",
    )
)


@given(
    st.sampled_from(
        ("innodb_undo_directory", "innodb_log_group_home_dir", "innodb_data_home_dir", "innodb_doublewrite_dir")
    ),
    PLACES,
    st.sampled_from(("ibdata1", "/srv/extra/ibdata1", "../ibdata1", "../../../../etc/ibdata1")),
    st.sampled_from(tuple(Flavour)),
)
def test_backup_is_refused_exactly_if_its_copy_would_be(name: str, place: str, file: str, flavour: Flavour) -> None:
    variables = VARIABLES | {name: place, "innodb_data_file_path": f"{file}:12M:autoextend"}
    refused = bool(objections_to_settings(flavour, variables, POINTS, ()))
    try:
        option_file(flavour, variables, COPY, IDENTITY, ())
    except PreflightError:
        assert refused
    else:
        assert not refused


def test_data_file_of_another_volume_is_named_by_its_place_in_the_copy() -> None:
    variables = VARIABLES | {"innodb_data_file_path": "../ib/one:1G;two:1G:autoextend"}
    paths = PathMap((("/var/lib/mysql", "/c/outer"), ("/var/lib/mysql/data", "/c/inner")))
    lines = option_file(Flavour.MYSQL, variables, paths, IDENTITY, ()).splitlines()
    assert "innodb_data_file_path=../outer/ib/one:1G;two:1G:autoextend" in lines


def test_files_by_absolute_paths_are_named() -> None:
    assert objections_to_files(()) == ()
    (text,) = objections_to_files([f"/srv/{number}.ibd" for number in range(5)])
    assert text.startswith("5 tablespace(s)")
    assert text.endswith("/srv/2.ibd and 2 more")
    assert len(objections_to_files(["/a.ibd"], ["/d/link"])) == 2


def test_links_with_absolute_targets_are_fixed(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "other").symlink_to("shop")
    (tmp_path / "shop/t.MYD").symlink_to("/srv/fast/t.MYD")
    assert fixed_links(str(tmp_path)) == (os.path.realpath(tmp_path / "shop") + "/t.MYD",)


@pytest.mark.parametrize("line", ["datadir=/etc", "[client]"])
def test_options_of_the_site_that_no_copy_may_have_are_an_objection(line: str) -> None:
    refused = objections_to_settings(Flavour.MYSQL, VARIABLES, POINTS, [line])
    assert bool(refused) is line.startswith("[")
