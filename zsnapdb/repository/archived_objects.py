"""Finds and retrieves the objects of a backup that are in an archive class of the store, and cannot be read at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

from zsnapdb.base.errors import ArchivedError
from zsnapdb.planning.repository.archive_classes import ArchivedObjects
from zsnapdb.repository.layout import K
from zsnapdb.repository.objects import ListedObject, RepositoryObjects
from zsnapdb.store.base import ARCHIVED_HINT, Retrieval

T = TypeVar("T")
R = TypeVar("R")
_PARALLEL_REQUESTS = 16


def find_unreadable(
    objects: RepositoryObjects, listed: Iterable[ListedObject[K]]
) -> list[tuple[ListedObject[K], Retrieval]]:
    """Return the listed objects that cannot be read now, with the states of their retrievals.

    Only objects in an archive class cost a request each.
    """
    cold = [one for one in listed if one.archive_class]
    states = _each(lambda one: objects.retrieval(one.key), cold)
    return [(one, state) for one, state in zip(cold, states, strict=True) if state is not Retrieval.DONE]


def by_class(unreadable: Sequence[tuple[ListedObject[K], Retrieval]]) -> tuple[ArchivedObjects, ...]:
    """Return the unreadable objects by archive class."""
    archived = []
    for name in sorted({one.archive_class for one, _ in unreadable}):
        here = [(one, state) for one, state in unreadable if one.archive_class == name]
        running = sum(state is Retrieval.RUNNING for _, state in here)
        archived.append(ArchivedObjects(name, len(here), sum(one.size for one, _ in here), running))
    return tuple(archived)


def find_archived(objects: RepositoryObjects, listed: Iterable[ListedObject[K]]) -> tuple[ArchivedObjects, ...]:
    """Return the listed objects that cannot be read now, by archive class. Retrieved objects are left out."""
    return by_class(find_unreadable(objects, listed))


def require_readable(objects: RepositoryObjects, listed: Iterable[ListedObject[K]], what: str) -> None:
    """Raise ArchivedError if a listed object cannot be read now. `what` names the owner of the objects."""
    archived = find_archived(objects, listed)
    if archived:
        raise ArchivedError(f"{what}: {'; '.join(one.describe() for one in archived)}", hint=ARCHIVED_HINT)


def start_retrievals(objects: RepositoryObjects, keys: Sequence[K], tier: str, days: int) -> None:
    """Start the retrievals of these objects. Raises RepositoryError if the store refuses one."""
    _each(lambda key: objects.retrieve(key, tier, days), keys)


def without_retrieved(objects: RepositoryObjects, keys: Sequence[K]) -> Sequence[K]:
    """Return the objects without the first of them that can be read now.

    Objects after the first unreadable ones are not looked at, so that a long wait costs few requests.
    """
    bounds = [*range(0, len(keys), _PARALLEL_REQUESTS), len(keys)]
    for begin, end in pairwise(bounds):
        states = _each(objects.retrieval, keys[begin:end])
        left = [key for key, state in zip(keys[begin:end], states, strict=True) if state is not Retrieval.DONE]
        if left:
            return [*left, *keys[end:]]
    return []


def _each(ask: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return an answer for each item. The requests run in parallel."""
    if not items:
        return []
    with ThreadPoolExecutor(_PARALLEL_REQUESTS, thread_name_prefix="archived") as pool:
        return list(pool.map(ask, items))
