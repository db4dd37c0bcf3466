"""What to do if a library of an extra, such as zsnapdb[fleet], is missing."""

from __future__ import annotations

import importlib.util
import sys

from zsnapdb.base.errors import ConfigError


def missing_library(extra: str, error: ImportError) -> ConfigError:
    """Return the error for a library of the extra that cannot be imported."""
    return ConfigError(f"the library {error.name} is missing", hint=how_to_install(f"zsnapdb[{extra}]"))


def how_to_install(
    what: str, python: str = sys.executable, *, has_pip: bool = importlib.util.find_spec("pip") is not None
) -> str:
    """Return the hint that installs it for this Python, which is seldom that of the command `pip`.

    The package for Debian has a Python without pip. That of the system then works on it (pip 22.3 and later).
    """
    if has_pip:
        return f"install it: `{python} -m pip install '{what}'`"
    command = f"python3 -m pip --python {python} install '{what}'"
    return f"install it with the pip of the system (Debian's package python3-pip): `{command}`"
