"""Datasets are made, or an error says that they exist."""

from __future__ import annotations

import pytest

from zsnapdb.base.errors import ExistsError, NotFound
from zsnapdb.zfs import datasets


class _Pool:
    """The dataset commands on a pool, as zfs-create(8) describes them."""

    def __init__(self) -> None:
        self.names = {"tank"}
        self.made_meanwhile: list[str] = []
        """What another process makes after this one has looked, and before it makes it itself."""

    def run(self, argv: list[str], *, timeout: float = 60.0) -> str:
        name = argv[-1]
        if argv[1] == "create":
            if name in self.made_meanwhile:
                self.names.add(name)
            if name in self.names:
                raise ExistsError(f"{name}: dataset already exists")
            assert name.rpartition("/")[0] in self.names
            assert {"mountpoint=none", "canmount=off"} <= set(argv), "it could be mounted somewhere"
            self.names.add(name)
        elif name not in self.names:
            raise NotFound(f"{name}: dataset does not exist")
        return ""


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> _Pool:
    pool = _Pool()
    monkeypatch.setattr(datasets, "run", pool.run)
    return pool


def test_a_dataset_that_somebody_made_is_never_taken_for_a_new_one(pool: _Pool) -> None:
    datasets.create("tank/zsnapdb/clones/one", {})
    assert {"tank/zsnapdb/clones", "tank/zsnapdb/clones/one"} <= pool.names
    with pytest.raises(ExistsError):
        datasets.create("tank/zsnapdb/clones/one", {})


def test_a_parent_is_made_once_however_many_processes_need_it(pool: _Pool) -> None:
    datasets.ensure("tank/zsnapdb/clones")
    datasets.ensure("tank/zsnapdb/clones")
    assert "tank/zsnapdb/clones" in pool.names


@pytest.mark.parametrize("others", [["tank/zsnapdb"], ["tank/zsnapdb", "tank/zsnapdb/clones"], ["tank/zsnapdb/clones"]])
def test_parents_that_another_process_makes_at_the_same_moment_are_no_error(pool: _Pool, others: list[str]) -> None:
    pool.made_meanwhile = others
    datasets.ensure("tank/zsnapdb/clones")
    datasets.create("tank/zsnapdb/clones/one", {})
    assert {"tank/zsnapdb/clones", "tank/zsnapdb/clones/one"} <= pool.names
