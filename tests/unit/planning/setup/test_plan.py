"""What setup plans for the hosts that it finds, and that its layout and configuration are sound."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from tests.unit.planning.advice.facts import DATA, GOOD, LOGS
from tests.unit.support.setup_plans import ANSWERS, ELSEWHERE, FACTS, FILES, GIB, SERVER, planned, words
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ConfigError
from zsnapdb.config.settings import parse
from zsnapdb.planning.advice.catalogue import judge_advice
from zsnapdb.planning.backup.fitness import Severity
from zsnapdb.planning.setup.configuration import PRUNE, ServerLogin, merged_configuration
from zsnapdb.planning.setup.facts import (
    FoundPool,
    FoundServer,
    LaterFacts,
    SetupAnswers,
    SetupRefusal,
    WrittenTables,
)
from zsnapdb.planning.setup.layout import (
    account_plan,
    configuration_in,
    configuration_of_cron,
    cron_file,
    cron_text,
    dataset_pair,
    unit_text,
)
from zsnapdb.planning.setup.plan import (
    SetupAction,
    SetupPlan,
    SetupWay,
    plan_setup,
)


def test_a_server_on_zfs_is_adopted_and_nothing_of_it_is_touched() -> None:
    plan = planned()
    assert (plan.way, plan.refusals) == (SetupWay.ADOPT, ())
    assert not [word for word in words(plan) if word.startswith(("zfs", "mv", "cp", "systemctl stop"))]
    assert [step.path for step in plan.steps if step.path] == ["/etc/zsnapdb/zsnapdb.toml"]


@pytest.mark.parametrize("address", ["file:///srv/backups", "s3://bucket/prefix"])
def test_repository_in_a_folder_is_noted(address: str) -> None:
    notes = planned(answers=replace(ANSWERS, repository=address)).notes
    assert any("they are lost with the host" in note for note in notes) == address.startswith("file:")


SILENT = replace(
    SERVER, has_binlog=False, lets_root_in=True, service="mariadb.service", option_folder="/etc/mysql/mariadb.conf.d"
)


@pytest.mark.parametrize("flavour", Flavour)
def test_binlogs_are_turned_on_by_one_restart_if_wished(flavour: Flavour) -> None:
    server = replace(SILENT, flavour=flavour)
    without, plan = planned(server), planned(server, replace(ANSWERS, binlogs=True))
    assert without.can_offer_binlogs
    assert "--binlogs turns them on, with one restart" in " ".join(without.notes)
    assert not any("restart mariadb" in line for line in words(without))
    first = plan.steps[0]
    assert (first.action, first.lines) == (SetupAction.BINLOG, ("systemctl restart mariadb.service",))
    assert first.path == "/etc/mysql/mariadb.conf.d/zz-zsnapdb-binlog.cnf"
    assert "log_bin = binlog\n" in first.text
    assert "binlog_format = ROW\n" in first.text
    assert not plan.can_offer_binlogs
    for planned_one, has_points in ((without, False), (plan, True)):
        made = parse(planned_one.text("age1q"), "x").instance["main"]
        assert (made.agent.archive, made.objectives.rpo) == (has_points, 900.0 if has_points else None)
        assert made.agent.snapshot is not None
        assert made.control.unit == "mariadb.service"


@pytest.mark.parametrize("lacks", [{"service": ""}, {"option_folder": ""}, {"lets_root_in": False}])
def test_binlogs_that_setup_cannot_turn_on_are_refused_before_anything(lacks: dict[str, object]) -> None:
    server = replace(SILENT, **lacks)  # type: ignore[arg-type]
    plan = planned(server, replace(ANSWERS, binlogs=True))
    assert plan.refusals[0].startswith("setup cannot turn the binlogs on: ")
    assert plan.steps == ()
    assert not planned(server).can_offer_binlogs
    assert "set log_bin in its option file" in " ".join(planned(server).notes)


def test_backups_of_an_encrypted_server_in_the_clear_are_refused_before_anything_is_made() -> None:
    encrypted = replace(SERVER, cipher="aes-256-gcm")
    assert planned(encrypted).refusals == ()
    refused = planned(encrypted, replace(ANSWERS, encrypt=False))
    assert "tank/mysql/data is encrypted (aes-256-gcm)" in refused.refusals[0]
    assert refused.steps == ()
    assert planned(SERVER, replace(ANSWERS, encrypt=False)).refusals == ()


PROVING = ["zsnapdb doctor main", "zsnapdb backup main", "zsnapdb drill main"]


@pytest.mark.parametrize("flavour", Flavour)
def test_setup_itself_leads_to_a_passed_drill_where_it_may_make_the_account(flavour: Flavour) -> None:
    steps = planned(replace(SERVER, flavour=flavour, lets_root_in=True)).steps
    assert [step.action for step in steps[-3:]] == [SetupAction.DOCTOR, SetupAction.BACKUP, SetupAction.DRILL]
    assert [line for step in steps[-3:] for line in step.lines] == PROVING
    assert [step for step in steps if step.action is None] == []


@pytest.mark.parametrize(
    ("server", "proof"),
    [
        (SERVER, True),
        (replace(SERVER, lets_root_in=True, is_read_only=True), True),
        (replace(SERVER, lets_root_in=True), False),
    ],
)
def test_without_an_account_or_with_a_no_the_proof_is_left_to_the_person(server: FoundServer, proof: bool) -> None:
    plan = planned(server, replace(ANSWERS, proof=proof), grants={Flavour.MYSQL: GRANTS})
    left = [line for step in plan.steps if step.action is None for line in step.lines]
    assert left[-3:] == PROVING


def test_what_a_drill_has_proved_is_not_proved_again_by_the_same_setup() -> None:
    before = planned()
    plan = planned(configured=before.text("age1q"), recipient="age1q", passed_drill="20261122T000000Z-0001")
    assert not set(PROVING) & set(words(plan))
    assert "20261122T000000Z-0001 passed" in plan.notes[-1]


def test_a_configuration_in_another_place_is_named_by_every_command_of_the_plan() -> None:
    said = words(planned(configuration="/srv/my z.toml"))
    commands = [line for line in said if line.startswith("zsnapdb ") and " | " not in line]
    assert len(commands) == 4
    assert all(line.endswith(" --config '/srv/my z.toml'") for line in commands)


GRANTS = """-- An account; with its grants.
CREATE USER zsnapdb@localhost IDENTIFIED WITH auth_socket AS 'root';
GRANT RELOAD,
  SELECT ON *.* TO zsnapdb@localhost;
