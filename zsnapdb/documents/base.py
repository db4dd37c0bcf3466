"""The base class of all documents, and models of errors and findings.

Documents are read from a result or from JSON of another zsnapdb version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache, cached_property
from importlib import import_module
from pathlib import PurePath
from typing import Annotated, Any, NotRequired, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationInfo, WithJsonSchema, model_validator
from typing_extensions import TypedDict

from zsnapdb.base import run_context
from zsnapdb.base.errors import ZsnapdbError, retry_class

Number = Annotated[int | float, WithJsonSchema({"type": "number"})]
"""A number that is printed unchanged. If the type were float, an empty sum would be printed as 0.0."""
LEFT_OUT = object()
"""The result of a converter for a field that the document omits. The default of such a field is `may_lack()`."""


def may_lack() -> Any:
    """Return the default of a field that a document may omit. The field's schema contains no default."""
    return Field(default_factory=type(None))


@dataclass(frozen=True)
class At:
    """The source of a document's field: a path of attributes in the result, and a converter.

    If the path or the converter results in None, the value of the field is `default`. A field without `At` comes from
    the attribute of the same name. File paths become text, and members of an enumeration become their values. The path
    "" is the result itself.
    """

    path: str
    convert: Callable[[Any], object] | None = None
    default: object = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(filter(None, self.path.split(".")))

    def read(self, result: object) -> object:
        """Return the value of the field.

        Raises: AttributeError if the result has no such attribute.
        """
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
    """Annotation of a field that contains a printed model or dataclass. The field gets the schema of that class.

    Documents are also read where that class is not installed. For a class that may not be installed, `printed` is the
    full name of the class. The class is imported only for the schema. The fields of that class in `without` are not
    printed. The fields of the type `adding` are printed in addition.
    """

    printed: type | str
    without: tuple[str, ...] = ()
    adding: type | None = None

    def __get_pydantic_json_schema__(self, _schema: Any, handler: Any) -> dict[str, Any]:
        """Return the schema of the class. pydantic calls this method."""
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
    """The fields of a document. JSON may have more fields, because later releases add fields."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _from_attributes(cls, value: object, info: ValidationInfo) -> object:
        if info.mode == "json" or isinstance(value, Mapping | list | str | int | float | None | cls):
            return value
        return read(cls, value)

    @classmethod
    def of_result(cls, result: object) -> Self:
        return cls.model_validate(result)

    def json_fields(self) -> dict[str, Any]:
        """Return the fields as JSON values, without omitted fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


@cache
def _places(document: type[Document]) -> tuple[tuple[str, At], ...]:
    """Return the source of each field of the document, by its name in JSON."""
    return tuple(
        (field.alias or name, next((one for one in field.metadata if isinstance(one, At)), At(name)))
        for name, field in document.model_fields.items()
    )


def read(document: type[Document], result: object) -> dict[str, object]:
    """Read the fields of the document from the result. They are not validated yet."""
    return {name: one for name, at in _places(document) if (one := at.read(result)) is not LEFT_OUT}


def stamp(moment: datetime) -> str:
    """Return a time as text, to the second: `2026-11-28T12:00:00Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def iso(moment: datetime) -> str:
    """Return a time in ISO 8601 with all its digits."""
    return moment.isoformat()


def moment(microseconds: int) -> str:
    """Return a time in ISO 8601 and UTC, to the microsecond."""
    whole, part = divmod(microseconds, 1_000_000)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{part:06d}Z"


def is_given(value: object) -> bool:
    """Return whether the value is not None, empty or 0."""
    return bool(value)


def or_null(value: Any) -> Any:
    """Return None for an empty value."""
    return value or None


def milliseconds(seconds: float) -> float:
    """Return seconds, rounded to the millisecond."""
    return round(seconds, 3)


def secret(value: Any) -> str:
    """Return the text of a secret."""
    return str(value.get_secret_value())


def full_names(snapshots: Mapping[str, Any]) -> dict[str, str]:
    """Return the full names of snapshots by role."""
    return {role: snapshot.full_name for role, snapshot in snapshots.items()}


def described(one: Any) -> str:
    """Return the object's own description."""
    return str(one.describe())


def total(name: str) -> Callable[[Iterable[Any]], int]:
    """Return a function that adds up one attribute of several objects."""
    return lambda several: sum(getattr(one, name) for one in several)


def each(path: str) -> Callable[[Any], list[object]]:
    """Return a function that lists one attribute of several objects."""
    at = At(path)
    return lambda several: [at.read(one) for one in several]


def dumped(model: BaseModel) -> dict[str, Any]:
    """Return the fields of another model as JSON values."""
    return model.model_dump(mode="json")


def rows(*names: str) -> Callable[[Any], list[dict[str, object]]]:
    """Return a function that converts a mapping, or a list of tuples, to rows whose columns have the given names.

    A mapping becomes one row for each pair of key and value. A list becomes one row for each tuple.
    """

    def made(several: Mapping[Any, Any] | Iterable[tuple[Any, ...]]) -> list[dict[str, object]]:
        items = several.items() if isinstance(several, Mapping) else several
        return [dict(zip(names, map(_plain, item), strict=True)) for item in items]

    return made


class ErrorFields(TypedDict):
    """An error: its code, message and hint.

    The field `audience` is the clone owner who may read the text, if the command ran for an owner.
    """

    code: str
    message: str
    hint: str
    audience: NotRequired[str]


def error_fields(error: ZsnapdbError) -> ErrorFields:
    """Return the fields of an error in a document."""
    reader = run_context.current_audience()
    told = reader.told(error)
    fields: ErrorFields = {"code": told.code, "message": told.message, "hint": told.hint}
    return fields if reader.sees_all else {**fields, "audience": reader.owner}


def errors_fields(errors: Iterable[ZsnapdbError]) -> list[ErrorFields]:
    """Return the fields of several errors in a document."""
    return [error_fields(error) for error in errors]


class ErrorDocument(Document):
    """The failure of a command. The document is printed instead of the result.

    The field `retry` says whether the same command may be repeated: again, never, or twice (two attempts in total).
    """

    error: Annotated[ErrorFields, At("", error_fields)]
    exit_code: int
    retry: Annotated[str, At("", lambda error: retry_class(error.exit_code, error.code))]


class FindingFields(Document):
    """The result of one check."""

    severity: str
    what: str
    detail: str
    hint: str


class MissingFields(Document):
    """A difference between a repository and the backups that this host stored in it."""

    kind: str
    text: str
    hint: str
    backups: tuple[str, ...]


class DamageFields(Document):
    """Known damage of a stored object."""

    name: str
    kind: str
    since: Annotated[str, At("since", iso)]
    by: str
    findings: tuple[str, ...]
