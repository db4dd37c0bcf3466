"""What damage means is the same as if each chain were walked by itself, in a time that grows with the backups."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.errors import DamagedError
from zsnapdb.planning.backup_chain import Lineage, Link
from zsnapdb.planning.repository.verification import Consequences, consequences


@dataclass(frozen=True)
class Part:
    role: str
    guid: int
    from_guid: int | None
    send_flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stored:
    backup_id: str
    volumes: tuple[Part, ...]
    pool_guid: int = 1
    createtxg: int = 1
    sequence: int | None = None


def stored(number: int, base: int | None) -> Link:
    """Return backup `number`, an increment of another, or of one that is not there."""
    return Stored(f"b{number:05d}", (Part("data", number, base),))  # type: ignore[return-value]


def walked(links: Sequence[Link], damaged: Collection[str]) -> Consequences:
    """Return the same by the chain of each backup."""
    lineage = Lineage(links, damaged)
    dependents: dict[str, list[str]] = {name: [] for name in damaged}
    broken, restorable = dict[str, str](), list[str]()
    for link in links:
        try:
            bad = [one.backup_id for one in lineage.chain(link) if one.backup_id in dependents]
        except DamagedError as error:
            broken[link.backup_id] = error.message
            continue
        for name in bad:
            if name != link.backup_id:
                dependents[name].append(link.backup_id)
        if not bad:
            restorable.append(link.backup_id)
    return Consequences({name: tuple(needing) for name, needing in dependents.items()}, broken, tuple(restorable))


@given(st.lists(st.none() | st.integers(0, 15), max_size=14), st.sets(st.integers(0, 15), max_size=4))
def test_it_is_the_same_as_if_each_chain_were_walked(bases: list[int | None], bad: set[int]) -> None:
    """Bases are any others: missing ones, later ones, and ways that go round."""
    links = [stored(number, base) for number, base in enumerate(bases)]
    damaged = [f"b{number:05d}" for number in sorted(bad)]
    assert consequences(links, damaged) == walked(links, damaged)


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_long_chain_is_walked_once(is_broken: bool) -> None:
    links = [stored(number, number - 1 if number else 99_999 if is_broken else None) for number in range(20_000)]
    began = time.process_time()
    found = consequences(links, [])
    assert len(found.broken if is_broken else found.restorable) == len(links)
    assert time.process_time() - began < 5, "each chain by itself takes minutes"
