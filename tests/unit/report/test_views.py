"""Every result can be shown as text and as one JSON document."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import isabstract
from typing import ClassVar

import pytest

import zsnapdb.report
from tests.bench.large_server import rotated, sizes
from zsnapdb.base.errors import ConfigError
from zsnapdb.cli.output import show
from zsnapdb.jobs.repository.prune_facts import OldBinlog
from zsnapdb.planning.binlog.purge import BinlogDecision
from zsnapdb.report import view
from zsnapdb.report.repository.prune import binlog_rows
from zsnapdb.report.view import Fields, TabularView, View


@dataclass(frozen=True)
class Weather(View):
    degrees: int
    kind: ClassVar[str] = "weather"

    def text(self) -> str:
        return f"it has {self.degrees} degrees"

    def fields(self) -> Fields:
        return {"degrees": self.degrees}


def views(view: type[View] = View) -> Iterator[type[View]]:
    for module in pkgutil.walk_packages(zsnapdb.report.__path__, "zsnapdb.report."):
        importlib.import_module(module.name)
    for below in view.__subclasses__():
        if below.__module__.startswith("zsnapdb.") and below is not TabularView:
            yield below
        yield from views(below)


@pytest.mark.parametrize(("json_wanted", "printed"), [(False, "it has 21 degrees\n"), (True, None)])
def test_a_result_is_printed_as_text_or_as_one_line_of_json(
    json_wanted: bool, printed: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    show(Weather(21), json_wanted)
    out = capsys.readouterr().out
    if printed is not None:
        assert out == printed
    else:
        assert out.count("\n") == 1
        assert json.loads(out) == {"version": view.VERSION, "kind": "weather", "degrees": 21}


def test_every_view_says_what_kind_of_document_it_is_and_can_be_made() -> None:
    every = set(views())
    assert len(every) > 40
    for one in every:
        assert one.kind, one
        assert not isabstract(one), one


def test_two_views_of_one_kind_show_the_same_fields() -> None:
    kinds: dict[str, set[str]] = {}
    for one in views():
        kinds.setdefault(one.kind, set()).add(one.__name__)
    assert {kind: names for kind, names in kinds.items() if len(names) > 1} == {"drill": {"DrillView", "EvidenceView"}}


def test_an_error_is_a_document_with_its_exit_code() -> None:
    error = ConfigError("no such key", hint="remove it")
    shown = json.loads(view.error_json(error))
    assert (shown["kind"], shown["exit_code"], shown["error"]["hint"]) == ("error", error.exit_code, "remove it")
    assert shown["retry"] == "never"


FIRST, SECOND = "20261121T101112Z-7f3a", "20261122T101112Z-7f3b"


def test_successive_binlogs_with_one_decision_share_a_row() -> None:
    def old(number: int, incarnation: str, *, removed: bool) -> OldBinlog:
        file = rotated(sizes(14)["10GB"], incarnation, number)
        return OldBinlog(BinlogDecision(number, incarnation, file.name, removed, "why"), file)

    binlogs = [*(old(n, FIRST, removed=n < 4) for n in range(1, 8)), old(8, SECOND, removed=False)]
    assert [row[:3] for row in binlog_rows(binlogs)] == [
        ("remove", "binlog.000001 to 000003 (3)", FIRST),
        ("keep", "binlog.000004 to 000007 (4)", FIRST),
        ("keep", "binlog.000008", SECOND),
    ]
