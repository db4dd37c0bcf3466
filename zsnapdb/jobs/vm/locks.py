"""Locks of this host: one process at a time on a machine, on a base, and on the names of both."""

from __future__ import annotations

import contextlib

from zsnapdb.jobs.base.exclusion import exclusive

PATIENCE = 60.0


def names() -> contextlib.AbstractContextManager[None]:
    """Be the only process that reserves names of bases and machines. Nothing slow runs under this lock."""
    return exclusive("vm-names", doing="naming virtual machines", patience=PATIENCE)


def name_of_machine(name: str) -> str:
    """Return the name of the machine's lock."""
    return f"vm-machine-{name}"


def name_of_base(name: str) -> str:
    """Return the name of the base's lock."""
    return f"vm-base-{name}"


def on_machine(name: str) -> contextlib.AbstractContextManager[None]:
    """Be the only process that changes the machine."""
    return exclusive(name_of_machine(name), doing=f"working on the virtual machine {name}", patience=PATIENCE)


def on_base(name: str) -> contextlib.AbstractContextManager[None]:
    """Be the only process that makes, clones or removes the base."""
    return exclusive(name_of_base(name), doing=f"working on the base {name}", patience=PATIENCE)
