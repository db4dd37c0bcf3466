"""The pages of `docs` that are made from the code are up to date, and say something of everything."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from tools.references import configuration, exit_codes, http_api
from tools.references.commands import commands
from tools.references.pages import MAN, ROOT, made

from zsnapdb.base.errors import EXIT_CODES
from zsnapdb.cli.doctor import sizing
from zsnapdb.cli.schema import printed_documents
from zsnapdb.verbs.requests import VERBS

TEXTS = made()


@pytest.mark.parametrize("name", TEXTS)
def test_a_page_that_is_made_from_the_code_is_up_to_date(name: str) -> None:
    file = ROOT / name
    assert file.exists(), "run `make references`"
    assert file.read_text(encoding="utf-8") == TEXTS[name], "run `make references`"


def test_there_is_no_manual_page_of_a_command_that_is_gone() -> None:
    assert {f"{MAN}/{file.name}" for file in (ROOT / MAN).iterdir()} <= set(TEXTS)


def test_every_command_and_every_option_has_a_sentence() -> None:
    for command in commands():
        assert command.summary, command.name
        for option in (*command.options, *command.arguments):
            assert option.help, f"{command.name} {option.written}"


def test_every_command_has_a_manual_page_with_its_options() -> None:
    for command in commands()[1:]:
        text = TEXTS[f"{MAN}/zsnapdb-{command.words[0]}.1"].replace("\\-", "-")
        for option in command.options if not command.is_group else ():
            assert f".B {option.written}\n" in text, f"{command.name} {option.written}"


def test_every_section_and_every_key_of_the_configuration_is_in_the_reference() -> None:
    text = TEXTS["docs/reference/configuration.md"]
    for section in configuration.sections():
        assert f"## {section.header}\n" in text
        for name, field in section.model.model_fields.items():
            assert f"`{field.alias or name}`" in text or configuration._model_in(field.annotation), name


def test_every_key_of_the_configuration_has_one_meaning_of_its_own() -> None:
    explained = configuration.explanations(configuration._EXAMPLE.read_text(encoding="utf-8"))
    for section in configuration.sections():
        for name, field in section.model.model_fields.items():
            if configuration._model_in(field.annotation) is None:
                key = field.alias or name
                meaning = configuration.meaning_of(section, key, explained)
                assert re.search(r"[^.]\.$", meaning), f"{section.header} {key}: {meaning!r}"


def test_the_page_on_the_api_names_every_request_of_its_schema_and_no_other() -> None:
    page = (ROOT / "docs/http-api.md").read_text(encoding="utf-8")
    told = {
        (method, path.replace("NAME", "{name}").replace("ID", "{id}"))
        for method, path in re.findall(r"`(GET|POST|DELETE) (/api/v1/[A-Za-z/]+)", page)
    }
    paths = http_api.openapi()["paths"]
    known = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert told - {("GET", "/api/v1/openapi")} == known


def test_the_api_names_documents_that_the_command_line_has() -> None:
    named = {verb.route.answers for verb in VERBS if verb.route is not None and isinstance(verb.route.answers, str)}
    assert named <= {one.kind for types in printed_documents().values() for one in types}


def test_every_exit_code_and_every_error_has_a_part_that_says_what_to_do() -> None:
    text = TEXTS["docs/reference/exit-codes.md"]
    assert set(exit_codes.WHAT_TO_DO) == set(EXIT_CODES)
    for code in EXIT_CODES:
        assert f"\n### {code}\n" in text
    for error in exit_codes.error_classes():
        assert f"\n### {error.code}\n" in text
    assert set(exit_codes.WHAT_TO_DO_AFTER) < {error.code for error in exit_codes.error_classes()}


def test_a_manual_page_has_no_line_that_troff_would_take_for_a_command() -> None:
    allowed = re.compile(r"\.(TH|SH|SS|TP|PP|B|BR|I|br|nf|fi)( |$)")
    for name, text in TEXTS.items():
        if name.startswith(MAN):
            assert not [line for line in text.split("\n") if line.startswith((".", "'")) and not allowed.match(line)]


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
def test_man_formats_every_manual_page_without_a_warning() -> None:
    for name in TEXTS:
        if name.startswith(MAN):
            argv = ["man", "--warnings", "-l", str(ROOT / name)]
            done = subprocess.run(
                argv, capture_output=True, text=True, env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}
            )
            assert (done.returncode, done.stderr) == (0, ""), name


def test_sizes_of_the_sizing_page_are_accepted_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "sizing.md").read_text(encoding="utf-8")
    sizes = re.findall(r"^\| ([0-9]+ \w*B) \|", page, re.MULTILINE)
    assert len(sizes) == 4
    for size in sizes:
        sizing(size)
        assert f"{size.split()[0]}.0 {size.split()[1]}" in capsys.readouterr().out
