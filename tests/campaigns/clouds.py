"""Campaign: a server is lost and restored exactly from emulators of Azure and Google.

    python3 tests/lab campaign --flavour mariadb clouds [--only azure] [--busy 90]

The stores are Azurite (`azure`), the server of the unit tests (`gs`) and fake-gcs-server (`fake-gcs`). The gateway in
front of the last one translates uploads, because it has no PUT of Google's XML API.

It runs on the host, where the stores are. A guest backs up and archives under load, verifies, prunes, and copies its
repository to S3 and back. Then its power is cut and its disk is gone. A new guest has only the address and the
credentials: it lists, verifies, plans, and restores to the newest archived transaction. Every row must be the same.

A gateway in front of the store refuses all requests with 503, 429 and 500 for `--busy` seconds during a backup and
during the restore, and ends every ninth large answer in the middle.

- `azure`: the credentials are shared access signatures, whose end Azurite checks. One is renewed in the file before a
  restore needs it. Another one ends during the restore; the restore must fail, and work after the renewal.
- Google: the credentials are tokens that the library signs with the key of a service account. The gateway refuses a
  token that has ended too early for the library's clock, and the tokens of a key that was replaced in the file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.campaigns.support.cloud_front import Front, running_front
from tests.lab.build import build, cloud_library
from tests.lab.guest import Guest, Lab, Outcome
from tests.lab.relay import to_host
from tests.unit.support.cloud_emulators import (
    ACCOUNT,
    BUCKET,
    create_bucket,
    create_container,
    running_google_server,
    shared_access_signature,
    start_azurite,
    start_fake_gcs_server,
)

ON_HOST = True
ANY_SERVER = True
PYTHON = "/opt/venv/bin/python"
PORT = 7171
CONTAINER = BUCKET
CREDENTIALS = "/etc/zsnapdb/cloud"
CUT_EVERY = 9
SHORT, LATE = 40.0, 7
"""Seconds that short-lived credentials are good for: longer than a restore needs until it reads this chunk."""
PLACES = {"azure": "azure", "gs": "gs", "fake-gcs": "gs"}
"""The scheme of the address at each store."""
PROGRAMS = {"azure": "azurite-blob", "fake-gcs": "fake-gcs-server"}
URLS = {"azure": f"azure://{ACCOUNT}/{CONTAINER}", "gs": f"gs://{BUCKET}"}
ENDPOINTS = {"azure": f"http://127.0.0.1:{PORT}/{ACCOUNT}", "gs": f"http://127.0.0.1:{PORT}"}
REPOSITORIES = """
[repository.{name}]
url = "{url}/{path}"
{scheme} = {{ endpoint = "{endpoint}", credentials_file = "{file}" }}
patience = "{patience}"
stream = {{ chunk_size = "1MiB" }}
"""
CONFIGURE = r"""
set -e
mkdir -p /out/packages
echo /out/packages > "$(echo /opt/venv/lib/python3*/site-packages)/clouds.pth"
sed -i 's|^repository = "s3"|repository = "cloud"|' /etc/zsnapdb/zsnapdb.toml
cat /out/repositories >> /etc/zsnapdb/zsnapdb.toml
"""
INSIDE = "import json, sys, time; from tests.lab.inside import ledger; S = '/run/mysqld/mysqld.sock'\n"
LOAD = """
with ledger.connect(S, 'root', '', None) as c, c.cursor() as cursor:
    cursor.execute("SHOW TABLES FROM ledger")
    rows = cursor.fetchall()
if not rows:
    ledger.set_up(S)
with ledger.connect(S, 'root', '', 'ledger') as c, c.cursor() as cursor:
    cursor.execute('SELECT worker, MAX(number) FROM journal GROUP BY worker')
    firsts = {int(w): int(n) for w, n in cursor.fetchall()}
load = ledger.Load(S, first_number=firsts)
load.start()
load.wait_for(sum(firsts.values()) + NUMBER)
load.stop()
assert not load.failures, load.failures
"""
STATE = """
with ledger.connect(sys.argv[1], 'root', '', 'ledger') as connection:
    state = ledger.read_state(connection)
