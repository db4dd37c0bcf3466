"""Checks a configuration against the world: each instance's datasets, server, paths and repository. Touches nothing."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.config import Settings
from zsnapdb.errors import NotThere, ZsnapdbError
from zsnapdb.jobs.common import Instance
from zsnapdb.jobs.observe import check_datasets, observe
from zsnapdb.mysql import server
from zsnapdb.store.open import open_store


@dataclass(frozen=True)
class Finding:
    """One thing that was checked. `error` is None if it is as it should be."""

    instance: str
    what: str
    detail: str
    error: ZsnapdbError | None = None


def check(settings: Settings, only: str | None) -> list[Finding]:
    """Return what was found for the named instance, or for all."""
    names = [settings.one_instance(only)[0]] if only else sorted(settings.instance)
    return [finding for name in names for finding in _check_one(Instance.of(settings, name))]


def _check_one(instance: Instance) -> list[Finding]:
    return [_datasets(instance), *_server(instance), _repository(instance)]


def _datasets(instance: Instance) -> Finding:
    listing = ", ".join(f"{role} = {dataset}" for role, dataset in sorted(instance.settings.volumes.items()))
    try:
        check_datasets(instance)
    except ZsnapdbError as error:
        return Finding(instance.name, "datasets", listing, error)
    return Finding(instance.name, "datasets", listing)


def _server(instance: Instance) -> list[Finding]:
    try:
        with instance.session() as session:
            observed = observe(instance, session)
    except ZsnapdbError as error:
        return [Finding(instance.name, "server", str(instance.address), error)]
    findings = [
        Finding(instance.name, "server", observed.facts.describe()),
        Finding(instance.name, "lock", f"{observed.choice.name}: {observed.choice.reason}"),
        *(Finding(instance.name, "warning", text) for text in observed.warnings),
    ]
    try:
        binary = server.find_binary(instance.settings.server.binary, observed.facts.flavour)
        server.account(instance.settings.server.user)
    except ZsnapdbError as error:
        return [*findings, Finding(instance.name, "server program", "", error)]
    return [*findings, Finding(instance.name, "server program", str(binary))]


def _repository(instance: Instance) -> Finding:
    try:
        count = len(instance.open_repository().backup_ids(instance.name))
    except NotThere as error:
        try:
            open_store(instance.repository)[0].check()
        except ZsnapdbError as unreachable:
            return Finding(instance.name, "repository", instance.repository.url, unreachable)
        return Finding(instance.name, "repository", f"{instance.repository.url}: {error.message}; {error.hint}")
    except ZsnapdbError as error:
        return Finding(instance.name, "repository", instance.repository.url, error)
    return Finding(instance.name, "repository", f"{instance.repository.url}: {count} backups")
