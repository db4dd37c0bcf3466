"""Base class of all tables of the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, field_validator

from zsnapdb.base.quantities import QUANTITIES

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

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_switch(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true and false for a number: pydantic would read `last = true` as 1."""
        if isinstance(value, bool) and info.field_name is not None:
            field = cls.model_fields[info.field_name]
            kinds = {field.annotation, *get_args(field.annotation)}
            is_quantity = any(getattr(one, "func", None) in QUANTITIES for one in field.metadata)
            if kinds & {int, float} and not kinds & {bool, str} and not is_quantity:
                raise ValueError("must be a number, not true or false")
        return value
