"""The configuration is typed, and wrong input is named with a hint."""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

import zsnapdb.config
from zsnapdb.agent.schedule import Schedule
from zsnapdb.base.errors import ConfigError, ServerError, UsageError
from zsnapdb.base.quantities import WRITTEN, _duration, _size, parse_size
from zsnapdb.config.services import ConfigSection
from zsnapdb.config.settings import load, parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.planning.agent_jobs import jobs_of
from zsnapdb.report.setup import ConfigurationView
from zsnapdb.serve.helper_request_handler import refusal
from zsnapdb.serve.roles import Role

GOOD = """
[instance.main]
socket = "/run/mysqld/mysqld.sock"
volumes = { parent = "tank/mysql", data = "tank/mysql/data" }
repository = "s3"

[repository.s3]
url = "s3://bucket/prefix"
"""


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(text, "zsnapdb.toml")
    return caught.value


def test_defaults_are_those_the_documentation_names() -> None:
    settings = parse(GOOD, "x")
    assert settings.repository["s3"].stream.chunk_size == 32 << 20
    assert settings.instance["main"].lock.deadline == 5.0
    assert settings.instance["main"].lock.strategy == "auto"


def test_sizes_and_durations_have_units() -> None:
    text = GOOD + 'stream = { chunk_size = "64 MiB" }\n[instance.main.lock]\ndeadline = "250ms"\n'
    settings = parse(text, "x")
    assert settings.repository["s3"].stream.chunk_size == 64 << 20
    assert settings.instance["main"].lock.deadline == 0.25


def marks_of(annotation: Any) -> Iterator[Any]:
    yield from getattr(annotation, "__metadata__", ())
    for part in get_args(annotation):
        yield from marks_of(part)


def quantities() -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting that is a size or a duration, with its full name."""
    for found in pkgutil.iter_modules(zsnapdb.config.__path__):
        for model in vars(importlib.import_module(f"zsnapdb.config.{found.name}")).values():
            if isinstance(model, type) and issubclass(model, BaseModel):
                for name, field in model.model_fields.items():
                    marks = [*field.metadata, *marks_of(field.annotation)]
                    if not {getattr(mark, "func", None) for mark in marks}.isdisjoint((_size, _duration)):
                        yield f"{model.__name__}.{name}", field


@pytest.mark.parametrize("field", [pytest.param(field, id=name) for name, field in sorted(dict(quantities()).items())])
def test_quantity_without_unit_is_refused(field: FieldInfo) -> None:
    annotation: Any = Annotated[field.annotation, None, *field.metadata]
    adapter: TypeAdapter[object] = TypeAdapter(annotation)
    for bare in (14, 1.5, "14", " 14 ", True, 1e-7, 1e16, 1e22, 10**30):
        written: object = [bare] if get_origin(field.annotation) is tuple else bare
        written = {"a": bare} if get_origin(field.annotation) is dict else written
        with pytest.raises(ValidationError, match="needs a unit: write "):
            adapter.validate_python(written, context=WRITTEN)


@pytest.mark.parametrize("field", [pytest.param(field, id=name) for name, field in sorted(dict(quantities()).items())])
@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "-5", "-0.5", "-1e22"])
def test_number_that_is_no_quantity_is_refused(field: FieldInfo, number: str) -> None:
    annotation: Any = Annotated[field.annotation, None, *field.metadata]
    for bare in (tomllib.loads(f"a = {number}")["a"], number):
        written: object = [bare] if get_origin(field.annotation) is tuple else bare
        written = {"a": bare} if get_origin(field.annotation) is dict else written
        with pytest.raises(ValidationError):
            TypeAdapter(annotation).validate_python(written, context=WRITTEN)


def numbers() -> Iterator[tuple[str, type[BaseModel], str]]:
    """Yield every setting that is a number, with its full name and its section."""
    for found in pkgutil.iter_modules(zsnapdb.config.__path__):
        for model in vars(importlib.import_module(f"zsnapdb.config.{found.name}")).values():
            if isinstance(model, type) and issubclass(model, ConfigSection):
                for name, field in model.model_fields.items():
                    kinds = {field.annotation, *get_args(field.annotation)}
                    if kinds & {int, float} and not kinds & {bool, str}:
                        yield f"{model.__name__}.{name}", model, name


@pytest.mark.parametrize(
    ("section", "name"), [pytest.param(*each, id=full) for full, *each in sorted(numbers(), key=lambda one: one[0])]
)
def test_number_is_neither_true_nor_infinite(section: type[BaseModel], name: str) -> None:
    """`last = true` would keep one backup."""
    for bad in (True, False, math.nan, math.inf, -math.inf):
        with pytest.raises(ValidationError) as refused:
            section.model_validate({name: bad}, context=WRITTEN)
        assert any(name in f"{item['loc']} {item['msg']}" for item in refused.value.errors())


def path_settings() -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting that is a path or has paths, with its full name."""
    for found in pkgutil.iter_modules(zsnapdb.config.__path__):
        for model in vars(importlib.import_module(f"zsnapdb.config.{found.name}")).values():
            if isinstance(model, type) and issubclass(model, BaseModel):
                for name, field in model.model_fields.items():
                    if re.search(r"\bPath\b", str(field.annotation)) or field.annotation is Path:
                        yield f"{model.__name__}.{name}", field


