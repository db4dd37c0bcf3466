"""Native ZFS encryption of datasets: the cipher, the encryption root, and whether the key is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from zsnapdb.base.errors import CommandError
from zsnapdb.planning.backup.dataset_encryption import DatasetEncryption
from zsnapdb.zfs import datasets
from zsnapdb.zfs.command import ZFS, number_in, run
from zsnapdb.zfs.datasets import Property

_KEYS = ("encryption", "encryptionroot", "keystatus", "keylocation")


def at_rest(names: Iterable[str]) -> dict[str, DatasetEncryption]:
    """Return how each of the datasets is encrypted. One command reads this.

    Raises NotFound if a dataset does not exist.

    zfsprops(7): `encryption` is off or the cipher; `encryptionroot` is the dataset with the key; `keystatus` is
    `available` if that key is loaded; `keylocation` is `prompt` on an encryption root whose key must be typed.
    """
    chosen = sorted(set(names))
    if not chosen:
        return {}
    return {name: _at_rest(values) for name, values in datasets.properties_of(chosen, _KEYS).items()}


def _at_rest(values: Mapping[str, Property]) -> DatasetEncryption:
    return DatasetEncryption(
        None if values["encryption"].value in ("off", datasets.UNSET) else values["encryption"].value,
        None if values["encryptionroot"].value in ("", datasets.UNSET) else values["encryptionroot"].value,
        is_unlocked=values["keystatus"].value != "unavailable",
        is_typed=values["keylocation"].value == "prompt",
    )


@dataclass(frozen=True)
class ReceivingPlace:
    """Free bytes and encryption of a dataset below which a stream will be received."""

    free: int
    at_rest: DatasetEncryption


def receiving_place(dataset: str) -> ReceivingPlace:
    """Return the free bytes and the encryption of a dataset, for a receive below it. One command reads them."""
    values = datasets.properties(dataset, [*_KEYS, "available"])
    free = number_in(values["available"].value, [ZFS, "get", "available", dataset])
    return ReceivingPlace(free, _at_rest(values))


def unlock(places: Iterable[str]) -> None:
    """Load the missing keys of the given datasets. One command reads which keys are loaded.

    If a key is wrong, or is missing at its `keylocation`, raises CommandError with the encryption root.
    """
    for root in sorted({seen.root for seen in at_rest(places).values() if seen.root and not seen.is_unlocked}):
        try:
            load_key(root)
        except CommandError as error:
            raise CommandError(
                f"the key of {root} cannot be loaded: {error.message}",
                hint=f"bring its key to where `zfs get keylocation {root}` says, or type it (`zfs load-key {root}`),"
                " and run the command again",
            ) from error


def load_key(root: str) -> None:
    """Load the key of an encryption root from its `keylocation` (zfs-load-key(8)).

    Raises CommandError if the key is missing or would have to be typed.
    """
    run([ZFS, "load-key", root])
