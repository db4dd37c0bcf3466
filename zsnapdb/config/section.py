"""Base class of all tables of the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

HIDDEN = object()
"""Marks the type of a setting whose value is a secret: `config show` does not print it."""


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        reason = "; ~ is not expanded" if str(path).startswith("~") else ""
        raise ValueError(f'write an absolute path, such as "/etc/zsnapdb/{path.name or "file"}"{reason}')
    return path


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
"""Path of a setting. Commands and services have other working folders and homes, so no other path is accepted."""


class ConfigSection(BaseModel):
    """A table of the configuration. Unknown keys are errors, and errors show no value."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)
