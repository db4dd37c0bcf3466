"""The last steps of a setup: each result is handed on, and nothing follows one that is not good."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.support.drilled import evidence
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import DamagedError, PreflightError, RepositoryError, ZsnapdbError
from zsnapdb.jobs.backup import run
from zsnapdb.jobs.base.events import SILENT
from zsnapdb.jobs.doctor import instance_checks
from zsnapdb.jobs.doctor.instance_checks import Diagnosis
from zsnapdb.jobs.setup import steps
from zsnapdb.jobs.setup.steps import ProofResult, SetupCheck
from zsnapdb.jobs.trial import drill
from zsnapdb.jobs.trial.drill import DrillResult
from zsnapdb.planning.backup.fitness import FitnessFinding, ok, unfit, warning
from zsnapdb.planning.setup.configuration import ServerLogin, merged_configuration
from zsnapdb.planning.setup.facts import FoundServer, SetupAnswers
from zsnapdb.planning.setup.plan import PROOF, SetupPlan, SetupStep, SetupWay
from zsnapdb.report.setup import proof_view
from zsnapdb.repository.drills import Outcome


class ProvenHost:
    """A host that was set up. `done` are the jobs that ran on it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.findings: tuple[FitnessFinding, ...] = (ok("server", "mysql 8.4.6"), warning("objective", "no drill"))
        self.outcome = Outcome.PASSED
        self.done: list[str] = []
        self.error: ZsnapdbError | None = None
        answers = SetupAnswers(f"file://{folder}")
        server = FoundServer(1, "mysql", "/m", ("/s",), "/d", Flavour.MYSQL, "zfs", "tank/d")
        steps = tuple(SetupStep(action.value, action=action) for action in PROOF)
        configuration = folder / "z.toml"
        configuration.write_text(merged_configuration(answers, ServerLogin("/s", "zsnapdb"), None).text)
        self.plan = SetupPlan(SetupWay.ADOPT, server, answers, str(configuration), None, steps=steps)
        monkeypatch.setattr(
            instance_checks, "diagnose", self._job("doctor", lambda: [Diagnosis("main", self.findings, None)])
        )
        monkeypatch.setattr(run, "backup", self._job("backup", lambda: SimpleNamespace()))
        monkeypatch.setattr(drill, "drill", self._job("drill", self._drilled))

    def _job(self, name: str, result: Callable[[], object]) -> Callable[..., object]:
        def job(*_: object, **__: object) -> object:
            self.done.append(name)
            if self.error is not None and name == "backup":
                raise self.error
            return result()

        return job

    def _drilled(self) -> DrillResult:
        return DrillResult(evidence(self.outcome), "key")

    def prove(self, results: list[ProofResult]) -> None:
        """Do the steps. `results` gets those that were handed on before an error."""
        results.extend(steps.prove(self.plan, SILENT))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProvenHost:
    return ProvenHost(tmp_path, monkeypatch)


def test_doctor_a_backup_and_a_drill_follow_each_other_though_doctor_warns(host: ProvenHost) -> None:
    results: list[ProofResult] = []
    host.prove(results)
    assert host.done == ["doctor", "backup", "drill"]
    assert len(results) == 3
    assert "objective       no drill" in proof_view(results[0]).text()
    assert "passed" in proof_view(results[2]).text()


def test_an_unfit_server_is_not_backed_up_and_its_findings_are_shown(host: ProvenHost) -> None:
    host.findings = (unfit("lock", "the account lacks BACKUP_ADMIN", "GRANT it"),)
    results: list[ProofResult] = []
    with pytest.raises(PreflightError, match="lacks BACKUP_ADMIN") as caught:
        host.prove(results)
    assert host.done == ["doctor"]
    assert isinstance(results[0], SetupCheck)
    assert caught.value.hint == "GRANT it"
    assert caught.value.__notes__ == [steps.AGAIN]


def test_an_error_of_a_step_ends_setup_and_says_how_it_goes_on(host: ProvenHost) -> None:
    host.error = RepositoryError("the store is away", hint="wait")
    with pytest.raises(RepositoryError, match="the store is away") as caught:
        host.prove([])
    assert (host.done, caught.value.__notes__) == (["doctor", "backup"], [steps.AGAIN])


def test_a_drill_that_did_not_pass_is_shown_and_ends_setup_with_its_own_exit_code(host: ProvenHost) -> None:
    host.outcome = Outcome.DAMAGED
    results: list[ProofResult] = []
    with pytest.raises(DamagedError) as caught:
        host.prove(results)
    assert "a page" in proof_view(results[2]).text()
    assert caught.value.exit_code == drill.exit_code(evidence(Outcome.DAMAGED))
