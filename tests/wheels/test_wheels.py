"""What `make dist` builds is complete, and does what the README says in an empty environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest

from commandbus.settings import VERSION
from tests.tidy.test_docs import blocks_of
from tests.wheels.building import ROOT, add_requirements, build

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICK_START_EXTRAS = {"cli", "web"}


@dataclass(frozen=True)
class Built:
    folder: Path
    wheel: Path
    lab: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("dist")
    build(folder, "sdist", "wheel")
    build(folder, "wheel", source=ROOT / "lab")
    name = f"durable_commandbus-{VERSION}"
    lab = f"durable_commandbus_lab-{VERSION}-py3-none-any.whl"
    return Built(folder, folder / f"{name}-py3-none-any.whl", folder / lab, folder / f"{name}.tar.gz")


@dataclass(frozen=True)
class Environment:
    """A virtual environment with nothing in it, and a folder that stands for the index."""

    folder: Path
    house: Path

    def pip_install(self, *what: str) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install"]
        quietly = ["--quiet", "--no-index", "--disable-pip-version-check", "--no-compile"]
        self._check([*pip, *quietly, "--find-links", str(self.house), *what])

    def run(self, *command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env={"PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(cwd)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @property
    def python(self) -> Path:
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def _check(self, command: list[str]) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With what the README says to install, and nothing else."""
    folder, house = tmp_path_factory.mktemp("empty"), tmp_path_factory.mktemp("house")
    venv.create(folder, with_pip=False)
    add_requirements(built.wheel, QUICK_START_EXTRAS, house)
    for wheel in (built.wheel, built.lab):
        (house / wheel.name).write_bytes(wheel.read_bytes())
    made = Environment(folder, house)
    told_as = r'pip install (?:--find-links dist )?"(durable-commandbus\[[^"]*\])"'
    (told,) = set(re.findall(told_as, README))
    made.pip_install(told)
    return made


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as opened:
        return {name for name in opened.namelist() if ".dist-info/" not in name}


def metadata_of(wheel: Path) -> Any:
    with zipfile.ZipFile(wheel) as opened:
        (folder,) = {name.split("/")[0] for name in opened.namelist() if ".dist-info/" in name}
    return PathDistribution(zipfile.Path(wheel, f"{folder}/")).metadata


def test_the_two_wheels_hold_every_file_of_the_package_once(built: Built) -> None:
    source = ROOT / "src"
    files = {
        file.relative_to(source).as_posix()
        for file in source.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    ours, lab = names_in(built.wheel), names_in(built.lab)
    assert not ours & lab, "A file in two distributions vanishes when one of them is removed."
    assert ours | lab == files, "List it in lab/pyproject.toml and in [tool.hatch] of pyproject.toml."
    assert {"commandbus/py.typed", "commandbus/engines/sqlite/sql/0001_schema.sql"} <= ours
    assert "commandbus/testing/conformance/sending.py" in lab


def test_the_wheel_imports_nothing_that_only_the_other_one_has(built: Built) -> None:
    """Those that do are asked for by name, with an error that says what to install."""
    lab = {name.removesuffix(".py").replace("/", ".") for name in names_in(built.lab)}
    imports = re.compile(r"^\s*(?:from|import) (commandbus[\w.]*)", re.MULTILINE)
    offenders = [
        f"{name} imports {imported}"
        for name in names_in(built.wheel)
        if name.endswith(".py")
        for imported in imports.findall((ROOT / "src" / name).read_text(encoding="utf-8"))
        if imported in lab or imported.startswith("commandbus.testing.conformance")
    ]
    assert not offenders


def test_there_is_one_version(built: Built) -> None:
    lab = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"durable-commandbus[cli]=={VERSION}" in lab["dependencies"]
    assert metadata_of(built.wheel)["Version"] == metadata_of(built.lab)["Version"] == VERSION


def test_the_metadata_names_licence_pages_and_interpreters(built: Built) -> None:
    found = metadata_of(built.wheel)
    assert found["License-Expression"] == "MIT"
    pages = {url.partition(",")[0] for url in found.get_all("Project-URL")}
    assert pages == {"Homepage", "Documentation", "Changelog", "Issues", "Security"}
    assert "Programming Language :: Python :: 3.14" in found.get_all("Classifier")


def test_the_wheel_can_be_built_from_the_sdist(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.sdist) as opened:
        opened.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    build(tmp_path / "again", "wheel", source=source)
    assert names_in(tmp_path / "again" / built.wheel.name) == names_in(built.wheel)


def quick_start() -> list[Any]:
    examples = [block for block in blocks_of("README.md", README) if block.language == "python"]
    return [pytest.param(block.code, id=block.place) for block in examples if not block.skip_reason]


@pytest.mark.parametrize("code", quick_start())
def test_the_quick_start_runs_in_an_empty_environment(
    environment: Environment, tmp_path: Path, code: str
) -> None:
    (tmp_path / "quick.py").write_text(code, encoding="utf-8")
    ended = environment.run(environment.python, "quick.py", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    promised = re.findall(r"print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert ended.stdout.splitlines() == promised, "What the README says is what is printed."


def test_the_command_line_of_the_wheel_works(environment: Environment, tmp_path: Path) -> None:
    told = environment.run("commandbus", "version", cwd=tmp_path)
    assert VERSION in told.stdout, told.stderr
    sent = environment.run("commandbus", "send", "orders", "ship", '{"order": 1}', cwd=tmp_path)
    assert sent.returncode == 0, sent.stderr
    listed = environment.run("commandbus", "list", "--json", cwd=tmp_path)
    assert '"ship"' in listed.stdout
    demo = environment.run("commandbus", "demo", "-n", "50", "--no-crash", cwd=tmp_path)
    assert demo.returncode == 0, demo.stderr


def test_what_is_not_in_the_wheel_says_where_it_is(environment: Environment, tmp_path: Path) -> None:
    for words in (["load"], ["bench"], ["worker", "--load"]):
        told = environment.run("commandbus", *words, cwd=tmp_path)
        assert told.returncode == 2
        assert "pip install durable-commandbus-lab" in told.stderr


def test_the_package_of_the_wheel_brings_its_types_and_pages(
    environment: Environment, tmp_path: Path
) -> None:
    script = (
        "import importlib.resources as r, commandbus, commandbus.interfaces.web as web;"
        "assert (r.files('commandbus') / 'py.typed').is_file();"
        "print(web.__name__, commandbus.__version__)"
    )
    ended = environment.run(environment.python, "-W", "error", "-c", script, cwd=tmp_path)
    assert ended.stdout.split() == ["commandbus.interfaces.web", VERSION], ended.stderr
