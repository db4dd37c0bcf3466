"""A restore from the snapshots on the host plans clones instead of streams, and needs neither chunks nor keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.planning_host import BACKUPS, PlanningHost
from zsnapdb.base.domain_types import Snapshot
from zsnapdb.base.errors import NotFound, PreflightError
from zsnapdb.jobs.restore import handover
from zsnapdb.jobs.restore.handover_plan import Handover
from zsnapdb.jobs.restore.plan import RestoreRequest
from zsnapdb.jobs.restore.runbook import _options
from zsnapdb.planning.restore.plan import RestoreOrigin, RestorePlan
from zsnapdb.planning.restore.runbook import Commands, entries
from zsnapdb.planning.restore.steps import CloneSnapshot, Preflight, PromotePart
from zsnapdb.zfs import datasets, destruction, snapshots
from zsnapdb.zfs.datasets import Property


@pytest.fixture
def local(host: PlanningHost, monkeypatch: pytest.MonkeyPatch) -> dict[str, Snapshot]:
    """The snapshots on the host, by full name: those of the backup."""
    here: dict[str, Snapshot] = {}
    for volume in host.instance.open_repository().manifest("main", BACKUPS[0]).volumes:
        made = Snapshot(volume.dataset, volume.snapshot, volume.guid, 2)
        here[made.full_name] = made

    def describe(names: list[str]) -> list[Snapshot]:
        for name in names:
            if name not in here:
                raise NotFound(f"{name} does not exist")
        return [here[name] for name in names]

    monkeypatch.setattr(snapshots, "describe", describe)
    return here


def planned(host: PlanningHost, origin: RestoreOrigin) -> RestorePlan:
    return host.plan(BACKUPS[0], origin=origin)


def test_the_plan_clones_every_volume_and_fetches_nothing(host: PlanningHost, local: dict[str, Snapshot]) -> None:
    plan = planned(host, RestoreOrigin.AUTO)
    assert [step.origin for step in plan.clones] == sorted(local, key=len)
    assert plan.receives == ()
    preflight = plan.steps[0]
    assert isinstance(preflight, Preflight)
    assert (preflight.fetches, preflight.stored_bytes, preflight.plain_bytes) == (False, 0, 0)
    assert "nothing of it is fetched" in plan.point.notes[-1]


def test_without_the_snapshots_the_plan_fetches_and_says_why(host: PlanningHost, local: dict[str, Snapshot]) -> None:
    local.clear()
    plan = planned(host, RestoreOrigin.AUTO)
    assert plan.clones == ()
    assert plan.receives
    assert "it has no snapshot of volume" in plan.point.notes[-1]
    with pytest.raises(PreflightError, match="cannot be restored from the snapshots on this host"):
        planned(host, RestoreOrigin.LOCAL)


def test_whoever_does_not_ask_takes_the_repository(host: PlanningHost, local: dict[str, Snapshot]) -> None:
    plan = host.plan(BACKUPS[0])
    assert (plan.clones, plan.point.notes) == ((), ())
    assert plan.point_identity == planned(host, RestoreOrigin.LOCAL).point_identity


def test_the_runbook_has_a_page_for_each_clone_and_names_the_origin(
    host: PlanningHost, local: dict[str, Snapshot]
) -> None:
    plan = planned(host, RestoreOrigin.AUTO)
    commands = Commands("main", BACKUPS[0], plan.layout.top, ("--as", "main"), (), None)
    pages = entries(plan, commands, ())
    cloned = [page for page, step in zip(pages, plan.steps, strict=True) if isinstance(step, CloneSnapshot)]
    assert ["zfs clone -o canmount=noauto" in page.underneath[0] for page in cloned] == [True] * len(local)
    assert _options(plan, RestoreRequest(BACKUPS[0], handover=Handover()))[-2:] == ("--origin", "local")


def test_a_clone_is_promoted_once_and_what_came_along_is_never_destroyed(
    host: PlanningHost, local: dict[str, Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    origins: list[str] = []
    monkeypatch.setattr(datasets, "properties", lambda name, keys: {"origin": Property(origins[-1], "-")})
    monkeypatch.setattr(destruction, "destroy_snapshots_of", lambda name, mark: done.append(f"destroy {name}"))
    monkeypatch.setattr(datasets, "promote", lambda name: done.append(f"promote {name}"))
    cloned, received = planned(host, RestoreOrigin.LOCAL), host.plan(BACKUPS[0])
    step = cloned.clones[0]
    part = PromotePart(step.role, step.dataset, "tank/place", "tank/place-old", "/place")
    short = step.origin.partition("@")[2]
    for plan, origin, expected in (
        (cloned, f"tank/place-old@{short}", ["destroy tank/place", "promote tank/place"]),
        (cloned, "-", []),
        (cloned, "tank/grandparent@earlier", []),
        (received, "-", ["destroy tank/place"]),
    ):
        done.clear()
        origins.append(origin)
        handover._take_over_snapshots(plan, part)
        assert done == expected


@pytest.mark.parametrize("address", [{}, {"socket": Path("/run/m.sock")}, {"host": "127.0.0.1"}])
def test_promote_names_the_next_backup_or_the_setup_of_a_host_without_server(
    host: PlanningHost, address: dict[str, object]
) -> None:
    settings = host.instance.settings.model_copy(update={"socket": None, "host": None, **address})
    instance = replace(host.instance, settings=settings)
    text = handover._backups_again(instance, is_increment=False)
    setup = f"`zsnapdb setup {instance.repository.url} --take-over`"
    assert (setup in text, "run `zsnapdb backup`" in text) == (not address, bool(address))
