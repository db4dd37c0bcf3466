"""The form of names that others write."""

from __future__ import annotations

import ast
import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zsnapdb
from zsnapdb.base.domain_types import is_backup_id
from zsnapdb.base.errors import DamagedError, UsageError
from zsnapdb.base.patterns import below, is_dataset, is_line, is_mount_point, printable
from zsnapdb.cli.restore import handover_of
from zsnapdb.jobs.clone.sources import find_local


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


PACKAGE = Path(zsnapdb.__file__).parent


def patterns_in(text: str) -> list[str]:
    """Return the string literals that a module gives to `re` or to a field as a pattern."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            is_re = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "re"
            given = node.args[:1] if is_re else [one.value for one in node.keywords if one.arg == "pattern"]
            found += [
                part.value
                for each in given
                for part in ast.walk(each)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            ]
    return found


def test_no_pattern_accepts_digits_of_other_alphabets_or_a_line_break_at_its_end() -> None:
    r"""`\d` matches 1,000 characters that are no digits of ids, and `$` with `match` also a last newline."""
    sources = {file: file.read_text() for file in PACKAGE.rglob("*.py")}
    patterns = [(file.name, one) for file, text in sources.items() for one in patterns_in(text)]
    assert len(patterns) > 100
    assert [one for one in patterns if r"\d" in one[1]] == []
    # The patterns of fields are those of a regex library whose `$` is the end of the text.
    bare = re.compile(r're\.\w+\(\s*r?f?"\^[^"\n]*\$"')
    multiline = {"process_managers.py", "startup_requirements.py", "program_start.py"}
    assert {file.name for file, text in sources.items() if bare.search(text)} <= multiline


def test_no_number_is_recognised_by_isdigit() -> None:
    """`"²".isdigit()` is true, and `int("²")` raises an error that nobody expects."""
    assert [file.name for file in PACKAGE.rglob("*.py") if re.search(r"\.is(digit|numeric)\(", file.read_text())] == []


NO_IDS = (
    "20261120T100000Z-beef\n", "\n20261120T100000Z-beef", "\u0662\u0660\u0662\u06661120T100000Z-beef",
    "20269999T999999Z-beef", "00000000T000000Z-beef", "20260230T000000Z-beef", "20261120T240000Z-beef",
    "+0261120T100000Z-beef",
)  # fmt: skip


@pytest.mark.parametrize("text", NO_IDS)
def test_backup_id_without_a_time_is_no_id(text: str) -> None:
    assert not is_backup_id(text)


@pytest.mark.parametrize(
    "address", ["db:", "db:²", "db:\u0663\u0660", "db:0", "db:65536", "db:-1", ":3306", "db:3306\n", "db"]
)
def test_replication_source_has_a_host_and_a_port(address: str) -> None:
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        handover_of("replica", None, None, address, "repl", None)


@pytest.mark.parametrize("text", ["@daily\n", "@", "@dé", "live\n"])
def test_snapshot_name_with_a_line_break_names_no_source(text: str) -> None:
    instance: Any = None
    settings: Any = None
    with pytest.raises(UsageError, match="does not name a snapshot set"):
        find_local(settings, instance, text)