@pytest.mark.parametrize("field", [pytest.param(one, id=name) for name, one in sorted(dict(path_settings()).items())])
@pytest.mark.parametrize("path", ["~/.aws/credentials", "credentials", "./credentials", "../credentials", ""])
def test_path_that_is_not_absolute_is_refused(field: FieldInfo, path: str) -> None:
    annotation: Any = Annotated[field.annotation, None, *field.metadata]
    text = str(field.annotation)
    written: object = [path] if text.startswith("tuple") else {"8.4": path} if text.startswith("dict") else path
    with pytest.raises(ValidationError, match="write an absolute path"):
        TypeAdapter(annotation).validate_python(written, context=WRITTEN)


def test_path_in_the_home_of_a_user_is_refused_with_the_reason() -> None:
    message = refused(GOOD + 's3.credentials_file = "~/.aws/credentials"\n').message
    assert 'credentials_file: write an absolute path, such as "/etc/zsnapdb/credentials"; ~ is not' in message
    assert len(dict(path_settings())) > 30


@pytest.mark.parametrize("written", ["keep_replaced = 14", 'keep_replaced = "14"', "keep_replaced = true"])
def test_quantity_without_unit_in_file_is_refused_with_both_spellings(written: str) -> None:
    number = "10" if "true" in written else "14"
    message = f'restore.keep_replaced: a duration needs a unit: write "{number}s" or "{number}d"'
    assert message in refused(f"{GOOD}[restore]\n{written}\n").message


@pytest.mark.parametrize(
    ("line", "choices"),
    [
        ('stream = { chunk_size = "33554432" }', '"32MiB" or "33554432B"'),
        ("stream = { chunk_size = 33554432 }", '"32MiB" or "33554432B"'),
        ("stream = { chunk_size = 32 }", '"32GiB" or "32MiB"'),
        ("bandwidth = 20000001", '"20000001B"'),
        ("objectives = { rpo = 7200 }", '"7200s" or "2h"'),
        ("objectives = { rpo = 14 }", '"14s" or "14d"'),
        ("objectives = { rpo = 7201 }", '"7201s"'),
    ],
)
def test_quantity_without_unit_offers_likely_spellings(line: str, choices: str) -> None:
    assert refused(f"{GOOD}{line}\n").message.endswith(f"needs a unit: write {choices}")


@given(st.integers(1, 10**9))
def test_offered_spelling_of_a_quantity_is_accepted(number: int) -> None:
    for convert, large in ((_size, 1 << 10), (_duration, 3600)):
        with pytest.raises(ValueError, match="needs a unit") as raised:
            convert(number, None)
        values = [convert(choice, None) for choice in re.findall(r'"([^"]+)"', str(raised.value))]
        assert values
        assert number < large or set(values) == {number}


