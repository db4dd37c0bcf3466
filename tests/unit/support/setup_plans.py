"""A host on which setup is planned: its server, pool and answers."""

from __future__ import annotations

from dataclasses import replace

from zsnapdb.base.domain_types import Flavour
from zsnapdb.planning.setup.facts import (
    FoundFiles,
    FoundPool,
    FoundServer,
    SetupAnswers,
    SetupFacts,
)
from zsnapdb.planning.setup.plan import (
    SetupPlan,
    plan_setup,
)

GIB = 1 << 30
SERVER = FoundServer(
    812,
    "mysql",
    "/usr/sbin/mysqld",
    ("/run/mysqld/mysqld.sock",),
    "/var/lib/mysql/data",
    Flavour.MYSQL,
    "zfs",
    "tank/mysql/data",
    "8.4.6",
    16384,
    10 * GIB,
)
FILES = FoundFiles("mysql.service", binlog="/var/lib/mysql/binlog", option_folder="/etc/mysql/conf.d")
ELSEWHERE = replace(SERVER, datadir="/var/lib/mysql", filesystem="ext4", dataset="", files=FILES)
FACTS = SetupFacts((SERVER,), (FoundPool("tank", 100 * GIB),), (2, 3, 4), True, "/etc/zsnapdb/zsnapdb.toml")
ANSWERS = SetupAnswers("s3://bucket/prefix")


def planned(server: FoundServer = SERVER, answers: SetupAnswers = ANSWERS, **changes: object) -> SetupPlan:
    return plan_setup(replace(FACTS, **{"servers": (server,), **changes}), answers)  # type: ignore[arg-type]


def words(plan: SetupPlan) -> list[str]:
    return [line for step in plan.steps for line in step.lines]
