"""Text that users set or named, in the output of `zfs` and in the mount table."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.zfs.command import parse_property_rows
from zsnapdb.zfs.mounts import parse


def test_a_value_with_tabs_and_line_feeds_stays_one_value_and_hides_no_other() -> None:
    output = "t/a\tzsnapdb:owner\ta\tb\nc\tlocal\nt/b\tzsnapdb:owner\tada\tinherited from t\n"
    assert parse_property_rows(output, 4) == [
        ["t/a", "zsnapdb:owner", "a\tb\nc", "local"],
        ["t/b", "zsnapdb:owner", "ada", "inherited from t"],
    ]


@given(st.lists(st.text(st.characters(exclude_characters="\0\t\n")), min_size=1))
def test_every_value_on_one_line_is_read_back(values: list[str]) -> None:
    output = "".join(f"t/{number}\tx:y\t{value}\tlocal\n" for number, value in enumerate(values))
    assert [row[2] for row in parse_property_rows(output, 4)] == values


@given(st.text())
def test_any_output_is_read_without_an_error(output: str) -> None:
    assert all(len(row) == 4 for row in parse_property_rows(output, 4))


def test_mount_points_with_odd_bytes_are_names_and_no_lines() -> None:
    line = b"36 35 98:0 / %s rw,noatime shared:1 - ext4 /dev/sda rw\n"
    names = [b"/a\x0cb", b"/a\xe2\x80\xa8b", b"/a\xffb", b"/a\\040b\\011\\134", b"/a\x0bb\x1cb"]
    table = b"".join(line % name for name in names)
    assert [os.fsencode(entry.path) for entry in parse(os.fsdecode(table))] == [
        *names[:3],
        b"/a b\t\\",
        names[4],
    ]
