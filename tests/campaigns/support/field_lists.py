"""What the product says that a copy does not have, for the comparisons of the campaign `field`."""

from __future__ import annotations

import re

from zsnapdb.base.model import Flavour

_STATE = (
    r"^(gtid_|timestamp$|hostname$|server_uu?id$|version|rand_seed|last_|pseudo_|error_count|warning_count|identity$"
    r"|insert_id|original_|immediate_|innodb_ft_aux_table|innodb_buffer_pool_(dump|load)_(now|abort)"
    r"|statement_id|external_user|proxy_user|.*_basename$|large_files|lower_case_file|have_|system_time_zone$|in_transaction$)"
)
"""State of a server or constants of its program, which nothing sets."""
_CONFIGURED = ("innodb_use_native_aio", "innodb_buffer_pool_size", "performance_schema")
"""What the configuration of the guest's instance says of copies (`server.options`)."""


def is_state(name: str) -> bool:
    """Whether the variable is a state of a server, or a constant of its program."""
    return re.match(_STATE, name) is not None


def is_left_out(name: str, flavour: Flavour) -> bool:
    """Whether a copy may show another value of a variable than its source."""
    return is_state(name) or name in _CONFIGURED or name.startswith("performance_schema")
