"""A replay over a change of gtid_mode is refused when it is planned: the server would apply only a part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from zsnapdb.planning.binlog.route import RouteFile
from zsnapdb.planning.restore.replays import mode_objection


@dataclass(frozen=True)
class Binlog:
    """A binlog with transactions (`last_commit`) with or without GTIDs."""

    name: str
    is_anonymous: bool
    last_commit: int | None = 7


NAMED, NAMELESS, EMPTY = Binlog("b.1", False), Binlog("b.2", True), Binlog("b.3", False, None)


@pytest.mark.parametrize(
    ("files", "mode", "wrong"),
    [
        ([NAMED, EMPTY], "ON", None),
        ([NAMED, NAMELESS], "ON", "b.2"),
        ([NAMELESS, EMPTY], "OFF", None),
        ([NAMELESS, NAMED], "OFF", "b.1"),
        ([NAMED, NAMELESS], "ON_PERMISSIVE", None),
        ([NAMED, NAMELESS], None, None),
        ([], "ON", None),
    ],
)
def test_only_what_the_mode_applies_is_replayed(files: list[Binlog], mode: str | None, wrong: str | None) -> None:
    objection = mode_objection(cast("list[RouteFile]", cast("Any", files)), mode)
    assert (objection is None) if wrong is None else objection is not None and f"transactions of {wrong} " in objection