-- Only with more: GRANT BINLOG_ADMIN ON *.* TO zsnapdb@localhost;
"""


def test_the_account_logs_in_by_the_socket_where_the_server_can_and_else_by_a_password() -> None:
    known = replace(SERVER, lets_root_in=True)
    by_socket = account_plan(replace(known, has_socket_login=True), GRANTS, "/etc/p")
    by_password = account_plan(known, GRANTS, "/etc/p")
    assert by_socket is not None
    assert by_password is not None
    grant = "GRANT RELOAD, SELECT ON *.* TO zsnapdb@localhost"
    create = "CREATE USER IF NOT EXISTS zsnapdb@localhost IDENTIFIED"
    assert (by_socket.statements, by_socket.password_file) == ((f"{create} WITH auth_socket AS 'root'", grant), None)
    assert (by_password.statements, by_password.password_file) == ((f"{create} BY %s", grant), "/etc/p")
    assert by_password.shown[0] == f"{create} BY <the password in /etc/p>;"
    assert account_plan(replace(known, flavour=Flavour.MARIADB), GRANTS, "/etc/p") is None, "root is there"


@pytest.mark.parametrize(
    ("server", "is_own"),
    [
        (replace(SERVER, lets_root_in=True), True),
        (SERVER, False),
        (replace(SERVER, lets_root_in=True, is_read_only=True), False),
    ],
)
def test_setup_makes_the_account_only_where_root_is_let_in_and_may_write(server: FoundServer, is_own: bool) -> None:
    plan = planned(server, grants={Flavour.MYSQL: GRANTS})
    (step,) = [step for step in plan.steps if "account" in step.title]
    assert (step.action is SetupAction.ACCOUNT) == is_own
    assert any("GRANT RELOAD" in line for line in step.lines) == is_own


def test_a_configuration_that_setup_wrote_is_no_obstacle_for_the_same_setup() -> None:
    before = planned()
    text = before.text("age1qqqq")
    plan = planned(configured=text, written=before.written, recipient="age1qqqq")
    assert (plan.refusals, plan.text("age1qqqq"), plan.recipient) == ((), text, "age1qqqq")
    assert "setup continues from there" in plan.notes[-1]
    other = planned(configured=text, written=before.written, recipient="age1zzzz")
    assert (other.text("age1zzzz"), other.identity) == (text, None), "the configured recipient stays"


def test_setup_again_does_not_switch_signing_on() -> None:
    assert "signing_key_file" in planned().text(None)
    before = replace(planned(), signing=None)
    text = before.text("age1qqqq")
    again = planned(configured=text, written=before.written, recipient="age1qqqq")
    assert (again.signing, again.text("age1qqqq")) == (None, text)
    assert any("left signing open" in note for note in again.notes)
    decided = planned(SERVER, replace(ANSWERS, sign=False), configured=text, written=before.written)
    assert '  + signing = "none"' in decided.notes


def test_setup_makes_no_key_for_a_repository_that_is_there() -> None:
    assert SetupAction.SIGNING_KEY in [step.action for step in planned().steps]
    plan = planned(later=LaterFacts(has_repository=True))
    assert SetupAction.SIGNING_KEY not in [step.action for step in plan.steps]
    assert "signing" not in next(step.text for step in plan.steps if step.action is SetupAction.CONFIGURATION)
    assert any("its stored backups would no longer be trusted" in note for note in plan.notes)


CRON = cron_text(("/usr/bin/zsnapdb",), "main", "/etc/zsnapdb/zsnapdb.toml")
STORED = LaterFacts(has_repository=True, backups=3)
RULES = "[instance.main.keep]\nyearly = 7\n"
HAND = """[instance.main]
socket = "/run/mysqld/mysqld.sock"
repository = "r"
[repository.r]
url = "s3://bucket/prefix"
"""


def test_backups_of_another_host_need_a_decision() -> None:
    """Two hosts with one instance in one repository would restore each other's data."""
    later = replace(STORED, maker="db9")
    plan = planned(later=later)
    assert (plan.steps, plan.refusals) == (
        (),
        ("the repository already has 3 backups of main, made by host db9",),
    )
    assert "/HOST" in plan.refusal_hint
    assert "--take-over" in plan.refusal_hint
    assert planned(SERVER, replace(ANSWERS, take_over=True), later=later).refusals == ()


