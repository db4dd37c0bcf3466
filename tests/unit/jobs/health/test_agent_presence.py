"""A host whose configured agent is stopped is not green; a host with cron instead of the agent is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.stored_backups import Site
from zsnapdb.agent.web import overview
from zsnapdb.config.services import InstanceAgentSettings
from zsnapdb.config.settings import parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import exclusive
from zsnapdb.jobs.host import agent_presence
from zsnapdb.jobs.repository import protection_status
from zsnapdb.planning.health.objectives import Objective, Verdict
from zsnapdb.report.agent import AgentView

JOBS = [name for name in InstanceAgentSettings.model_fields if name not in ("archive", "copy_to", "pool")]
AGENT = "[agent]\nstate = '/nonexistent'\n[instance.main.agent]\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    (tmp_path / "store").mkdir()
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setattr(agent_presence, "OTHER_SCHEDULERS", (f"{tmp_path}/cron.d/zsnapdb*",))
    made = Site(tmp_path / "store")
    made.fill([None])
    return made


def verdicts(site: Site, agent: str) -> dict[Objective, Verdict]:
    own = Instance.of(parse(site.text() + agent, "t"), "main")
    judged = protection_status.status(replace(own, host=site.host)).health.judgements
    return {one.objective: one.verdict for one in judged}


def view(site: Site, agent: str) -> AgentView:
    return AgentView(overview(parse(site.text() + agent, "t"), Path("/etc/z.toml"), site.host))


@pytest.mark.parametrize("job", ["archive = true", *(f'{job} = {{ every = "1h" }}' for job in JOBS)])
def test_stopped_agent_with_any_job_is_a_warning(site: Site, job: str) -> None:
    assert verdicts(site, AGENT + job)[Objective.AGENT] is Verdict.WARNING
    assert view(site, AGENT + job).overview.is_lacking
    with exclusive(agent_presence.LOCK, doing="the agent", folder=site.host.run):
        assert Objective.AGENT not in verdicts(site, AGENT + job)
        assert not view(site, AGENT + job).overview.is_lacking


@pytest.mark.parametrize("scheduler", ["no jobs", "cron"])
def test_host_without_an_agent_on_purpose_stays_green(site: Site, scheduler: str) -> None:
    (site.folder.parent / "cron.d").mkdir()
    if scheduler == "cron":
        (site.folder.parent / "cron.d" / "zsnapdb-main").touch()
    agent = AGENT + "archive = true" if scheduler == "cron" else ""
    assert Objective.AGENT not in verdicts(site, agent)
    assert not view(site, agent).overview.is_lacking


def test_agent_status_names_no_next_run_without_an_agent(site: Site) -> None:
    text = view(site, f'{AGENT}backup = {{ every = "1h" }}').text()
    assert "hint: run `systemctl start zsnapdb-agent`" in text
    assert "UTC" not in text


def test_account_that_may_not_look_reports_no_stopped_agent(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "lstat", refuse)
    assert agent_presence.runs_agent(site.host)
