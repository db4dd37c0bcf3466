"""What the packages hold: everything that messages and pages refer to, and the files of a package for Debian."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from jinja2.nativetypes import NativeEnvironment
from tools import debian_package, image_trial, readme_trial, release
from tools.references.pages import MAN, ROOT, made

from tests.lab import guides
from zsnapdb.base.errors import UsageError
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.setup.examples import find

SOURCES = sorted((ROOT / "zsnapdb").rglob("*.py"))
REFERRED = re.compile(r"zsnapdb example ([a-z][\w./@-]*[\w@])")
PAGE = re.compile(r"\b((?:docs|configs|hooks)/[\w./@-]+\.(?:md|toml|service|timer|json|sql))\b")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def referred() -> set[str]:
    """Return what messages, help and hints of the program name as an example or as a file of the project."""
    texts = [path.read_text(encoding="utf-8") for path in SOURCES if path.name != "examples.py"]
    return {name for text in texts for pattern in (REFERRED, PAGE) for name in pattern.findall(text)}


def test_what_hints_refer_to_is_in_the_package() -> None:
    names = referred()
    assert {"zsnapdb.toml", "doctor.md", "zfs-allow.md"} <= names
    for name in names:
        try:
            find(name.removeprefix("configs/").removesuffix("/"))
        except UsageError:
            known = [e for e in debian_package.ROOT.joinpath(name).parent.glob("*") if e.name == Path(name).name]
            pytest.fail(f"{name} is referred to, and no package holds it ({known or 'there is no such file'})")


def test_release_is_reproducible_and_its_source_holds_what_its_tests_need(tmp_path: Path) -> None:
    release.release(tmp_path)
    (archive,) = tmp_path.glob("*.tar.gz")
    listed = json.loads((tmp_path / "sbom.json").read_text(encoding="utf-8"))["components"]
    assert {"boto3", "fastapi", "temporalio"} <= {one["name"] for one in listed}
    sums = dict(line.split("  ")[::-1] for line in (tmp_path / "SHA256SUMS").read_text(encoding="utf-8").splitlines())
    assert {path.name for path in tmp_path.iterdir()} == {"SHA256SUMS", *sums}
    assert [name for name in sums if name.startswith("zsnapdb_client-")]
    assert {hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in sums} == set(sums.values())
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    needed = [
        "mkdocs.yml",
        "Makefile",
        "CONTRIBUTING.md",
        "Dockerfile",
        "packaging/tools/references/__main__.py",
        "packaging/client/LICENSE",
        *made(),
    ]
    assert [name for name in (*needed, "packaging/debian/control.in") if name not in names] == []


def test_a_container_is_built_from_all_that_the_wheel_includes() -> None:
    copied = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    sources = {name.split("/")[0] for name in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]}
    assert [name for name in sources if f"COPY {name} " not in copied] == []


def test_examples_of_containers_mount_all_state() -> None:
    page = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
    (command,) = [block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "--privileged" in block]
    (document,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    mounts = dict(re.findall(r"- \{name: (\w+), mountPath: ([\w/-]+)", document))
    of_docker = set(re.findall(r"--volume (\S+?):", command))
    assert of_docker == set(mounts.values())
    own = Host()
    assert {str(own.run), str(own.cache), str(own.records.parent), "/run/zsnapdb-clone"} <= of_docker
    assert dict(re.findall(r"- \{name: (\w+), hostPath: \{path: ([\w/-]+), type: Directory", document)) == mounts


def test_the_steps_of_the_container_are_those_that_its_trial_runs() -> None:
    steps = image_trial.steps((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert [step.word for step in steps][:3] == ["FROM", "RUN", "USER"]
    assert not [step for step in steps if "\\" in step.rest]
    with pytest.raises(ValueError, match="not known: ADD"):
        image_trial.steps("FROM x\nADD http://x /y\n")


def test_a_page_says_how_zsnapdb_is_installed_by_pip_by_a_package_and_by_hand() -> None:
    page = readme_trial.PAGE.read_text(encoding="utf-8")
    for place in ("bare host", "bare host, package", readme_trial.BY_HAND):
        assert [line for block in guides.blocks(page, place) for line in block.lines], place


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the package, without the libraries that the program needs."""
    folder = tmp_path_factory.mktemp("package")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    (folder / "tree").mkdir()
    debian_package.stage(folder / "tree", wheel, more=("--no-deps", "--no-index"))
    debian_package.control(folder / "tree", "1.2.3", "amd64")
    return folder / "tree"