@pytest.mark.parametrize("server", [SERVER, ELSEWHERE])
@pytest.mark.parametrize("schedule", [{}, {"has_systemd": False, "cron": CRON}, {"has_systemd": False, "cron": None}])
@pytest.mark.parametrize("rules", ["", RULES, f"{HAND}keep = {{ last = 1 }}\n", HAND])
@pytest.mark.parametrize("later", [LaterFacts(), STORED])
def test_prune_of_existing_backups_needs_rules_of_the_user(
    server: FoundServer, schedule: dict[str, object], rules: str, later: LaterFacts
) -> None:
    plan = planned(server, replace(ANSWERS, move=True), configured=rules or None, later=later, **schedule)
    assert plan.refusals == ()
    is_open = bool(later.backups) and "keep" not in rules
    text = plan.text("age1q")
    own = tomllib.loads(text)["instance"]["main"]
    assert ("prune" in own["agent"], "last = 7" in text) == (not is_open, not is_open and "keep" not in rules)
    assert not [step for step in plan.steps if " prune main " in step.text] or not is_open
    notes = "\n".join(plan.notes)
    assert ("3 backups of main" in notes) == is_open
    for line in ("  [instance.main.keep]", "  daily = 14", "  zsnapdb prune main --plan"):
        assert (line in plan.notes) == is_open
    is_cron = schedule.get("cron") is not None
    scheduled = [note for note in plan.notes if " prune main --config" in note] if is_cron else plan.notes
    assert is_cron or ('  prune = { cron = "45 3 * * *" }' in scheduled) == is_open
    assert not is_cron or len(scheduled) == is_open


