"""Reads text files that the site wrote, such as its configuration and its password files."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from zsnapdb.errors import ConfigError


def read_text(file: Path, what: str, hint: str) -> str:
    """Return the text of a file that the site wrote. ConfigError with `hint` if it cannot be read, or is not UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"reading {what} {file}: {error.strerror}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"reading {what} {file}: it is not UTF-8 (byte {error.start + 1})", hint="save the file as UTF-8"
        ) from error


def password_in(file: Path, what: str) -> SecretStr:
    """Return the password in a file that contains nothing else. ConfigError if the file cannot be read."""
    hint = "the file must contain only the password, and be readable by the user that runs zsnapdb"
    return SecretStr(read_text(file, what, hint).rstrip("\n"))
