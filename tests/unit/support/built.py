"""Objects made of declared types alone, for laws over every result that can be declared."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path, PurePath
from typing import Any

import pydantic

from zsnapdb.base.errors import ZsnapdbError

MOMENT = datetime(2026, 11, 28, 12, tzinfo=UTC)
_DEEPEST = 14
GIVEN = object()


@functools.cache
def names_of(module: str) -> dict[str, Any]:
    """Return the values of the names in the annotations of a module, with those that it imports for them alone."""
    loaded = importlib.import_module(module)
    known = dict(vars(loaded))
    for node in ast.parse(inspect.getsource(loaded)).body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            exec(compile(ast.Module(node.body, []), module, "exec"), known)
    return known


def evaluated(annotation: object, module: str) -> Any:
    """Return the type that an annotation in a module names."""
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    return eval(annotation, names_of(module)) if isinstance(annotation, str) else annotation


@dataclass(frozen=True)
class Builder:
    """Makes an object of a type. Each optional part is None.

    `pick` chooses among the other alternatives of a union, and the member of an enumeration. `length` is that of each
    collection. `values` has the values of fields that not every value of their type suits, by CLASS.FIELD, and GIVEN
    for an optional field that has a value.
    """

    pick: int = 0
    length: int = 1
    values: Mapping[str, Any] = field(default_factory=dict)
    depth: int = 0
    variables: Mapping[Any, Any] = field(default_factory=dict)

    def build(self, annotation: Any, module: str = __name__) -> Any:
        """Return an object of the type. TypeError if the type says too little to make one."""
        if self.depth > _DEEPEST:
            raise TypeError(f"{annotation} contains itself")
        annotation = evaluated(annotation, module)
        annotation = (
            self.variables.get(annotation, annotation) if isinstance(annotation, typing.TypeVar) else annotation
        )
        if isinstance(annotation, typing.TypeVar):
            annotation = annotation.__bound__ or (annotation.__constraints__ or (str,))[0]
        if isinstance(annotation, typing.NewType):
            return self.build(annotation.__supertype__, module)
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is typing.Annotated or origin is typing.ClassVar or origin is typing.Final:
            return self.build(arguments[0], module)
        if origin in (typing.Union, types.UnionType):
            return self._alternative(arguments, module)
        if origin is typing.Literal:
            return arguments[self.pick % len(arguments)]
        if annotation is None or annotation is types.NoneType:
            return None
        if origin is typing.get_origin(Callable[[], int]):
            return lambda *_: self._below().build(arguments[-1], module)
        if _is_collection(origin or annotation):
            return self._collection(origin or annotation, arguments, module)
        return self._instance(origin or annotation, arguments)

    def _below(self) -> Builder:
        return dataclasses.replace(self, depth=self.depth + 1)

    def _alternative(self, arguments: Sequence[Any], module: str) -> Any:
        if types.NoneType in arguments:
            return None
        return self._below().build(arguments[self.pick % len(arguments)], module)

    def _collection(self, origin: Any, arguments: Sequence[Any], module: str) -> Any:
        below = self._below()
        if issubclass(origin, Mapping):
            key, value = arguments or (str, str)
            return {below.build(key, module): below.build(value, module) for _ in range(self.length)}
        if origin is tuple and arguments and arguments[-1] is not Ellipsis:
            return tuple(below.build(one, module) for one in arguments)
        items = [below.build(arguments[0] if arguments else str, module) for _ in range(self.length)]
        if issubclass(origin, Set):
            return frozenset(items)
        return items if origin is list else tuple(items)

    def _instance(self, kind: Any, arguments: Sequence[Any]) -> Any:
        simple = {
            str: "text",
            int: 1,
            float: 1.5,
            bool: bool(self.pick % 2),
            bytes: b"bytes",
            datetime: MOMENT,
            pydantic.AwareDatetime: MOMENT,
            date: MOMENT.date(),
            timedelta: timedelta(minutes=1),
            Path: Path("/path"),
            PurePath: PurePath("/path"),
            object: "text",
            Any: "text",
            pydantic.SecretStr: pydantic.SecretStr("hidden"),
        }
        if kind in simple:
            return simple[kind]
        if not isinstance(kind, type):
            raise TypeError(f"{kind} is no type that can be made")
        if issubclass(kind, enum.Enum):
            members = list(kind)
            return members[self.pick % len(members)]
        if issubclass(kind, ZsnapdbError):
            return kind("a message", hint="a hint")
        if issubclass(kind, str):
            return str.__new__(kind, "text")
        if issubclass(kind, pydantic.BaseModel):
            return self._model(kind)
        if dataclasses.is_dataclass(kind):
            return self._dataclass(kind, arguments)
        if hasattr(kind, "_fields"):
            return kind(*(self._field(kind, name) for name in kind._fields))
        if getattr(kind, "_is_protocol", False):
            return self._stand_in(kind)
        raise TypeError(f"{kind.__module__}.{kind.__qualname__} is not declared by fields")

    def _field(self, kind: type, name: str) -> Any:
        """Return a value for a field of the class."""
        value = self.values.get(f"{kind.__name__}.{name}", None)
        if value is not None and value is not GIVEN:
            return value
        owner = next(one for one in kind.__mro__ if name in vars(one).get("__annotations__", {}))
        annotation = evaluated(vars(owner)["__annotations__"][name], owner.__module__)
        if value is GIVEN:
            annotation = next(one for one in typing.get_args(annotation) if one is not types.NoneType)
        return self._below().build(annotation, owner.__module__)

    def _stand_in(self, kind: type) -> Any:
        """Return an object with the attributes of a protocol."""
        made = types.SimpleNamespace()
        for owner in reversed(kind.__mro__[:-1]):
            for name, part in vars(owner).items():
                if isinstance(part, property) and part.fget is not None:
                    setattr(made, name, self._below().build(part.fget.__annotations__["return"], owner.__module__))
            for name in vars(owner).get("__annotations__", {}):
                setattr(made, name, self._field(kind, name))
        return made

    def _model(self, kind: type[pydantic.BaseModel]) -> Any:
        kind.model_rebuild(raise_errors=False)
        return kind.model_construct(**{name: self._field(kind, name) for name in kind.model_fields})

    def _dataclass(self, kind: Any, arguments: Sequence[Any]) -> Any:
        variables = {**self.variables, **dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False))}
        made, below = object.__new__(kind), dataclasses.replace(self, variables=variables)
        for part in dataclasses.fields(kind):
            object.__setattr__(made, part.name, below._field(kind, part.name))
        return made


def _is_collection(origin: Any) -> bool:
    return (
        isinstance(origin, type)
        and issubclass(origin, Iterable)
        and origin not in (str, bytes)
        and not issubclass(origin, str | enum.Enum)
        and not dataclasses.is_dataclass(origin)
        and not issubclass(origin, pydantic.BaseModel)
        and not hasattr(origin, "_fields")
        and (issubclass(origin, Mapping | Sequence | Set) or origin in (Iterable, Iterator))
    )
