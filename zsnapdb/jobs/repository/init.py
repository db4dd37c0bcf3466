"""Creates a repository's marker and signing key.

The module also writes a new marker if the old marker is lost or the recipients have changed.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from zsnapdb.base.errors import ExistsError, NotFound, UsageError
from zsnapdb.base.patterns import without_surrogates
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.planning.backup.lifecycle_rules import judge_lifecycle
from zsnapdb.planning.evidence import PolicyChange, policy_changes
from zsnapdb.planning.repository.absent_repository import nothing_there
from zsnapdb.planning.repository.host_backup_record import BackupRecord
from zsnapdb.planning.repository.known_backups import SigningState
from zsnapdb.repository import crypto_keys, layout, marker
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.marker import Marker, note_of_removed
from zsnapdb.repository.objects import RepositoryObjects
from zsnapdb.repository.repository import Repository
from zsnapdb.store.layers import open_store, refuse_unfit


@dataclass(frozen=True)
class KeyFiles:
    """Files with secret keys (age identities and a signing key), and the public parts of these keys."""

    identity: Path | None = None
    recipients: tuple[str, ...] = ()
    signing_key: Path | None = None
    signer: str | None = None
    repository: str | None = None

    @property
    def changes(self) -> tuple[PolicyChange, ...]:
        identities = [
            PolicyChange(what=f"identity {recipient}", after=_made_in(self.identity)) for recipient in self.recipients
        ]
        signing = [PolicyChange(what=f"signing key {self.signer}", after=_made_in(self.signing_key))]
        return (*identities, *(signing if self.signer is not None else ()))


def _made_in(file: Path | None) -> str:
    return f"made, in {without_surrogates(str(file))}"


def refuse_existing_keys(identity: Path | None, signing_key: Path | None) -> None:
    """Raise ExistsError if one of the files exists."""
    for file in (identity, signing_key):
        if file is not None and os.path.lexists(file):
            raise ExistsError(
                f"{file} exists",
                hint="name another file; zsnapdb never overwrites a key, as everything encrypted to it would be lost",
            )


def generate_keys(identity: Path | None, signing_key: Path | None) -> KeyFiles:
    """Write new keys to the files with mode 0600, and return their public parts.

    Raises:
        ExistsError: one of the files exists; no file was written.
    """
    refuse_existing_keys(identity, signing_key)
    recipients: tuple[str, ...] = ()
    signer = None
    if identity is not None:
        new = crypto_keys.AgeIdentity.new()
        crypto_keys.write_secret(identity, new.file())
        recipients = (new.recipient,)
    if signing_key is not None:
        key = crypto_keys.SigningKey.new()
        crypto_keys.write_secret(signing_key, key.file())
        signer = key.public
    return KeyFiles(identity, recipients, signing_key, signer)


def public_parts(identity: Path | None, signing_key: Path | None, repository: str | None = None) -> KeyFiles:
    """Return the public parts of the keys in the files. Raises ConfigError if a file contains no key."""
    recipients = (
        tuple(secret.recipient for secret in crypto_keys.read_identities(identity)) if identity is not None else ()
    )
    signer = crypto_keys.SigningKey.read(signing_key).public if signing_key is not None else None
    return KeyFiles(identity, recipients, signing_key, signer, repository)


def configured_keys(settings: Settings) -> list[KeyFiles]:
    """Return the public parts of the configured keys of each repository.

    Repositories without a key file are left out.
    """
    key_files = []
    for name, repository in sorted(settings.repository.items()):
        encryption = repository.encryption
        if encryption.identity_file is not None or encryption.signing_key_file is not None:
            key_files.append(public_parts(encryption.identity_file, encryption.signing_key_file, name))
    return key_files


class InitStep(StrEnum):
    """The action of `zsnapdb init` on the marker."""

    CREATE = "create"
    REBUILD = "rebuild"
    RECIPIENTS = "recipients"
    NOTHING = "nothing"


@dataclass(frozen=True)
class InitPlan:
    """The planned marker, and the step that writes it.

    `before` contains the recipients in the present marker, before the change.
    """

    name: str
    url: str
    step: InitStep
    marker: Marker
    before: tuple[str, ...] = ()
    signing: SigningState = SigningState.UNDECIDED
    new_key: Path | None = None
    """The file of the signing key that init creates; None if init creates no key."""
    signer: str | None = None
    """The public part of the signing key; None if the key does not exist yet."""
    store_note: str = ""
    """A note for the user about whether the store is suitable."""
    lifecycle: tuple[FitnessFinding, ...] = ()
    """Warnings about lifecycle rules of the bucket. Rules that this account may not read are missing."""

    @property
    def changes(self) -> tuple[PolicyChange, ...]:
        """The changes of the keys and of the marker's recipients."""
        made = KeyFiles(signing_key=self.new_key, signer=self.signer).changes if self.new_key is not None else ()
        if self.step is InitStep.NOTHING:
            return made
        before, after = (
            {f"recipient {key} in the marker": "listed" for key in listed}
            for listed in (self.before, self.marker.recipients)
        )
        return (*made, *policy_changes(before, after))


@dataclass(frozen=True)
class _Place:
    """A configured repository with its open store. `missing_key` is the configured key file if this file is missing."""

    name: str
    url: str
    objects: RepositoryObjects
    keyring: Keyring
    instances: tuple[str, ...]
    signing: SigningState
    missing_key: Path | None
    expected: tuple[BackupRecord, ...]
    """The records of the backups that a new repository at this address would lack."""


