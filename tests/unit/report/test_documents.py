"""Every field of a document is an attribute that its result has, by the types that the code declares."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.unit.report.test_views import views
from tests.unit.support.built import evaluated
from zsnapdb.documents.base import At, Document
from zsnapdb.report.view import View


def _attribute(owner: Any, name: str) -> Any:
    """Return the declared type of an attribute of a class; AttributeError if it declares none."""
    for one in inspect.getmro(owner):
        found = vars(one).get(name)
        if isinstance(found, property | functools.cached_property):
            function: Any = found.fget if isinstance(found, property) else found.func
            return evaluated(function.__annotations__["return"], one.__module__)
        if name in (own := vars(one).get("__annotations__", {})):
            return evaluated(own[name], one.__module__)
    raise AttributeError(f"{owner.__qualname__} has no {name}")


def _choices(annotation: Any) -> list[Any]:
    """Return the types of a union but None, and what a variable of types is bound to."""
    if isinstance(annotation, typing.TypeVar):
        return _choices(annotation.__bound__)
    if typing.get_origin(annotation) is typing.Annotated:
        return _choices(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [one for part in typing.get_args(annotation) if part is not types.NoneType for one in _choices(part)]
    return [annotation]


def _walk(owners: list[Any], path: str) -> list[Any]:
    """Return the types at the end of the path."""
    for name in filter(None, path.split(".")):
        owners = [
            choice
            for owner in owners
            if owner is not Any
            for choice in _choices(_of_owner(owner, _attribute(typing.get_origin(owner) or owner, name)))
        ]
    return owners


def _of_owner(owner: Any, annotation: Any) -> Any:
    """Return the annotation of an attribute, with what its generic owner names in the place of a type variable."""
    named = zip(getattr(typing.get_origin(owner), "__parameters__", ()), typing.get_args(owner), strict=True)
    return dict(named).get(annotation, annotation) if isinstance(annotation, typing.TypeVar) else annotation


def _documents_in(annotation: Any) -> list[type[Document]]:
    """Return the documents in the annotation of a field."""
    if isinstance(annotation, type) and issubclass(annotation, Document):
        return [annotation]
    return [one for part in typing.get_args(annotation) for one in _documents_in(part)]


def _elements(annotation: Any) -> list[Any]:
    """Return the types of the elements of a sequence, or of the values of a mapping, or the type itself."""
    parts = [part for part in typing.get_args(annotation) if part is not Ellipsis]
    if typing.get_origin(annotation) in (dict, Mapping):
        parts = parts[1:]
    return [one for part in parts for one in _choices(part)] if parts else [annotation]


def _wrong(document: type[Document], owners: list[Any], where: str) -> Iterator[str]:
    """Yield what fields of the document are read from that its owners do not have."""
    if owners == [document]:
        return
    for name, field in document.model_fields.items():
        at = next((one for one in field.metadata if isinstance(one, At)), At(name))
        try:
            ends = _walk(owners, at.path)
        except AttributeError as error:
            yield f"{where}.{name}: {error}"
            continue
        below = _documents_in(field.annotation)
        if len(below) == 1 and below != [document] and at.convert is None:
            yield from _wrong(below[0], [one for end in ends for one in _elements(end)], f"{where}.{name}")


@pytest.mark.parametrize("view", list(views()), ids=lambda v: v.kind)
def test_every_field_is_read_from_an_attribute_that_there_is(view: type[View]) -> None:
    owners: list[Any] = _walk([view], view.read_from) if view.read_from else [view]
    assert list(_wrong(view.document_class, owners, view.kind)) == []


def test_a_field_that_is_read_from_nowhere_is_seen() -> None:
    class Wrong(Document):
        no_such: str

    assert list(_wrong(Wrong, [At], "here")) == ["here.no_such: At has no no_such"]
