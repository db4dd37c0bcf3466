"""Creates the screenshots in docs: `PYTHONPATH=packaging:. python -m tools.pictures [--into FOLDER]`.

The pages come from the real web process and helper, over HTTP. Their data is invented, and a program stands in for
zsnapdb (`tests/unit/support`). Chromium of the distribution takes the screenshots: `apt-get install chromium
fonts-dejavu`.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import uvicorn

from tests.unit.support.serve_host import ServeHost
from zsnapdb.serve.api_answers import AsgiApp, Receive, Scope, Send
from zsnapdb.serve.browser_pages import BrowserPages
from zsnapdb.serve.page_app import create_site
from zsnapdb.serve.page_requests import COOKIE, cookie_name
from zsnapdb.serve.roles import Role

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "img"
MOST_BYTES = 150_000
NOW = datetime(2026, 11, 27, 9, 0, tzinfo=UTC)
_SUBJECT = "user:anna@shop.example"
_SECONDS = 120.0
_CONFIGURATION = """
[repository.store]
url = "file:///srv/backups"

[instance.shop]
repository = "store"
volumes = { data = "tank/shop" }
masking = { run = ["/etc/zsnapdb/mask.sql"] }
pool = { size = 2 }

[instance.billing]
repository = "store"
volumes = { data = "tank/billing" }
masking = { run = ["/etc/zsnapdb/mask.sql"] }

[instance.wiki]
repository = "store"
volumes = { data = "tank/wiki" }

