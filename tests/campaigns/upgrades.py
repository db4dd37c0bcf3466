"""Campaign: upgrades between releases are rehearsed; a path that a server refuses is refused before a clone is created.

It runs on the host, in a guest for each path (`python3 tests/lab campaign --flavour mysql upgrades`). A rehearsal must
end without a problem, with the same answers before and after. For a refused path, the newer server itself is then
started on the files of the older one after its shutdown: it must not start.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.lab import servers
from tests.lab.build import build
from tests.lab.guest import Guest, Lab

ON_HOST = True
CONFIG = "/etc/zsnapdb/zsnapdb.toml"
NEW, PROGRAM = "/mnt/new", {"mysql": "/mnt/program/mysqld", "mariadb": "/mnt/program/mariadbd"}
PATHS = {
    "mysql": (
        ("mysql-5.7", "mysql-8.0", True),
        ("mysql-8.0.19", "mysql-8.0", True),
        ("mysql-8.0", "mysql-8.4", True),
        ("mysql-8.4", "mysql-9.7", True),
        ("mysql-5.7", "mysql-8.4", False),
        ("mysql-8.0", "mysql-9.7", False),
        ("mysql-8.4", "mysql-8.0", False),
    ),
    "mariadb": (
        ("mariadb-10.5", "mariadb-10.11", True),
        ("mariadb-10.6", "mariadb-11.4", True),
        ("mariadb-10.5", "mariadb-11.4", True),
        ("mariadb-10.11", "mariadb-10.6", False),
    ),
}
"""The old and the new release, and whether that is possible in one step. The lab's own MariaDB: tests/faults."""
OWN = {"mysql-9.7": "mysql"}
"""The lab product with the tree of a release."""
ROWS = """
CREATE TABLE ledger.things (id INT PRIMARY KEY, name VARCHAR(50), price DECIMAL(8,2), made TIMESTAMP, KEY (name));
INSERT INTO ledger.things VALUES (1, 'one', 1.5, '2026-01-02 03:04:05'), (2, 'drei €', 3.5, '2026-01-02 03:04:06');
CREATE VIEW ledger.dear AS SELECT id FROM ledger.things WHERE price > 2;
"""
QUERY = "SELECT COUNT(*), SUM(price), MIN(made), MAX(name) FROM ledger.things"
SET_UP = r"""
set -eu
mkdir -p /mnt/new /mnt/program && busybox mount -r -t hostfs -o "$1" new /mnt/new
[ ! -d /mnt/new/lib-lab ] || { cp -an /mnt/new/lib-lab/. /usr/lib/x86_64-linux-gnu/ && ldconfig; }
program=$2
name=$(basename "$program")
share=/mnt/new/usr/share/mysql
extra="--basedir=/mnt/new/usr --lc-messages-dir=$share --character-sets-dir=$share/charsets"
if [ "$name" = mysqld ]; then
  sed 's|/opt/mysql/|/mnt/new/|g' /mnt/new/bin-lab/mysqld > "$program"
else
  printf '#!/bin/sh\nexec /mnt/new/usr/sbin/%s "$@" %s\n' "$name" "$extra" > "$program"
fi
[ "$name" = mysqld ] || cp -n /mnt/new/bin-lab/* /mnt/program/
chmod 755 /mnt/program/*
sed -i 's|^options = \[|sandbox_reads = ["/mnt/new", "/mnt/program"]\noptions = [|' /etc/zsnapdb/zsnapdb.toml
"""
ITSELF = r"""
set -u
client=$1 program=$2
$client -uroot -S /run/mysqld/mysqld.sock -e 'SET GLOBAL innodb_fast_shutdown = 0'
/checkout/tests/lab/inside/server stop
places="--datadir=/var/lib/mysql/data --innodb-log-group-home-dir=/var/lib/mysql --socket=/run/mysqld/new.sock"
timeout 120 "$program" --no-defaults --user=mysql $places --pid-file=/run/mysqld/new.pid --skip-networking \
  --server-id=1 --innodb-use-native-aio=OFF > /tmp/new.log 2>&1 &
child=$!
while kill -0 $child 2>/dev/null; do
  grep -q 'ready for connections' /tmp/new.log && { echo CAME UP; kill $child; exit 0; }
  sleep 0.2
done
grep -E 'ERROR|rror' /tmp/new.log | tail -4
"""


