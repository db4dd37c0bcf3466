"""The container around this process, if there is one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_MARKS = (".dockerenv", "run/.containerenv")
"""Files that Docker and Podman create in the root of a container."""


def is_container(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs in an application container, whose root file system is removed with it.

    The image sets `container` (systemd.io/CONTAINER_INTERFACE); Kubernetes sets its own variable.
    """
    named = environment.get("container", "") == "oci" or "KUBERNETES_SERVICE_HOST" in environment
    return named or any((root / mark).exists() for mark in _MARKS)