print(json.dumps([sorted(state.journal), sorted(state.accounts.items()), state.ballast]))
"""


class Wrong(Exception):
    """A result that is not the expected one."""


class Place:
    """A store outside of the guests, with its gateway and the credentials that a guest gets."""

    def __init__(self, kind: str, front: Front, folder: Path) -> None:
        self.kind, self.front, self.folder = kind, front, folder
        self.scheme = PLACES[kind]
        self._key = 0

    def new_credentials(self, seconds: float = 86400.0) -> str:
        """Return the content of a new credentials file. Only a signature of Azure ends after `seconds`."""
        if self.scheme == "azure":
            until = datetime.now(UTC) + timedelta(seconds=seconds)
            return f"AZURE_STORAGE_SAS_TOKEN={shared_access_signature(CONTAINER, until)}\n"
        self._key += 1
        pem = self.folder / f"{self._key}.pem"
        subprocess.run(["openssl", "genrsa", "-traditional", "-out", str(pem), "2048"], check=True, capture_output=True)
        return json.dumps(
            {
                "type": "service_account",
                "client_email": "backup@project.example",
                "private_key": pem.read_text(),
                "private_key_id": self.key_id,
            }
        )

    @property
    def key_id(self) -> str:
        """The id of the newest key of the service account."""
        return f"key-{self._key}"


@contextlib.contextmanager
def opened(kind: str) -> Iterator[Place]:
    """An empty store of this kind, until the end of the block."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if kind == "gs":
            served, port = stack.enter_context(running_google_server())
            served.page = 1000
        else:
            start, create = (
                (start_azurite, create_container) if kind == "azure" else (start_fake_gcs_server, create_bucket)
            )
            process, port = start(PROGRAMS[kind])
            stack.callback(process.kill)
            create(port, CONTAINER)
        front = stack.enter_context(running_front(port))
        front.translates_puts = kind == "fake-gcs"
        yield Place(kind, front, folder)


class Host:
    """A guest with a server, whose repository is at the place."""

    def __init__(self, guest: Guest, place: Place, packages: Path, patience: str) -> None:
        self.guest, self.place = guest, place
        shutil.copytree(packages / "packages", guest.out / "packages")
        scheme = place.scheme
        common = {"scheme": scheme, "url": URLS[scheme], "endpoint": ENDPOINTS[scheme], "file": CREDENTIALS}
        repositories = (
            REPOSITORIES.format(name=name, path=name, patience=patience, **common) for name in ("cloud", "back")
        )
        (guest.out / "repositories").write_text("".join(["\n[instance.main.keep]\nlast = 2\n", *repositories]))
        guest.run(["sh", "-c", CONFIGURE]).check()
        self.give_credentials()
        to_host(guest, PORT, place.front.port)

    def give_credentials(self, seconds: float = 86400.0) -> None:
        """Write new credentials into the file of the guest."""
        (self.guest.out / "credentials").write_text(self.place.new_credentials(seconds))
        self.guest.run(["sh", "-c", f"install -m 600 /out/credentials {CREDENTIALS}"]).check()

    def tries(self, *words: str) -> Outcome:
        """Run a command of zsnapdb, and print its seconds."""
        began = time.monotonic()
        done = self.guest.run(
            [PYTHON, "-X", "faulthandler", "-m", "zsnapdb", *words], env={"PYTHONPATH": "/checkout"}, timeout=1200
        )
        seconds = time.monotonic() - began
        print(f"{self.place.kind}: {seconds:6.1f} s, exit {done.code}: zsnapdb {' '.join(words)}", flush=True)
        return done

    def zsnapdb(self, *words: str) -> Outcome:
        done = self.tries(*words)
        if done.code != 0:
            raise Wrong(f"zsnapdb {' '.join(words)} ended with {done.code}: {done.stdout[-500:]} {done.stderr[-3000:]}")
        return done

    def python(self, text: str, *words: str) -> str:
        env = {"PYTHONPATH": "/checkout"}
        return self.guest.run([PYTHON, "-c", INSIDE + text, *words], env=env, timeout=600).check().stdout

    def write(self, transfers: int) -> None:
        self.python(LOAD.replace("NUMBER", str(transfers)))

    def state(self, socket: str = "/run/mysqld/mysqld.sock") -> str:
        """Return all rows of the ledger as text."""
        return self.python(STATE, socket)


def back_up(host: Host, busy: float) -> str:
    """Back up, archive and copy on the first host. Return the rows that a restore must have."""
    front = host.place.front
    host.zsnapdb("init", "cloud")
    host.write(60)
    host.zsnapdb("backup", "main")
    host.write(60)
    front.be_busy(busy)
    host.zsnapdb("backup", "main", "--full")
    host.write(60)
    host.zsnapdb("backup", "main")
    host.write(60)
    host.zsnapdb("binlog", "archive", "main", "--once")
    host.zsnapdb("verify", "main", "--deep")
    host.zsnapdb("prune", "main")
    host.zsnapdb("copy", "main", "--to", "s3")
    host.zsnapdb("verify", "main", "--deep", "--repository", "s3")
    host.zsnapdb("copy", "main", "--from", "s3", "--to", "back")
    host.zsnapdb("verify", "main", "--repository", "back")
    host.zsnapdb("status", "main")
    return host.state()


