"""What is shown of the source of a backup."""

from __future__ import annotations

from tests.unit.support.manifests import manifest, of_kind
from zsnapdb.report.source import detail_lines, source_fields
from zsnapdb.repository.manifest import SourcePart, server_source


def with_engines(engines: dict[str, int]) -> SourcePart:
    source = server_source(manifest())
    return source.model_copy(update={"server": source.server.model_copy(update={"engines": engines})})


def test_a_backup_shows_which_rows_a_restore_does_not_bring_back() -> None:
    source = with_engines({"InnoDB": 3, "MEMORY": 2})
    (sentence,) = source_fields(source)["not_restored"]
    assert "the rows of 2 MEMORY table(s)" in sentence
    assert f"lacks     {sentence}" in detail_lines(source)
    for nothing in (with_engines({"InnoDB": 3}), of_kind("files").source):
        assert source_fields(nothing)["not_restored"] == []
