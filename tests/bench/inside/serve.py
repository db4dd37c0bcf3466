"""Runs in a guest: so many clones come out of a pool by the API, each timed from the request to its first query.

The service is that of the system tests: a helper as root, the web process under an account of its own. The pool is
filled, and a clone is destroyed, between the samples.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pymysql

from tests.lab.inside.zygote import Zygote
from tests.system.in_guest import CONFIG, Lab
from tests.system.serving import ACCOUNT, SUBJECT, Service

POOL = 5
LIMITS = f'[serve]\nunmasked = ["main"]\n\n[instance.main.pool]\nsize = {POOL}\n\n'


def main() -> None:
    """Write the seconds of each sample to /out/serve.json."""
    count = int(sys.argv[1])
    made = subprocess.run(
        ("useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", ACCOUNT),
        check=False,
    )
    assert made.returncode == 0
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "zsnapdb.toml"
        config.write_text(CONFIG.read_text().replace("[repository.s3]\n", f"{LIMITS}[repository.s3]\n"))
        zygote = Zygote(Path(folder) / "zygote")
        lab = Lab(os.environ["LAB_FLAVOUR"], Path(folder), zygote)
        service = Service(lab, config, Path(folder) / "said")
        try:
            assert lab.zsnapdb("backup", "main").code == 0
            service.start("helper", "web")
            seconds = samples(service, count)
        finally:
            for name in list(service.running):
                service.kill(name, with_commands=True)
            zygote.close()
            print((Path(folder) / "said").read_text()[-3000:], flush=True)
    Path("/out/serve.json").write_text(json.dumps(seconds))


def samples(service: Service, count: int) -> list[float]:
    """Return the seconds of each sample."""
    token, found = service.token(SUBJECT), list[float]()
    for number in range(count):
        if number % POOL == 0:
            assert service.lab.zsnapdb("clone", "pool", "main", config=service.config).code == 0
        name, began = f"pooled-{number}", time.monotonic()
        answer = service.request("POST", "/clones", token, {"instance": "main", "name": name})
        assert (answer.status, answer.body["of_pool"]) == (201, True), answer
        login = {"port": answer.body["clone"]["port"], "user": answer.body["user"], "password": answer.body["password"]}
        with pymysql.connect(host="127.0.0.1", **login) as there, there.cursor() as cursor:
            cursor.execute("SELECT 1")
        found.append(time.monotonic() - began)
        print(f"{found[-1]:.2f} s", flush=True)
        assert service.to_its_end(service.request("DELETE", f"/clones/{name}", token), token).status == 200
    return found


main()