def test_size_in_a_decimal_unit_offers_the_binary_unit() -> None:
    assert '"32MiB"' in refused(GOOD + 'stream = { chunk_size = "32MB" }\n').message
    with pytest.raises(UsageError) as raised:
        parse_size("500 GB")
    assert raised.value.hint == 'write a size such as "500GiB"'


def test_size_accepts_a_fraction_of_a_unit_but_not_of_a_byte() -> None:
    assert parse_size("1.5GiB") == 3 << 29
    for text in ("1.5", "1.5B", "20", "20GB"):
        with pytest.raises(UsageError, match="a size"):
            parse_size(text)


@pytest.mark.parametrize("line", ['s3.endpoint = "http://127.0.0.1:7070"', 's3.endpoint = "https://s3.lan"'])
def test_an_endpoint_of_this_host_or_with_tls_is_used(line: str) -> None:
    assert not parse(f"{GOOD}{line}\n", "x").repository["s3"].s3.is_readable_on_the_way


def test_an_endpoint_without_tls_is_used_only_where_that_is_set() -> None:
    settings = parse(GOOD + 's3 = { endpoint = "http://s3.lan", allow_http = true }\n', "x")
    assert settings.repository["s3"].s3.is_readable_on_the_way


def test_keys_of_s3_beside_the_url_are_read_and_noted() -> None:
    flat = parse(GOOD + 'endpoint = "https://s3.lan"\nregion = "x"\nchecksum = "none"\n', "x")
    table = parse(GOOD + 's3 = { endpoint = "https://s3.lan", region = "x", checksum = "none" }\n', "x")
    assert flat.repository["s3"].s3 == table.repository["s3"].s3
    (note,) = ConfigurationView(flat).notes()
    assert note == 'note: endpoint, region, checksum of repository "s3" belong in the table [repository.s3.s3]'
    assert ConfigurationView(table).notes() == []
    for key in ("region", "s3.region"):
        elsewhere = parse(GOOD.replace("s3://bucket/prefix", "file:///backups") + f'{key} = "x"\n', "x")
        assert ConfigurationView(elsewhere).notes() == [
            'note: the url of repository "s3" is another store: s3.region has no effect'
        ]
    (unused,) = ConfigurationView(parse(GOOD + 'azure.endpoint = "https://a.lan"\n', "x")).notes()
    assert "azure.endpoint has no effect" in unused


