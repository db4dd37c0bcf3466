"""The record of the restores that took production's place on this host, with a file per instance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zsnapdb.base import atomic_file
from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.private_folder import make_private
from zsnapdb.jobs.base.set_properties import INCARNATION_PROPERTY
from zsnapdb.jobs.record.record_file import read
from zsnapdb.planning.repository.production_restores import Placed, ProductionRestore, PutBackRecord
from zsnapdb.zfs import datasets


def recorded(instance: Instance) -> PutBackRecord:
    """Return the restores from which production's present datasets come.

    They end with the restore whose mark is on the volumes. Without a mark there are none: a user put the replaced
    datasets back. If no volume exists, all recorded restores count, because the lost data had this history.

    Raises:
        DamagedError: the record cannot be read.
    """
    known = read(instance.host.put_backs / f"{instance.name}.json", PutBackRecord)
    if known is None or not known.restores:
        return PutBackRecord()
    if instance.settings.volumes is None:
        return known
    places = [name for name in instance.volumes.values() if datasets.exists(name)]
    seen = datasets.properties_of(places, [INCARNATION_PROPERTY]) if places else {}
    marks = {values[INCARNATION_PROPERTY] for values in seen.values()}
    if not marks:
        return known
    mark = marks.pop()
    return known.as_of(mark.value if not marks and mark.is_local else None)


def taken_back(instance: Instance, backups: Iterable[Placed]) -> Mapping[str, str]:
    """Return why backups are no state of present production, by id. The errors are those of `recorded`."""
    found = recorded(instance).taken_back(backups)
    return {name: f"restore {restore_id} took its state back" for name, restore_id in found.items()}


def note(instance: Instance, made: ProductionRestore) -> None:
    """Record that a restore took production's place. Warn if that fails."""
    folder = instance.host.put_backs
    file = folder / f"{instance.name}.json"
    try:
        before = read(file, PutBackRecord) or PutBackRecord()
        make_private(folder)
        atomic_file.replace(file, before.with_restore(made).model_dump_json().encode(), 0o600)
    except (OSError, ZsnapdbError) as error:
        instance.events.warn(
            f"recording in {file} that restore {made.restore_id} put {instance.name} back failed ({error}): until the"
            " next backup, `latest` may be what it took back"
        )
