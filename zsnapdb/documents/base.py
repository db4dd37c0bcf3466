"""What a document is: a pydantic model that is read from a result by attribute, or from the JSON of another zsnapdb."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import PurePath
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator


@dataclass(frozen=True)
class At:
    """Says where the field of a document is in the result: a path of attributes, and what makes the field of it.

    `default` is the field if the path, or what is made of it, ends at None. Without At, a field is the attribute of
    its name. Paths become text and members of an enumeration their values.
    """

    path: str
    convert: Callable[[Any], object] | None = None
    default: object = None

    def read(self, result: object) -> object:
        """Return the field. AttributeError if the result has no such attribute."""
        value = result
        for name in self.path.split("."):
            value = getattr(value, name)
            if value is None:
                return self.default
        if self.convert is not None:
            value = self.convert(value)
        return self.default if value is None else _plain(value)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, PurePath) else value


class Document(BaseModel):
    """Fields of a document. What is read from JSON may have more: later releases add fields."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _from_attributes(cls, value: object, info: ValidationInfo) -> object:
        if info.mode == "json" or isinstance(value, Mapping | cls):
            return value
        return {
            field.alias or name: next((one for one in field.metadata if isinstance(one, At)), At(name)).read(value)
            for name, field in cls.model_fields.items()
        }

    @classmethod
    def of_result(cls, result: object) -> Self:
        """Return the document of the result."""
        return cls.model_validate(result)

    def json_fields(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return self.model_dump(mode="json", by_alias=True)


def stamp(moment: datetime) -> str:
    """Return a time to the second: `2026-11-28T12:00:00Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def iso(moment: datetime) -> str:
    """Return a time as ISO 8601 writes it, with all its digits."""
    return moment.isoformat()


def given(value: object) -> bool:
    """Whether the value is none of None, empty and 0."""
    return bool(value)


def or_null(value: Any) -> Any:
    """Return None for what is empty."""
    return value or None


def milliseconds(seconds: float) -> float:
    """Return a number of seconds to the millisecond."""
    return round(seconds, 3)


def secret(value: Any) -> str:
    """Return the text of a secret."""
    return str(value.get_secret_value())


def full_names(snapshots: Mapping[str, Any]) -> dict[str, str]:
    """Return the full names of snapshots by role."""
    return {role: snapshot.full_name for role, snapshot in snapshots.items()}


def each(path: str) -> Callable[[Any], list[object]]:
    """Return what makes of several objects the list of one attribute of each."""
    at = At(path)
    return lambda several: [at.read(one) for one in several]
