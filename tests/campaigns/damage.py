"""Campaign: stored objects are damaged at random; every damage is found, and a restore is exact or refused.

A repository in a folder is prepared once: two chains, plain or encrypted, signed or not. Each round copies it and
damages one object: a flipped bit, a truncation, an empty object, a removal, an exchange with another object of its
kind, or the bytes of an older one. Then `verify --deep` reads everything, and every backup is fetched as by a restore,
with or without the cache of manifests. A stream that arrives completely must be the original one. If damage prevents a
restore, verify or this host's record of stored objects must report it. Streams and ZFS are simulated.

`--stored N` adds N rounds in the guest's own repository, with archived binlogs, pins, checks and evidence. There plans
and restores to points in time are compared with the server's history.
"""

from __future__ import annotations

import argparse
import io
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.campaigns.support import stored_damage
from tests.unit.support import world as worlds
from tests.unit.support.manifests import readable_manifests
from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.jobs.backup.run import backup
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.repository import verify
from zsnapdb.planning.backup_chain import restore_chain
from zsnapdb.repository import crypto_keys
from zsnapdb.repository.manifest import expected_stream
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import Depth
from zsnapdb.store.local import LocalStore
from zsnapdb.stream.download import download

ANY_SERVER = True
HOWS = ("flip", "cut", "empty", "remove", "exchange", "older")
Streams = dict[tuple[str, str], bytes]


@dataclass
class Site:
    """A host with a repository of two chains, and its streams by backup and role."""

    world: worlds.World
    is_encrypted: bool
    is_signed: bool
    streams: Streams

    def instance(self, *, cached: bool) -> Instance:
        """Return the instance as a restoring host sees it, with the cache of manifests or with an empty one."""
        settings = self.world.instance.repository
        encryption = settings.encryption.model_copy(update=self.keys(reads=True))
        host = self.world.instance.host
        host = host if cached else replace(host, cache=self.world.folder / "no-cache")
        return replace(
            self.world.instance, host=host, repository=settings.model_copy(update={"encryption": encryption})
        )

    def keys(self, *, reads: bool) -> dict[str, object]:
        """Return the settings of the keys."""
        folder = self.world.folder
        options: dict[str, object] = {"identity_file": folder / "identity"} if reads and self.is_encrypted else {}
        if self.is_signed:
            signer = crypto_keys.SigningKey.read(folder / "signing").public
            options |= {"signing_key_file": folder / "signing", "signers": (signer,)}
        return options


def fetched(repository: Repository, backup_id: str) -> Streams:
    """Return the streams of a backup and its whole chain, fetched as by a restore."""
    manifests = readable_manifests(repository)
    streams: Streams = {}
    for manifest in restore_chain(manifests, repository.manifest("main", backup_id)):
        for volume in manifest.volumes:
            out, chunks = io.BytesIO(), repository.chunks_of(manifest, volume.role)
            download(
                chunks,
                volume.chunks,
                volume.codec,
                out,
                concurrency=1,
                name=str,
                on_bytes=lambda _: None,
                ciphers=repository.ciphers(manifest),
                expected=expected_stream(volume, volume.features),
            )
            streams[manifest.backup_id, volume.role] = out.getvalue()
    return streams


@contextmanager
def prepared(*, is_encrypted: bool, is_signed: bool) -> Iterator[Site]:
    """Yield a host with a repository of two chains of backups."""
    with tempfile.TemporaryDirectory() as folder, worlds.made(Path(folder)) as world:
        site = Site(world, is_encrypted, is_signed, {})
        if not is_encrypted:
            world.recipients = ()
        if is_signed:
            crypto_keys.write_secret(Path(folder) / "signing", crypto_keys.SigningKey.new().file())
        for full in (True, False, False, True, False):
            backup(site.instance(cached=True), opener=world.open_source, full=full)
        repository = site.instance(cached=True).open_repository()
        for backup_id in repository.backup_ids("main"):
            site.streams |= fetched(repository, backup_id)
        yield site


