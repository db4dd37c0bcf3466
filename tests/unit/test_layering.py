"""The rooms import in one direction, and each foreign library has one home."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "zsnapdb"

BASE = {"base", "config", ""}
ALLOWED = {
    "base": {"base"},
    "config": {"base", "config"},
    "planning": BASE | {"planning"},
    "zfs": BASE | {"planning", "zfs"},
    "mysql": BASE | {"planning", "mysql"},
    "hooks": BASE,
    "store": BASE | {"planning", "store"},
    "stream": BASE | {"planning", "stream"},
    "repository": BASE | {"planning", "stream", "store", "repository"},
    "vm": BASE | {"planning", "vm"},
    "jobs": BASE | {"planning", "zfs", "mysql", "store", "stream", "vm", "repository", "hooks", "jobs"},
    "agent": BASE | {"planning", "jobs", "notify", "agent"},
    "notify": BASE | {"planning", "jobs", "notify"},
    "fleet": BASE | {"planning", "jobs", "agent", "fleet"},
    "serve": BASE | {"documents", "verbs", "jobs", "serve"},
    "mcp": BASE | {"planning", "mysql", "client", "mcp"},
    "documents": {"base", "documents"},
    "verbs": {"base", "planning", "documents", "verbs"},
    "report": BASE | {"documents", "verbs", "planning", "repository", "jobs", "agent", "serve", "report"},
    "cli": BASE | {"planning", "verbs", "jobs", "agent", "fleet", "notify", "serve", "mcp", "client", "report", "cli"},
    "client": {"client", "documents", "verbs"},
    "__main__": {"cli"},
    "__init__": set(),
}
HOST = {"jobs.base", "jobs.host", "jobs.record"}
"""What lies on this host, and what it remembers: the rooms that every use case stands on."""
SUB_ROOMS = {
    "jobs.base": set(),
    "jobs.record": {"jobs.base"},
    "jobs.host": {"jobs.base", "jobs.record"},
    "jobs.steps": {"jobs.base", "jobs.host"},
    "jobs.health": HOST | {"jobs.steps"},
    "jobs.backup": HOST,
    "jobs.binlog": HOST | {"jobs.health"},
    "jobs.repository": HOST | {"jobs.health"},
    "jobs.restore": HOST | {"jobs.backup", "jobs.binlog", "jobs.health", "jobs.steps"},
    "jobs.trial": HOST | {"jobs.backup", "jobs.restore"},
    "jobs.dataset_copies": HOST,
    "jobs.clone": HOST | {"jobs.backup", "jobs.dataset_copies", "jobs.restore", "jobs.steps"},
    "jobs.vm": HOST | {"jobs.dataset_copies"},
    "jobs.doctor": HOST
    | {"jobs.backup", "jobs.clone", "jobs.dataset_copies", "jobs.health", "jobs.repository", "jobs.steps"}
    | {"jobs.restore", "jobs.trial", "jobs.vm"},
    "jobs.setup": HOST | {"jobs.backup", "jobs.clone", "jobs.doctor", "jobs.repository", "jobs.steps", "jobs.trial"},
    "planning.server_copy": {"planning"},
    "planning.backup": {"planning"},
    "planning.advice": {"planning", "planning.backup", "planning.server_copy"},
    "planning.binlog": {"planning"},
    "planning.repository": {"planning"},
    "planning.trial": {"planning"},
    "planning.restore": {"planning", "planning.binlog", "planning.repository", "planning.trial"},
    "planning.clone": {"planning", "planning.binlog", "planning.server_copy"},
    "planning.health": {"planning", "planning.binlog", "planning.trial"},
    "planning.fleet": {"planning", "planning.health"},
    "planning.setup": {"planning"},
    "planning.vm": {"planning", "planning.backup", "planning.clone"},
    "report.repository": {"report"},
    "report.clone": {"report"},
}
"""What a use case may import of its own room, beside itself: "planning" stands for modules that lie in no use case."""
PURE_MODULES = {
    "serve/charts.py",
    "serve/roles.py",
    "verbs/requests.py",
    "verbs/delegation.py",
    "serve/id_tokens.py",
    "serve/jwks.py",
    "base/errors.py",
    "base/gtid.py",
    "base/domain_types.py",
}
IMPURE_MODULES = {
    "os",
    "subprocess",
    "socket",
    "time",
    "random",
    "secrets",
    "logging",
    "pathlib",
    "io",
    "shutil",
    "tempfile",
    "threading",
}
HOMES = {
    "pymysql": {"mysql/connection.py"},
    "boto3": set(),
    "fastapi": {"serve/api_app.py"},
    "starlette": {"serve/api_answers.py", "serve/api_app.py", "serve/page_app.py"},
    "jinja2": {"serve/page_app.py"},
    "markupsafe": {"serve/page_app.py"},
    "uvicorn": {"serve/web_server.py"},
    "h11": {"serve/web_server.py"},
    "mcp": {"mcp/server.py"},
    "httpx": {"client/http.py"},
    "httpcore": {"client/http.py"},
    "temporalio": {
        *("fleet/connection.py", "fleet/engine_client.py", "fleet/operator_orders.py", "fleet/worker.py"),
        "fleet/workflows.py",
    },
    "joserfc": {"serve/id_tokens.py"},
    "botocore": {
        *("store/s3.py", "store/s3_client.py", "store/s3_bucket.py"),
    },
    "obstore": {"store/cloud.py", "store/cloud_clients.py"},
    "typer": None,
    "ctypes": {
        *("zfs/libzfs.py", "zfs/mounting.py", "zfs/snapshot_files.py", "mysql/process/sandbox_launcher.py"),
        *("agent/children.py", "cli/process_attributes.py"),
    },
    "zstandard": {"stream/chunks.py", "mysql/binlog/event_bytes.py"},
    "apscheduler": {"agent/schedule.py"},
    "blake3": {"stream/chunks.py"},
    "pyrage": {"repository/crypto_keys.py"},
    "pytest": {"client/pytest_plugin.py"},
    "rich": {"cli/progress_bars.py", "cli/output.py"},
    "libvirt": {"vm/hypervisor.py"},
    "libvirt_qemu": {"vm/hypervisor.py"},
    "cryptography": {
        "mysql/binlog/encrypted_events.py",
        "mysql/binlog/binlog_keys.py",
        "stream/crypto.py",
        "stream/raw_stream_key.py",
        "repository/crypto_keys.py",
        "serve/web_server.py",
    },
}
PROCESSES = {
    "client/clones.py",
    "client/clone_holder.py",
    "fleet/trial_fleet.py",
    "vm/thaw_guard.py",
    "zfs/command.py",
    "zfs/streams.py",
    "mysql/process/process_managers.py",
    "mysql/process/programs.py",
    "mysql/process/service.py",
    "vm/images.py",
    "hooks.py",
    "jobs/binlog/archive_run.py",
    "agent/children.py",
    "base/program_start.py",
    "agent/job_starter.py",
    "notify/notifier.py",
}

MODULES = sorted(PACKAGE.rglob("*.py"))


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else parts[0].removesuffix(".py")


def sub_room(path: Path) -> str:
    """Return the use case of a module, such as `jobs.backup`, or the room if the module belongs to no use case."""
    parts = path.relative_to(PACKAGE).parts
    return ".".join(parts[:2]) if len(parts) > 2 and f"{parts[0]}.{parts[1]}" in SUB_ROOMS else parts[0]


def imported_sub_rooms(path: Path) -> Iterator[str]:
    """Yield the use cases of a module's own room that it imports."""
    own = room(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "zsnapdb" and len(parts) > 2 and parts[1] == own:
            dotted = ".".join(parts[1:3])
            yield dotted if dotted in SUB_ROOMS else own


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield from (
                [f"zsnapdb.{alias.name}" for alias in node.names] if node.module == "zsnapdb" else [node.module]
            )


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_a_room_imports_only_what_lies_below_it(path: Path) -> None:
    allowed = ALLOWED[room(path)]
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("zsnapdb.")}
    assert {name for name in ours if not name.startswith("__")} <= allowed


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_a_use_case_imports_only_the_use_cases_below_it(path: Path) -> None:
    own = sub_room(path)
    if path.name == "__init__.py" or own not in (*SUB_ROOMS, "jobs", "planning", "report"):
        return
    allowed = {own} | SUB_ROOMS.get(own, set())
    assert set(imported_sub_rooms(path)) <= allowed


