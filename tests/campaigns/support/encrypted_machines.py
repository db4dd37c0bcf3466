"""A machine with an encrypted disk: its raw backups are restored, booted and drilled with the key, and not without."""

from __future__ import annotations

import secrets

from tests.campaigns.support.server_machines import Document
from tests.lab import virtual
from tests.lab.guest import Guest

HOME = "tank/secret/vms"
DISK = f"{HOME}/machines/web1/vda"
TOP = "tank/opened"
_KEY = "/run/machine-key"
_CONFIG = ("--config", "/run/encrypted.toml")
_INSTANCE = f"""
[vms]
dataset = "{HOME}"
start_timeout = "900s"
[instance.web]
repository = "folder"
[instance.web.vm]
domain = "web1"
minimum_grade = "crash"
freeze_deadline = "0s"
[instance.web.vm.boot]
kernel = "/opt/vm/vmlinuz"
initrd = "/opt/vm/initrd-agent"
cmdline = "{virtual.COMMAND_LINE}"
[instance.web.encryption]
key_file = "{_KEY}"
[repository.folder]
url = "file:///run/raw-backups"
[repository.folder.stream]
send = "raw"
"""
_MAKE = f"""
umask 077
printf %s {{key}} > {_KEY}
mkdir -p /run/raw-backups
cat > /run/encrypted.toml <<'X'
{_INSTANCE}X
zfs create -o encryption=on -o keyformat=passphrase -o keylocation=file://{_KEY} -o mountpoint=none tank/secret
zfs create -o mountpoint=none {HOME}
"""
_COMPARE = f"""
zfs clone {DISK}@zsnapdb-{{backup_id}} {HOME}/looked
udevadm settle
cmp /dev/zvol/{HOME}/looked /dev/zvol/{TOP}/vda
udevadm settle
zfs destroy {HOME}/looked
"""
_CANARY = f"""
zpool sync
! grep -rqaF {{canary}} /run/raw-backups
dd if=/dev/zvol/{DISK} bs=1M | grep -qaF {{canary}}
"""


def run_encrypted(guest: Guest, document: Document, network: str, ready: tuple[str, ...]) -> None:
    """Back up the machine raw, and restore, boot and drill it. AssertionError if a check fails."""
    guest.run(["sh", "-ec", _MAKE.format(key=secrets.token_hex(16))]).check()
    xml = "/checkout/tests/lab/inside/vm/tiny.xml"
    document(guest, "vm", "base", "create", "tiny", "--image", "/opt/vm/disk.raw", "--domain-xml", xml, *_CONFIG)
    document(guest, "vm", "clone", "tiny", "--name-template", "web1", "--network", network, *ready, *_CONFIG)
    assert _value(guest, DISK, "encryptionroot") == "tank/secret"
    first = document(guest, "backup", "web", *_CONFIG)["backup"]
    canary = secrets.token_hex(24)
    guest.run(["virsh", "-q", "destroy", "web1"]).check()
    # After the end of the file system, where nothing else writes.
    write = f"printf %s {canary} | dd of=/dev/zvol/{DISK} bs=512 seek=$(($(blockdev --getsz /dev/zvol/{DISK}) - 8))"
    guest.run(["sh", "-ec", f"{write} conv=fsync"]).check()
    second = document(guest, "backup", "web", *_CONFIG)["backup"]
    assert (first["full"], second["full"]) == (True, False)
    guest.run(["sh", "-ec", _CANARY.format(canary=canary)]).check()
    _without_key(guest, str(second["backup_id"]))
    _restored(guest, document, str(second["backup_id"]))
    drilled = document(guest, "drill", "web", *_CONFIG)["drill"]
    assert drilled["outcome"] == "passed", drilled
    document(guest, "verify", "web", "--deep", *_CONFIG)
    document(guest, "vm", "destroy", "web1", "--with-foreign-snapshots", *_CONFIG)
    document(guest, "vm", "base", "destroy", "tiny", *_CONFIG)
    guest.run(["zfs", "destroy", "-r", "tank/secret"]).check()
    print(
        "raw backups of an encrypted machine: nothing in the clear, restored byte for byte, booted, drilled", flush=True
    )


def _value(guest: Guest, dataset: str, key: str) -> str:
    return guest.run(["zfs", "get", "-H", "-o", "value", key, dataset]).check().stdout.strip()


def _without_key(guest: Guest, backup_id: str) -> None:
    """The plans report a missing or wrong key, and nothing is created."""
    to = ("restore", "web", "--to", backup_id, "--target", TOP, "--plan", *_CONFIG)
    for change, said in (
        (f"mv {_KEY} {_KEY}.away", "No such file"),
        (f"echo another-key-of-somebody > {_KEY}", "has another key than the one of then"),
    ):
        guest.run(["sh", "-ec", change]).check()
        refused = guest.run(["zsnapdb", *to], timeout=600)
        assert refused.code == 4, (refused.stdout, refused.stderr)
        assert said in refused.stdout + refused.stderr, (refused.stdout, refused.stderr)
    guest.run(["mv", f"{_KEY}.away", _KEY]).check()


def _restored(guest: Guest, document: Document, backup_id: str) -> None:
    """Restore the backup: it has the same bytes and its own encryption root, and the machine boots."""
    document(guest, "restore", "web", "--to", backup_id, "--target", TOP, *_CONFIG)
    assert _value(guest, f"{TOP}/vda", "encryptionroot") == f"{TOP}/vda"
    assert _value(guest, f"{TOP}/vda", "keylocation") == f"file://{_KEY}"
    guest.run(["sh", "-ec", _COMPARE.format(backup_id=backup_id)]).check()
    boot = """
virsh dumpxml --inactive opened > /run/booted.xml
sed -i "s#<serial type='pty'>#&<log file='/run/opened.log' append='off'/>#" /run/booted.xml
virsh -q define /run/booted.xml
virsh -q start opened
until grep -q 'LAB READY' /run/opened.log; do sleep 1; done
virsh -q destroy opened
virsh -q undefine opened
"""
    guest.run(["sh", "-ec", boot], timeout=900).check()
    said = guest.run(["cat", "/run/opened.log"]).check().stdout
    assert "count=2" in said, said
    guest.run(["zfs", "destroy", "-r", TOP]).check()
