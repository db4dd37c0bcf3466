"""`zsnapdb doctor --load` reads the counters of a real pool and a real server, idle and under load."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from tests.lab.inside import ledger

from .in_guest import SOCKET, Lab

pytestmark = pytest.mark.usefixtures("first")


def advice(lab: Lab, seconds: int) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    shown = lab.zsnapdb("doctor", "--load", "--for", f"{seconds}s", "--json").json
    return shown, {one["topic"]: one for one in shown["advice"]}


def page_requests(lab: Lab) -> int:
    return int(lab.sql("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_read_requests'")[0][1])


def test_advice_comes_from_what_the_load_did_meanwhile_and_an_idle_server_gives_none(lab: Lab) -> None:
    _, idle = advice(lab, 1)
    assert {one["prospect"] for one in idle.values()} == {"unknown"}
    assert all(one["text"].startswith("too little traffic") for one in idle.values())

    workers = {row[0]: row[1] for row in lab.sql("SELECT worker, MAX(number) FROM ledger.journal GROUP BY worker")}
    load = ledger.Load(SOCKET, first_number=workers)
    load.start()
    try:
        began, before = time.monotonic(), page_requests(lab)
        load.wait_for(30)
        pace = (page_requests(lab) - before) / (time.monotonic() - began)
        # Twice the time in which a server on this machine, as busy as it is, asks for enough pages.
        shown, busy = advice(lab, max(8, math.ceil(2000 / pace)))
    finally:
        load.stop()
    assert load.failures == []
    assert shown["seconds"] >= 8
    assert shown["server"]["Innodb_buffer_pool_read_requests"] >= 1000
    # The whole of this small server fits into its buffer pool.
    assert busy["buffer pool"]["prospect"] == "no gain"
    # Every commit waits for the intent log, and its writes reach the disk of the pool.
    assert shown["intent_log"]["zil_commit_count"] > 0
    assert busy["log device"]["of"] in (shown["intent_log"]["zil_commit_count"], None)
    assert "half took at most" in busy["log device"]["figures"][1]
    assert busy["record size"]["prospect"] == "no gain"
    assert any("tank/mysql/data: compression lz4, ratio" in line for line in busy["compression"]["figures"])
    assert 0 < shown["processor_busy"] <= 1
    for one in busy.values():
        assert one["saved"] is None or 0 <= one["saved"] <= one["of"]