def test_no_use_cases_import_each_other_in_a_circle() -> None:
    below: dict[str, set[str]] = {
        name: {other for other in allowed if other in SUB_ROOMS} for name, allowed in SUB_ROOMS.items()
    }
    while below:
        ready = {name for name, others in below.items() if not others & set(below)}
        assert ready, f"a circle between {', '.join(sorted(below))}"
        below = {name: others for name, others in below.items() if name not in ready}


def test_every_folder_of_a_room_is_a_use_case_that_the_map_knows() -> None:
    folders = {
        f"{room}.{path.name}"
        for room in ("jobs", "planning", "report")
        for path in (PACKAGE / room).iterdir()
        if path.is_dir() and path.name != "__pycache__"
    }
    assert folders == set(SUB_ROOMS)


def test_no_module_lies_loose_beside_the_rooms_of_the_jobs() -> None:
    assert [path.name for path in (PACKAGE / "jobs").glob("*.py")] == ["__init__.py"]


def test_the_rooms_of_the_mysql_room_import_each_other_in_no_circle() -> None:
    arrows = {
        (room_of_mysql(path), ".".join(name.split(".")[2:3]))
        for path in (PACKAGE / "mysql").rglob("*.py")
        for name in imports(path)
        if name.startswith("zsnapdb.mysql.") and (PACKAGE / "mysql" / name.split(".")[2]).is_dir()
    }
    between = {(one, other) for one, other in arrows if one and one != other}
    assert between <= {("replication", "process")}


