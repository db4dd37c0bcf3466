"""A machine with a MariaDB and QEMU's own guest agent, which is backed up under load and drilled."""

from __future__ import annotations

import json
import shutil
from typing import Any

from tests.campaigns.support.server_machines import LEDGER, Document, acknowledged, wait_for_transfers
from tests.lab import virtual
from tests.lab.build import build
from tests.lab.guest import Guest, Lab

CONFIG = ("--config", "/run/drilled.toml")
_TINY = "/checkout/tests/lab/inside/vm/tiny.xml"
_GOLD = f"""
/checkout/tests/lab/inside/vm/server-disk tank/gold-agent agent
sed 's/>tiny</>gold-agent</; s#/dev/null#/dev/zvol/tank/gold-agent#; s#>160<#>320<#' {_TINY} > /run/gold-agent.xml
virsh -q define /run/gold-agent.xml
mkdir -p /run/drill-backups
echo lab-zsnapdb > /run/inside.password
chmod 600 /run/inside.password
"""
_INSTANCE = f"""
[vms]
start_timeout = "1800s"
[instance.inside]
repository = "folder"
host = "%s"
password_file = "/run/inside.password"
tls = "required"
tls_ca = "/run/machine-ca.pem"
tls_verify = "ca"
lock = {{ deadline = "60s", budget = "5m" }}
[instance.inside.vm]
domain = "drilled1"
minimum_grade = "quiesced"
freeze_deadline = "30s"
%s
[instance.inside.vm.boot]
kernel = "/opt/vm/vmlinuz"
initrd = "/opt/vm/initrd-agent"
cmdline = "{virtual.COMMAND_LINE}"
[[instance.inside.drill.probe]]
name = "the sum of the ledger"
sql = "SELECT SUM(balance) FROM ledger.accounts"
expect = %s
[repository.folder]
url = "file:///run/drill-backups"
"""
BUSY = {"path": "/bin/busybox", "arg": ["nice", "-n", "19", "/bin/busybox", "sh", "-c", "while :; do :; done"]}
"""A program that keeps a machine's clock from running ahead of the host's, see tests/lab/inside/vm/agent."""


def run_drills(guest: Guest, document: Document, network: str) -> None:
    """Back up the machine under load, and drill it. AssertionError if a check fails."""
    shutil.copytree(build(Lab.ready().cache)["guest-agent"], guest.out / "agent", symlinks=True)
    guest.run(["sh", "-ec", _GOLD], timeout=600).check()
    document(guest, "vm", "base", "create", "agented", "--from-domain", "gold-agent")
    words = ("--name-template", "drilled1", "--network", network, "--wait-for", "server")
    made = document(guest, "vm", "clone", "agented", *words)
    address = made["machines"][0]["addresses"][0]
    print(f"a server with QEMU's agent greets on {address}: {made['seconds']}", flush=True)
    total = sum_of_ledger(guest, address)
    configure(guest, address, total, "")
    backup_id = back_up(guest, document, address)
    document(guest, "vm", "stop", "drilled1")
    before = everything(guest)
    passed = drilled(guest, document, 0)
    assert passed["backup_id"] == backup_id
    kinds = dict.fromkeys(check["kind"] for check in passed["checks"])
    assert list(kinds) == ["restore", "boot", "server", "position", "table", "probe"], passed["checks"]
    assert failures(passed) == []
    assert {"`ledger`.`accounts`", "`mysql`.`db`"} <= {check["what"] for check in passed["checks"]}
    configure(guest, address, total, 'client = ["/usr/bin/no-such-client"]')
    (check,) = failures(drilled(guest, document, 11))
    assert (check["kind"], "does not run /usr/bin/no-such-client" in check["finding"]) == ("server", True), check
    configure(guest, address, total, "")
    claim_more(guest, backup_id)
    (check,) = failures(drilled(guest, document, 11))
    assert (check["kind"], "lacks transactions up to" in check["finding"]) == ("position", True), check
    left = everything(guest) - before
    assert left <= {f"tank/zsnapdb/scratch{below}" for below in ("", "/inside", "/inside/drill")}, left
    assert before <= everything(guest)
    document(guest, "vm", "destroy", "drilled1", "--with-foreign-snapshots")


def configure(guest: Guest, address: str, total: int, more: str) -> None:
    """Write the configuration, with further settings of the machine."""
    text = _INSTANCE % (address, more, total)
    guest.run(["sh", "-ec", f"cat > /run/drilled.toml <<'X'\n{text}X\n"]).check()


def sum_of_ledger(guest: Guest, address: str) -> int:
    """Return the sum of all balances, which no transfer changes."""
    sql = "SELECT SUM(balance) FROM ledger.accounts"
    argv = ["mariadb", "--no-defaults", "--skip-ssl", "-h", address, "-uapp", "-plab-app", "-BNe", sql]
    return int(guest.run(argv, timeout=600).check().stdout)


def back_up(guest: Guest, document: Document, address: str) -> str:
    """Back up the machine during transfers, and return the backup id."""
    busy = {"execute": "guest-exec", "arguments": BUSY}
    guest.run(["virsh", "qemu-agent-command", "drilled1", json.dumps(busy)], timeout=300).check()
    guest.run(["rm", "-f", "/run/stop", "/run/acknowledged.json"]).check()
    guest.spawn([*LEDGER.split(), "load", address, "/run/stop", "/run/acknowledged.json"])
    wait_for_transfers(guest, 20)
    done = document(guest, "backup", "inside", *CONFIG)["backup"]
    assert done["grade"] == "quiesced", done
    wait_for_transfers(guest, 5)
    guest.run(["touch", "/run/stop"]).check()
    print(f"backup {done['backup_id']} is quiesced, after {acknowledged(guest)} transfers", flush=True)
    return str(done["backup_id"])


def claim_more(guest: Guest, backup_id: str) -> None:
    """Make the manifest claim that the server had published more before the snapshot."""
    one = 's/\\("%s":{[^}]*"gtids":"[0-9]*-[0-9]*-\\)/\\19/'
    change = "; ".join(one % bound for bound in ("before", "after"))
    file = f"/run/drill-backups/inside/manifests/{backup_id}.json"
    script = f"sed -i '{change}' {file}; grep -o '\"before\":{{[^}}]*}}' {file}"
    print(guest.run(["sh", "-ec", script]).check().stdout, flush=True)


def failures(evidence: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the checks that did not pass."""
    return [check for check in evidence["checks"] if check["outcome"] != "passed"]


def drilled(guest: Guest, document: Document, code: int) -> dict[str, Any]:
    """Drill the newest backup, and return the evidence."""
    done = guest.run(["zsnapdb", "drill", "inside", *CONFIG], timeout=3600)
    print(done.stdout, done.stderr, flush=True)
    assert done.code == code, done.code
    evidence: dict[str, Any] = document(guest, "drills", "inside", "latest", *CONFIG)["drill"]
    for check in (check for check in evidence["checks"] if check["kind"] != "table"):
        print(f"{check['kind']} {check['outcome']}: {check['finding']}", flush=True)
    return evidence


def everything(guest: Guest) -> set[str]:
    listed = guest.run(["sh", "-ec", "zfs list -H -o name -t all; virsh -q list --all --uuid --name"]).check().stdout
    return {line.strip() for line in listed.splitlines() if line.strip()}
