"""Whether the agent that should run the jobs of this host runs."""

from __future__ import annotations

from pathlib import Path

from zsnapdb.base.files import lock_file
from zsnapdb.config.services import InstanceAgentSettings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.run_locks import is_held

LOCK = "agent"
"""Name of the host lock that the agent holds."""
OTHER_SCHEDULERS = ("/etc/cron.d/zsnapdb*", "/etc/systemd/system/timers.target.wants/zsnapdb*.timer")
"""Files that other schedulers need to run the jobs instead of the agent."""


def runs_agent(host: Host) -> bool:
    """Return whether an agent runs on this host. If this account may not look at its lock, return True."""
    try:
        lock_file(host.run, LOCK).lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return is_held(LOCK, host.run)


def lacks_agent(settings: InstanceAgentSettings, host: Host) -> bool:
    """Return whether the configuration gives jobs of an instance to an agent, but neither it nor cron runs them."""
    has_jobs = settings.archive or any(value is not None for name, value in settings if name != "archive")
    return has_jobs and not runs_agent(host) and not has_other_scheduler()


def has_other_scheduler() -> bool:
    """Return whether cron or timers of systemd run jobs of zsnapdb on this host."""
    return any(any(Path("/").glob(pattern.lstrip("/"))) for pattern in OTHER_SCHEDULERS)
