"""Temporal's own server, as a site runs it: built from source, with a configuration, a database and certificates.

It is not on PyPI. It is built with `go install go.temporal.io/server/cmd/server@v1.32.0`, and must be in PATH as
`temporal-server`, or in the folder `temporal` of the lab's cache, next to `temporal-sql-tool` (`…/cmd/tools/sql`).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.unit.support import trial_engine
from tests.unit.support.certificates import Files
from zsnapdb.config.services import EngineSettings

SERVER, SQL_TOOL = "temporal-server", "temporal-sql-tool"
ABSENT = f"{SERVER} is neither in PATH nor in the folder `temporal` of the lab's cache; it is built from source"
_KEPT_DAYS = 3


def program(name: str) -> str | None:
    """Return a program of the server; None if it is not installed."""
    folder = Path(os.environ.get("ZSNAPDB_LAB_CACHE", "/nowhere"), "temporal")
    return shutil.which(name) or shutil.which(name, path=str(folder))


def free_port() -> int:
    """Return a free port below 32768: the tables for MySQL store ports as SMALLINT."""
    while True:
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", random.randrange(20000, 32768)))
            except OSError:
                continue
            return int(one.getsockname()[1])


@dataclass(frozen=True)
class MySQL:
    """A MySQL with the databases of the engine, on 127.0.0.1."""

    port: int
    user: str
    password: str


@dataclass(frozen=True)
class SiteEngine:
    """The server's setup: on `port` of 127.0.0.1, with its files in `folder`.

    `database` None: SQLite. `tls`: its certificate; it requires a client certificate of the same authority.
    """

    folder: Path
    port: int
    database: MySQL | None = None
    tls: Files | None = None
    server_name: str = "temporal"

    def settings(self, shown: Files | None = None) -> EngineSettings:
        """Return the connection settings of a client with this certificate."""
        address = {"server": f"127.0.0.1:{self.port}"}
        if shown is None:
            return EngineSettings.model_validate(address)
        files = {"ca": shown.ca, "certificate": shown.cert, "key": shown.key, "server_name": self.server_name}
        return EngineSettings.model_validate({**address, **files})

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the server during the block; it listens when the block starts."""
        server = program(SERVER)
        assert server is not None
        config = self.folder / "config"
        config.mkdir(exist_ok=True)
        # JSON is YAML.
        (config / "site.yaml").write_text(json.dumps(self._configuration()))
        words = [server, "--root", str(self.folder), "--config", "config", "--env", "site", "--allow-no-auth", "start"]
        with (self.folder / "server.log").open("ab") as out:
            process = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT)
        try:
            trial_engine.wait_for_port(self.port, process)
            yield process
        finally:
            trial_engine.end(process)

    def make_namespace(self, shown: Files | None = None) -> None:
        """Create the namespace `fleet`, as an operator does once. It is available everywhere some seconds later."""
        from google.protobuf.duration_pb2 import Duration
        from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest

        kept = Duration(seconds=_KEPT_DAYS * 86400)
        asked = RegisterNamespaceRequest(namespace="fleet", workflow_execution_retention_period=kept)

        async def made() -> None:
            client = await trial_engine.answering(self.settings(shown))
            await client.workflow_service.register_namespace(asked)

        asyncio.run(made())

    def _configuration(self) -> Mapping[str, Any]:
        ports = {name: self.port if name == "frontend" else free_port() for name in _SERVICES}
        listening = {
            name: {"rpc": {"grpcPort": port, "membershipPort": free_port(), "bindOnLocalHost": True}}
            for name, port in ports.items()
        }
        stores = {name: {"sql": self._store(database)} for name, database in _DATABASES.items()}
        shards = 4
        common: dict[str, Any] = {"membership": {"maxJoinDuration": "30s", "broadcastAddress": "127.0.0.1"}}
        if self.tls is not None:
            common["tls"] = _tls(self.tls, self.server_name)
        no = {"history": {"state": "disabled"}, "visibility": {"state": "disabled"}}
        cluster = {"enabled": True, "initialFailoverVersion": 1, "rpcName": "frontend"}
        return {
            "log": {"stdout": True, "level": "warn"},
            "persistence": {
                "defaultStore": "state",
                "visibilityStore": "visibility",
                "numHistoryShards": shards,
                "datastores": stores,
            },
            "global": common,
            "services": listening,
            "clusterMetadata": {
                "enableGlobalNamespace": False,
                "failoverVersionIncrement": 10,
                "masterClusterName": "active",
                "currentClusterName": "active",
                "clusterInformation": {"active": {**cluster, "rpcAddress": f"localhost:{self.port}"}},
            },
            "dcRedirectionPolicy": {"policy": "noop"},
            "archival": no,
            "namespaceDefaults": {"archival": no},
        }

    def _store(self, database: str) -> Mapping[str, Any]:
        if self.database is None:
            attributes = {"mode": "rwc", "setup": "true", "journal_mode": "wal", "synchronous": "2"}
            where = {"pluginName": "sqlite", "connectAddr": "localhost", "databaseName": str(self.folder / "engine.db")}
            return {**where, "connectProtocol": "tcp", "connectAttributes": attributes}
        where = {"pluginName": "mysql8", "connectAddr": f"127.0.0.1:{self.database.port}", "databaseName": database}
        login = {"connectProtocol": "tcp", "user": self.database.user, "password": self.database.password}
        return {**where, **login, "maxConns": 4, "maxIdleConns": 4, "maxConnLifetime": "1h"}


_SERVICES = ("frontend", "matching", "history", "worker")
_DATABASES = {"state": "temporal", "visibility": "temporal_visibility"}


def make_schemas(database: MySQL) -> None:
    """Create the engine's tables in existing databases, with its own tool."""
    tool = program(SQL_TOOL)
    assert tool is not None
    for name, schema in (("temporal", "temporal"), ("temporal_visibility", "visibility")):
        login = ["--plugin", "mysql8", "--ep", "127.0.0.1", "-p", str(database.port), "-u", database.user, "--db", name]
        environment = {**os.environ, "SQL_PASSWORD": database.password}
        for words in (["setup-schema", "-v", "0.0"], ["update-schema", "--schema-name", f"mysql/v8/{schema}"]):
            subprocess.run([tool, *login, *words], check=True, capture_output=True, env=environment)


def _tls(own: Files, name: str) -> Mapping[str, Any]:
    shown = {"certFile": str(own.cert), "keyFile": str(own.key)}
    asks = {**shown, "requireClientAuth": True, "clientCaFiles": [str(own.ca)]}
    client = {"serverName": name, "rootCaFiles": [str(own.ca)]}
    side = {"server": asks, "client": client}
    return {"internode": side, "frontend": side, "systemWorker": {**shown, "client": client}}
