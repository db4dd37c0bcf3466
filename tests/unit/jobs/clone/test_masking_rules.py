"""Rules of masking that change while they are applied are noticed, also if they are as before again afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from zsnapdb.base.errors import ConfigError, PreflightError
from zsnapdb.config.settings import MaskingSettings
from zsnapdb.jobs.clone import masking

TEXT = "UPDATE t SET name = 'x';\n"


def edited_and_edited_back(file: Path) -> None:
    file.write_text("SELECT 1;\n")
    file.write_text(TEXT)


def replaced_by_a_copy(file: Path) -> None:
    copy = file.with_name("copy")
    copy.write_text(TEXT)
    copy.rename(file)


def with_its_time_set_back(file: Path) -> None:
    import os

    before = file.stat()
    edited_and_edited_back(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_rules_that_stay_are_proved_and_others_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "mask.sql"
    file.write_text(TEXT)
    settings = MaskingSettings(run=(str(file),))
    rules = masking.digest(settings)
    with masking.unchanged(settings, rules):
        file.read_text()
    file.write_text("SELECT 1;\n")
    with pytest.raises(PreflightError, match="changed meanwhile"), masking.unchanged(settings, rules):
        raise AssertionError("nothing is applied by other rules")


@pytest.mark.parametrize("change", [edited_and_edited_back, replaced_by_a_copy, with_its_time_set_back])
def test_a_file_with_the_same_content_again_was_changed(tmp_path: Path, change: Callable[[Path], None]) -> None:
    file = tmp_path / "mask.sql"
    file.write_text(TEXT)
    settings = MaskingSettings(run=(str(file),))
    rules = masking.digest(settings)
    with pytest.raises(PreflightError, match="changed meanwhile"), masking.unchanged(settings, rules):
        change(file)
    assert masking.digest(settings) == rules


def test_a_file_that_goes_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mask.sql"
    file.write_text(TEXT)
    settings = MaskingSettings(run=(str(file),))
    rules = masking.digest(settings)
    with pytest.raises(ConfigError, match=r"mask\.sql"), masking.unchanged(settings, rules):
        file.unlink()
