"""Metrics say when facts were true, and every metric that a rule or a panel names exists and is documented."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.unit.support.command_line import CHECKOUT, zsnapdb
from tests.unit.support.stored_backups import Site
from zsnapdb.base.domain_types import backup_time
from zsnapdb.base.errors import UsageError, ZsnapdbError
from zsnapdb.config.settings import parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.health import health
from zsnapdb.jobs.repository.protection_status import InstanceStatus, observed
from zsnapdb.report.fleet import FLEET_METRICS, READ, READABLE, SILENT
from zsnapdb.report.metrics import METRICS, samples, text

NAMES = {metric.name for metric in METRICS}
SHIPPED = CHECKOUT / "configs" / "monitoring"
OBJECTIVES = '[instance.main.objectives]\nrpo = "3d"\nwindow = "1d"\n'
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "store").mkdir()
    return Site(tmp_path / "store")


def state(site: Site) -> InstanceStatus:
    instance = Instance.of(parse(f"{site.text()}\n{OBJECTIVES}", "test"), "main")
    return observed(replace(instance, host=site.host))


def values(states: list[InstanceStatus]) -> dict[str, float]:
    """Return the value of each sample, by its metric and objective."""
    return {
        f"{sample.metric.name} {sample.labels.get('objective', '')}".rstrip(): sample.value
        for sample in samples(states, NOW)
    }


def test_times_of_facts_are_exported_and_no_age(site: Site) -> None:
    (name,) = site.fill([None])
    made = backup_time(name).timestamp()
    first = values([state(site)])
    site.later(days=1.9)
    later = values([state(site)])
    for found in (first, later):
        assert found["zsnapdb_newest_backup_timestamp_seconds"] == made
        assert found["zsnapdb_newest_point_timestamp_seconds"] == made
        assert found["zsnapdb_objective_deadline_timestamp_seconds rpo"] == made + 3 * 86400
        assert found["zsnapdb_status_timestamp_seconds"] == NOW.timestamp()
    assert {key for key in first if first[key] != later[key]} == {
        "zsnapdb_objective_verdict rpo",
        "zsnapdb_verdict",
    }
    assert (first["zsnapdb_verdict"], later["zsnapdb_verdict"]) == (0, 1)


def test_a_repository_that_cannot_be_read_is_red(site: Site) -> None:
    site.folder.rmdir()
    found = values([state(site)])
    assert (found["zsnapdb_repository_readable"], found["zsnapdb_verdict"]) == (0, 2)
    assert not [name for name in found if "newest" in name]


def test_damage_is_red_though_every_objective_is_met(site: Site) -> None:
    *_, last = site.fill([None, 0])
    (manifest,) = (site.folder / key for key in site.objects("main/manifests/") if last in key)
    manifest.write_bytes(b"{}")
    found = values([state(site)])
    assert (found["zsnapdb_verdict"], found["zsnapdb_damage_reasons"]) == (2, 1)


def test_every_metric_has_its_help_and_type_before_its_samples(site: Site) -> None:
    site.fill([None])
    lines = text([state(site)], NOW).splitlines()
    seen: set[str] = set()
    for line in lines:
        if line.startswith("# TYPE "):
            seen.add(line.split()[2])
        elif not line.startswith("#"):
            assert re.fullmatch(r'[a-z_]+\{([a-z_]+="[^"\n]*",?)+\} [-0-9.e+]+', line), line
            assert line.partition("{")[0] in seen
    assert seen <= NAMES


def test_every_metric_is_documented() -> None:
    page = (CHECKOUT / "docs" / "health.md").read_text()
    assert {
        (name, meaning) for name, meaning in re.findall(r"^\| `(zsnapdb_\w+)` \| (.*) \|$", page, re.MULTILINE)
    } == {(metric.name, metric.help) for metric in METRICS}


@pytest.mark.parametrize("name", ["zsnapdb.rules.yml", "zsnapdb-dashboard.json"])
def test_every_metric_that_rules_and_panels_name_exists(name: str) -> None:
    body = (SHIPPED / name).read_text().replace("zsnapdb_instance", "")
    named = set(re.findall(r"zsnapdb_\w+", body))
    assert named
    assert named <= NAMES | {metric.name for metric in FLEET_METRICS}


def test_the_dashboard_is_a_document_of_panels() -> None:
    board = json.loads((SHIPPED / "zsnapdb-dashboard.json").read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(target["expr"] for panel in board["panels"] for target in panel["targets"])


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    board = json.loads((SHIPPED / "zsnapdb-dashboard.json").read_text())
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in board["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_fleet_hosts_and_repositories_have_alert_and_panel() -> None:
    for name in ("zsnapdb.rules.yml", "zsnapdb-dashboard.json"):
        body = (SHIPPED / name).read_text()
        assert all(metric.name in body for metric in (READABLE, READ, SILENT)), name


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    rules = (SHIPPED / "zsnapdb.rules.yml").read_text()
    cases = (Path(__file__).parent / "zsnapdb.rules.test.yml").read_text()
    alerts = set(re.findall(r"- alert: (\w+)", rules))
    assert alerts
    assert set(re.findall(r"alertname: (\w+), exp_alerts: \[\]", cases)) == alerts
    assert set(re.findall(r"alertname: (\w+)\n\s+exp_alerts:\n\s+- exp_labels", cases)) == alerts


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (package promtool, before Debian 13 prometheus)"
)
def test_the_rules_raise_their_alarms_and_no_others(tmp_path: Path) -> None:
    for file in (SHIPPED / "zsnapdb.rules.yml", Path(__file__).parent / "zsnapdb.rules.test.yml"):
        shutil.copy(file, tmp_path)
    done = subprocess.run(
        ["promtool", "test", "rules", "zsnapdb.rules.test.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (package promtool, before Debian 13 prometheus)"
)
def test_the_metrics_pass_the_linter_of_prometheus(site: Site) -> None:
    site.fill([None])
    body = text([state(site)], NOW)
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_status_writes_a_file_for_node_exporter_also_if_an_objective_is_broken(site: Site, tmp_path: Path) -> None:
    site.fill([None])
    config, file = tmp_path / "zsnapdb.toml", tmp_path / "zsnapdb.prom"
    config.write_text(f'{site.text()}\n[instance.main.objectives]\nrpo = "1h"\n')
    done = zsnapdb("status", "--all", "--metrics", str(file), config=str(config))
    assert done.returncode == 2, done.stderr
    assert 'zsnapdb_objective_verdict{zsnapdb_instance="main",repository="here",objective="rpo"} 2' in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert sorted(path.name for path in tmp_path.iterdir() if "prom" in path.name) == ["zsnapdb.prom"]
    config.write_text(site.text())
    assert zsnapdb("status", "--all", config=str(config)).returncode == 1, "no binlog is archived"
    assert zsnapdb("status", "--all", "--metrics", "/nowhere/zsnapdb.prom", config=str(config)).returncode == 2


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim, file = tmp_path / "victim", tmp_path / "zsnapdb.prom"
    victim.write_text("precious")
    file.symlink_to(victim)
    health.write(file, "metrics\n")
    assert (victim.read_text(), file.read_text(), file.is_symlink()) == ("precious", "metrics\n", False)


def test_a_file_that_node_exporter_would_not_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"end in \.prom"):
        health.check_name(tmp_path / "zsnapdb.txt")
    with pytest.raises(ZsnapdbError, match="writing the metrics"):
        health.write(tmp_path / "none" / "zsnapdb.prom", "")


def test_every_rule_about_an_age_also_sees_a_time_in_the_future() -> None:
    """The age of a time by a clock that was ahead is negative: without its amount, nothing alarms until that time."""
    ages = re.findall(r"expr: (.*time\(\) - .*)", (SHIPPED / "zsnapdb.rules.yml").read_text())
    assert len(ages) == 2
    assert all(age.startswith("abs(time() - ") for age in ages)
