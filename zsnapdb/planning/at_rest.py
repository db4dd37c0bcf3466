"""What native encryption of ZFS allows: what may be stored, where it may be received, which names it may get. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zsnapdb.planning.backup.fitness import FitnessFinding, unfit, warning


@dataclass(frozen=True)
class AtRest:
    """How ZFS encrypts a dataset. `cipher` None: not at all. `root` is the dataset whose key opens it."""

    cipher: str | None = None
    root: str | None = None
    is_unlocked: bool = True


CLEAR = AtRest()


def judge_storing(ciphers: Mapping[str, str], *, is_encrypting: bool) -> list[FitnessFinding]:
    """Return why the volumes must not be stored. `ciphers`: the cipher of each encrypted dataset.

    `zfs send` decrypts what it reads, unless the stream is raw (zfs-send(8), --raw). What leaves the host must then be
    encrypted by the repository.
    """
    if is_encrypting:
        return []
    return [
        unfit(
            "datasets",
            f"{dataset} is encrypted ({cipher}), and the repository has no recipients: it would be stored in the clear",
            "make keys with `zsnapdb key generate`, and set recipients in the encryption of the repository",
        )
        for dataset, cipher in sorted(ciphers.items())
    ]


def judge_sending(ciphers: Mapping[str, str], release: tuple[int, ...]) -> list[FitnessFinding]:
    """Return a warning if this release of OpenZFS is known to send encrypted datasets badly.

    openzfs#12014: snapshots of encrypted datasets that are sent could be damaged, or seem so. Releases 2.2.8 and 2.3.3
    have the mends.
    """
    if not ciphers or not release or release >= (2, 3, 3) or (2, 2, 8) <= release < (2, 3):
        return []
    return [
        warning(
            "zfs",
            f"OpenZFS {'.'.join(map(str, release))} can damage snapshots of encrypted datasets that are sent"
            " (openzfs#12014)",
            "use OpenZFS 2.2.8, 2.3.3 or newer, and drill the backups",
        )
    ]


def judge_receiving(encrypted: tuple[str, ...], parent: str, cipher: str | None) -> list[FitnessFinding]:
    """Return a warning if volumes that were encrypted where they were backed up are received in the clear.

    `cipher` is that of `parent`, below which they are received: what is received inherits it (zfs-receive(8)).
    """
    if not encrypted or cipher is not None:
        return []
    return [
        warning(
            "encryption",
            f"{', '.join(encrypted)} was encrypted where it was backed up; below {parent} it lies in the clear",
            "choose a target below an encrypted dataset, if it must be encrypted at rest",
        )
    ]


@dataclass(frozen=True)
class PlaceObjection:
    """Why a dataset cannot take a name, and what to do."""

    reason: str
    hint: str


def objection_to_place(place: str, source: str, own: AtRest, replaced: AtRest, around: AtRest) -> PlaceObjection | None:
    """Return why the dataset `source` cannot take the name `place`; None if it can.

    `own` is how it is encrypted, `replaced` how the dataset is that has the name, `around` the parent of the name.
    ZFS renames no dataset out of its encryption root (zfs-rename(8)); within one parent it renames all. Tried with
    OpenZFS 2.3.9: a clone has the encryption root of its origin, wherever it lies.
    """
    parent = place.rpartition("/")[0]
    beside = f"name a target beside it: --target {parent}/NAME"
    if replaced.cipher is not None and own.cipher is None:
        text = f"{place} is encrypted ({replaced.cipher}), and {source}, which would replace it, is not"
        return PlaceObjection(text, "name a target below an encrypted dataset")
    is_moved = source.rpartition("/")[0] != parent
    if own.cipher is not None and is_moved and own.root != around.root:
        text = f"{source} has the encryption root {own.root}; ZFS could not rename it to {place}, out of that root"
        return PlaceObjection(text, beside)
    return None


def must_lie_beside(own: AtRest, around: AtRest) -> bool:
    """Whether a clone of the dataset can take its name only from beside it. `around`: its parent."""
    return own.cipher is not None and own.root != around.root
