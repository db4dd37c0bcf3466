"""Disk images, read and copied with qemu-img. Only this module runs qemu-img."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base import program_start
from zsnapdb.base.errors import CommandError, CommandTimeout, PreflightError

_FORMATS = ("raw", "qcow2")


@dataclass(frozen=True)
class DiskImage:
    """A disk image: its format, and the size in bytes of the disk that it contains."""

    path: Path
    format: str
    size: int


def describe(path: Path) -> DiskImage:
    """Return the format and the disk size of the image.

    Raises PreflightError if the file is not an image, or if it refers to other files as its parts. With such a
    reference, the author of the image could have any file on this host copied to a machine's disk.
    """
    text = _run(["qemu-img", "info", "--output=json", "--", str(path)], timeout=60.0)
    try:
        document = json.loads(text)
        image = DiskImage(path, str(document["format"]), int(document["virtual-size"]))
        details = json.dumps(document.get("format-specific", {}))
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(f"qemu-img info of {path} cannot be read: {error}", hint="see `qemu-img info`") from error
    if image.format not in _FORMATS:
        raise PreflightError(
            f"the image {path} has the format {image.format}", hint=f"give an image in {' or '.join(_FORMATS)}"
        )
    if document.get("backing-filename") or '"data-file"' in details:
        raise PreflightError(
            f"the image {path} names another file as a part of itself",
            hint="make one file of it: `qemu-img convert -O qcow2 IMAGE NEW`",
        )
    return image


def write(image: DiskImage, device: Path) -> None:
    """Copy the disk in the image to the block device, which must be empty and equally large."""
    # -n: the target already exists. Without -S 0, qemu-img omits zeros, which is correct because a new zvol reads as
    # zeros.
    convert = ["qemu-img", "convert", "-n", "--target-is-zero", "-f", image.format, "-O", "raw"]
    _run([*convert, str(image.path), str(device)], timeout=24 * 3600.0)


def _run(argv: Sequence[str], *, timeout: float) -> str:
    try:
        done = program_start.run(argv, timeout=timeout)
    except FileNotFoundError as error:
        raise PreflightError("the command qemu-img was not found", hint="install qemu-utils") from error
    except OSError as error:
        raise PreflightError(f"the command qemu-img cannot be started: {error.strerror}", hint="see PATH") from error
    except subprocess.TimeoutExpired as error:
        raise CommandTimeout(
            f"`{' '.join(argv)}` did not end within {timeout:.0f} s", hint="see `zpool status`"
        ) from error
    if done.returncode != 0:
        output = " ".join(done.stderr.decode(errors="replace").split())[:2000]
        raise CommandError(
            f"`{' '.join(argv)}` ended with exit status {done.returncode}: {output}", hint="see `qemu-img info`"
        )
    return done.stdout.decode(errors="replace")
