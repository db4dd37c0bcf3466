"""An image that names other files is not copied into a machine's disk."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from zsnapdb.base.errors import CommandError, PreflightError
from zsnapdb.vm import images


def _answers(monkeypatch: pytest.MonkeyPatch, output: str, status: int = 0) -> list[list[str]]:
    commands: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        commands.append(argv)
        return subprocess.CompletedProcess(argv, status, output.encode(), b"broken")

    monkeypatch.setattr("zsnapdb.base.program_start.run", run)
    return commands


def test_an_image_is_copied_in_the_format_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = _answers(monkeypatch, json.dumps({"format": "qcow2", "virtual-size": 1048576}))
    image = images.describe(Path("/srv/a.qcow2"))
    images.write(image, Path("/dev/zvol/tank/a"))
    assert image.size == 1048576
    assert commands[1][-6:] == ["-f", "qcow2", "-O", "raw", "/srv/a.qcow2", "/dev/zvol/tank/a"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"backing-filename": "/etc/shadow"}, "another file"),
        ({"format-specific": {"data": {"data-file": "/etc/shadow"}}}, "another file"),
        ({"format": "vmdk"}, "format vmdk"),
    ],
)
def test_an_image_that_is_not_one_whole_file_is_refused(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], reason: str
) -> None:
    _answers(monkeypatch, json.dumps({"format": "qcow2", "virtual-size": 1, **more}))
    with pytest.raises(PreflightError, match=reason):
        images.describe(Path("/srv/a.qcow2"))


@pytest.mark.parametrize(("output", "status"), [("no json", 0), ("{}", 0), ("", 1)])
def test_what_qemu_img_does_not_understand_is_an_error(
    monkeypatch: pytest.MonkeyPatch, output: str, status: int
) -> None:
    _answers(monkeypatch, output, status)
    with pytest.raises(CommandError):
        images.describe(Path("/srv/a.qcow2"))
