"""All clones of a set are made from the snapshot set of the first one."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from zsnapdb.base.errors import ConsistencyError, ExistsError
from zsnapdb.jobs.clone import topology
from zsnapdb.jobs.clone.request import CloneRequest
from zsnapdb.planning.clone.topology import CloneTopology


def claim(label: str) -> Any:
    return SimpleNamespace(name=label, label=label, set_name="", is_called=lambda word: word == label)


@pytest.mark.parametrize(
    ("source", "sources"),
    [
        # A snapshot set of another program has no id: `@NAME` alone names it.
        ("@nightly", ["@nightly", "@nightly", "@nightly"]),
        ("live", ["live", "nightly", "nightly"]),
    ],
)
def test_every_member_of_a_set_is_made_from_the_snapshots_of_the_first(
    monkeypatch: pytest.MonkeyPatch, source: str, sources: list[str]
) -> None:
    requests: list[CloneRequest] = []

    def make(_settings: Any, _instance: Any, request: CloneRequest) -> Any:
        requests.append(request)
        original = "nightly" if request.source == "live" else request.source
        info = SimpleNamespace(original=original, original_key=keys.pop(), label=request.name, port=1, top="tank/c")
        return SimpleNamespace(info=info)

    keys, names, labels = ["b", "a", "a", "a", "a", "a", "a", "a", "a"], ("c-1", "c-2", "c-3"), ["c-1"]
    planned = SimpleNamespace(
        names=names, first=SimpleNamespace(made_from=SimpleNamespace(source=None, set_id="nightly"))
    )
    monkeypatch.setattr(topology, "plan_set", lambda *_: planned)
    monkeypatch.setattr(topology, "make_running", make)
    monkeypatch.setattr(topology, "_destroy_all", lambda *_: None)
    monkeypatch.setattr("zsnapdb.zfs.datasets.set_properties", lambda *_: None)
    monkeypatch.setattr("zsnapdb.jobs.clone.locks.names_and_ports", contextlib.nullcontext)
    monkeypatch.setattr(
        "zsnapdb.jobs.clone.catalogue.claims", lambda _: SimpleNamespace(copies=[claim(one) for one in labels])
    )
    settings: Any = SimpleNamespace()
    instance: Any = SimpleNamespace(host=None, events=SimpleNamespace(tell=lambda _: None))
    request = CloneRequest(owner="me", source=source)
    topology.create_set(settings, instance, request, 3, CloneTopology.INDEPENDENT)
    assert [made.name for made in requests] == list(names)
    assert [made.source for made in requests] == sources

    # While the clones were created, another user created a clone with the name of the set.
    labels.append("c")
    with pytest.raises(ExistsError, match="the name c is taken"):
        topology.create_set(settings, instance, request, 3, CloneTopology.INDEPENDENT)
    labels.remove("c")
    with pytest.raises(ConsistencyError, match="somebody renamed or replaced"):
        topology.create_set(settings, instance, request, 3, CloneTopology.INDEPENDENT)
    assert len(requests) == 9