def test_rules_that_a_user_added_later_get_their_schedule() -> None:
    first = planned(later=STORED)
    text = first.text(None) + "\n" + RULES
    plan = planned(configured=text, written=first.written, later=STORED)
    assert tomllib.loads(plan.text(None))["instance"]["main"]["agent"]["prune"]
    removed = planned(configured=plan.text(None).replace(PRUNE, ""), written=plan.written, later=STORED)
    assert "prune" not in tomllib.loads(removed.text(None))["instance"]["main"]["agent"]


@pytest.mark.parametrize("path", ["/etc/z.toml", "/srv/my z%.toml"])
def test_cron_file_names_its_configuration(path: str) -> None:
    assert configuration_of_cron(cron_text(("/usr/bin/zsnapdb",), "main", path)) == path
    assert configuration_of_cron("# mine\n") is None
    refused = planned(has_systemd=False, cron=CRON, cron_reads=path)
    assert f"cron runs the jobs of main with {path}" in refused.refusals[0]
    assert planned(cron=CRON, cron_reads=path).refusals == ()


def test_cron_file_of_a_user_keeps_its_lines() -> None:
    def schedule(cron_now: str | None, written: WrittenTables | None = None) -> tuple[SetupPlan, str]:
        plan = planned(has_systemd=False, cron=CRON, cron_now=cron_now, configured=HAND, written=written)
        (step,) = [step for step in plan.steps if step.action is SetupAction.SCHEDULE]
        return plan, step.text

    plan, text = schedule(None)
    assert text == CRON
    edited = CRON.replace("15 1 * * *", "15 2 * * *").replace("45 3 * * * ", "# 45 3 * * * ")
    assert schedule(edited)[1] == edited
    without = "".join(line for line in CRON.splitlines(keepends=True) if " drill " not in line)
    assert schedule(without, plan.with_cron(CRON))[1] == without, "a user removed the line"
    assert set(schedule(without)[1].splitlines()) == set(CRON.splitlines())


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("/run/mysqld/mysqld.sock", "/run/other.sock", "says socket = /run/other.sock for main"),
        ("s3://bucket/prefix", "s3://bucket/other", "go to s3://bucket/other, and the answers say s3://bucket/prefix"),
        (
            'repository = "r"',
            'repository = "r"\nvolumes = { data = "old/data" }',
            "on old/data, and setup found them on",
        ),
        ('socket = "/run/mysqld/mysqld.sock"', 'host = "db2"', "the server of main is on db2"),
        ('socket = "/run/mysqld/mysqld.sock"', 'vm = { domain = "x" }', "is a virtual machine"),
    ],
)
def test_contradiction_is_refused_with_both_values(old: str, new: str, why: str) -> None:
    assert planned(configured=HAND).refusals == ()
    plan = planned(configured=HAND.replace(old, new))
    assert plan.steps == ()
    assert why in plan.refusals[0]
    assert plan.refusal_hint


def test_contradicting_endpoint_is_refused() -> None:
    text = HAND + 's3.endpoint = "https://a.lan"\n'
    assert planned(configured=text).refusals == ()
    assert planned(SERVER, replace(ANSWERS, endpoint="https://a.lan"), configured=text).refusals == ()
    for configured in (text, HAND):
        refused = planned(SERVER, replace(ANSWERS, endpoint="https://b.lan"), configured=configured)
        assert "the answers say s3://bucket/prefix at https://b.lan" in refused.refusals[0]


