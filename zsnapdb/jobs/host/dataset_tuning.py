"""The ZFS properties that decide how a dataset's data is stored.

Backups record these properties, and restores set them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from zsnapdb.base.errors import CommandTimeout, ZsnapdbError
from zsnapdb.base.patterns import printable
from zsnapdb.planning.dataset_property_classes import PropertyClass, names_of, newer_names
from zsnapdb.zfs import datasets, explicit_settings


@dataclass(frozen=True)
class TunedVolume:
    """The storage properties of a dataset in a manifest, and its ZFS cipher (None if it is not encrypted).

    `properties` contains the values of the `DATA` properties, whether they are set on the dataset or inherited.
    """

    properties: dict[str, str]
    encryption: str | None


def volume_facts(places: Iterable[str]) -> dict[str, TunedVolume]:
    """Return the storage properties of each dataset for a manifest, read with one command."""
    names = sorted(set(places))
    wanted = {*names_of(PropertyClass.DATA, "filesystem"), *names_of(PropertyClass.DATA, "volume")}
    read = explicit_settings.read_known(names, (*sorted(wanted), "encryption"))
    facts = {}
    for dataset, values in read.items():
        shown = {name: seen.value for name, seen in values.items() if seen.value != datasets.UNSET}
        cipher = shown.pop("encryption", "off")
        facts[dataset] = TunedVolume(shown, None if cipher == "off" else cipher)
    return facts


def unknown_here(recorded: Iterable[Mapping[str, str]], pool: str) -> dict[str, str]:
    """Return the recorded `DATA` values whose property this host's OpenZFS does not know.

    Usually no ZFS command is needed for this.
    """
    values = {name: value for each in recorded for name, value in each.items()}
    newer = newer_names(values)
    known = explicit_settings.known_names(pool) if newer else ()
    return {name: values[name] for name in newer if name not in known}


def tune(dataset: str, values: Mapping[str, str], marks: Mapping[str, str], warn: Callable[[str], None]) -> None:
    """Set zsnapdb's marks and the property values of the source dataset on a copied dataset.

    Warn about values that this OpenZFS or pool does not support. If a value needs a newer OpenZFS or a missing pool
    feature, the property is not set on the copy.
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