def test_a_package_for_debian_has_program_units_manual_pages_completion_and_folders(tree: Path) -> None:
    for name in ("usr/bin/zsnapdb", "usr/lib/tmpfiles.d/zsnapdb.conf", "usr/share/bash-completion/completions/zsnapdb"):
        assert (tree / name).is_file(), name
    units = {file.name for file in (tree / "usr/lib/systemd/system").iterdir()}
    assert units == {file.name for file in (ROOT / "configs" / "systemd").iterdir()}
    manuals = {file.name.removesuffix(".gz") for file in (tree / "usr/share/man/man1").iterdir()}
    assert manuals == {Path(name).name for name in made() if name.startswith(MAN)}
    assert "complete" in (tree / "usr/share/bash-completion/completions/zsnapdb").read_text()


def test_package_names_the_python_releases_of_its_libraries(tree: Path) -> None:
    text = (tree / "DEBIAN/control").read_text()
    assert "Version: 1.2.3\nArchitecture: amd64\n" in text
    assert "Depends: python3 (>= 3.11), python3 (<< 3.14), libc6 (>= 2.17)\n" in text
    for series in debian_package.SERIES:
        assert (tree / f"usr/lib/zsnapdb/lib/python{series}/site-packages/zsnapdb/cli/app.py").is_file()
    assert "@" not in text.replace("zsnapdb@localhost", "")
    for name in (tree / "DEBIAN/conffiles").read_text().split():
        assert (tree / name.lstrip("/")).is_file()
    for name in ("postinst", "prerm", "postrm"):
        subprocess.run(["sh", "-n", str(tree / "DEBIAN" / name)], check=True)
        assert (tree / "DEBIAN" / name).stat().st_mode & 0o777 == 0o755


def test_upgrade_restarts_each_service_of_zsnapdb() -> None:
    script = (ROOT / "packaging/debian/postinst").read_text(encoding="utf-8")
    page = (ROOT / "docs/upgrade.md").read_text(encoding="utf-8")
    units = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "configs/systemd").glob("*.service")}
    services = [name for name, text in units.items() if "\nRestart=" in text and "/env zsnapdb" in text]
    assert len(services) >= 6
    (command,) = re.findall(r"systemctl try-restart (.*?) \|\| true", script, re.DOTALL)
    for name in services:
        shown = name.replace("@.", "@*.")
        if "ExecStart=/usr/bin/env zsnapdb" in units[name]:
            assert shown in command.replace("'", "").split()
            assert f"{shown.removesuffix('.service')}" in page
        else:
            assert name.removesuffix(".service") in script, "the script says why it is not restarted"


def test_state_folder_has_the_mode_of_the_units() -> None:
    """systemd sets 0755 unless StateDirectoryMode= is set. QEMU and restored servers pass through the folder."""
    folder = (ROOT / "packaging/debian/tmpfiles.conf").read_text(encoding="utf-8")
    assert "d /var/lib/zsnapdb 0755 root root -" in folder
    assert "install -d -m 0755 /var/lib/zsnapdb\n" in (ROOT / "packaging/debian/postinst").read_text(encoding="utf-8")
    assert [path for path in (ROOT / "configs/systemd").iterdir() if "StateDirectoryMode" in path.read_text()] == []


def test_package_is_added_to_the_checksums_once(tmp_path: Path) -> None:
    package, sums = tmp_path / "zsnapdb_1_amd64.deb", tmp_path / "SHA256SUMS"
    package.write_bytes(b"first")
    debian_package.add_checksum(package)
    assert not sums.exists(), "without a release there is no such file"
    sums.write_text("00  a.whl\n")
    for body in (b"first", b"second"):
        package.write_bytes(body)
        debian_package.add_checksum(package)
        assert sums.read_text() == f"00  a.whl\n{hashlib.sha256(body).hexdigest()}  zsnapdb_1_amd64.deb\n"


def test_purge_removes_nothing_below_a_mounted_dataset() -> None:
    script = (ROOT / "packaging/debian/postrm").read_text(encoding="utf-8")
    removals = [line for line in script.splitlines() if re.search(r"\brm -\w*r", line)]
    assert removals
    assert [line for line in removals if "--one-file-system" not in line] == []


ROLE = ROOT / "packaging" / "ansible" / "roles" / "zsnapdb"


def tasks_of_role() -> list[str]:
    return (ROLE / "tasks" / "main.yml").read_text(encoding="utf-8").split("\n- name: ")


def test_role_reports_changes_and_hides_secrets() -> None:
    commands = [task for task in tasks_of_role() if "ansible.builtin.command" in task]
    assert commands
    for task in commands:
        changes = "--yes" in task
        assert ("changed_when: false" in task) != changes, task
        assert ("when: not ansible_check_mode" if changes else "check_mode: false") in task, task
        assert "no_log: true" in task, "a configuration and a plan contain the address of a webhook"
    (secret,) = [task for task in tasks_of_role() if "credentials.j2" in task]
    assert 'mode: "0600"' in secret
    assert "no_log: true" in secret
    named = re.findall(r"^(zsnapdb_\w+):", (ROLE / "defaults" / "main.yml").read_text(encoding="utf-8"), re.MULTILINE)
    used = "".join(path.read_text(encoding="utf-8") for path in ROLE.rglob("*.*") if path.parent.name != "defaults")
    assert [name for name in named if name not in used] == []


