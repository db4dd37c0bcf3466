"""How names are written in SQL statements, and values in option files. Pure."""

from __future__ import annotations

from zsnapdb.base.errors import PreflightError


def quoted(*names: str) -> str:
    """Return the names in backticks, joined by dots."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def option_value(text: str) -> str:
    """Return the value in quotes for an option file (refman 8.4, "Using Option Files": backslash escapes).

    PreflightError if an option file cannot contain the value.
    """
    if "\n" in text or "\r" in text or "\0" in text:
        raise PreflightError(
            "a value for an option file contains a line break",
            hint="option files cannot hold line breaks; check the password file",
        )
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