def room_of_mysql(path: Path) -> str:
    """Return the folder below `mysql/` that holds a module, or "" if none does."""
    parts = path.relative_to(PACKAGE / "mysql").parts
    return parts[0] if len(parts) > 1 else ""


def test_the_engine_of_a_fleet_could_be_a_distribution_of_its_own() -> None:
    own = [path for path in MODULES if room(path) == "fleet"]
    askers = {p for p in MODULES if p not in own and any(name.startswith("zsnapdb.fleet") for name in imports(p))}
    assert {path.relative_to(PACKAGE).as_posix() for path in askers} == {"cli/fleet.py"}
    foreign = {name.split(".")[0] for path in own for name in imports(path)} - {"zsnapdb"} - sys.stdlib_module_names
    assert foreign == {"temporalio", "pydantic"}, "its extra brings Temporal, and every zsnapdb has pydantic"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_each_foreign_library_has_one_home(path: Path) -> None:
    name = path.relative_to(PACKAGE).as_posix()
    for imported in imports(path):
        top = imported.split(".")[0]
        if top == "typer":
            assert name.startswith("cli/")
        elif top in HOMES:
            homes = HOMES[top]
            assert homes is not None
            assert name in homes
        elif top == "subprocess":
            assert name in PROCESSES


@pytest.mark.parametrize(
    "path",
    [p for p in MODULES if room(p) == "planning" or p.relative_to(PACKAGE).as_posix() in PURE_MODULES],
    ids=lambda p: p.relative_to(PACKAGE).as_posix(),
)
def test_decisions_have_no_clock_and_no_io(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports(path)} & IMPURE_MODULES
    names = {node.attr for node in ast.walk(_tree(path)) if isinstance(node, ast.Attribute)}
    assert not names & {"now", "utcnow", "today"}


def test_the_jobs_get_time_and_host_from_their_caller() -> None:
    """A job on a host that a test makes then sees nothing of this one. What makes the default is `jobs/base`."""
    reading = {
        path.relative_to(PACKAGE).as_posix()
        for path in MODULES
        if room(path) == "jobs" and sub_room(path) != "jobs.base" and _reads_this_host(path)
    }
    assert reading == set()


