"""Base class of all tables of the configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

HIDDEN = object()
"""Marks the type of a setting whose value is a secret: `config show` does not print it."""


class ConfigSection(BaseModel):
    """A table of the configuration. Unknown keys are errors, and errors show no value."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)