@pytest.mark.parametrize(
    ("serve", "masking", "said"),
    [
        ("", "", False),
        ("[serve]\n", "", True),
        ('[serve]\nunmasked = ["main"]\n', "", False),
        ("[serve]\n", '[instance.main.masking]\nrun = [["/etc/zsnapdb/mask.sql"]]\n', False),
    ],
)
def test_instance_that_only_operators_may_clone_is_noted(serve: str, masking: str, said: bool) -> None:
    settings = parse(f"{GOOD}{masking}{serve}", "x")
    notes = ConfigurationView(settings).notes()
    assert [("developers cannot clone main" in note) for note in notes] == [True] * said
    assert (refusal(Role.DEVELOPER, settings, "main") is None) != (said or serve == ""), "what the service decides"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (GOOD.replace("volumes", "volume"), "unknown key instance.main.volume", "did you mean 'volumes'?"),
        (GOOD + "[clone]\n", "unknown key clone", "did you mean 'clones'?"),
        (GOOD + "stream = { levle = 3 }\n", "unknown key repository.s3.stream.levle", "did you mean 'level'?"),
        (GOOD.replace('repository = "s3"', ""), "missing key instance.main.repository", "zsnapdb example"),
        (
            GOOD.replace('repository = "s3"', 'repository = "s4"'),
            "names repository 's4', which is not configured (configured: s3)",
            "",
        ),
        (GOOD + '[serve]\nunmasked = ["shop"]\n', "'shop', which is not configured (configured: main)", ""),
        (GOOD.replace("socket =", "host = 'db'\nsocket ="), "at most one of socket and host", ""),
        (
            GOOD.replace("s3://bucket/prefix", "ftp://x"),
            "neither s3://bucket[/prefix] nor azure://account/container[/prefix]",
            "",
        ),
        (GOOD.replace("tank/mysql/data", "tank/mysql"), "volumes gives one dataset two roles", ""),
        (GOOD + 's3.endpoint = "http://s3.lan:9000"\n', "use https://, or set allow_http = true", ""),
        (GOOD + 'endpoint = "http://127.0.0.1.evil.example"\n', "use https://, or set allow_http = true", ""),
        (GOOD + 's3.endpoint = "s3.lan"\n', "does not begin with https://", ""),
        (GOOD + 'stream = { chunk_size = "32 miles" }\n', "a size is a number with B, KiB, MiB, GiB or TiB", ""),
        (
            GOOD + '[[instance.main.drill.probe]]\nsql = "SELECT 1"\n',
            "either expect, or at least one of at_least and at_most",
            "",
        ),
        (
            GOOD + '[[instance.main.drill.probe]]\nsql = "SELECT 1"\nexpekt = 1\n',
            "unknown key instance.main.drill.probe.0.expekt",
            "did you mean 'expect'?",
        ),
        (GOOD + 's3 = { region = "x" }\nchecksum = "none"\n', "unknown key repository.s3.checksum", ""),
        (
            GOOD + '[instance.main.agent.copy_to]\nevery = "1d"\nto = "s4"\n[repository.disk]\nurl = "file:///x"\n',
            "has copies in 's4', which is no other configured repository (configured: disk)",
            "",
        ),
        (GOOD + '[instance.main.agent]\nbackup.cron = "@daily"\n', 'five fields; write "0 0 * * *"', ""),
        ("instance = [", "is not valid TOML: line 1", "after the last one"),
        (GOOD + "retention = { daily = 7 }\n", "unknown key repository.s3.retention", "`keep = { daily = 14 }`"),
        (GOOD + "keep_daily = 7\n", "unknown key repository.s3.keep_daily", "`keep = { daily = 14 }`"),
        (GOOD + 's3 = { access_key_id = "A" }\n', "unknown key repository.s3.s3.access_key_id", "s3.credentials_file"),
        (GOOD + "s3.path_style = true\n", "unknown key repository.s3.s3.path_style", '`s3.addressing = "path"`'),
        (GOOD + "force_path_style = true\n", "unknown key repository.s3.force_path", '`s3.addressing = "path"`'),
        (GOOD + 'bucket = "b"\n', "unknown key repository.s3.bucket", 'url = "s3://bucket/prefix"'),
        (GOOD + 'compression = "zstd"\n', "unknown key repository.s3.compression", "stream = { level = 3 }"),
        (GOOD + 'keep = "7d"\n', "repository.s3.keep: must be a table, such as `keep = { daily = 14, weekly", ""),
        (GOOD + 'keep = { daily = "14d" }\n', 'write `daily = 14`; `within = "14d"` keeps', ""),
        (GOOD + 'keep = { monthly = "6m" }\n', "keep.monthly: is a number of backups, not a duration: write", ""),
        (
            GOOD.replace("[instance.main]", "[instances.main]"),
            "zsnapdb.toml: unknown key instances; miss",
            "'instance'?",
        ),
        (GOOD + "encryption = true\n", "repository.s3.encryption: must be a table, such as `encryption = {", ""),
        (GOOD + '[instance.main.agent]\nschedule = "0 3 * * *"\n', "agent.schedule", "`agent.backup = { cron ="),
        (GOOD + '[instance.main.agent]\nbackup = "0 3 * * *"\n', '`backup = { every = "1d" }`', ""),
        (GOOD + '[instance.main.agent]\nbackup.cron = "0 0 3 * * *"\n', "five fields", ""),
        (GOOD + '[instance.main.agent]\narchive = "yes"\n', "must be true or false, without quotes", ""),
        (GOOD + "[instance.main.agent]\narchive = 1\n", "must be true or false, without quotes", ""),
        (GOOD + '[agent]\nbackup.every = "1d"\n', "unknown key agent.backup", "backup is a key of instance.NAME.agent"),
        (GOOD + '[notifications]\nslack = "x"\n', "unknown key notifications.slack", "[notifications.to.ops]"),
        (GOOD + '[notifications.to.ops]\nemail = "x"\n', "must be a list, such as", ""),
        (GOOD.replace("socket =", 'password = "x"\nsocket ='), "unknown key instance.main.password", "`password_file`"),
        (GOOD.replace("socket =", 'archive = "yes"\nsocket ='), "instance.main.archive", "`agent.archive = true`"),
        (GOOD.replace("volumes = {", 'dataset = "tank"\nvolumes = {'), "instance.main.dataset", "volumes = { parent"),
        (GOOD.replace("tank/mysql/data", "fast/data"), "the pools fast and tank; all datasets of an instance must", ""),
        (
            GOOD.replace('"tank/mysql"', '"/tank/mysql"'),
            "'/tank/mysql' is not a dataset; write its name as `zfs list`",
            "",
        ),
        (GOOD.replace('socket = "/run/mysqld/mysqld.sock"', 'host = "db:3306"'), "host contains a port", ""),
        (GOOD.replace('repository = "s3"', 'repository = ["s3"]'), "must be a text in quotes", ""),
        (GOOD.replace("[instance.main]", '[[instance]]\nname = "main"'), "such as `[instance.main]`", ""),
    ],
)
def test_wrong_input_is_named_with_a_hint(text: str, message: str, hint: str) -> None:
    error = refused(text)
    assert message in error.message
    assert hint in error.hint


