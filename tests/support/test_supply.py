"""The list of parts is complete and tells nothing else; a check that cannot run says so."""

import json
import socket
from pathlib import Path

import pytest

from tests.support import supply


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
