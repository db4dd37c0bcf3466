"""Restores the stream of one volume of one backup without zsnapdb: written from docs/repository-format.md alone.

    python independent_reader.py REPOSITORY INSTANCE BACKUP ROLE [IDENTITY-FILE [SIGNER]] | zfs receive -u tank/restored

REPOSITORY is a folder, or s3://bucket/prefix with the usual AWS_* variables (AWS_ENDPOINT_URL for other providers).
"""

import base64
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blake3
import boto3
import pyrage
import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM


def getter(repository: str) -> Callable[[str], bytes]:
    if not repository.startswith("s3://"):
        return lambda key: (Path(repository) / key).read_bytes()
    bucket, _, prefix = repository.removeprefix("s3://").partition("/")
    client = boto3.client("s3")

    def get(key: str) -> bytes:
        body: bytes = client.get_object(Bucket=bucket, Key=f"{prefix}/{key}".lstrip("/"))["Body"].read()
        return body

    return get


def read_manifest(get: Callable[[str], bytes], instance: str, backup: str, signer: str | None) -> dict[str, Any]:
    line, _, rest = get(f"{instance}/manifests/{backup}.json").partition(b"\n")
    if signer:
        signature = json.loads(rest)["signature"]
        assert signature["key"] == signer, "another key signed it"
        Ed25519PublicKey.from_public_bytes(base64.b64decode(signer)).verify(base64.b64decode(signature["value"]), line)
    manifest: dict[str, Any] = json.loads(line)
    assert (manifest["format"], manifest["instance"], manifest["backup_id"]) == (
        1,
        instance,
        backup,
    ), "another manifest"
    source = manifest["source"]
    assert isinstance(source["kind"], str), "no source"
    if source["kind"] == "vm":
        assert source["grade"] in ("crash", "frozen", "quiesced"), "unknown grade"
        assert source["xml"].lstrip().startswith("<domain"), "no domain"
    assert all(volume["type"]["kind"] in ("filesystem", "zvol") for volume in manifest["volumes"]), (
        "unknown volume type"
    )
    return manifest


def data_keys(manifest: dict[str, Any], identity_file: str | None) -> dict[str, AESGCM]:
    lines = Path(identity_file).read_text().splitlines() if identity_file else []
    identities = [pyrage.x25519.Identity.from_str(line) for line in lines if line.startswith("AGE-SECRET-KEY-")]
    return {key["id"]: AESGCM(pyrage.decrypt(key["wrapped"].encode(), identities)) for key in manifest["keys"]}


def main(
    repository: str, instance: str, backup: str, role: str, identity_file: str | None = None, signer: str | None = None
) -> None:
    get = getter(repository)
    manifest = read_manifest(get, instance, backup, signer)
    keys = data_keys(manifest, identity_file)
    volume = next(volume for volume in manifest["volumes"] if volume["role"] == role)
    hashes, total = hashlib.sha256(), 0
    for index, (plain_size, plain_hash, stored_size, stored_hash, key_id) in enumerate(volume["chunks"], 1):
        body = get(f"{instance}/chunks/{backup}/{role}/{index:08d}")
        assert (len(body), hashlib.sha256(body).hexdigest()) == (stored_size, stored_hash), f"chunk {index} was changed"
        if key_id is not None:
            last = int(index == len(volume["chunks"]))
            place = "\n".join(map(str, ("zsnapdb/1", manifest["repository_id"], instance, backup, role, index, last)))
            body = keys[key_id].decrypt(body[:12], body[12:], place.encode())
        if volume["codec"] == "zstd":
            body = zstandard.ZstdDecompressor().decompress(body)
        assert (len(body), blake3.blake3(body).hexdigest()) == (
            plain_size,
            plain_hash,
        ), f"chunk {index} is not what was read"
        hashes.update(bytes.fromhex(plain_hash))
        total += plain_size
        sys.stdout.buffer.write(body)
    assert (total, hashes.hexdigest()) == (volume["plain_size"], volume["sha256"]), "the stream is not whole"


if __name__ == "__main__":
    main(*sys.argv[1:])