def damage(store: LocalStore, rng: random.Random) -> tuple[str, str]:
    """Damage one object. Return the kind of damage and the object's key."""
    names = sorted(item.key for item in store.list("") if not item.key.endswith(".lock"))
    key, how = rng.choice(names), rng.choice(HOWS)
    body = store.get(key)
    alike = [name for name in names if name.split("/")[1:2] == key.split("/")[1:2] and name != key]
    if how == "remove" or not body:
        store.delete(key)
    elif how == "flip":
        at = rng.randrange(len(body))
        store.put(key, body[:at] + bytes([body[at] ^ 1 << rng.randrange(8)]) + body[at + 1 :])
    elif how in ("cut", "empty") or not alike:
        store.put(key, body[: rng.randrange(len(body)) if how == "cut" else 0])
    elif how == "exchange":
        other = rng.choice(alike)
        taken = store.get(other)
        store.put(other, body)
        store.put(key, taken)
    else:
        store.put(key, store.get(alike[0]))
    return how, key


def round_of(site: Site, rng: random.Random, folder: Path) -> tuple[str, str, list[str]]:
    """Play one round. Return the damage with the kind of object, the outcome, and the problems."""
    world, good = site.world, site.world.local
    shutil.copytree(world.folder / "store", folder)
    world.local = LocalStore(folder)
    try:
        how, key = damage(world.local, rng)
        kind = key.split("/")[1] if "/" in key else key
        instance = site.instance(cached=rng.random() < 0.5)
        outcome, wrong = judged(site, instance)
        return f"{kind} {how}", outcome, [f"{key}: {text}" for text in wrong]
    finally:
        world.local = good
        shutil.rmtree(folder)
        shutil.rmtree(world.folder / "no-cache", ignore_errors=True)


def judged(site: Site, instance: Instance) -> tuple[str, list[str]]:
    """Verify everything and fetch every backup. Return the outcome and the problems."""
    wrong: list[str] = []
    try:
        repository = instance.open_repository()
        known = instance.summaries(repository)
        missing = host_backup_record.check(instance, repository, known.backups, known.unread).findings
        is_whole = verify.verify(instance, Depth.READ).is_whole and not missing
    except ZsnapdbError as error:
        return f"refused at once ({error.code})", wrong
    refused = 0
    for backup_id in sorted({name for name, _ in site.streams}):
        try:
            came = fetched(repository, backup_id)
        except ZsnapdbError:
            refused += 1
            continue
        if any(site.streams[place] != stream for place, stream in came.items()):
            wrong.append(f"backup {backup_id} came back with other bytes")
        if not any(name == backup_id for name, _ in came):
            wrong.append(f"backup {backup_id} came back as another one")
    if refused and is_whole:
        wrong.append(f"{refused} backups cannot be restored, and neither verify nor the host's record knows")
    return ("exact" if not refused else "refused") + ("" if is_whole else ", known"), wrong


def main() -> int:
    """Run the rounds. Return 0 if all were right."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stored", type=int, default=0, help="rounds in the repository of the guest's server")
    words = parser.parse_args()
    rng, bad = random.Random(words.seed), 0
    outcomes: Counter[str] = Counter()
    for is_encrypted in (False, True):
        for is_signed in (False, True):
            with prepared(is_encrypted=is_encrypted, is_signed=is_signed) as site:
                for number in range(words.rounds // 4):
                    what, outcome, wrong = round_of(site, rng, site.world.folder / "damaged")
                    outcomes[outcome] += 1
                    bad += bool(wrong)
                    label = f"{'encrypted' if is_encrypted else 'plain'}{', signed' if is_signed else ''}"
                    print(f"{label} {number}: {what}: {outcome} {'; '.join(wrong)}", flush=True)
    print(", ".join(f"{count} {name}" for name, count in sorted(outcomes.items())), f"; {bad} wrong")
    bad += stored_damage.run(words.stored, words.seed) if words.stored else 0
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
