"""The hook for guests (hooks/guest-freeze): what it decides, and what it says about a client that fails or hangs."""

from __future__ import annotations

import importlib.util
import sys
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "hooks" / "guest-freeze"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = SourceFileLoader("guest_freeze", str(SCRIPT))
    spec = importlib.util.spec_from_loader("guest_freeze", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "guest_freeze", module)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("version", "statement"),
    [
        ("11.8.6-MariaDB-0+deb13u1-log", "BACKUP STAGE BLOCK_COMMIT"),
        ("10.4.1-MariaDB", "BACKUP STAGE BLOCK_COMMIT"),
        ("10.3.39-MariaDB-log", "FLUSH TABLES WITH READ LOCK"),
        ("9.7.4", "FLUSH TABLES WITH READ LOCK"),
        ("8.0.36-28.1", "FLUSH TABLES WITH READ LOCK"),
    ],
)
def test_the_lock_is_the_lightest_that_holds_all_writes_of_the_server(hook: Any, version: str, statement: str) -> None:
    assert hook.lock_for(version).acquire[-1] == statement


def test_a_version_that_is_not_known_gets_no_lock(hook: Any) -> None:
    with pytest.raises(hook.Refusal, match="is not known"):
        hook.lock_for("")


def test_every_file_system_with_a_device_is_thawed_and_no_other(hook: Any) -> None:
    text = r"""22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
23 22 0:21 / /proc rw - proc proc rw
31 22 254:16 / /srv/my\040data rw master:2 - xfs /dev/vdb rw
32 22 0:33 /@ /home rw - btrfs /dev/vdc rw
33 22 0:40 / /run rw - tmpfs tmpfs rw
"""
    assert hook.mount_points(text) == ["/", "/srv/my data", "/home"]


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """A client that answers every mark; the test can put lines before that."""
    path = tmp_path / "client"
    path.write_text("#!/bin/sh\nwhile read -r word text; do\n  case $word in SELECT) echo ${text} ;; esac\ndone\n")
    path.chmod(0o755)
    (tmp_path / "account.cnf").write_text("[client]\n")
    return path


def settings_of(hook: Any, client: Path, more: str = "") -> Any:
    file = client.parent / "settings.ini"
    file.write_text(f"[guest-freeze]\nclient = {client}\ncredentials = {client.parent}/account.cnf\n{more}")
    return hook.read_settings(str(file))


def test_settings_have_defaults_and_what_cannot_be_used_is_refused(hook: Any, client: Path) -> None:
    settings = settings_of(hook, client, "hold_seconds = 20   # more than the host's\n")
    assert (settings.lock_seconds, settings.hold_seconds) == (2.0, 20.0)
    wrong = {
        "lock_seconds = soon": "cannot be read",
        "hold_seconds = 0": "must be above 0",
        "holdseconds = 5": "unknown settings: holdseconds",
        "client = /nowhere/mysql": "already exists",
    }
    for line, reason in wrong.items():
        with pytest.raises(hook.Refusal, match=reason):
            settings_of(hook, client, f"{line}\n")
    with pytest.raises(hook.Refusal, match="is not installed"):
        settings_of(hook, client.with_name("gone"))
    (client.parent / "account.cnf").unlink()
    with pytest.raises(hook.Refusal, match=r"account\.cnf with the account cannot be read"):
        settings_of(hook, client)


def test_what_the_client_says_when_it_fails_is_told(hook: Any, client: Path) -> None:
    client.write_text("#!/bin/sh\necho 'ERROR 1045 (28000): Access denied' >&2\nexit 1\n")
    session = hook.Session(settings_of(hook, client))
    with pytest.raises(hook.Refusal, match="Access denied"):
        session.ask("SELECT VERSION()", time.monotonic() + 20)
    session.close()


def test_a_client_that_does_not_answer_is_not_waited_for(hook: Any, client: Path) -> None:
    client.write_text("#!/bin/sh\nexec sleep 60\n")
    session = hook.Session(settings_of(hook, client))
    with pytest.raises(hook.Refusal, match="had not ended in time"):
        session.ask("SELECT VERSION()", time.monotonic() + 0.2)
    session.close()


@pytest.mark.parametrize("row", ["7\tapp\tlocalhost\tshop\tQuery\t9\texecuting\tSELECT SLEEP(60)"])
def test_a_lock_that_would_wait_for_a_long_statement_is_not_tried(hook: Any, client: Path, row: str) -> None:
    session = hook.Session(settings_of(hook, client))
    asked = iter([[row], [row.replace("\t9\t", "\t1\t")], [row.replace("app", "system user")], ["strange"]])
    session.ask = lambda statement, until: next(asked)
    with pytest.raises(hook.Refusal, match="connection 7 runs a statement for 9 s"):
        session.refuse_behind_long_statements(2, 0.0)
    for _ in range(3):
        session.refuse_behind_long_statements(2, 0.0)
    session.close()
