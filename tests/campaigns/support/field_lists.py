"""Variables in which a copy may differ from its source, for the comparisons of the campaign `field`."""

from __future__ import annotations

from zsnapdb.planning.server_copy.variables import class_of

_CONFIGURED = ("innodb_use_native_aio", "innodb_buffer_pool_size", "performance_schema")
"""Variables that the configuration of the guest's instance sets for copies (`server.options`)."""
CLONES = frozenset({"log_bin_trust_function_creators"})
"""Variables of clones according to the page about copies: their users may create triggers and functions."""


def is_state(name: str) -> bool:
    """Whether the variable is a state of a server, or a fact of its program."""
    return not class_of(name).is_setting


def is_left_out(name: str) -> bool:
    """Whether a copy may have another value of the variable, according to the product."""
    return not class_of(name).is_kept or name in _CONFIGURED
