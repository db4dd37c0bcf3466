"""Writes the repositories that tests/unit/repository/kept keeps, with the commands of this checkout.

Run it in a guest: `python3 tests/lab exec --flavour FLAVOUR --out DIR -- /opt/venv/bin/python
/checkout/tests/system/kept_repositories.py FLAVOUR`. DIR then has `FLAVOUR.tar.xz`: repositories, keys, what the host
recorded, and the properties that it set. `mysql-small` in the place of the flavour, in a guest with MySQL, writes small
repositories with real streams, plain and as ZFS encrypts them, and nothing of the host.
A later format gets archives of its own beside those of this one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab.inside import ledger
from tests.unit.support.fake_sources import MACHINE
from tests.unit.support.manifests import manifest as example
from tests.unit.support.streams import begin, end, write
from zsnapdb.config.settings import load
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.planning.vm.consistency_level import Grade
from zsnapdb.repository import layout
from zsnapdb.repository.manifest import FilesystemType, VolumePart, ZvolType
from zsnapdb.repository.manifest_source import MachineSourcePart
from zsnapdb.repository.repository import Repository
from zsnapdb.stream.chunks import Codec, seal, stream_hash

KEPT = Path("/kept")
CONFIG = Path("/etc/zsnapdb/zsnapdb.toml")
INSIDE = "/checkout/tests/lab/inside"
STREAM = '{{ level = 19, chunk_size = "1MiB"{} }}'


def sql(*statements: str) -> None:
    with ledger.connect("/run/mysqld/mysqld.sock", "root", "", None) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def zfs(*words: str) -> bytes:
    return subprocess.run(["zfs", *words], check=True, stdout=subprocess.PIPE).stdout


def zsnapdb(*words: str, expected: int = 0) -> None:
    done = subprocess.run(["zsnapdb", *words], env={**os.environ, "ZSNAPDB_CONFIG": "/tmp/kept.toml"})
    assert done.returncode == expected, (words, done.returncode)


def use(name: str, more: str = "", repository: str = "", stream: str = "") -> None:
    """Make a repository the instance's own, beside the others that are there."""
    text = CONFIG.read_text().replace('repository = "s3"', f'repository = "{name}"')
    for folder in {*KEPT.iterdir(), KEPT / name}:
        if folder.name in ("keys", "host"):
            continue
        folder.mkdir(exist_ok=True)
        own = folder.name == name
        text += f'\n[repository.{folder.name}]\nurl = "file://{folder}"\n'
        text += f"stream = {STREAM.format(stream if own else '')}\n" + (repository if own else "")
    Path("/tmp/kept.toml").write_text(text + more)


def opened() -> Repository:
    return Instance.of(load(Path("/tmp/kept.toml")), "main").open_repository()


def ids() -> list[str]:
    return sorted(opened().backup_ids("main"))


def make_plain() -> None:
    """A chain with a pin, an archive, a drill, a check, evidence, a consolidated backup and one that was begun."""
    use("plain", '[instance.main.drill]\npages = "if-possible"\n', repository="evidence = true\n")
    zsnapdb("init", "plain")
    zsnapdb("backup", "main")
    zsnapdb("pin", "main", "latest", "--reason", "before the migration")
    sql("INSERT INTO shop.orders VALUES (2)", "FLUSH BINARY LOGS", "INSERT INTO shop.orders VALUES (3)")
    zsnapdb("backup", "main", "--once", "20261127T080000Z-0123abcd")
    zsnapdb("binlog", "archive", "main", "--once")
    sql("INSERT INTO shop.orders VALUES (4)", "FLUSH BINARY LOGS", "INSERT INTO shop.orders VALUES (5)")
    zsnapdb("backup", "main")
    sql("INSERT INTO shop.orders VALUES (6)")
    zsnapdb("binlog", "archive", "main", "--once")
    zsnapdb("drill", "main")
    zsnapdb("verify", "main", "--deep")


def interrupt_backup() -> None:
    """Leave a backup that was begun, and killed when its first chunk was stored."""
    marks, chunks = KEPT / "plain/main/unfinished", KEPT / "plain/main/chunks"
    use("plain", repository='evidence = true\nbandwidth = "1KiB"\n')
    before = len(list(chunks.iterdir()))
    run = subprocess.Popen(
        ["zsnapdb", "backup", "main", "--full"], env={**os.environ, "ZSNAPDB_CONFIG": "/tmp/kept.toml"}
    )
    deadline = time.monotonic() + 120
    while not (
        marks.is_dir()
        and any(marks.iterdir())
        and len(list(chunks.glob("*/*/*")))
        and before < len(list(chunks.iterdir()))
    ):
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    run.kill()
    run.wait()
    use("plain", repository="evidence = true\n")


