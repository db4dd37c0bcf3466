"""The progress line says how much is left, or that nobody knows."""

from __future__ import annotations

import pytest

from zsnapdb.cli import progress
from zsnapdb.model import Progress


@pytest.mark.parametrize(
    ("total", "expected"), [(None, "1 MiB of an unknown size, "), (4 << 20, "1 MiB of 4 MiB, "), (1 << 20, "1 MiB, ")]
)
def test_a_size_is_shown_or_said_to_be_unknown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, total: int | None, expected: str
) -> None:
    monkeypatch.setattr(progress, "_LOG_SECONDS", 0.0)
    progress.Terminal().progress(Progress("send data", 1 << 20, total))
    assert f"send data: {expected}" in capsys.readouterr().err
