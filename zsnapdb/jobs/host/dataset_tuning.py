"""The properties of a dataset that decide how its data is stored: recorded by backups, and given to copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from zsnapdb.base.errors import CommandTimeout, ZsnapdbError
from zsnapdb.base.patterns import printable
from zsnapdb.planning.dataset_properties import PropertyClass, names_of, newer_names
from zsnapdb.zfs import datasets, own_properties


@dataclass(frozen=True)
class TunedVolume:
    """What a manifest records of a dataset: how its data is stored, and the cipher of ZFS (None: not encrypted).

    `properties` are the values of the properties of data, set on the dataset or inherited.
    """

    properties: dict[str, str]
    encryption: str | None


def volume_facts(places: Iterable[str]) -> dict[str, TunedVolume]:
    """Return what a manifest records of each dataset. One command reads them."""
    names = sorted(set(places))
    wanted = {*names_of(PropertyClass.DATA, "filesystem"), *names_of(PropertyClass.DATA, "volume")}
    read = own_properties.read_known(names, (*sorted(wanted), "encryption"))
    return {dataset: _tuned(values) for dataset, values in read.items()}


def unknown_here(recorded: Iterable[Mapping[str, str]], pool: str) -> dict[str, str]:
    """Return the recorded values of data that the OpenZFS of this host has no property for. Mostly nothing is asked."""
    values = {name: value for each in recorded for name, value in each.items()}
    newer = newer_names(values)
    known = own_properties.known_names(pool) if newer else ()
    return {name: values[name] for name in newer if name not in known}


def _tuned(values: Mapping[str, datasets.Property]) -> TunedVolume:
    cipher = values["encryption"].value
    kept = {name: seen.value for name, seen in values.items() if name != "encryption" and seen.value != datasets.UNSET}
    return TunedVolume(kept, None if cipher in ("off", datasets.UNSET) else cipher)


def tune(dataset: str, values: Mapping[str, str], marks: Mapping[str, str], warn: Callable[[str], None]) -> None:
    """Give a copy its marks and the values of its source. One that this OpenZFS or this pool cannot have is warned of.

    A value of a newer OpenZFS, or of a feature that the pool has not, is no reason to be without the copy.
    """
    try:
        datasets.set_properties(dataset, {**values, **marks})
        return
    except CommandTimeout:
        raise
    except ZsnapdbError:
        datasets.set_properties(dataset, marks)
    for name, value in values.items():
        try:
            datasets.set_properties(dataset, {name: value})
        except CommandTimeout:
            raise
        except ZsnapdbError as error:
            warn(f"{dataset} is without {name}={printable(value[:200])} of its source: {error.message}")
