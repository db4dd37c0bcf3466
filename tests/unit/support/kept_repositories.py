"""Repositories of earlier versions in tests/unit/repository/kept, and the documents read from them.

`python -m tests.unit.support.kept_repositories FLAVOUR` writes the documents for comparisons with later versions.
`tests/system/kept_repositories.py` writes the repositories.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import pydantic

from zsnapdb.config.repository import RepositorySettings
from zsnapdb.config.settings import Settings, parse
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.repository import inventory, prune, verify
from zsnapdb.jobs.repository.prune_facts import NOTHING_LOCAL
from zsnapdb.report.repository.list import BackupDetailView, InventoryView
from zsnapdb.report.repository.prune import PrunePlanView, VerifyView
from zsnapdb.repository import backup_marks, binlog_archive_contents, drills, evidence_log
from zsnapdb.repository.verifications import Depth
from zsnapdb.store.base import Store
from zsnapdb.store.local import LocalStore

FOLDER = Path(__file__).parents[1] / "repository/kept"
NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
"""A few hours after the kept repositories were written."""
KEPT = {
    "mariadb": ("plain", "damaged", "encrypted", "copied", "machine"),
    "mysql": ("plain",),
    "mysql-small": ("real", "raw"),
}
HOSTS = ("mariadb", "mysql")
"""The archives with the host's records and properties."""
_VARYING = {"seconds", "verified_seconds", "duration", "checked", "run_id"}
"""Fields that depend on the reading machine."""


@dataclass(frozen=True)
class KeptRepository:
    """One unpacked repository, as used by a host without its snapshots."""

    folder: Path
    name: str

    @property
    def settings(self) -> Settings:
        keys = self.folder / "keys"
        text = '[instance.main]\nsocket = "/nonexistent"\n'
        text += f'repository = "{self.name}"\nkeep = {{ last = 1 }}\n'
        if self.name == "raw":
            text += f'encryption = {{ key_file = "{keys}/pool-key" }}\n'
        text += f'[repository.{self.name}]\nurl = "file:///kept/{self.name}"\n'
        if self.name in ("encrypted", "copied"):
            (public,) = json.loads((keys / "public.json").read_text())["keys"]
            text += f'encryption = {{ recipients = ["{public["recipients"][0]}"], signers = ["{public["signer"]}"]'
            text += f', identity_file = "{keys}/identity", signing_key_file = "{keys}/signing" }}\n'
        if self.name == "raw":
            text += 'stream = { send = "raw" }\n'
        return parse(text, "kept")

    @property
    def host(self) -> Host:
        return Host(
            run=self.folder / "run",
            cache=self.folder / f"cache-{self.name}",
            journals=self.folder / "host/state/journal",
            records=self.folder / "host/state/stored",
            now=lambda: NOW,
            open_store=self._open_store,
        )

    def _open_store(self, settings: RepositorySettings, _: Callable[[str], None] | None) -> tuple[Store, str]:
        return LocalStore(self.folder / settings.url.removeprefix("file:///kept/")), ""

    @cached_property
    def instance(self) -> Instance:
        return replace(Instance.of(self.settings, "main"), host=self.host)

    def documents(self) -> dict[str, Any]:
        """Return the results of the read-only commands, then of a deep verify and the plan of a prune."""
        with mock.patch("zsnapdb.zfs.datasets.exists", return_value=False):
            return self._documents()

    def _documents(self) -> dict[str, Any]:
        instance, repository = self.instance, self.instance.open_repository()
        if self.name in ("machine", "real", "raw"):
            # No command stored these, so there is no record of them.
            for name in repository.backup_ids("main"):
                host_backup_record.note_stored(instance, repository, *repository.digested_manifest("main", name))
        listed = inventory.inventory(instance)
        ids = [entry.manifest.backup_id for entry in listed.entries]
        documents: dict[str, Any] = as_document(
            {
                "list": InventoryView(listed).fields(),
                "show": {one: BackupDetailView(inventory.detail(instance, one)).fields() for one in ids},
                "archive": binlog_archive_contents.load(repository, "main").files,
                "pins": backup_marks.pins(repository, "main"),
                "drills": drills.newest(repository, "main", 9),
                "evidence": evidence_log.read(repository, "main"),
                "unfinished": [one.backup_id for one in backup_marks.unfinished(repository, "main")],
                "verify": VerifyView(verify.verify(instance, Depth.READ)).fields(),
                "prune": PrunePlanView(prune.plan(instance, local=NOTHING_LOCAL)).fields(),
            }
        )
        return documents


def unpack(flavour: str, into: Path) -> dict[str, KeptRepository]:
    """Unpack the repositories of a flavour. Return them by name."""
    with tarfile.open(FOLDER / f"{flavour}.tar.xz") as archive:
        archive.extractall(into, filter="data")
    (into / "run").mkdir()
    for secret in (into / "keys").iterdir():
        secret.chmod(0o600)
    return {name: KeptRepository(into, name) for name in KEPT[flavour]}


def as_document(value: Any) -> Any:
    """Return the value in JSON form, without the fields that depend on the reading machine."""
    if isinstance(value, pydantic.BaseModel):
        return as_document(value.model_dump(mode="json"))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_document({part.name: getattr(value, part.name) for part in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        return {str(name): as_document(part) for name, part in value.items() if name not in _VARYING}
    if isinstance(value, tuple | list):
        return [as_document(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted(as_document(part) for part in value)
    return value if isinstance(value, int | float | bool | None) else str(value)


def differences(before: Any, now: Any, at: str = "") -> list[str]:
    """Return the locations where `now` lacks or changes a part of `before`. A new field is not a difference."""
    if isinstance(before, dict) and isinstance(now, dict):
        gone = [f"{at}/{name} is gone" for name in before if name not in now]
        return gone + [
            d for name in before if name in now for d in differences(before[name], now[name], f"{at}/{name}")
        ]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [
            d for n, (old, new) in enumerate(zip(before, now, strict=True)) for d in differences(old, new, f"{at}/{n}")
        ]
    return [] if before == now else [f"{at} was {before!r} and is {now!r}"]


def main() -> None:
    """Write the documents of a flavour."""
    flavour = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        documents = {name: kept.documents() for name, kept in unpack(flavour, Path(folder)).items()}
    (FOLDER / f"{flavour}.json").write_text(json.dumps(documents, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