MISTAKES = """
[instance.main]
socket = "/s"
host = "db"
repository = "nowhere"
wrong = 1
[instance.Bad]
socket = "/x"
repository = "r"
[instance.Bad.lock]
deadline = "soon"
kill = "maybe"
[instance.third]
socket = 5
repository = "r"
[repository.r]
url = "ftp://x"
levle = 3
[clones]
first_port = 30000
last_port = 20000
grace = "long"
[[doctor.silenced]]
rule = "memory"
reason = "short"
until = 2100-01-01
instance = "gone"
"""


def test_all_mistakes_of_a_configuration_are_told_at_once() -> None:
    """Those of single values, those of values that do not fit together, and names that name nothing."""
    with pytest.raises(ConfigError) as raised:
        parse(MISTAKES, "x")
    message = raised.value.message
    for part in (
        "unknown key instance.main.wrong",
        "instance.main: give at most one of socket and host",
        "instance main names repository 'nowhere', which is not configured",
        "instance name 'Bad' is not valid",
        "instance.Bad.lock.deadline: a duration is a number",
        "instance.Bad.lock.kill: must be 'never'",
        "instance.third.socket: must be a path in quotes",
        "unknown key repository.r.levle",
        "repository.r: url 'ftp://x' is neither",
        "clones.grace: a duration is a number",
        "doctor.silenced.0.reason: String should have at least 8 characters",
        "doctor.silenced for the rule memory names instance 'gone'",
    ):
        assert message.count(part) == 1, part
    assert "instance.third: give exactly one" not in message, "its socket is there, and is wrong"


def test_a_missing_file_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        load(tmp_path / "none.toml")


def test_several_instances_must_be_named() -> None:
    two = parse(GOOD + GOOD.replace("main", "other").split("[repository.s3]")[0], "x")
    with pytest.raises(UsageError, match="several instances are configured; name an instance"):
        two.one_instance(None)
    with pytest.raises(UsageError, match="not configured"):
        two.one_instance("third")
    assert two.one_instance("other")[0] == "other"