@pytest.mark.parametrize("same", ["/run/mysqld/mysqld.sock", "/var/run/mysqld/mysqld.sock"])
def test_configured_socket_chooses_among_several_servers(same: str) -> None:
    other = replace(SERVER, sockets=("/run/b.sock",))
    text = HAND.replace("/run/mysqld/mysqld.sock", same)
    plan = planned(servers=(other, SERVER), configured=text)
    assert (plan.server, plan.refusals) == (SERVER, ())
    assert f'socket = "{same}"' in plan.text(None)


def test_unmet_conditions_of_later_steps_leave_no_step() -> None:
    unmet = LaterFacts((SetupRefusal("no mysqld", "install it"), SetupRefusal("no room", "free space")))
    for server in (SERVER, ELSEWHERE):
        for move in (False, True):
            plan = planned(server, replace(ANSWERS, move=move), later=unmet)
            assert (plan.steps, plan.refusals) == ((), ("no mysqld", "no room"))
            assert plan.refusal_hint == "install it; free space"
    assert "x" in planned(later=LaterFacts(notes=("x",))).notes


def test_a_missing_unit_is_written_with_its_program_and_its_configuration() -> None:
    example = (
        "ExecStart=/usr/bin/env zsnapdb agent\nExecReload=/usr/bin/env zsnapdb config check\n"
        "ExecReload=/bin/kill -HUP $MAINPID\nRestart=always\nExecStopPost=-/usr/bin/env zsnapdb notify failed %N\n"
    )
    text = unit_text(example, ('/opt/a "%b',), "/etc/z $1")
    assert text.splitlines() == [
        'ExecStart="/opt/a \\"%%b" "agent" "--config" "/etc/z $$1"',
        'ExecReload="/opt/a \\"%%b" "config" "check" "--config" "/etc/z $$1"',
        "ExecReload=/bin/kill -HUP $MAINPID",
        "Restart=always",
        'ExecStopPost=-"/opt/a \\"%%b" "notify" "failed" %N "--config" "/etc/z $$1"',
    ]
    (step,) = [step for step in planned(unit=text).steps if step.action is SetupAction.SCHEDULE]
    assert (step.path, step.text) == ("/etc/systemd/system/zsnapdb-agent.service", text)
    assert configuration_in(text) == "/etc/z $1"
    assert configuration_in(example) is None
    assert [step.path for step in planned(unit=None).steps if step.action is SetupAction.SCHEDULE] == [""]
    assert [step for step in planned(has_systemd=False).steps if step.action is SetupAction.SCHEDULE] == []


def test_a_name_that_is_taken_is_not_used_for_a_dataset() -> None:
    move = planned(ELSEWHERE, datasets=frozenset({"tank/mysql"})).move
    assert move is not None
    assert move.datasets[1].name == "tank/mysql-main/data"
    both = planned(ELSEWHERE, datasets=frozenset({"tank/mysql", "tank/mysql-main"}))
    assert "are there already" in both.refusals[0]


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (plan_setup(replace(FACTS, servers=()), ANSWERS), "no server runs on this host"),
        (plan_setup(replace(FACTS, servers=(SERVER, SERVER)), ANSWERS), "2 servers run on this host"),
        (planned(answers=replace(ANSWERS, socket="/tmp/x.sock")), "no running server listens on /tmp/x.sock"),
        (planned(configured="instance = { main = {} }\n"), "setup cannot add [instance.main]"),
        (planned(configured="[instance.main\n"), "is not valid TOML"),
        (planned(agent_reads="/srv/z.toml"), "the agent of this host reads /srv/z.toml"),
        (planned(missing_folder="/srv/backups"), "the folder /srv/backups of the repository is not there"),
        (planned(replace(ELSEWHERE, files=None)), "root may not ask the server"),
        (planned(replace(ELSEWHERE, files=replace(FILES, service=""))), "is no service of it"),
        (planned(replace(ELSEWHERE, files=replace(FILES, elsewhere=("innodb_undo_directory = /u",)))), "leads out of"),
        (planned(replace(ELSEWHERE, files=replace(FILES, obstacles=("/var/lib/mysql/l",)))), "is not a regular file"),
        (planned(replace(ELSEWHERE, files=replace(FILES, option_folder=""))), "no folder of option files"),
        (planned(replace(ELSEWHERE, files=replace(FILES, taken=("/var/lib/mysql.before-zfs",)))), "is there already"),
        (planned(ELSEWHERE, pools=()), "there is no pool here"),
        (planned(ELSEWHERE, pools=(FoundPool("a", GIB), FoundPool("b", GIB))), "there are 2 pools"),
        (planned(ELSEWHERE, pools=(FoundPool("tank", 11 * GIB),)), "has 11.0 GiB free, and the files take 10.0 GiB"),
        (planned(ELSEWHERE, answers=replace(ANSWERS, pool="vault")), "there is no pool vault here"),
    ],
)
def test_what_cannot_be_decided_is_refused_with_its_reason(plan: SetupPlan, why: str) -> None:
    assert plan.steps == ()
    assert why in plan.refusals[0]


