"""`restore` and `undo` refer to `rescue` for one table, and hints name every form of a point in time."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.unit.support.command_line import zsnapdb
from zsnapdb.base.errors import UsageError
from zsnapdb.cli.options import POINT
from zsnapdb.cli.rescue import refuse_part
from zsnapdb.planning.restore.point_forms import parse_target

CONFIGURATION = """
[instance.main]
socket = "/nonexistent/server.sock"
repository = "here"
[repository.here]
url = "file:///nonexistent"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "zsnapdb.toml"
    file.write_text(CONFIGURATION)
    return file


@pytest.mark.parametrize(
    ("words", "led"),
    [
        ("restore --table shop.orders", "rescue main --table shop.orders --to 10m --into shop.orders.sql"),
        ("restore main --schema shop --to 2h", "rescue main --schema shop --to 2h --into shop.sql"),
        ("undo --table shop.orders", "rescue main --table shop.orders --to 10m --into shop.orders.sql"),
        ("undo --gtid 0-1-7 main --schema shop", "rescue main --schema shop --to 10m --into shop.sql"),
    ],
)
def test_table_of_restore_or_undo_leads_to_rescue(words: str, led: str, config: Path) -> None:
    done = zsnapdb(*words.split(), config=str(config))
    assert done.returncode == 2
    assert f"`zsnapdb {led}`" in done.stderr


def test_command_of_rescue_is_quoted_for_a_shell(config: Path) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_part("undo", config, None, "shop.a b;c/d", None, "2026-11-20 10:00:00Z")
    (command,) = re.findall("`(.*)`", caught.value.hint)
    words = shlex.split(command)
    assert words[words.index("--table") + 1] == "shop.a b;c/d"
    assert words[words.index("--to") + 1] == "2026-11-20 10:00:00Z"
    assert words[-1] == "shop.a b;c_d.sql"


def test_undo_without_a_transaction_names_the_search(config: Path) -> None:
    done = zsnapdb("undo", config=str(config))
    assert done.returncode == 2
    assert "`zsnapdb binlog find main`" in done.stderr


def test_hint_of_a_point_names_every_form() -> None:
    with pytest.raises(UsageError) as caught:
        parse_target("yesterday")
    forms = re.split(r", | or ", POINT.replace("time with zone", "a time").replace(" (ago)", ""))
    assert len(forms) == 7
    assert [form for form in forms if form not in caught.value.hint] == []
