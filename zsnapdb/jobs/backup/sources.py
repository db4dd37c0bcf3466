"""Chooses the source of an instance by its configuration: one line for each kind."""

from __future__ import annotations

from contextlib import AbstractContextManager

from zsnapdb.jobs.backup.server_source import open_server
from zsnapdb.jobs.backup.source import AnySource
from zsnapdb.jobs.base.instance import Instance


def open_source(instance: Instance) -> AbstractContextManager[AnySource]:
    """Open the configured source of the instance. ServerError if its server cannot be reached.

    PreflightError if the source is a virtual machine and libvirt does not answer.
    """
    if instance.settings.vm is not None:
        # The backup of a server does without these modules.
        from zsnapdb.jobs.backup.vm_source import open_machine

        return open_machine(instance, instance.settings.vm)
    return open_server(instance)