def test_the_named_server_and_pool_are_taken() -> None:
    other = replace(ELSEWHERE, sockets=("/run/b.sock",), used=GIB)
    facts = replace(FACTS, servers=(SERVER, other), pools=(FoundPool("a", 9 * GIB), FoundPool("b", 9 * GIB)))
    plan = plan_setup(facts, replace(ANSWERS, socket="/run/b.sock", pool="b"))
    assert (plan.server, plan.way) == (other, SetupWay.MOVE)
    assert any("b/mysql/data" in word for word in words(plan))


@pytest.mark.parametrize("flavour", Flavour)
@pytest.mark.parametrize("page", [4096, 16384])
@pytest.mark.parametrize("release", [(2, 1, 11), (2, 2, 7), (2, 3, 4)])
def test_the_doctor_says_nothing_against_the_layout(flavour: Flavour, page: int, release: tuple[int, ...]) -> None:
    layout = dataset_pair("tank/mysql", flavour, page, release)
    logs, data = (
        {**new.properties, "recordsize": str(int(new.properties["recordsize"][:-1]) << 10)} for new in layout.datasets
    )
    options = dict(line.split(" = ") for line in layout.option_file.split("\n") if " = " in line)
    durable = {"innodb_doublewrite": "ON", **{name: value for name, value in options.items() if "gtid" in name}}
    facts = replace(
        GOOD,
        zfs_release=release,
        volumes=(
            replace(LOGS, properties={**LOGS.properties, **logs}),
            replace(DATA, properties={**DATA.properties, **data}),
        ),
        blocks=replace(GOOD.blocks, page_size=page, counts={page: 1}),
        server=replace(GOOD.server, flavour=flavour, variables={**GOOD.server.variables, **durable}),
    )
    assert [f.rule for f in judge_advice(facts, ()) if f.severity is not Severity.OK] == []


@pytest.mark.parametrize("answers", [ANSWERS, replace(ANSWERS, repository="file:///srv/backups", instance="shop")])
@pytest.mark.parametrize("recipient", [None, "age1qqqq"])
def test_the_configuration_is_valid_and_has_only_what_differs_from_the_defaults(
    answers: SetupAnswers, recipient: str | None
) -> None:
    text = merged_configuration(answers, ServerLogin("/run/mysqld/mysqld.sock", "zsnapdb"), recipient).text
    settings = parse(text, "setup")
    assert list(settings.instance) == [answers.instance]
    assert settings.repository["backups"].url == answers.repository
    assert settings.repository["backups"].encryption.recipients == ((recipient,) if recipient else ())
    assert "user" not in text
    assert "volumes" not in text