def choose_repository(settings: Settings, name: str | None) -> str:
    """Return the name of the given repository; without one, the name of the only configured repository.

    Raises:
        UsageError: the given repository is not configured, or no name is given although there are several.
    """
    known = ", ".join(sorted(settings.repository))
    if name is None:
        if len(settings.repository) != 1:
            raise UsageError(
                "several repositories are configured, and the command names none", hint=f"name one of: {known}"
            )
        name = next(iter(settings.repository))
    if name not in settings.repository:
        raise UsageError(f"repository {name!r} is not configured", hint=f"known: {known}")
    return name


def _place(settings: Settings, name: str | None) -> _Place:
    name = choose_repository(settings, name)
    configured = settings.repository[name]
    key = configured.encryption.signing_key_file
    instances = tuple(sorted(key for key, instance in settings.instance.items() if instance.repository == name))
    users = [Instance.at(settings, one, name) for one in (instances or settings.instance)]
    return _Place(
        name,
        configured.url,
        RepositoryObjects(*open_store(configured)),
        users[0].keyring() if instances else Keyring.of(configured.encryption),
        instances,
        SigningState.of(configured.encryption),
        key if key is not None and not configured.encryption.signers and not os.path.lexists(key) else None,
        tuple(
            {
                (one.instance, one.repository_id, one.url): one for user in users for one in user.expected_backups()
            }.values()
        ),
    )


def plan(settings: Settings, name: str | None, *, is_new: bool = False) -> InitPlan:
    """Return the plan of `init` for the given repository, or for the only configured one; change nothing.

    Raises:
        ConfigError: a configured key cannot be used.
        NotFound: there is no repository, although this host stored backups, and `is_new` is not set.
    """
    place = _place(settings, name)
    if place.missing_key is None:
        place.keyring.check_signing()
    recipients = place.keyring.recipients
    place.objects.check()
    try:
        marker = Marker.read(place.objects)
    except NotFound:
        return _completed(_without_marker(place, is_new=is_new), place)
    # If this host has signed documents in the repository, its signing key was lost. Hosts that trust only a new key
    # would not trust these documents.
    place.keyring.check_signing()
    step = InitStep.RECIPIENTS if recipients and recipients != marker.recipients else InitStep.NOTHING
    planned = InitPlan(
        place.name,
        place.url,
        step,
        marker.with_recipients(recipients) if step is InitStep.RECIPIENTS else marker,
        marker.recipients,
    )
    return _completed(planned, place)


def _completed(planned: InitPlan, place: _Place) -> InitPlan:
    """Return the plan with the signing key of this host, and with warnings about the bucket."""
    policy = place.objects.afterlife()
    rules = tuple(judge_lifecycle(policy.archive_rules, policy.removal_rules))
    planned = replace(planned, lifecycle=rules)
    if place.missing_key is not None:
        return replace(planned, signing=place.signing, new_key=place.missing_key)
    return replace(planned, signing=place.signing, signer=place.keyring.own_signer)


def prove(settings: Settings, name: str | None) -> None:
    """Write, read, replace and remove a test object in the given repository, or in the only configured repository.

    Afterwards the repository is unchanged.

    Raises:
        PreflightError: the store ignores a condition of a request.
        RepositoryError: the store refuses a request.
    """
    refuse_unfit(settings.repository[choose_repository(settings, name)])
    marker.prove_replacements(_place(settings, name).objects)


def _without_marker(place: _Place, *, is_new: bool) -> InitPlan:
    try:
        repository = Repository.among(place.objects, place.keyring, instances=place.instances)
    except NotFound as error:
        if place.expected and not is_new:
            raise nothing_there(place.name, place.url, error, place.expected, is_writing=True) from error
        return InitPlan(
            place.name, place.url, InitStep.CREATE, Marker(id=secrets.token_hex(8), recipients=place.keyring.recipients)
        )
    recipients = place.keyring.recipients or repository.recipients
    return InitPlan(
        place.name, place.url, InitStep.REBUILD, Marker(id=repository.id, recipients=recipients), repository.recipients
    )


def init(settings: Settings, name: str | None, *, is_new: bool = False) -> InitPlan:
    """Execute the plan and return it.

    Raises:
        PreflightError: the file system is not suitable for a new repository.
        ExistsError, ChangedError: another process wrote the marker in the meantime. That marker stays.
    """
    planned = plan(settings, name, is_new=is_new)
    place = _place(settings, planned.name)
    if planned.new_key is not None:
        planned = replace(planned, signer=generate_keys(None, planned.new_key).signer)
    if planned.step in (InitStep.CREATE, InitStep.REBUILD):
        refuse_unfit(settings.repository[planned.name])
        planned.marker.write(place.objects)
        planned = replace(planned, store_note=note_of_removed(place.objects))
    elif planned.step is InitStep.RECIPIENTS:
        version = place.objects.read_version(layout.MARKER)
        changed = Marker.parse(version.body, place.objects.place(layout.MARKER)).with_recipients(
            planned.marker.recipients
        )
        place.objects.replace(layout.MARKER, changed.encode(), tag=version.tag)
    return planned
