"""How much of the host a clone's server uses. Pure."""

from __future__ import annotations

from enum import StrEnum


class ServerProfile(StrEnum):
    """tiny: small, so that many run side by side; normal: as the instance's own server.options say."""

    TINY = "tiny"
    NORMAL = "normal"

    @property
    def options(self) -> tuple[str, ...]:
        """Lines for the option file, after the site's own."""
        return _TINY if self is ServerProfile.TINY else ()


_TINY = (
    "innodb_buffer_pool_size=32M",
    "innodb_log_buffer_size=1M",
    "loose_performance_schema=OFF",
    "max_connections=30",
    "table_open_cache=200",
    "loose_innodb_buffer_pool_instances=1",
)
