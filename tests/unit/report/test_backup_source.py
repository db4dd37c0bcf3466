"""What is shown of the source of a backup."""

from __future__ import annotations

from tests.unit.support.manifests import manifest, of_kind
from zsnapdb.documents.backup import ManifestFields
from zsnapdb.report.backup import detail_lines
from zsnapdb.repository.manifest import Manifest, server_source


def with_engines(engines: dict[str, int]) -> Manifest:
    backup = manifest()
    source = server_source(backup)
    server = source.server.model_copy(update={"engines": engines})
    return backup.model_copy(update={"source": source.model_copy(update={"server": server})})


def test_a_backup_shows_which_rows_a_restore_does_not_bring_back() -> None:
    backup = with_engines({"InnoDB": 3, "MEMORY": 2})
    (sentence,) = ManifestFields.of_result(backup).not_restored
    assert "the rows of 2 MEMORY table(s)" in sentence
    assert f"lacks     {sentence}" in detail_lines(backup.source)
    for nothing in (with_engines({"InnoDB": 3}), of_kind("files")):
        assert ManifestFields.of_result(nothing).not_restored == ()
