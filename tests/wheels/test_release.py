"""The repository's habits: workflows run what make runs, on what the project says it supports."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.wheels.release import problems

ROOT = Path(__file__).parents[2]
WORKFLOWS = {
    file.stem: yaml.safe_load(file.read_text(encoding="utf-8"))
    for file in (ROOT / ".github" / "workflows").glob("*.yml")
}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
PREPARATION = {"choco install make --no-progress"}
CHANGELOG = "## [Unreleased]\n\n## [1.2.3] - 2027-01-31\n"


def steps() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{workflow}/{name}", step)
        for workflow, content in WORKFLOWS.items()
        for name, job in content["jobs"].items()
        for step in job["steps"]
    ]


def commands() -> list[tuple[str, str]]:
    found = [(place, step["run"]) for place, step in steps() if "run" in step]
    nightly = WORKFLOWS["nightly"]["jobs"]["run"]["strategy"]["matrix"]["include"]
    found += [(f"nightly/{one['name']}", one["command"]) for one in nightly]
    return [(place, command) for place, command in found if command != "${{ matrix.command }}"]


def test_workflows_run_what_make_runs() -> None:
    for place, command in commands():
        if command not in PREPARATION:
            program, target, *_ = command.split()
            assert program == "make", f"{place} runs {command!r}: give it a target in the Makefile."
            assert target in TARGETS, f"{place} runs a target that the Makefile does not have."


def test_variables_of_workflows_are_those_of_the_makefile() -> None:
    known = set(re.findall(r"^([A-Z_]+) \?=", MAKEFILE, re.MULTILINE)) | {"TAG"}
    for place, command in commands():
        assert set(re.findall(r" ([A-Z_]+)=", command)) <= known, place


@pytest.mark.parametrize(
    "target", sorted({c.split()[1] for _, c in commands() if c.startswith("make")})
)
def test_make_knows_what_to_do(target: str) -> None:
    told = subprocess.run(
        ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert told.returncode == 0, told.stderr


def test_every_supported_python_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = [c.rsplit(" ", 1)[1] for c in project["classifiers"] if "Python :: 3." in c]
    jobs = WORKFLOWS["ci"]["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == supported
    assert jobs["embedded"]["strategy"]["matrix"]["python"] == [supported[0], supported[-1]]


def test_what_takes_long_runs_every_night() -> None:
    nightly = {command.split()[1] for place, command in commands() if place.startswith("nightly/")}
    assert {"test", "chaos", "simulate", "bench", "fuzz"} <= nightly


def test_every_supported_server_and_system_is_tested() -> None:
    jobs = WORKFLOWS["ci"]["jobs"]
    assert jobs["postgres"]["strategy"]["matrix"]["postgres"] == ["15", "16", "17", "18"]
    systems = {name.split("-")[0] for name in jobs["embedded"]["strategy"]["matrix"]["system"]}
    assert systems == {"ubuntu", "macos", "windows"}


def test_workflows_may_only_read_unless_they_publish() -> None:
    for name, content in WORKFLOWS.items():
        assert content["permissions"] == {"contents": "read"}, name
    more = {name for w in WORKFLOWS.values() for name, job in w["jobs"].items() if "permissions" in job}
    assert more == {"publish"}
    publish = WORKFLOWS["release"]["jobs"]["publish"]
    assert publish["needs"] == "build"
    assert publish["permissions"]["id-token"] == "write"
    assert not re.search(r"secrets\.", str(WORKFLOWS)), "publishing needs no token"


def test_every_job_ends_in_time_and_every_action_has_a_version() -> None:
    for workflow, content in WORKFLOWS.items():
        for name, job in content["jobs"].items():
            assert job["timeout-minutes"] <= 180, f"{workflow}/{name}"


def test_actions_are_named_by_the_commit_and_say_its_version() -> None:
    """A tag can be moved to other code, and the index trusts the release workflow."""
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        used = re.findall(r"uses: (.*)", file.read_text(encoding="utf-8"))
        assert used, file.name
        for action in used:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_forms_for_issues_ask_for_something() -> None:
    for file in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        if file.name != "config.yml":
            assert {"name", "description", "body"} <= content.keys(), file.name
            assert any(part.get("validations", {}).get("required") for part in content["body"])


def test_owners_and_hooks_name_what_exists() -> None:
    for line in (ROOT / ".github" / "CODEOWNERS").read_text(encoding="utf-8").splitlines():
        if line.startswith("/"):
            assert (ROOT / line.split()[0].strip("/")).exists(), line
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (local,) = hooks["repos"]
    for hook in local["hooks"]:
        assert hook["entry"].startswith(".venv/bin/"), hook["id"]
    for update in yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]:
        assert (ROOT / update["directory"].strip("/")).is_dir()


@pytest.mark.parametrize(
    ("tag", "version", "said"),
    [
        ("v1.2.3", "1.2.3", []),
        ("v1.2.4", "1.2.3", ["is not v1.2.3"]),
        ("", "1.2.3", ["is not v1.2.3"]),
        ("v1.2.5", "1.2.5", ["no section `## [1.2.5]"]),
    ],
)
def test_a_release_needs_its_tag_its_version_and_its_changes(
    tag: str, version: str, said: list[str]
) -> None:
    found = problems(tag, version, CHANGELOG)
    assert len(found) == len(said)
    assert all(words in problem for words, problem in zip(said, found, strict=True))