def test_role_shows_failures_of_hidden_tasks() -> None:
    """Older releases of Ansible hide the message of a failed assertion with no_log."""
    for task in tasks_of_role():
        if "ansible.builtin.assert" in task:
            assert "no_log" not in task
        if "zsnapdb, setup" in task:
            (name,) = re.findall(r"register: (\w+)", task)
            assert "failed_when: false" in task, "an assertion shows the failure"
            assert [other for other in tasks_of_role() if f"that: {name}.rc == 0" in other and "fail_msg" in other]


def test_role_writes_no_answers_before_setup_accepts_them() -> None:
    runs = [task for task in tasks_of_role() if "answers.toml.j2" in task]
    assert [task for task in runs if "--answers, /dev/stdin" in task] == runs
    assert len(runs) == 2


def test_role_keeps_identities_private() -> None:
    text = (ROLE / "tasks" / "main.yml").read_text(encoding="utf-8")
    folder, fetched, file = re.split(r"\n +- name: ", text.partition("\n- name: The identity is kept")[2])[1:]
    assert "ansible.builtin.fetch:" in fetched
    for task, mode in ((folder, "0700"), (file, "0600")):
        assert f'mode: "{mode}"' in task
        assert "delegate_to: localhost\n      become: false" in task


REFUSED = {"refusals": ["one", "two"], "hint": "do three"}


@pytest.mark.parametrize(
    ("run", "shown"),
    [
        ({"stdout": json.dumps(REFUSED), "stderr": ""}, "one; two; hint: do three"),
        ({"stdout": json.dumps({"kind": "error"}), "stderr": "zsnapdb: why"}, "zsnapdb: why"),
        ({"stdout": "", "stderr": "", "msg": "no such program"}, "no such program"),
    ],
)
def test_role_shows_why_setup_is_refused(run: dict[str, str], shown: str) -> None:
    texts = dict(re.findall(r'^(\w+): "(.*)"$', (ROLE / "vars" / "main.yml").read_text(encoding="utf-8"), re.MULTILINE))
    native = NativeEnvironment()
    native.filters["from_json"], native.tests["match"] = json.loads, lambda text, pattern: re.match(pattern, text)
    values: dict[str, object] = {"zsnapdb_run": run}
    for name in ("zsnapdb_document", "zsnapdb_refused", "zsnapdb_reasons"):
        values[name] = native.from_string(texts[name]).render(values)
    assert values["zsnapdb_reasons"] == shown


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_merge_keeps_compiled_modules_of_all_releases(tmp_path: Path) -> None:
    first = {"a.cpython-311-x.so": "1", "b.py": "same", "c-1.dist-info/WHEEL": "Tag: cp311"}
    second = {"a.cpython-313-x.so": "2", "b.py": "same", "c-1.dist-info/WHEEL": "Tag: cp313"}
    into = write(tmp_path / "into", first)
    debian_package.merge(write(tmp_path / "second", second), into)
    assert {path.name for path in into.rglob("*") if path.is_file()} == {
        "WHEEL",
        "b.py",
        *list(first)[:1],
        *list(second)[:1],
    }
    with pytest.raises(debian_package.PackageError, match=r"b\.py differs between the Python releases"):
        debian_package.merge(write(tmp_path / "third", {"b.py": "other"}), into)


def test_package_for_releases_with_a_gap_is_refused() -> None:
    debian_package.check_series(("3.9", "3.10", "3.11"))
    with pytest.raises(debian_package.PackageError, match="leave a gap"):
        debian_package.check_series(("3.11", "3.13"))


def test_package_needs_the_newest_glibc_of_its_wheels() -> None:
    old = "Tag: cp311-cp311-manylinux_2_17_x86_64\nTag: cp311-cp311-manylinux2014_x86_64\n"
    new = "Tag: cp311-abi3-manylinux_2_34_x86_64\nTag: cp311-abi3-manylinux_2_28_x86_64\n"
    assert debian_package.needed_glibc([old, new, "Tag: py3-none-any\n"]) == 28
    assert debian_package.needed_glibc(["Tag: py3-none-any\n"]) == 17


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
def test_dpkg_accepts_the_package(tree: Path, tmp_path: Path) -> None:
    package = tmp_path / "zsnapdb.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(package)], check=True, capture_output=True
    )
    shown = subprocess.run(["dpkg-deb", "--field", str(package), "Package"], check=True, capture_output=True, text=True)
    assert shown.stdout == "zsnapdb\n"
