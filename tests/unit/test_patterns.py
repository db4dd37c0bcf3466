"""The form of names that others write."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.errors import DamagedError
from zsnapdb.base.patterns import below, is_dataset, is_line, is_mount_point, printable


@given(st.lists(st.text(st.sampled_from("./ab\0\n\u2028é")), max_size=4))
def test_a_path_below_a_folder_never_leaves_it(names: list[str]) -> None:
    try:
        path = PurePosixPath(below("/srv/root", *names))
    except DamagedError:
        return
    assert path.is_relative_to("/srv/root")
    assert not {".", ".."} & set(path.parts)
    assert path == PurePosixPath("/srv/root") or names
    assert is_line(str(path))


@pytest.mark.parametrize("name", ["", "/etc/cron.d", "..", "a/../../b", "a//b", "./a", "a\n", "\ud800"])
def test_a_name_that_could_lead_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(DamagedError, match="is not a path below /srv/root"):
        below("/srv/root", name)


def test_names_of_several_parts_stay_below() -> None:
    assert below("/srv", "a", "b/c") == "/srv/a/b/c"
    assert below("/", "a") == "/a"


@pytest.mark.parametrize(
    "name",
    [
        "tank",
        "tank/mysql/data",
        "tank/a b",
        "tank/x:y_z-1.2",
        "tank/zsnapdb/%recv",
        "tank/.ix-apps/db",
        "t/-a",
        "t/...",
        "t/..a",
    ],
)
def test_a_name_of_a_dataset(name: str) -> None:
    assert is_dataset(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/tank",
        "tank/",
        "tank//a",
        "tank/..",
        "tank/.",
        "tank/../a",
        "tank/./a",
        "-r",
        "tank@a",
        "tank#a",
        "1tank",
        "t" * 256,
    ],
)
def test_what_is_no_name_of_a_dataset(name: str) -> None:
    assert not is_dataset(name)


@pytest.mark.parametrize("path", ["/", "/a", "/a/b c", "/a/.b"])
def test_a_mount_point(path: str) -> None:
    assert is_mount_point(path)


@pytest.mark.parametrize("path", ["", "a", "//a", "/a/", "/a/../b", "/a/.", "/a\nb", "/a\x1b[0m", "/" + "a" * 4095])
def test_what_is_no_mount_point(path: str) -> None:
    assert not is_mount_point(path)


@given(st.text())
def test_printable_text_is_one_line_and_stays_the_same(text: str) -> None:
    assert is_line(printable(text))
    assert printable(printable(text)) == printable(text)
    assert printable(text) == text or not is_line(text)
