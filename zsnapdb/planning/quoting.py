"""How names and values are written in a statement or an option file. Pure."""

from __future__ import annotations

from zsnapdb.errors import PreflightError


def quoted(*names: str) -> str:
    """Return the names in backticks, joined by dots."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def option_value(text: str) -> str:
    """Return the value in quotes, as an option file holds it (refman 8.4, "Using Option Files": backslash escapes).

    PreflightError if an option file cannot hold it.
    """
    if "\n" in text or "\r" in text or "\0" in text:
        raise PreflightError(
            "a value for an option file contains a line break",
            hint="option files cannot hold line breaks; check the password file",
        )
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
