"""A configured instance, with access to its server, its repository and its settings."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zsnapdb.base.errors import ConfigError, NotFound, PreflightError, ServerError, UsageError
from zsnapdb.config.repository import KeepSettings, RepositorySettings
from zsnapdb.config.settings import InstanceSettings, MachineSettings, Settings
from zsnapdb.hooks import Hook, OnFailure, When
from zsnapdb.jobs.base.events import SILENT, Events
from zsnapdb.jobs.base.host import THIS_HOST, Host
from zsnapdb.planning.backup.lock_strategy import AUTO, check_name
from zsnapdb.planning.backup.send_form import SEND_FLAGS, SendForm, forms_of
from zsnapdb.planning.backup_chain import ChainPolicy

if TYPE_CHECKING:
    from zsnapdb.mysql.session import Address, Session
    from zsnapdb.mysql.tls import Tls
    from zsnapdb.planning.repository.host_backup_record import BackupRecord
    from zsnapdb.repository.binlog_archive import BinlogArchive
    from zsnapdb.repository.catalogue import Summaries
    from zsnapdb.repository.keyring import Keyring
    from zsnapdb.repository.repository import Repository
    from zsnapdb.store.base import Store
    from zsnapdb.stream.upload import UploadSettings

FIRST_LEVEL = 3
"""The zstd level with which `level = "auto"` begins."""


@dataclass(frozen=True)
class Instance:
    """A configured instance and its repository. Its jobs report to `events`."""

    name: str
    settings: InstanceSettings
    repository: RepositorySettings
    events: Events = SILENT
    host: Host = THIS_HOST
    is_own_repository: bool = True
    """Whether `repository` is the repository in which this host stores the instance's backups."""
    copies: Mapping[str, RepositorySettings] = field(default_factory=dict)
    """The repositories in which the objectives of the instance require copies."""
    vms: MachineSettings = field(default_factory=MachineSettings)
    """The connection settings of libvirt."""
    restores: Path = Path("/var/lib/zsnapdb/restores")
    """The folder with the journals of restores (`restore.journal`)."""
    wait: float = 0.0
    """The time in seconds for which a run waits for another run on the same instance."""
    replicas_will_be_rebuilt: bool = False
    """Whether the user confirmed that all replicas will be rebuilt after a restore has replaced their source's data."""

    @classmethod
    def of(cls, settings: Settings, name: str | None, events: Events = SILENT) -> Instance:
        """Return the instance with this name, or the only instance if the name is None.

        Raises ConfigError if the instance is not configured or has an unknown lock strategy.
        """
        instance_name, instance = settings.one_instance(name)
        if instance.lock.strategy != AUTO:
            # Import late: few commands need the lock strategies.
            from zsnapdb.mysql import locks

            check_name(instance.lock.strategy, locks.STRATEGIES)
        copies = {name: settings.repository[name] for name in instance.objectives.copies}
        repository = settings.repository[instance.repository]
        return cls(
            instance_name,
            instance,
            repository,
            events,
            copies=copies,
            vms=settings.vms,
            restores=settings.restore.journal,
        )

    @classmethod
    def at(cls, settings: Settings, name: str | None, repository: str | None, events: Events = SILENT) -> Instance:
        """Return the instance with the repository of this name, or with its own repository if the name is None.

        The retention policy and objectives of another repository override those of the instance. Objectives for copies
        apply only if the repository is the instance's own. Raises UsageError if the repository is not configured.
        """
        own = cls.of(settings, name, events)
        if repository is None or repository == own.settings.repository:
            return own
        if repository not in settings.repository:
            raise UsageError(
                f"repository {repository!r} is not configured", hint=f"known: {', '.join(sorted(settings.repository))}"
            )
        return own.in_repository(repository, settings.repository[repository])

    def in_repository(self, name: str, other: RepositorySettings) -> Instance:
        """Return the instance with the repository `other` instead of its own. The settings change as for `at`."""
        objectives = (other.objectives or self.settings.objectives).model_copy(update={"copies": {}})
        changes = {"repository": name, "keep": other.keep or self.settings.keep, "objectives": objectives}
        return replace(
            self,
            settings=self.settings.model_copy(update=changes),
            repository=other,
            is_own_repository=False,
            copies={},
        )

    @property
    def other_repository(self) -> str | None:
        """The name of the chosen repository; None if this is the instance's own repository."""
        return None if self.is_own_repository else self.settings.repository

    def with_repository_of(self, settings: Settings, other: str | None) -> Instance:
        """Return the instance with the repository of a plan.

        This is the repository `other`, or the instance's own repository if `other` is None. Raises UsageError if the
        repository is no longer configured.
        """
        if other == self.other_repository:
            return self
        there = Instance.at(settings, self.name, other, self.events)
        own = there.settings
        changes = {"repository": own.repository, "keep": own.keep, "objectives": own.objectives}
        return replace(
            self,
            settings=self.settings.model_copy(update=changes),
            repository=there.repository,
            is_own_repository=there.is_own_repository,
            copies=there.copies,
        )

    def impatient(self, seconds: float) -> Instance:
        """Return the instance with a time limit of `seconds` for the retries of requests to each repository."""

        def limited(settings: RepositorySettings) -> RepositorySettings:
            return settings.model_copy(update={"patience": min(settings.patience, seconds)})

        copies = {name: limited(settings) for name, settings in self.copies.items()}
        return replace(self, repository=limited(self.repository), copies=copies)

    def retention_policy(self) -> KeepSettings:
        """Return the retention policy of the instance. If it has none, return the policy of its repository.

        Raises ConfigError if neither is configured.
        """
        policy = self.settings.keep or self.repository.keep
        if policy is None:
            raise ConfigError(
                f"instance {self.name} has no retention policy, so prune removes none of its backups",
                hint=f"configure which backups stay in [instance.{self.name}.keep], such as last = 7",
            )
        return policy

    @property
    def volumes(self) -> Mapping[str, str]:
        """The dataset of each volume, by role.

        Raises PreflightError if the volumes are neither configured nor discovered yet.
        """
        if self.settings.volumes is None:
            raise PreflightError(
                f"the volumes of instance {self.name} are not configured, and were not discovered from its server",
                hint="list the datasets in the setting `volumes`",
            )
        return self.settings.volumes

    def with_volumes(self, volumes: Mapping[str, str]) -> Instance:
        """Return the instance with these volumes, which were found on the server or in a backup."""
        return replace(self, settings=self.settings.model_copy(update={"volumes": dict(volumes)}))

    def with_events(self, events: Events) -> Instance:
        return replace(self, events=events)

    def on_host(self, host: Host) -> Instance:
        return replace(self, host=host)

    def waiting(self, seconds: float) -> Instance:
        return replace(self, wait=seconds)

    def logging_in_as(self, user: str, password_file: Path | None) -> Instance:
        """Return the instance with a different account for its sessions.

        If `password_file` is None, this account has no password. The address of the server does not change.
        """
        account = {"user": user, "password_file": password_file, "password_env": None}
        return replace(self, settings=self.settings.model_copy(update=account))

    def rebuilding_replicas(self, said: bool) -> Instance:
        return replace(self, replicas_will_be_rebuilt=said)

    def hooks(self) -> tuple[Hook, ...]:
        return tuple(
            Hook(When(h.when), h.run, h.timeout, OnFailure(h.on_failure or ("warn" if h.when == "done" else "abort")))
            for h in self.settings.hooks
        )

    def chain_policy(self) -> ChainPolicy:
        chain = self.settings.chain
        return ChainPolicy(chain.full_every or None, chain.longest or None)

    @property
    def address(self) -> Address:
        """The address of the instance's server on this host, and the account for connections.

        Raises PreflightError if the instance is a virtual machine, ServerError if no server is configured.
        """
        from zsnapdb.mysql.session import Address

        s = self.settings
        if s.vm is not None:
            raise PreflightError(
                f"instance {self.name} is the virtual machine {s.vm.domain}; the files of a server in it are not on"
                " filesystems of this host",
                hint="use this command with an instance that is a server",
            )
        if s.socket is None and s.host is None:
            raise ServerError(
                f"no server of instance {self.name} is configured on this host: only its backups can be used",
                hint=f"where a server of it runs, set socket or host in [instance.{self.name}]",
            )
        return Address(user=s.user, socket=s.socket, host=s.host or "127.0.0.1", port=s.port, tls=self.tls)

    @property
    def address_inside(self) -> Address:
        """The address of the server inside the virtual machine, and the account for connections.

        Raises PreflightError if none is configured.
        """
        from zsnapdb.mysql.session import Address

        s = self.settings
        if s.vm is None or s.host is None:
            raise PreflightError(
                f"instance {self.name} has no server inside a virtual machine",
                hint="set `vm` and `host` of the instance",
            )
        return Address(user=s.user, socket=None, host=s.host, port=s.port, tls=self.tls)

    @property
    def tls(self) -> Tls:
        """The TLS settings for TCP connections to the instance's server, and for its connections to other servers."""
        from zsnapdb.mysql.tls import Tls, TlsMode

        s = self.settings
        return Tls(
            mode=TlsMode(s.tls) if s.tls else None,
            ca=s.tls_ca,
            cert=s.tls_cert,
            key=s.tls_key,
            checks_name=s.tls_verify == "identity",
            asks_for_public_key=s.allow_public_key,
        )

    def session(self, *, read_timeout: float = 60.0) -> Session:
        """Open a session to the instance's server.

        Paths that the server reports are treated as paths on this host. Raises PreflightError if the instance is a
        virtual machine.
        """
        # Import late, so that commands that only use the repository load no database client.
        from zsnapdb.mysql.session import Session

        return Session.open(self.address, self.settings.password(), read_timeout=read_timeout)

    def session_inside(self, *, read_timeout: float = 60.0) -> Session:
        """Open a session to the server inside the instance's virtual machine.

        Paths that the server reports are treated as paths in the guest only.
        """
        from zsnapdb.mysql.session import Session

        return Session.open(self.address_inside, self.settings.password(), read_timeout=read_timeout)

    def open_store(self) -> tuple[Store, str]:
        return self.host.open_store(self.repository, self.events.tell)

    def open_repository(self) -> Repository:
        """Open the instance's repository.

        If the repository's marker is lost, the instance's manifests identify the repository instead. Raises NotFound,
        with the address, if no repository is found there.
        """
        # Import late, because most commands need no repository, and the import would take longer than the command
        # itself.
        from zsnapdb.repository.repository import Repository

        try:
            repository = Repository.open(*self.open_store(), self.keyring(), instances=(self.name,))
        except NotFound as error:
            raise self._nothing_there(error) from error
        if repository.note:
            self.events.tell(repository.note)
        return repository

    def open_or_create_repository(self) -> Repository:
        """Open the instance's repository. If it has no marker yet, create the marker.

        Raises the errors of `check_new`.
        """
        from zsnapdb.repository.repository import Repository

        return Repository.open_or_create(
            *self.open_store(), secrets.token_hex(8), self.keyring(), instances=(self.name,), check_new=self.check_new
        )

    def expected_backups(self) -> tuple[BackupRecord, ...]:
        """Return the records of the backups that this host stored at the address of the instance's repository."""
        from zsnapdb.jobs.base.own_document_digests import expected_in

        return expected_in(self.host.records, self.repository.url, ())

    def check_new(self, error: NotFound) -> None:
        """Raise NotFound if none was found where this host stored backups.

        A new address is a decision of the user, or a mistake. So this function only warns if this host stored backups
        of the instance elsewhere.
        """
        from zsnapdb.planning.repository.absent_repository import new_address_warning

        if self.expected_backups():
            raise self._nothing_there(error, is_writing=True) from error
        doubt = new_address_warning(self.settings.repository, self.repository.url, self._expected_anywhere())
        if doubt is not None:
            self.events.warn(doubt)

    def _expected_anywhere(self) -> tuple[BackupRecord, ...]:
        from zsnapdb.jobs.base.own_document_digests import expected_in

        return expected_in(self.host.records, self.repository.url, (self.name,) if self.is_own_repository else ())

    def _nothing_there(self, error: NotFound, *, is_writing: bool = False) -> NotFound:
        from zsnapdb.planning.repository.absent_repository import nothing_there

        name, url = self.settings.repository, self.repository.url
        return nothing_there(name, url, error, self._expected_anywhere(), is_writing=is_writing)

    def keyring(self) -> Keyring:
        """Return the keys of the instance's repository, and the digests of the documents that this host stored."""
        from zsnapdb.jobs.base.own_document_digests import OwnDocumentFiles
        from zsnapdb.repository.keyring import Keyring

        own = OwnDocumentFiles(self.host.records / self.name, self.events, self.repository.url)
        return replace(Keyring.of(self.repository.encryption), own=own)

    def send_flags(self) -> tuple[tuple[str, ...], ...]:
        return tuple(SEND_FLAGS[form] for form in forms_of(self.repository.stream.send))

    @property
    def sends_raw(self) -> bool:
        """Whether the instance's streams are raw: the blocks are sent encrypted, as they are on disk."""
        return forms_of(self.repository.stream.send) == (SendForm.RAW,)

    def summaries(self, repository: Repository) -> Summaries:
        """Return the instance's backups in the repository, without chunk tables.

        The summaries are cached on this host.
        """
        from zsnapdb.repository.catalogue import Cache, summaries

        return summaries(repository, self.name, Cache.of(self.host.cache, repository, self.name))

    def archive(self, repository: Repository) -> BinlogArchive:
        """Return the instance's binlog archive in the repository. Its descriptions are cached on this host."""
        from zsnapdb.repository.binlog_archive import BinlogArchive
        from zsnapdb.repository.binlog_description_cache import DescriptionCache

        return BinlogArchive(repository, self.name, cache=DescriptionCache.of(self.host.cache, repository, self.name))

    def upload_settings(self) -> UploadSettings:
        from zsnapdb.stream.buffer_pool import FIRST_CHUNK
        from zsnapdb.stream.chunks import Codec
        from zsnapdb.stream.upload import UploadSettings

        stream = self.repository.stream
        level, adaptive = (FIRST_LEVEL, True) if stream.level == "auto" else (stream.level, False)
        codec = Codec.NONE if level == 0 else Codec.ZSTD
        # If the bandwidth is limited, additional connections would only wait.
        widens = self.repository.bandwidth is None
        first = min(FIRST_CHUNK, stream.chunk_size)
        return UploadSettings(stream.chunk_size, codec, level, stream.concurrency, adaptive, widens, first)