def restore(host: Host, name: str, expected: str, *more: str) -> None:
    """Restore to the newest transaction and compare all rows."""
    words = ("restore", "main", "--target", f"tank/{name}", "--handover", "run", "--json", *more)
    compare(host, name, json.loads(host.zsnapdb(*words).stdout), expected)


def compare(host: Host, name: str, restored: dict[str, object], expected: str) -> None:
    """Raise Wrong if the restored server has other rows."""
    if host.state(f"{restored['mount']}/.zsnapdb/server.sock") != expected:
        raise Wrong(f"the rows of {name} differ from those of the lost server")
    print(f"{host.place.kind}: {name}: all {len(json.loads(expected)[0])} transfers and every other row", flush=True)


def restore_after_expiry(host: Host, expected: str) -> None:
    """Restore while the credentials end and nobody renews them. After the renewal the same restore must work."""
    place = host.place
    host.give_credentials(seconds=SHORT)

    def expire() -> None:
        place.front.be_busy(SHORT + 5)
        place.front.refused_keys.add(place.key_id)

    place.front.at_chunk(LATE, expire)
    failed = host.tries("restore", "main", "--target", "tank/late", "--handover", "run")
    print(f"{place.kind}: {failed.stderr.strip()[-400:]}", flush=True)
    if failed.code == 0 or "credentials" not in failed.stderr:
        raise Wrong("a restore with expired credentials did not name them")
    host.give_credentials()
    if "--resume" in failed.stderr:
        compare(host, "late", json.loads(host.zsnapdb("restore", "main", "--resume", "--json").stdout), expected)
    else:
        # The restore had received nothing that ZFS could keep, so it removed everything.
        restore(host, "late", expected)


def restore_with_renewal(host: Host, expected: str, busy: float) -> None:
    """Restore while the store is busy and the credentials in use end; the file has newer ones by then."""
    place = host.place
    host.give_credentials(seconds=SHORT)
    renewal = threading.Thread(target=host.give_credentials)

    def renew() -> None:
        place.front.be_busy(max(busy, SHORT + 5))
        place.front.refused_keys.add(place.key_id)
        renewal.start()

    place.front.at_chunk(1, renew)
    before = place.front.denied
    restore(host, "busy", expected)
    renewal.join()
    if place.front.denied == before:
        raise Wrong("the credentials did not end during the restore")


def run(lab: Lab, flavour: str, kind: str, packages: Path, busy: float) -> None:
    with opened(kind) as place:
        with Guest.boot(lab, flavour) as guest:
            first = Host(guest, place, packages, "10m")
            place.front.cut_every = CUT_EVERY
            expected = back_up(first, busy)
            guest.power_cut()
        print(f"{kind}: the first host is gone; answers so far: {dict(place.front.answers)}", flush=True)
        place.front.answers.clear()
        with Guest.boot(lab, flavour) as guest:
            second = Host(guest, place, packages, "10m")
            second.zsnapdb("list", "main")
            second.zsnapdb("verify", "main")
            second.zsnapdb("restore", "main", "--plan")
            restore_with_renewal(second, expected, busy)
            # A process of zsnapdb gets its token at its start, so the token ends while the restore runs.
            place.front.at_chunk(1, place.front.expire_tokens)
            before = place.front.denied
            restore(second, "other", expected, "--repository", "back")
            if place.scheme == "gs" and place.front.denied == before:
                raise Wrong("the token did not end during the restore")
            restore_after_expiry(second, expected)
        print(f"{kind}: answers to the second host: {dict(place.front.answers)}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flavour", choices=["mysql", "mariadb"], required=True)
    parser.add_argument("--only", choices=list(PLACES))
    parser.add_argument("--busy", type=float, default=90.0, help="seconds during which the store refuses all requests")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lab = Lab.ready(is_whole=False)
    packages = build(lab.cache, [cloud_library()], is_whole=False)["cloud-library"]
    wrong: dict[str, str] = {}
    for kind in [options.only] if options.only else PLACES:
        if kind in PROGRAMS and shutil.which(PROGRAMS[kind]) is None:
            wrong[kind] = f"the program {PROGRAMS[kind]} is not installed"
            print(f"{kind}: {wrong[kind]}", flush=True)
            continue
        began = time.monotonic()
        try:
            run(lab, options.flavour, kind, packages, options.busy)
        except Wrong as error:
            wrong[kind] = str(error)
        print(f"{kind}: {wrong.get(kind, 'exact')}; {time.monotonic() - began:.0f} s", flush=True)
    if options.out:
        options.out.write_text(json.dumps({"wrong": wrong}, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
