"""Finds the objects of a backup that are in an archive class of the store, and cannot be read at once."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from zsnapdb.base.errors import ArchivedError
from zsnapdb.planning.repository.archive_classes import ArchivedObjects
from zsnapdb.repository.layout import K
from zsnapdb.repository.objects import ListedObject, RepositoryObjects
from zsnapdb.store.base import ARCHIVED_HINT, Retrieval

_PARALLEL_REQUESTS = 16


def find_archived(objects: RepositoryObjects, listed: Iterable[ListedObject[K]]) -> tuple[ArchivedObjects, ...]:
    """Return the listed objects that cannot be read now, by archive class. Retrieved objects are left out.

    Only objects in an archive class cost a request each.
    """
    cold = [one for one in listed if one.archive_class]
    if not cold:
        return ()
    with ThreadPoolExecutor(_PARALLEL_REQUESTS, thread_name_prefix="archived") as pool:
        states = list(pool.map(lambda one: objects.retrieval(one.key), cold))
    waiting = [(one, state) for one, state in zip(cold, states, strict=True) if state is not Retrieval.DONE]
    archived = []
    for name in sorted({one.archive_class for one, _ in waiting}):
        here = [(one, state) for one, state in waiting if one.archive_class == name]
        running = sum(state is Retrieval.RUNNING for _, state in here)
        archived.append(ArchivedObjects(name, len(here), sum(one.size for one, _ in here), running))
    return tuple(archived)


def require_readable(objects: RepositoryObjects, listed: Iterable[ListedObject[K]], what: str) -> None:
    """Raise ArchivedError if a listed object cannot be read now. `what` names the owner of the objects."""
    archived = find_archived(objects, listed)
    if archived:
        raise ArchivedError(f"{what}: {'; '.join(one.describe() for one in archived)}", hint=ARCHIVED_HINT)
