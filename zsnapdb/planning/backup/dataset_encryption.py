"""The limits that ZFS native encryption sets for storing, receiving and renaming datasets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from zsnapdb.planning.backup.fitness import FitnessFinding, ok, unfit, warning
from zsnapdb.planning.backup.send_form import SendForm


@dataclass(frozen=True)
class DatasetEncryption:
    """The ZFS encryption of a dataset. `cipher` is None if the dataset is not encrypted.

    `root` is the dataset's encryption root. If `is_unlocked` is set, the key is loaded. If `is_typed` is set, a user
    must type the key, because the dataset's own keylocation is prompt.
    """

    cipher: str | None = None
    root: str | None = None
    is_unlocked: bool = True
    is_typed: bool = False


CLEAR = DatasetEncryption()
_MAKE_KEYS = "make keys with `zsnapdb key generate`, and set recipients in the encryption of the repository"


def judge_storing(ciphers: Mapping[str, str], *, is_encrypting: bool) -> list[FitnessFinding]:
    """Return findings that prevent storing the volumes. `ciphers` maps each ZFS-encrypted dataset to its cipher.

    `zfs send` decrypts the data unless the stream is raw (zfs-send(8), --raw). Therefore the repository must encrypt
    the data if the streams are not raw.
    """
    if is_encrypting:
        return []
    return [
        unfit(
            "datasets",
            f"{dataset} is encrypted ({cipher}), and the repository has no recipients: it would be stored unencrypted",
            _MAKE_KEYS,
        )
        for dataset, cipher in sorted(ciphers.items())
    ]


def judge_raw(volumes: Iterable[str], ciphers: Mapping[str, str]) -> list[FitnessFinding]:
    """Return findings that prevent raw streams of volumes without ZFS encryption, which would be stored unencrypted."""
    return [
        unfit(
            "datasets",
            f'{dataset} is not encrypted by ZFS, and send = "raw" stores what ZFS encrypts',
            'move it to an encrypted dataset, or set send = "plain" in the stream of the repository',
        )
        for dataset in sorted(set(volumes) - set(ciphers))
    ]


def judge_raw_drills(*, is_drilled: bool) -> list[FitnessFinding]:
    """Return a warning if no drills of raw backups are planned.

    Verification reads only the encrypted data, but some bugs of ZFS appeared only when data was decrypted or received
    (openzfs#16351, openzfs#18739).
    """
    if is_drilled:
        return []
    text = (
        "no drill of the raw backups is planned, and only a drill proves that they can be decrypted (openzfs#16351,"
        " openzfs#18739)"
    )
    hint = "set drill in [instance.NAME.agent], or drill_age in [instance.NAME.objectives]"
    return [warning("encryption", text, hint)]


def judge_sent(
    volumes: Iterable[str], ciphers: Mapping[str, str], send: str, *, is_encrypting: bool
) -> list[FitnessFinding]:
    """Return findings that prevent sending the volumes to the repository with the setting `send`."""
    if send == SendForm.RAW:
        return judge_raw(volumes, ciphers)
    return judge_storing(ciphers, is_encrypting=is_encrypting)


def judge_archiving(is_encrypted: bool, *, is_encrypting: bool) -> list[FitnessFinding]:
    """Return a warning if the archive refuses the server's binlogs.

    The archive refuses binlogs that are encrypted on the host if the repository would not encrypt them. Backups are
    possible without the archive, but restores to a point in time need the archive.
    """
    if not is_encrypted or is_encrypting:
        return []
    text = (
        "the binlogs are encrypted on this host, and the repository has no recipients: they are not archived, as they"
        " would be stored unencrypted"
    )
    return [warning("binlog", text, _MAKE_KEYS)]


def judge_sending(ciphers: Mapping[str, str], release: tuple[int, ...]) -> list[FitnessFinding]:
    """Return a warning if this OpenZFS release is known to send encrypted datasets incorrectly.

    In openzfs#12014, snapshots of encrypted datasets could be damaged, or appear damaged, after they were sent.
    Releases 2.2.8 and 2.3.3 fixed this bug.
    """
    if not ciphers or not release or release >= (2, 3, 3) or (2, 2, 8) <= release < (2, 3):
        return []
    known = f"OpenZFS {'.'.join(map(str, release))} can damage snapshots of encrypted datasets that are sent"
    return [warning("zfs", f"{known} (openzfs#12014)", "use OpenZFS 2.2.8, 2.3.3 or newer, and drill the backups")]


def judge_receiving(encrypted: tuple[str, ...], parent: str, at_rest: DatasetEncryption) -> list[FitnessFinding]:
    """Return an error finding if the target's key is not loaded, and a warning if volumes would become unencrypted.

    `encrypted` contains the volumes that were encrypted on the source. Received datasets inherit the encryption
    `at_rest` of `parent` (zfs-receive(8)).
    """
    if not at_rest.is_unlocked:
        root = at_rest.root or parent
        return [unfit("encryption", f"the key of {root} is not loaded", f"load it: zfs load-key {root}")]
    if not encrypted or at_rest.cipher is not None:
        return []
    text = f"{', '.join(encrypted)} was encrypted at the source; below {parent} it is unencrypted"
    return [warning("encryption", text, "choose a target below an encrypted dataset, if it must be encrypted at rest")]


def judge_raw_keys(raw: tuple[str, ...], key_file: str | None, trouble: str | None) -> list[FitnessFinding]:
    """Return the findings about the key of volumes that were stored raw; an empty list if no volume was stored raw.

    `key_file` is the configured file, if any. If this file cannot be used, `trouble` is the reason, otherwise None.
    """
    if not raw:
        return []
    listed = ", ".join(raw)
    setting = "key_file in [instance.NAME.encryption]"
    if key_file is None:
        return [unfit("encryption", f"{listed} was stored raw, and no file has its key", f"set {setting}")]
    if trouble is not None:
        hint = f"restore the former key to {key_file}, or set {setting}"
        return [unfit("encryption", f"the key of {listed}, which was stored raw, cannot be used: {trouble}", hint)]
    return [ok("encryption", f"{listed} was stored raw; its key is in {key_file}")]


@dataclass(frozen=True)
class PlaceObjection:
    """The reason why a dataset cannot get a certain name, and a hint."""

    reason: str
    hint: str


@dataclass(frozen=True)
class NameChange:
    """A planned rename of the dataset `source` to the name `place`. The dataset has the encryption `own`.

    `home` describes the parent of the old name, and `around` the parent of the new name. `replaced` describes the
    dataset that has the new name now.
    """

    source: str
    place: str
    own: DatasetEncryption
    home: DatasetEncryption
    around: DatasetEncryption
    replaced: DatasetEncryption


def objection_to(move: NameChange) -> PlaceObjection | None:
    """Return why the dataset cannot be renamed, or could not be renamed back; None if both are possible.

    ZFS does not rename a dataset to a place outside its encryption root (zfs-rename(8)). If the parent stays the same,
    ZFS can rename any dataset, and an encryption root keeps its key. A clone has the encryption root of its origin,
    even if its parent has a different root (observed with OpenZFS 2.3.9).
    """
    parent = move.place.rpartition("/")[0]
    if move.replaced.cipher is not None and move.own.cipher is None:
        text = f"{move.place} is encrypted ({move.replaced.cipher}), and {move.source}, which would replace it, is not"
        return PlaceObjection(text, "name a target below an encrypted dataset")
    is_moved = move.source.rpartition("/")[0] != parent
    is_root = move.own.root == move.source
    if (
        move.own.cipher is not None
        and is_moved
        and not is_root
        and {move.around.root, move.home.root} != {move.own.root}
    ):
        text = (
            f"{move.source} has the encryption root {move.own.root}; ZFS would not rename it to {move.place}, or not"
            " back again"
        )
        return PlaceObjection(text, f"name a target next to it: --target {parent}/NAME")
    return None


def judge_key(place: str, replaced: DatasetEncryption) -> list[FitnessFinding]:
    """Return a warning if a user must type a key after a clone has replaced the dataset `place`.

    A promoted clone becomes the encryption root in place of its origin, and ZFS forgets the loaded key (observed with
    OpenZFS 2.3.9). Mounted datasets continue to work, but no further datasets can be mounted until the key is loaded
    again.
    """
    if replaced.cipher is None or replaced.root != place or not replaced.is_typed:
        return []
    text = f"ZFS forgets the loaded key of {place} when its clone takes over its snapshots, and the key must be typed"
    return [warning("encryption", text, f"type it right after the restore: zfs load-key {place}")]
