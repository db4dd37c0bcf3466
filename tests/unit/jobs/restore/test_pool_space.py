"""No restore begins in a pool that has no space for what it receives, and for the recovery of its server."""

from __future__ import annotations

from unittest import mock

from hypothesis import example, given
from hypothesis import strategies as st

from zsnapdb.jobs.restore.preflight import judge_pool
from zsnapdb.planning.backup.dataset_encryption import DatasetEncryption
from zsnapdb.planning.backup.fitness import Severity
from zsnapdb.planning.restore.steps import PoolNeeds
from zsnapdb.planning.server_space import START_BYTES
from zsnapdb.zfs import datasets, encryption, version

BYTES = st.integers(0, 1 << 44)


@given(free=BYTES, stored=st.just(0) | BYTES, more=BYTES)
@example(free=0, stored=0, more=0)
@example(free=START_BYTES - 1, stored=0, more=0)
@example(free=START_BYTES, stored=0, more=0)
def test_full_pool_refuses_every_restore(free: int, stored: int, more: int) -> None:
    needs = PoolNeeds("tank", "tank/zsnapdb", stored + more, stored, 0, "zfs-2.3.9")
    place = encryption.ReceivingPlace(free, DatasetEncryption(None, None, is_unlocked=True, is_typed=False))
    with (
        mock.patch.object(datasets, "exists", return_value=True),
        mock.patch.object(encryption, "receiving_place", return_value=place),
        mock.patch.object(version, "missing_features", return_value=()),
        mock.patch.object(version, "userland", return_value="zfs-2.3.9"),
    ):
        space = next(finding for finding in judge_pool(needs) if finding.what == "space")
    is_refused = free < stored + START_BYTES
    fits = Severity.WARNING if free < stored + more else Severity.OK
    assert space.severity is (Severity.UNFIT if is_refused else fits)
    assert ("`zfs list -o space -r tank`" in space.hint) == is_refused
