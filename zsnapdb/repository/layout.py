"""Keys of the repository, below its prefix.

    zsnapdb.json                                           format version and repository id
    <instance>/manifests/<backup-id>.json                  written last, never over another; no manifest, no backup
    <instance>/chunks/<backup-id>/<role>/00000001          chunks, from 1
    <instance>/drills/<id>.json                            what a drill found, written once
    <instance>/unfinished/<backup-id>.json                 a backup that was begun; removed when it ends
    <instance>/<name>.lock                                 leases
    <instance>/binlogs/…                                   archived binlogs: repository/binlogs.py
    <instance>/pins/<backup-id>.json                       why a backup is not pruned
    <instance>/checks/<time>-<random>.json                 what was verified, when, and what was found

Manifests lie apart from chunks so that one short listing names all good backups, however many chunks there are.
"""

from __future__ import annotations

import re

MARKER = "zsnapdb.json"
_CHUNK = re.compile(r"([a-z0-9][a-z0-9_-]*)/chunks/(\d{8}T\d{6}Z-[0-9a-f]{4})/[a-z0-9][a-z0-9_-]{0,31}/\d{8}")
_MANIFEST = re.compile(r"([a-z0-9][a-z0-9_-]*)/manifests/(\d{8}T\d{6}Z-[0-9a-f]{4})\.json")
_DRILL = re.compile(r"([a-z0-9][a-z0-9_-]*)/drills/(\d{8}T\d{6}Z-[0-9a-f]{4})\.json")


def drills(instance: str) -> str:
    """Return the prefix of an instance's drills."""
    return f"{instance}/drills/"


def drill(instance: str, drill_id: str) -> str:
    """Return the key of a drill's evidence."""
    return f"{instance}/drills/{drill_id}.json"


def parse_drill(key: str) -> str | None:
    """Return the id in a drill's key, or None if it is not one."""
    match = _DRILL.fullmatch(key)
    return match.group(2) if match else None


def manifests(instance: str) -> str:
    """Return the prefix of an instance's manifests."""
    return f"{instance}/manifests/"


def manifest(instance: str, backup_id: str) -> str:
    """Return the key of a backup's manifest."""
    return f"{instance}/manifests/{backup_id}.json"


def parse_manifest(key: str) -> tuple[str, str] | None:
    """Return instance and backup id of a manifest's key, or None if it is not one."""
    match = _MANIFEST.fullmatch(key)
    return (match.group(1), match.group(2)) if match else None


def chunks(instance: str, backup_id: str, role: str) -> str:
    """Return the prefix of the chunks of one volume of a backup."""
    return f"{instance}/chunks/{backup_id}/{role}/"


def chunks_of_backup(instance: str, backup_id: str) -> str:
    """Return the prefix of all chunks of a backup."""
    return f"{instance}/chunks/{backup_id}/"


def unfinished(instance: str) -> str:
    """Return the prefix of what tells of an instance's backups that were begun."""
    return f"{instance}/unfinished/"


def unfinished_backup(instance: str, backup_id: str) -> str:
    """Return the key of what tells of one backup that was begun."""
    return f"{instance}/unfinished/{backup_id}.json"


def lease(name: str) -> str:
    """Return the key of a lease; its name begins with an instance: main/writer."""
    return f"{name}.lock"


def chunk(instance: str, backup_id: str, role: str, index: int) -> str:
    """Return the key of one chunk; `index` counts from 1."""
    return f"{instance}/chunks/{backup_id}/{role}/{index:08d}"


def binlog_incarnations(instance: str) -> str:
    """Return the prefix of the descriptions of an instance's binlog histories."""
    return f"{instance}/binlogs/incarnations/"


def binlogs(instance: str, incarnation: str) -> str:
    """Return the prefix of one binlog history; below it are files/, growing/, segments/ and chunks/."""
    return f"{instance}/binlogs/{incarnation}/"


def all_chunks(instance: str) -> str:
    """Return the prefix of the chunks of all an instance's backups; the next part of a key is a backup id."""
    return f"{instance}/chunks/"


def parse_chunk(key: str) -> tuple[str, str] | None:
    """Return instance and backup id of a chunk's key, or None if it is not one."""
    match = _CHUNK.fullmatch(key)
    return (match.group(1), match.group(2)) if match else None


def pins(instance: str) -> str:
    """Return the prefix of an instance's pins."""
    return f"{instance}/pins/"


def pin(instance: str, backup_id: str) -> str:
    """Return the key of the pin of a backup."""
    return f"{instance}/pins/{backup_id}.json"


def checks(instance: str) -> str:
    """Return the prefix of what was found by verifying an instance's backups."""
    return f"{instance}/checks/"