def test_a_password_never_shows_in_the_settings(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    secret.chmod(0o600)
    settings = parse(GOOD.replace("repository =", f'password_file = "{secret}"\nrepository ='), "x")
    password = settings.instance["main"].password()
    assert password.get_secret_value() == "hunter2"
    assert "hunter2" not in repr(settings) + repr(password) + str(password)


def test_an_unreadable_password_file_is_a_configuration_error(tmp_path: Path) -> None:
    settings = parse(GOOD.replace("repository =", f'password_file = "{tmp_path / "none"}"\nrepository ='), "x")
    with pytest.raises(ConfigError, match="reading password_file"):
        settings.instance["main"].password()


@pytest.mark.parametrize("name", ["zsnapdb.example.toml", "restore-host.toml"])
def test_the_example_configurations_are_valid(name: str) -> None:
    example = Path(__file__).parents[2] / "configs" / name
    assert parse(example.read_text(), str(example)).instance


def test_the_example_of_a_restore_host_has_the_settings_of_the_page() -> None:
    root = Path(__file__).parents[2]
    example = (root / "configs" / "restore-host.toml").read_text()
    page = (root / "docs" / "disaster-recovery.md").read_text()
    for setting in ("s3.endpoint", "s3.credentials_file", "identity_file", "signers"):
        assert re.search(rf"(?m)^ *(# )?{re.escape(setting)} = ", example), setting
        assert re.search(rf"(?m)^ *(# )?{re.escape(setting)} = ", page), setting
    assert "zsnapdb restore main --handover promote --plan" in example
    assert "zsnapdb restore main --handover promote --plan" in page


def test_a_host_without_the_server_says_so_when_it_is_asked() -> None:
    settings = parse((Path(__file__).parents[2] / "configs" / "restore-host.toml").read_text(), "x")
    with pytest.raises(ServerError, match="no server of instance main is configured") as refused:
        Instance.of(settings, "main").session()
    assert "set socket or host in [instance.main]" in refused.value.hint


def test_the_schedules_of_the_agent_in_the_example_are_valid() -> None:
    text = (Path(__file__).parents[2] / "configs" / "zsnapdb.example.toml").read_text()
    agent = re.search(r"((?:^# [^\n]*\n)+)", text[text.index("# [instance.main.agent]") :], re.MULTILINE)
    assert agent is not None
    schedules = "\n".join(re.findall(r"^# (\[.*\]|[a-z_]+ = .*)$", agent[1], re.MULTILINE))
    there = '[repository.disk]\nurl = "file:///mnt/backup/zsnapdb"\n'
    settings = parse(f"{GOOD}\n{schedules}\n{there}", "test")
    known = [str(job.name) for job in jobs_of(settings)]
    assert len(known) == 12
    for job in jobs_of(settings):
        assert job.schedule is None or Schedule.of(job.schedule, job.timezone)


def test_an_instance_whose_lock_strategy_does_not_exist_is_refused_with_the_names_of_those_there_are() -> None:
    settings = parse(GOOD + '\n[instance.main.lock]\nstrategy = "bogus"\n', "test")
    with pytest.raises(ConfigError, match="'bogus' is not a lock strategy"):
        Instance.of(settings, "main")


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ("[clones.address]\nfirst_port = 23100\n", "overlap the ports of the servers"),
        ("[clones.address]\nfirst_port = 24000\nlast_port = 23999\n", "first_port to last_port"),
        ("[clones.address]\nfirst_port = 24000\nlast_port = 25000\n", "first_port to last_port"),
        ('[clones.address]\nsocket = "admin.sock"\n', "write an absolute path"),
        ('[clones]\naccounts = "keep"\n[clones.address]\n', "must not be .keep"),
    ],
)
def test_ports_that_clones_keep_are_their_own_and_open_no_account_of_the_source(section: str, reason: str) -> None:
    assert re.search(reason, refused(GOOD + section).message)
    assert parse(f"{GOOD}[clones.address]\n", "x").clones.address is not None