def _reads_this_host(path: Path) -> bool:
    names = {f"zsnapdb.jobs.base.host.{name}" for name in ("THIS_HOST", "system_now", "system_steady")}
    imported = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    read = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Attribute | ast.Name)
    }
    return bool(names & (imported | set(imports(path)))) or bool({"THIS_HOST", "system_now", "system_steady"} & read)


def test_no_command_goes_through_a_shell() -> None:
    for path in MODULES:
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Call):
                assert not any(word.arg == "shell" for word in node.keywords), path
                assert not (isinstance(node.func, ast.Attribute) and node.func.attr in ("system", "popen")), path


def test_only_the_module_that_proves_what_is_ours_runs_a_destroy_of_zfs() -> None:
    commands = {
        path.relative_to(PACKAGE).as_posix()
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.List | ast.Tuple)
        and any(isinstance(word, ast.Constant) and word.value == "destroy" for word in node.elts)
    }
    assert commands == {"zfs/destruction.py"}


SQL = re.compile(
    r"(SELECT|INSERT|UPDATE|DELETE|REPLACE|ALTER|CREATE|DROP|RENAME|TRUNCATE|FLUSH|UNLOCK|LOCK|SET|SHOW|USE|START|STOP"
    r"|RESET|CHANGE|GRANT|REVOKE|PURGE|KILL|CHECK TABLE|ANALYZE|XA|BACKUP STAGE|DO) ",
)
ASKS = {"query", "value", "records", "stream", "script", "understands", "execute"}


def _texts(node: ast.expr) -> Iterator[str]:
    """Yield how an expression begins, where it is a text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr) and node.values:
        yield from _texts(node.values[0])
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)


@pytest.mark.parametrize(
    "path",
    [p for p in MODULES if room(p) in ("jobs", "cli", "report", "repository", "zfs", "store", "stream")],
    ids=lambda p: p.relative_to(PACKAGE).as_posix(),
)
def test_statements_are_written_in_the_mysql_room_alone(path: Path) -> None:
    tree = ast.parse(path.read_text())
    arguments = [
        text
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ASKS and node.args
        for text in _texts(node.args[0])
    ]
    assigned = [
        text
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for text in _texts(node.value)
    ]
    assert not [text for text in (*arguments, *assigned) if SQL.match(text)]


STILL_TELL_FAMILIES_APART = {
    "mysql/binlog/transactions.py",  # events that only one of them writes
    "mysql/replication/replay.py",  # tables and procedures of statements, one for each
    "mysql/replication/channels.py",
    "mysql/schema/row_remnants.py",
    "planning/backup/lock_strategy.py",  # a flaw of some releases of one
    "planning/clone/isolation.py",
    "planning/clone/masking.py",
    "planning/clone/topology.py",
}
"""None may be added: a new difference is a fact of the family."""


def test_the_families_of_servers_are_told_apart_in_one_module() -> None:
    """Elsewhere a difference has a name: a fact of `planning/server_family.py`."""
    reading = {
        path.relative_to(PACKAGE).as_posix()
        for path in MODULES
        if path.relative_to(PACKAGE).as_posix() not in ("planning/server_family.py", "base/domain_types.py")
        and any(
            isinstance(node, ast.Attribute)
            and node.attr in ("MYSQL", "MARIADB")
            and isinstance(node.value, ast.Name)
            and node.value.id == "Flavour"
            for node in ast.walk(ast.parse(path.read_text()))
        )
    }
    assert reading <= STILL_TELL_FAMILIES_APART


def test_a_servers_version_is_searched_for_its_family_in_one_module() -> None:
    assert [
        path.relative_to(PACKAGE).as_posix() for path in MODULES if re.search(r'"mariadb" in ', path.read_text())
    ] == ["planning/server_family.py"]


def test_the_engine_of_a_backup_knows_no_server() -> None:
    for name in ("run", "plan", "source_interface", "send", "resume"):
        imported = set(imports(PACKAGE / "jobs" / "backup" / f"{name}.py"))
        assert not {module for module in imported if module.startswith("zsnapdb.mysql")}, name


def test_a_public_class_name_stands_for_one_class() -> None:
    names = Counter(
        node.name
        for path in MODULES
        for node in _tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []
