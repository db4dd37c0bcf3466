"""Chooses how the streams of the next backup are sent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from zsnapdb.jobs.backup.sample import zstd_effect
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.planning.backup.send_form import (
    AUTO,
    SEND_FLAGS,
    Compressibility,
    FormChoice,
    SendForm,
    ZstdEffect,
    choose_form,
    form_of,
)
from zsnapdb.repository.catalogue import Summary
from zsnapdb.zfs import datasets
from zsnapdb.zfs.datasets import Property

_LYING, _LOGICAL, _MOUNTED, _MOUNTPOINT = "referenced", "logicalreferenced", "mounted", "mountpoint"


def choose(
    instance: Instance, volumes: Mapping[str, str], base: Summary | None, stored: Sequence[Summary]
) -> FormChoice:
    """Return the form of the next backup. An increment has the form of its base. `volumes` are datasets by role."""
    setting = instance.repository.stream.send
    if setting != AUTO:
        return FormChoice(SendForm(setting), "by the setting send")
    if base is not None:
        continued = form_of(base.volumes[0].send_flags)
        assert continued is not None, "a base was sent with flags of ours"
        return FormChoice(continued, "as the rest of the chain")
    by_dataset = datasets.properties_of(list(volumes.values()), [_LYING, _LOGICAL, _MOUNTED, _MOUNTPOINT])
    level = instance.upload_settings().level
    return choose_form(
        Compressibility(
            logical=sum(int(values[_LOGICAL].value) for values in by_dataset.values()),
            lying=sum(int(values[_LYING].value) for values in by_dataset.values()),
            zstd=_stored_effect(stored) or _sampled(by_dataset.values(), level),
            level=level,
            processors=len(os.sched_getaffinity(0)),
        )
    )


def _sampled(volumes: Iterable[Mapping[str, Property]], level: int) -> ZstdEffect | None:
    """Return what zstd of the level makes of samples of the mounted filesystems. None if it would not be used."""
    mounted = [Path(each[_MOUNTPOINT].value) for each in volumes if each[_MOUNTED].value == "yes"]
    return zstd_effect(mounted, level) if level else None


def _stored_effect(stored: Sequence[Summary]) -> ZstdEffect | None:
    """Return what zstd made of the newest plain full backup. `stored`: oldest first."""
    plain = SEND_FLAGS[SendForm.PLAIN]
    for backup in reversed(stored):
        if backup.is_full and all(v.send_flags == plain for v in backup.volumes) and backup.plain_size:
            return ZstdEffect(backup.stored_size / backup.plain_size, "in the last plain full backup")
    return None