@dataclass(frozen=True)
class UpgradePath:
    """A path, the result of its rehearsal, and the problem ("": none)."""

    old: str
    new: str
    is_possible: bool
    said: str
    seconds: float
    wrong: str = ""


def tried(lab: Lab, flavour: str, old: str, new: str, tree: Path, *, is_possible: bool) -> UpgradePath:
    began = time.monotonic()
    client, program = ("/opt/mysql/bin/mysql" if flavour == "mysql" else "/usr/bin/mariadb"), PROGRAM[flavour]
    with Guest.boot(lab, flavour) as guest:
        guest.run(["sh", "-c", SET_UP, "sh", str(tree), program]).check()
        guest.run([client, "-uroot", "-S", "/run/mysqld/mysqld.sock", "-e", ROWS]).check()
        guest.run(["zsnapdb", "backup"], timeout=300).check()
        before = guest.run(["zfs", "list", "-H", "-o", "name"]).check().stdout
        words = ["zsnapdb", "clone", "upgrade-test", "main", "--binary", program, "--query", QUERY, "--json"]
        done = guest.run(words, timeout=900)
        after = guest.run(["zfs", "list", "-H", "-o", "name"]).check().stdout
        if is_possible:
            said, wrong = judged(done.code, done.stdout, done.stderr)
        else:
            said = done.stderr.strip().splitlines()[0] if done.stderr.strip() else ""
            wrong = "" if done.code == 4 and "cannot upgrade the files" in said else f"ended with {done.code}: {said}"
            itself = guest.run(["sh", "-c", ITSELF, "sh", client, program], timeout=200).check().stdout
            said += f"; the server: {itself.strip()[-300:]}"
            wrong = wrong or ("the server itself comes up" if "CAME UP" in itself else "")
        left = set(after.split()) - set(before.split()) - {"tank/zsnapdb", "tank/zsnapdb/clones"}
        wrong = wrong or (f"left behind: {', '.join(sorted(left))}" if left else "")
    return UpgradePath(old, new, is_possible, said, round(time.monotonic() - began, 1), wrong)


def judged(code: int, stdout: str, stderr: str) -> tuple[str, str]:
    """Return the output of a rehearsal, and its problem."""
    if code != 0:
        return "", f"ended with {code}: {stderr.strip()[-1500:]} {stdout[-1500:]}"
    result = json.loads(stdout)
    said = f"{result['old_version']} to {result['new_version']}: {len(result['tables'])} tables"
    answers = [(query["rows_before"], query["equal"]) for query in result["queries"]]
    return said, "" if answers == [(1, True)] and not result["problems"] else f"{answers}, {result['problems']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flavour", choices=list(PATHS), required=True)
    parser.add_argument("--only", nargs="+", metavar="OLD", help="only paths from these releases")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    own = build(Lab.ready().cache)
    paths = []
    for old, new, is_possible in PATHS[options.flavour]:
        if options.only and old not in options.only:
            continue
        lab = Lab.ready(server=old)
        tree = own[OWN[new]] if new in OWN else servers.tree(lab.cache, new)
        path = tried(lab, options.flavour, old, new, tree, is_possible=is_possible)
        paths.append(path)
        verdict = path.wrong or ("upgraded" if is_possible else "refused")
        print(f"{old:12} to {new:13} {path.seconds:6.1f} s  {verdict}  {path.said}", flush=True)
    if options.out:
        options.out.write_text(json.dumps([asdict(path) for path in paths], indent=1) + "\n")
    print(f"{sum(not path.wrong for path in paths)} of {len(paths)} right")
    return 0 if all(not path.wrong for path in paths) else 1


if __name__ == "__main__":
    sys.exit(main())