[serve]
unmasked = ["wiki"]
"""


@dataclass(frozen=True)
class DocsPicture:
    """A page and the size of its screenshot in pixels."""

    name: str
    path: str
    width: int
    height: int


PICTURES = (
    DocsPicture("page-overview", "/", 1100, 730),
    DocsPicture("page-clones", "/clones", 1100, 500),
    DocsPicture("page-new-clone", "/new?instance=shop", 1100, 1290),
    DocsPicture("page-drills", "/drills?instance=shop", 1100, 700),
)


def chromium() -> str | None:
    """Return the browser for the screenshots; None if this host has none."""
    return shutil.which("chromium")


class _PictureHost(ServeHost):
    """A host with the configuration and clock of the screenshots."""

    def settings(self):  # type: ignore[no-untyped-def]
        from zsnapdb.config import settings

        return settings.parse(_CONFIGURATION, "the pictures")


def _stamp(hours: float) -> str:
    return (NOW - timedelta(hours=hours)).isoformat().replace("+00:00", "Z")


def _backup(hours: float) -> str:
    return (NOW - timedelta(hours=hours)).strftime("%Y%m%dT%H%M%SZ-4c1e")


def _shows(host: ServeHost) -> None:
    """Create the data that the pages show."""
    usual = {"bind_address": "127.0.0.1", "phase": "ready", "masked": True, "quota": 20 << 30, "requested": "latest"}
    mine = {**usual, "owner": _SUBJECT, "instance": "shop"}
    backup = _backup(3)
    host.clones(
        {
            **mine,
            "name": "checkout-fix",
            "created": _stamp(26),
            "expires": _stamp(-22),
            "pid": 4711,
            "port": 23070,
            "own_bytes": 312 << 20,
            "backup_id": backup,
            "profile": "normal",
        },
        {
            **mine,
            "name": "before-the-sale",
            "created": _stamp(2),
            "expires": _stamp(-0.6),
            "pid": 4802,
            "port": 23071,
            "own_bytes": 41 << 20,
            "backup_id": backup,
            "profile": "tiny",
            "requested": "2026-11-27 06:00:00 UTC",
        },
        {
            **usual,
            "name": "web-8841",
            "owner": "ci:shop/web",
            "instance": "shop",
            "created": _stamp(0.2),
            "expires": _stamp(-0.8),
            "pid": 4990,
            "port": 23072,
            "own_bytes": 9 << 20,
            "backup_id": backup,
            "profile": "tiny",
        },
        {
            **usual,
            "name": "month-end",
            "owner": "user:ben@shop.example",
            "instance": "billing",
            "created": _stamp(49),
            "expires": _stamp(-119),
            "pid": None,
            "port": 23073,
            "own_bytes": 3 << 30,
            "backup_id": _backup(50),
            "profile": "normal",
        },
    )
    met = {"subject": "", "verdict": "met", "hint": "", "since": None}
    objectives: list[dict[str, object]] = [
        {
            **met,
            "objective": "restorable",
            "reason": "the newest restorable point is 40 s old",
            "seconds": 40.0,
            "limit_seconds": 900.0,
        },
        {
            **met,
            "objective": "drill_age",
            "reason": "a drill passed 5 h ago",
            "seconds": 18000.0,
            "limit_seconds": 604800.0,
        },
    ]
    late: dict[str, object] = {
        "objective": "drill_age",
        "subject": "",
        "verdict": "broken",
        "hint": "run `zsnapdb drill billing`",
        "reason": "the newest passed drill is 9 d 2 h old, and drill_age is 7 d",
        "since": _stamp(218),
        "seconds": 784800.0,
        "limit_seconds": 604800.0,
    }
    ranges = [
        {"from": _stamp(168), "to": _stamp(120), "backups": [_backup(168)]},
        {"from": _stamp(116), "to": _stamp(40), "backups": [_backup(115)]},
        {"from": _stamp(39.5), "to": _stamp(0.1), "backups": [_backup(39), backup]},
    ]
    gaps = [
        {"from": _stamp(120), "to": _stamp(116), "reason": "binlog.000412 was purged before it was archived"},
        {"from": _stamp(40), "to": _stamp(39.5), "reason": "the server was started without binlogs"},
    ]

    def status(name: str, verdict: str, judged: list[dict[str, object]]) -> dict[str, object]:
        return {
            "kind": "status",
            "instance": name,
            "at": _stamp(0),
            "recoverable": ranges,
            "gaps": gaps,
            "verdict": verdict,
            "objectives": judged,
        }

    whole = {
        "shop": status("shop", "met", objectives),
        "billing": status("billing", "broken", [objectives[0], late]),
        "wiki": status("wiki", "met", objectives),
    }
    states = [{"instance": name, "status": one, "error": None} for name, one in sorted(whole.items())]
    host.prints("status", {**whole["shop"], "instances": states}, 2)
    sets = [{"backup_id": _backup(hours), "state": "stored"} for hours in (68, 39, 3)]
    host.prints("list", {"kind": "local-sets", "sets": sets})
    host.prints("drills", {"kind": "drills", "drills": [_drill(number) for number in reversed(range(12))]})


def _drill(number: int) -> dict[str, object]:
    """Return the drill of a week; the one five weeks ago failed."""
    hours, slower = 5 + 168 * number, 1 + 0.06 * ((number * 7) % 5)
    steps = [
        {"kind": kind, "what": "", "seconds": round(seconds * slower - number * share, 1)}
        for kind, seconds, share in (
            ("receive", 210.0, 7.0),
            ("recover", 31.0, 0.4),
            ("replay", 64.0, 1.1),
            ("check", 22.0, 0.2),
        )
    ]
    return {
        "drill_id": _backup(hours),
        "backup_id": _backup(hours + 1),
        "requested": "latest",
        "started": _stamp(hours),
        "finished": _stamp(hours - 0.1),
        "outcome": "failed" if number == 5 else "passed",
        "seconds": sum(float(str(one["seconds"])) for one in steps),
        "steps": steps,
    }


@contextmanager
def _site(folder: Path) -> Iterator[str]:
    """Run the pages for the block; every request is logged in."""
    host = _PictureHost(folder, now=NOW)
    _shows(host)
    pages = BrowserPages(host.client, lambda: NOW)
    session = pages.sessions.open(host.token(_SUBJECT, Role.OPERATOR, 8 * 3600.0), _SUBJECT, 8 * 3600.0)
    assert session is not None
    cookie = f"{cookie_name(COOKIE, is_https=False)}={session.id.get_secret_value()}".encode()
    site: AsgiApp = create_site(host.client, pages)

    async def with_session(scope: Scope, receive: Receive, send: Send) -> None:
        await site({**scope, "headers": [*scope.get("headers", ()), (b"cookie", cookie)]}, receive, send)

    with host.helper(), socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(with_session, lifespan="off", log_level="error", access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def make(into: Path) -> list[Path]:
    """Create every screenshot in the folder, and return the files. Chromium must exist (`chromium`)."""
    browser, made = chromium(), []
    assert browser is not None
    with tempfile.TemporaryDirectory() as folder, _site(Path(folder)) as url:
        for one in PICTURES:
            file = into / f"{one.name}.png"
            argv = (
                browser,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--no-first-run",
                f"--user-data-dir={folder}/browser",
                f"--window-size={one.width},{one.height}",
                f"--screenshot={file}",
                f"{url}{one.path}",
            )
            subprocess.run(argv, check=True, capture_output=True, timeout=_SECONDS, cwd=folder)
            made.append(file)
    return made


def main() -> int:
    """Create the screenshots, or report why not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=IMAGES)
    into = parser.parse_args().into
    if chromium() is None:
        print("there is no chromium: apt-get install chromium fonts-dejavu", file=sys.stderr)
        return 1
    for file in make(into):
        print(f"{file}  {file.stat().st_size} bytes")
        if file.stat().st_size > MOST_BYTES:
            print(f"{file} is larger than {MOST_BYTES} bytes: show less of the page", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
