"""A campaign that is interrupted ends at once, with all that runs for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import campaign
from tests.lab.cache import Cache
from tests.lab.campaign import Outcome
from tests.lab.guest import Guest, Lab
from tests.lab.host import LabError

LAB = Lab(Path(), Path(), Path(), {}, Cache(Path("/nowhere")))


def interrupt() -> None:
    """Send SIGINT to the main thread, as a terminal does; a flag alone would not wake it."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


class EndlessGuest:
    """A guest whose command ends only with the guest. It interrupts the process as soon as the command runs."""

    def __init__(self) -> None:
        self.killed, self.closed = threading.Event(), threading.Event()

    def run(self, *_: object, **__: object) -> None:
        interrupt()
        self.killed.wait(60)
        raise LabError("the guest went away while the command ran")

    def end(self) -> None:
        self.killed.set()

    def __enter__(self) -> EndlessGuest:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT interrupts, also where the tests run as a background job that ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_ends_and_closes_the_guests_of_a_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = EndlessGuest()
    monkeypatch.setattr(Guest, "boot", lambda *_, **__: guest)
    with pytest.raises(KeyboardInterrupt):
        campaign.run(LAB, "points", ["mysql"], [], timeout=60)
    assert (guest.killed.wait(60), guest.closed.wait(60)) == (True, True)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_ends_a_campaign_that_runs_on_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = "import os\nimport time\n\nON_HOST = True\n\nos.write(1, b'up')\ntime.sleep(600)\n"
    (tmp_path / "slow.py").write_text(script)
    monkeypatch.setattr(campaign, "FOLDER", tmp_path)
    outcomes: list[Outcome] = []

    def noted(flavour: str) -> Outcome:
        outcomes.append(Outcome(flavour))
        return outcomes[-1]

    monkeypatch.setattr(campaign, "Outcome", noted)
    monkeypatch.setattr(campaign, "_Lines", lambda _: lambda *_: interrupt())
    with pytest.raises(KeyboardInterrupt):
        campaign.run(LAB, "slow", ["mysql"], [], timeout=300)
    (outcome,) = outcomes
    assert outcome.is_final.wait(60)
    assert outcome.code == -signal.SIGKILL


def test_what_begins_after_the_interrupt_is_ended_at_once() -> None:
    ends, called = campaign._Ends(), threading.Event()
    ends.end()
    ends.add(called.set)
    assert called.is_set()
