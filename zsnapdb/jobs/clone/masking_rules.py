"""The rules by which a clone is masked: their digest, and the proof that they were the same while they were applied."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base.errors import ConfigError, PreflightError
from zsnapdb.base.text_files import open_regular
from zsnapdb.config.settings import MaskingSettings
from zsnapdb.planning.clone.masking import MARGIN_NS

_LOOKS = 20


@dataclass(frozen=True)
class _RuleFile:
    """A file of the rules as the kernel knows it. Whoever writes to it changes `changed_ns`, and cannot set it back."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


def digest(masking: MaskingSettings) -> str:
    """Return the SHA-256 of the rules: of the settings, and of the content of the files that they name first.

    ConfigError if a file cannot be read. A file that a script reads by itself is not looked at.
    """
    rules = hashlib.sha256()
    canaries = [value.get_secret_value() for value in masking.canaries]
    rules.update(json.dumps([masking.run, masking.rebuild, masking.keep_history, canaries]).encode())
    for words in masking.run:
        try:
            with open_regular(Path(words[0])) as file:
                rules.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise ConfigError(
                f"reading the masking file {words[0]}: {error.strerror}", hint="give the absolute path of a file"
            ) from error
    return rules.hexdigest()


@contextlib.contextmanager
def unchanged(masking: MaskingSettings, rules: str) -> Iterator[None]:
    """Prove that within the block the rules are those of this digest.

    PreflightError before the block if they are others by now, and after it if a file was written or replaced meanwhile,
    even if it has its former content again.
    """
    before = _settled(masking)
    if digest(masking) != rules:
        raise _changed()
    yield
    if _files(masking) != before:
        raise _changed()


def _settled(masking: MaskingSettings) -> list[_RuleFile]:
    """Return the files as soon as none was changed a moment ago. PreflightError if one is changed all the time.

    A change within the tick of the kernel's clock in which a file was changed last leaves no trace (inode(7)).
    """
    for _ in range(_LOOKS):
        files = _files(masking)
        if all(abs(time.time_ns() - file.changed_ns) >= MARGIN_NS for file in files):
            return files
        time.sleep(MARGIN_NS / 1e9)
    raise _changed()


def _changed() -> PreflightError:
    return PreflightError(
        "the settings of masking or a file of masking.run were changed meanwhile", hint="run the command again"
    )


def _files(masking: MaskingSettings) -> list[_RuleFile]:
    files = []
    for words in masking.run:
        try:
            seen = os.stat(words[0])
        except OSError as error:
            raise ConfigError(
                f"reading the masking file {words[0]}: {error.strerror}", hint="give the absolute path of a file"
            ) from error
        files.append(_RuleFile(seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns))
    return files