def test_a_server_without_binlogs_is_backed_up_and_nothing_of_it_is_archived_until_it_is_moved() -> None:
    silent = replace(SERVER, has_binlog=False)
    cron = cron_text(("/usr/bin/zsnapdb",), "main", "/etc/zsnapdb/zsnapdb.toml")
    plan = planned(silent, has_systemd=False, cron=cron)
    settings = parse(plan.text(None), "setup").instance["main"]
    assert (settings.agent.archive, settings.objectives.archive_lag) == (False, None)
    assert "the server writes no binlogs" in plan.notes[-1]
    (schedule,) = [step for step in plan.steps if step.action is SetupAction.SCHEDULE]
    assert ("binlog archive" in cron, "binlog archive" in schedule.text) == (True, False)
    moved = planned(replace(ELSEWHERE, has_binlog=False, files=replace(FILES, binlog="")))
    (written,) = [step.text for step in moved.steps if step.action is SetupAction.CONFIGURATION]
    assert "archive = true" in written
    assert "archive = true" in moved.text(None)


def test_a_rewind_and_an_undo_are_prepared_where_the_server_needs_it() -> None:
    file = "/etc/mysql/mariadb.conf.d/zz-zsnapdb-rewind.cnf"
    plan = planned(replace(SERVER, flavour=Flavour.MARIADB, server_id_file=file, lacks_names=True))
    control = parse(plan.text(None), "setup").instance["main"].control
    assert str(control.server_id_file) == file
    assert "binlog_row_metadata = FULL" in plan.notes[-1]
    assert "loose_binlog_row_metadata = FULL" in planned(ELSEWHERE).move.option_file  # type: ignore[union-attr]


@pytest.mark.parametrize("url", ["s3://bucket/prefix", "azure://account/container/prefix", "gs://bucket/prefix"])
def test_setup_writes_the_access_to_the_store_of_the_address(url: str) -> None:
    answers = replace(ANSWERS, repository=url, endpoint="https://store.lan", credentials_file="/etc/zsnapdb/store")
    (written,) = parse(
        merged_configuration(answers, ServerLogin("/s", "zsnapdb"), None).text, "setup"
    ).repository.values()
    assert written.provider is not None
    assert (written.provider.endpoint, str(written.provider.credentials_file)) == (
        "https://store.lan",
        "/etc/zsnapdb/store",
    )
    assert (written.idle_keys, written.flat_keys) == ((), ())


def test_no_value_of_an_answer_can_add_a_line_to_the_configuration() -> None:
    wicked = replace(ANSWERS, repository='file:///x"\nuser = "root', endpoint=None)
    text = merged_configuration(wicked, ServerLogin("/s", "zsnapdb"), None).text
    assert "user" not in {key for section in tomllib.loads(text).values() for one in section.values() for key in one}
    with pytest.raises(ConfigError, match="cannot be part of a repository's address"):
        parse(text, "setup")


def test_without_systemd_cron_runs_every_job_by_its_absolute_path() -> None:
    text = cron_text(("/opt/a b%/zsnapdb",), "main", "/etc/z.toml")
    plan = planned(has_systemd=False, cron=text)
    (step,) = [step for step in plan.steps if step.action is SetupAction.SCHEDULE]
    assert (step.path, step.text) == ("/etc/cron.d/zsnapdb-main", text)
    assert "zsnapdb agent" not in words(plan)
    lines = [line for line in text.split("\n") if " root " in line]
    assert all(
        line.split(" root ")[1].startswith("'/opt/a b\\%/zsnapdb' ")
        and line.endswith(" --config /etc/z.toml >/dev/null")
        for line in lines
    )
    jobs = [line.split("zsnapdb' ")[1].split(" --config")[0] for line in lines]
    assert jobs[:4] == ["binlog archive main --once", "snapshot main", "backup main", "prune main"]
    assert jobs[4:] == ["verify main", "drill main", "reap", "doctor main", "status --all --notify"]
    assert "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:" in text
    assert cron_file("shop.eu") == "/etc/cron.d/zsnapdb-shop_eu"
