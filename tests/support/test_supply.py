"""The list of parts is complete and tells nothing else; a check that cannot run says so."""

import json
import socket
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.support import supply
from tests.tidy.project import ROOT


def test_the_list_names_every_dependency_with_its_version(tmp_path: Path) -> None:
    file = tmp_path / "sbom.json"
    assert supply.main(["sbom", str(file)]) == 0
    document = json.loads(file.read_text())
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["name"] == supply.PROJECT
    names = {component["name"] for component in document["components"]}
    assert {"msgspec", "cronsim", "psycopg", "typer", "starlette", "jinja2"} <= names
    refs = {c["bom-ref"] for c in (*document["components"], document["metadata"]["component"])}
    assert all(c["version"] and c["purl"].endswith(c["version"]) for c in document["components"])
    for entry in document["dependencies"]:
        assert {entry["ref"], *entry["dependsOn"]} <= refs


def test_the_list_is_the_same_everywhere() -> None:
    text = json.dumps(supply.sbom())
    assert text == json.dumps(supply.sbom())
    for own in (socket.gethostname(), str(Path.cwd()), str(Path.home()) + "/"):
        assert len(own) < 4 or own not in text


def test_an_audit_that_cannot_run_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supply, "installed", lambda name: None)
    assert supply.audit() == 2
    assert "NOT checked" in capsys.readouterr().err


def test_every_pinned_part_can_be_installed_on_the_oldest_python() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    asked: dict[str, str] = {}
    for line in lines[1:]:
        name, _, version = line.partition("==")
        try:
            part = metadata(name)
        except PackageNotFoundError:  # of another platform, or of an extra that is not installed
            continue
        if part["Version"] == version:
            asked[line] = part["Requires-Python"] or ""
    assert len(asked) > 50
    newer = {part for part, python in asked.items() if "3.11.0" not in SpecifierSet(python)}
    assert not newer, f"Pin versions that Python 3.11.0 can install instead of {sorted(newer)}."
