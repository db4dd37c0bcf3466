"""What a document is: a pydantic model that is read from a result by attribute, or from the JSON of another zsnapdb."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache, cached_property
from importlib import import_module
from pathlib import PurePath
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationInfo, WithJsonSchema, model_validator

Number = Annotated[int | float, WithJsonSchema({"type": "number"})]
"""A number that is printed as it is: a float would make 0.0 of the sum of nothing."""
LEFT_OUT = object()
"""What a converter makes of a value if the document is to lack the field, whose default is `may_lack()`."""


def may_lack() -> Any:
    """Return the default of a field that a document may lack. Its schema names no default."""
    return Field(default_factory=type(None))


@dataclass(frozen=True)
class At:
    """Says where the field of a document is in the result: a path of attributes, and what makes the field of it.

    `default` is the field if the path, or what is made of it, ends at None. Without At, a field is the attribute of
    its name. Paths become text and members of an enumeration their values. The path "" leads to the result itself.
    """

    path: str
    convert: Callable[[Any], object] | None = None
    default: object = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The attributes of the path."""
        return tuple(filter(None, self.path.split(".")))

    def read(self, result: object) -> object:
        """Return the field. AttributeError if the result has no such attribute."""
        value = result
        for name in self.names:
            value = getattr(value, name)
            if value is None:
                return self.default
        if self.convert is not None:
            value = self.convert(value)
        return self.default if value is None else _plain(value)


@dataclass(frozen=True)
class Dumped:
    """Annotates a field as a printed model or dataclass: the schema of the field is that of the class.

    A document is also read where that class is not: then `printed` is its full name, and the schema alone looks it up.
    `without` are the names of fields that are not printed, `adding` is a type of fields that are printed as well.
    """

    printed: type | str
    without: tuple[str, ...] = ()
    adding: type | None = None

    def __get_pydantic_json_schema__(self, _schema: Any, handler: Any) -> dict[str, Any]:
        """Return the schema of the class. pydantic calls it."""
        printed = self.printed
        if isinstance(printed, str):
            module, _, name = printed.rpartition(".")
            printed = getattr(import_module(module), name)
        made: dict[str, Any] = handler(TypeAdapter(printed).core_schema)
        if not self.without and self.adding is None:
            return made
        own = dict(handler.resolve_ref_schema(made))
        more = handler.resolve_ref_schema(handler(TypeAdapter(self.adding).core_schema)) if self.adding else {}
        properties = {**own["properties"], **more.get("properties", {})}
        own["properties"] = {name: one for name, one in properties.items() if name not in self.without}
        required = (*own.get("required", ()), *more.get("required", ()))
        own["required"] = [name for name in required if name not in self.without]
        return own


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
        if info.mode == "json" or isinstance(value, Mapping | list | str | int | float | None | cls):
            return value
        return read(cls, value)

    @classmethod
    def of_result(cls, result: object) -> Self:
        """Return the document of the result."""
        return cls.model_validate(result)

    def json_fields(self) -> dict[str, Any]:
        """Return the fields as JSON has them, without those that were left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


@cache
def _places(document: type[Document]) -> tuple[tuple[str, At], ...]:
    """Return where each field of the document is read, by its name in JSON."""
    return tuple(
        (field.alias or name, next((one for one in field.metadata if isinstance(one, At)), At(name)))
        for name, field in document.model_fields.items()
    )


def read(document: type[Document], result: object) -> dict[str, object]:
    """Return the fields of the document as they are read off the result, before they are checked."""
    return {name: one for name, at in _places(document) if (one := at.read(result)) is not LEFT_OUT}


def stamp(moment: datetime) -> str:
    """Return a time to the second: `2026-11-28T12:00:00Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def iso(moment: datetime) -> str:
    """Return a time as ISO 8601 writes it, with all its digits."""
    return moment.isoformat()


def moment(microseconds: int) -> str:
    """Return a time as ISO 8601 in UTC, to the microsecond."""
    whole, part = divmod(microseconds, 1_000_000)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{part:06d}Z"


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


def described(one: Any) -> str:
    """Return the words that it has for itself."""
    return str(one.describe())


def total(name: str) -> Callable[[Iterable[Any]], int]:
    """Return what adds up one attribute of several objects."""
    return lambda several: sum(getattr(one, name) for one in several)


def each(path: str) -> Callable[[Any], list[object]]:
    """Return what makes of several objects the list of one attribute of each."""
    at = At(path)
    return lambda several: [at.read(one) for one in several]


def dumped(model: BaseModel) -> dict[str, Any]:
    """Return the fields of another model as JSON has them."""
    return model.model_dump(mode="json")


def rows(*names: str) -> Callable[[Any], list[dict[str, object]]]:
    """Return what makes a row of each item of a mapping, or of each tuple: its values under these names."""

    def made(several: Mapping[Any, Any] | Iterable[tuple[Any, ...]]) -> list[dict[str, object]]:
        items = several.items() if isinstance(several, Mapping) else several
        return [dict(zip(names, map(_plain, item), strict=True)) for item in items]

    return made
