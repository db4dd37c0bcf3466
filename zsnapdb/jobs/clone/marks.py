"""The ZFS user properties that say what a clone is. On its top dataset, set locally; each of its datasets carries its name and role."""

from __future__ import annotations

from zsnapdb.model import PROPERTY

CLONE_PROPERTY = f"{PROPERTY}:clone"
ROLE_PROPERTY = f"{PROPERTY}:role"
PORT_PROPERTY = f"{PROPERTY}:port"
CREATED_PROPERTY = f"{PROPERTY}:created"
FLAVOUR_PROPERTY = f"{PROPERTY}:flavour"
ROOT_PROPERTY = f"{PROPERTY}:root"