def make_damaged() -> None:
    """A copy of the plain one in which a bit of the second backup is flipped, and verify has found that."""
    second = ids()[1]
    shutil.copytree(KEPT / "plain", KEPT / "damaged")
    use("plain")
    victim = min((KEPT / "damaged/main/chunks" / second / "data").iterdir())
    body = bytearray(victim.read_bytes())
    body[len(body) // 2] ^= 1
    victim.write_bytes(body)
    zsnapdb("verify", "main", "--deep", "--repository", "damaged", expected=7)


def make_encrypted() -> None:
    """Encrypted and signed, and its copy."""
    keys = KEPT / "keys"
    signing = ["--signing-key", str(keys / "signing")]
    done = subprocess.run(
        ["zsnapdb", "key", "generate", "--identity", str(keys / "identity"), *signing, "--json"],
        check=True,
        stdout=subprocess.PIPE,
    )
    (keys / "public.json").write_bytes(done.stdout)
    (made,) = json.loads(done.stdout)["keys"]
    section = f'encryption = {{ recipients = ["{made["recipients"][0]}"], identity_file = "{keys}/identity"'
    section += f', signing_key_file = "{keys}/signing", signers = ["{made["signer"]}"] }}\n'
    use("encrypted", repository=section)
    zsnapdb("init", "encrypted")
    zsnapdb("backup", "main")
    sql("INSERT INTO shop.orders VALUES (7)", "FLUSH BINARY LOGS", "INSERT INTO shop.orders VALUES (8)")
    zsnapdb("backup", "main")
    zsnapdb("binlog", "archive", "main", "--once")
    zsnapdb("pin", "main", "latest", "--reason", "signed")
    zsnapdb("verify", "main", "--deep")
    (KEPT / "copied").mkdir()
    use("encrypted", repository=section)
    text = Path("/tmp/kept.toml").read_text()
    Path("/tmp/kept.toml").write_text(
        text.replace('url = "file:///kept/copied"\n', f'url = "file:///kept/copied"\n{section}')
    )
    zsnapdb("copy", "main", "--to", "copied")


def make_small(name: str, *, is_raw: bool) -> None:
    """A chain of backups of the server, whose streams are real ones of some small files of it, as ZFS encrypts them."""
    use(name)
    zsnapdb("init", name)
    key = KEPT / "keys/pool-key"
    key.write_bytes(bytes(range(32)))
    for number, kind in enumerate((["--full"], [])):
        sql(f"INSERT INTO shop.orders VALUES ({100 + 10 * number + is_raw})")
        zsnapdb("backup", "main", *kind)
    repository, top = opened(), Path(f"/small-{name}")
    encryption = ("-o", "encryption=on", "-o", "keyformat=raw", "-o", f"keylocation=file://{key}") if is_raw else ()
    for role in ("parent", "data"):
        zfs("create", *encryption, "-o", f"mountpoint={top}/{role}", f"tank/small-{name}-{role}")
    before: dict[str, str] = {}
    for backup_id in ids():
        manifest = repository.manifest("main", backup_id)
        sql("FLUSH TABLES shop.orders")
        (top / "parent/note").write_text("beside the data\n")
        (top / "data/shop").mkdir(exist_ok=True)
        shutil.copy("/var/lib/mysql/data/shop/orders.ibd", top / "data/shop/orders.ibd")
        volumes = []
        for volume in manifest.volumes:
            dataset, base = f"tank/small-{name}-{volume.role}", before.get(volume.role)
            snapshot = before[volume.role] = f"{dataset}@{volume.snapshot}"
            zfs("snapshot", snapshot)
            flags = ("-L", "-w") if is_raw else volume.send_flags
            plain = zfs("send", *flags, *(("-i", base) if base else ()), snapshot)
            guids = [
                int(zfs("get", "-Hp", "-o", "value", "guid", one)) for one in (snapshot, *([base] if base else []))
            ]
            update: dict[str, object] = {"dataset": dataset, "guid": guids[0], "send_flags": flags}
            update["from_guid"] = guids[1] if base else None
            if is_raw and isinstance(volume.type, FilesystemType):
                update["type"] = volume.type.model_copy(update={"encryption": "aes-256-gcm"})
            shutil.rmtree(KEPT / name / "main/chunks" / backup_id / volume.role)
            volumes.append(with_stream(repository, backup_id, volume.model_copy(update=update), plain))
        (KEPT / name / layout.manifest("main", backup_id)).unlink()
        repository.commit(manifest.model_copy(update={"volumes": tuple(volumes)}))


def make_machine() -> None:
    """A chain of a virtual machine with one disk."""
    use("machine")
    zsnapdb("init", "machine")
    repository = opened()
    zfs("create", "-V", "1M", "-o", "volblocksize=16K", "tank/vda")
    made = ("20261127T100000Z-0001", "20261127T110000Z-0002")
    base: str | None = None
    for backup_id in made:
        name = f"tank/vda@zsnapdb-{backup_id}"
        zfs("snapshot", name)
        plain = zfs("send", "-L", *(("-i", base) if base else ()), name)
        guid = [int(zfs("get", "-Hp", "-o", "value", "guid", one)) for one in (name, *([base] if base else []))]
        store_machine(repository, backup_id, plain, guid)
        base = name


def store_machine(repository: Repository, backup_id: str, plain: bytes, guids: list[int]) -> None:
    model = example(backup_id)
    volume = model.volumes[0].model_copy(
        update={
            "role": "vda",
            "dataset": "tank/vda",
            "guid": guids[0],
            "from_guid": guids[1] if len(guids) > 1 else None,
            "type": ZvolType(volsize=1 << 20, volblocksize=16384, properties={}),
        }
    )
    xml = MACHINE.replace("data'/></disk>", "vda'/></disk>", 1)
    source = MachineSourcePart(
        domain="web1",
        uuid="11111111-2222-4333-8444-555555555555",
        grade=Grade.CRASH,
        reason="nothing was held",
        xml=xml,
    )
    volume = with_stream(repository, backup_id, volume, plain)
    repository.commit(model.model_copy(update={"repository_id": repository.id, "volumes": (volume,), "source": source}))


def with_stream(repository: Repository, backup_id: str, volume: VolumePart, plain: bytes) -> VolumePart:
    """Store the stream as the only chunk of the volume. Return the volume."""
    chunks = repository.chunks("main", backup_id, volume.role)
    body, chunk = seal(memoryview(plain), Codec.ZSTD, 19, None, chunks.associated(1, last=True))
    chunks.put_chunk(1, body, chunk.stored_sha256)
    features = int.from_bytes(plain[16:24], "little") >> 2
    update = {"plain_size": len(plain), "sha256": stream_hash((chunk,)), "chunks": (chunk,), "codec": Codec.ZSTD}
    return volume.model_copy(update={**update, "features": features})


def shorten() -> None:
    """Replace the streams of the server's files, which are too large to keep, by streams of one record."""
    repository = opened()
    for backup_id in ids():
        manifest = repository.manifest("main", backup_id)
        volumes = []
        for volume in manifest.volumes:
            folder = KEPT / "plain/main/chunks" / backup_id / volume.role
            shutil.rmtree(folder)
            plain = begin(
                guid=volume.guid,
                base=volume.from_guid or 0,
                name=f"{volume.sent_from or volume.dataset}@{volume.snapshot}",
                version=volume.features << 2 | 1,
            )
            plain += write(b"a block of the server's files", guid=volume.guid) + end(guid=volume.guid)
            volumes.append(with_stream(repository, backup_id, volume, plain))
        (KEPT / "plain" / layout.manifest("main", backup_id)).unlink()
        repository.commit(manifest.model_copy(update={"volumes": tuple(volumes)}))


def keep_host() -> None:
    """Keep what the host recorded, and the properties of its datasets, snapshots, bookmarks and clones."""
    shutil.copytree("/var/lib/zsnapdb", KEPT / "host/state", ignore=shutil.ignore_patterns("clones", "serve"))
    words = ("get", "-H", "-p", "-s", "local,received", "-t", "all", "-o", "name,property,value", "all")
    rows = [line.split("\t") for line in zfs(*words).decode().splitlines()]
    guids = dict(
        line.split("\t") for line in zfs("list", "-H", "-p", "-t", "all", "-o", "name,guid").decode().splitlines()
    )
    document = {"guids": guids, "properties": [row for row in rows if row[1].startswith("zsnapdb:")]}
    (KEPT / "host/properties.json").write_text(json.dumps(document, indent=1) + "\n")


def main() -> int:
    flavour = sys.argv[1]
    (KEPT / "keys").mkdir(parents=True)
    (KEPT / "host").mkdir()
    if flavour == "mariadb":
        tables = ("topic", "keyword", "category", "relation")
        sql(*(f"DROP TABLE mysql.help_{table}" for table in tables), "DROP DATABASE sys")
        subprocess.run([f"{INSIDE}/server", "stop"], check=True)
        subprocess.run([f"{INSIDE}/server", "start"], check=True)
    sql("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY)", "INSERT INTO shop.orders VALUES (1)")
    if flavour != "mysql-small":
        make_plain()
    if flavour == "mariadb":
        zsnapdb("consolidate", "main", ids()[-1])
        interrupt_backup()
        zsnapdb("clone", "create", "main", "--name", "kept", "--ttl", "30d")
        keep_host()
        zsnapdb("clone", "destroy", "kept")
        make_damaged()
        make_encrypted()
        make_machine()
    elif flavour == "mysql-small":
        make_small("real", is_raw=False)
        make_small("raw", is_raw=True)
    else:
        keep_host()
        shorten()
    zsnapdb("list", "main")
    with tarfile.open(f"/out/{flavour}.tar.xz", "w:xz", preset=9) as archive:
        archive.add(KEPT, arcname=".")
    subprocess.run(["du", "-ab", str(KEPT), "/out"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
