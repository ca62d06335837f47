"""The files below deploy/ are valid, agree with each other, and with the command line as it is."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
import yaml

from commandbus import CommandBus
from commandbus.domain.moment import as_seconds
from commandbus.interfaces.cli.app import app
from commandbus.interfaces.cli.exits import Exit
from commandbus.interfaces.cli.options import seconds
from commandbus.interfaces.cli.signals import ABORT_SECONDS
from commandbus.interfaces.web import Role, create_dashboard
from commandbus.settings import SHUTDOWN_SECONDS
from tests.web.people import account

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OVERLAY = KUBERNETES / "overlays" / "example"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PROBES = {"/livez", "/readyz", "/startupz", "/metrics"}
DASHBOARD_PAGES = {"/static/icon.svg"}
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


@cache
def manifests() -> list[dict[str, Any]]:
    """What an overlay applies; by the files themselves where kubectl is missing."""
    if shutil.which("kubectl"):
        built = subprocess.run(
            ["kubectl", "kustomize", str(OVERLAY)], capture_output=True, text=True, check=False
        )
        assert built.returncode == 0, built.stderr
        return [*yaml.safe_load_all(built.stdout)]
    files = [*(KUBERNETES / "base").glob("*.yaml"), *(KUBERNETES / "components").glob("*/*.yaml")]
    texts = [file.read_text(encoding="utf-8") for file in files if file.name != "kustomization.yaml"]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    return [one for one in manifests() if one["kind"] in kinds]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for one in of_kind("Deployment", "Job"):
        yield one["metadata"]["name"], one["spec"]["template"]


def containers() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{name}/{container['name']}", container)
        for name, template in pods()
        for kind in ("initContainers", "containers")
        for container in template["spec"].get(kind, [])
    ]


def check_command_line(words: list[str]) -> None:
    """Fails for a command, an option or a value that the command line does not take."""
    command: Any = typer.main.get_command(app)
    context = None
    name = "commandbus"
    while True:
        context = command.make_context(name, list(words), parent=context)
        if not hasattr(command, "resolve_command"):
            return
        words = [*context._protected_args, *context.args]
        name, command, words = command.resolve_command(context, words)


def command_lines() -> Iterator[tuple[str, list[str]]]:
    for name, container in containers():
        if "args" in container:
            yield f"kubernetes {name}", container["args"]
        else:
            (script,) = container["command"][2:]
            yield f"kubernetes {name}", re.search(r"commandbus ([^;]*);", script)[1].split()
    for name, service in COMPOSE["services"].items():
        if name != "database":
            yield f"compose {name}", service["command"]
    for unit in UNITS:
        (line,) = directives(unit)["ExecStart"]
        yield f"systemd {unit.name}", shlex.split(line)[1:]
    yield "Containerfile", json.loads(re.findall(r"^CMD (\[.*\])$", CONTAINERFILE, re.MULTILINE)[-1])


def directives(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def option(words: list[str], name: str) -> str | None:
    return words[words.index(name) + 1] if name in words else None


@pytest.mark.parametrize(("words"), [pytest.param(w, id=i) for i, w in command_lines()])
def test_every_command_line_is_one_that_the_program_takes(words: list[str]) -> None:
    check_command_line(words)


def test_the_deployment_to_copy_is_that_of_the_manifests_in_one_file() -> None:
    """Its differences are the names, the number of processes, and what only kustomize needs."""
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(apiVersion.*?)^```$", page, re.MULTILINE | re.DOTALL)
    copied, budget = yaml.safe_load_all(text.replace("shop-worker", "commandbus-worker"))
    (base,) = (one for one in of_kind("Deployment") if one["metadata"]["name"] == "commandbus-worker")
    ours, theirs = copied["spec"]["template"]["spec"], base["spec"]["template"]["spec"]
    same = ("terminationGracePeriodSeconds", "securityContext", "volumes")
    assert [ours[key] for key in same] == [theirs[key] for key in same]
    (mine,), (yours,) = ours["containers"], theirs["containers"]
    check_command_line(mine["args"])
    parts = ("ports", "startupProbe", "readinessProbe", "resources", "securityContext", "volumeMounts")
    assert [mine[key] for key in parts] == [yours[key] for key in parts]
    assert mine["livenessProbe"].items() <= yours["livenessProbe"].items()
    assert {one["name"] for one in mine["env"]} == {"COMMANDBUS_APP", "COMMANDBUS_URL"}
    assert copied["spec"]["selector"] == base["spec"]["selector"] == budget["spec"]["selector"]
    assert copied["spec"]["template"]["metadata"]["labels"] == copied["spec"]["selector"]["matchLabels"]


def test_a_misspelt_option_would_be_noticed() -> None:
    with pytest.raises(Exception, match="--probe-prot"):
        check_command_line(["worker", "shop", "--probe-prot", "8080"])


def test_every_environment_variable_is_one_that_the_program_reads() -> None:
    pattern = re.compile(r"COMMANDBUS_[A-Z_]+")
    read = {n for f in (ROOT / "src").rglob("*.py") for n in pattern.findall(f.read_text("utf-8"))}
    ours = {"COMMANDBUS_CODE"}  # of compose.yaml itself
    texts = [file.read_text(encoding="utf-8") for file in DEPLOY.rglob("*") if file.is_file()]
    assert {name for text in texts for name in pattern.findall(text)} <= read | ours


def test_no_container_has_more_rights_than_it_needs() -> None:
    for name, template in pods():
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"], name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["serviceAccountName"] == "commandbus", name
    for name, container in containers():
        rights = container["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False, name
        assert rights["readOnlyRootFilesystem"] is True, name
        assert rights["capabilities"] == {"drop": ["ALL"]}, name
        assert {"requests", "limits"} == set(container["resources"]), name
    (account,) = of_kind("ServiceAccount")
    assert account["automountServiceAccountToken"] is False


def test_probes_ask_paths_and_ports_that_are_served() -> None:
    probed = [
        (name, container, container[kind])
        for name, container in containers()
        for kind in ("startupProbe", "livenessProbe", "readinessProbe")
        if kind in container
    ]
    assert {name.split("/")[1] for name, _, _ in probed} == {"worker", "dashboard"}
    for name, container, probe in probed:
        served = PROBES if "worker" in name else DASHBOARD_PAGES
        assert probe["httpGet"]["path"] in served, name
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        words = container["args"]
        listening = option(words, "--probe-port") or option(words, "--port")
        assert str(ports[probe["httpGet"]["port"]]) == listening, name
        assert "0.0.0.0" in words, f"{name} listens where no probe arrives"


async def test_a_dashboard_with_accounts_answers_its_probes_without_a_sign_in() -> None:
    """A probe has no account, and takes any other answer than a success for a failure."""
    (asked,) = re.findall(r"http://127\.0\.0\.1:8080(/[^']*)", str(COMPOSE["services"]["dashboard"]))
    async with CommandBus("memory://") as bus:
        app = create_dashboard(bus, accounts=[account("ana", Role.VIEWER, "a long secret")])
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://10.1.2.3:8080") as client:
            for path in {*DASHBOARD_PAGES, asked}:
                assert (await client.get(path)).status_code == 200, path


def test_selectors_find_what_they_are_about() -> None:
    labels = {name: template["metadata"]["labels"].items() for name, template in pods()}
    ports = {n.split("/")[0]: {p["name"] for p in c.get("ports", [])} for n, c in containers()}
    for one in of_kind("Deployment", "PodDisruptionBudget", "PodMonitor", "ServiceMonitor", "Service"):
        name, spec = one["metadata"]["name"], one["spec"]
        selector = spec["selector"].get("matchLabels", spec["selector"]).items()
        assert selector <= labels[name], name
        endpoints = spec.get("podMetricsEndpoints", []) + spec.get("endpoints", [])
        for endpoint in endpoints:
            assert endpoint["port"] in ports[name], name
            assert endpoint["path"] == "/metrics"
    (scaled,) = of_kind("ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["name"] in labels


def references(value: Any) -> Iterator[tuple[str, str]]:
    """Pairs of a secret and a key in it, wherever they are named."""
    if isinstance(value, dict):
        if {"name", "key"} <= value.keys():
            yield value["name"], value["key"]
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list):
        for part in value:
            yield from references(part)


def test_every_secret_that_is_used_is_in_the_example() -> None:
    overlay = yaml.safe_load((OVERLAY / "kustomization.yaml").read_text(encoding="utf-8"))
    held: set[tuple[str, str]] = set()
    for secret in overlay["secretGenerator"]:
        held |= {(secret["name"], file) for file in secret.get("files", [])}
        for file in secret.get("envs", []):
            lines = (OVERLAY / file).read_text(encoding="utf-8").splitlines()
            held |= {(secret["name"], line.partition("=")[0]) for line in lines}
    used = {pair for one in manifests() for pair in references(one)}
    assert used <= held
    mounted = {
        volume["secret"]["secretName"]
        for _, template in pods()
        for volume in template["spec"].get("volumes", [])
        if "secret" in volume
    }
    assert mounted <= {name for name, _ in held}
    for file in OVERLAY.iterdir():
        if file.name != "kustomization.yaml":
            assert "CHANGE-ME" in file.read_text(encoding="utf-8"), "no secrets in git"


def test_the_job_of_the_schema_runs_when_what_it_needs_is_there() -> None:
    """Before the phase Sync, a first deployment has neither its service account nor its secret; the
    others wait until the schema is there."""
    (job,) = of_kind("Job")
    assert job["metadata"]["annotations"]["argocd.argoproj.io/hook"] == "Sync"
    (worker,) = (template for name, template in pods() if "worker" in name)
    (waiting,) = worker["spec"]["initContainers"]
    assert "db verify" in waiting["command"][-1]


def test_a_stop_is_waited_for_longer_than_it_takes() -> None:
    needed = SHUTDOWN_SECONDS + ABORT_SECONDS
    for name, template in pods():
        if "upgrade" not in name and "dashboard" not in name:
            assert template["spec"]["terminationGracePeriodSeconds"] > needed, name
    worker = COMPOSE["services"]["worker"]
    assert (seconds(worker["stop_grace_period"], "stop_grace_period") or 0) > needed
    unit = directives(DEPLOY / "systemd" / "commandbus-worker@.service")
    assert as_seconds(float(unit["TimeoutStopSec"][0]), "TimeoutStopSec") > needed
    for where, words in command_lines():
        told = option(words, "--shutdown-timeout")
        assert told is None or seconds(told, "--shutdown-timeout") == SHUTDOWN_SECONDS, where


def test_units_start_a_worker_again_however_it_ended() -> None:
    """A recycled worker ends with 0, which on-failure would leave dead; only what another start cannot
    change is not repeated."""
    for unit in UNITS:
        found = directives(unit)
        if found["Type"] == ["oneshot"]:
            continue
        assert found["Restart"] == ["always"], unit.name
        assert found["StartLimitIntervalSec"] == ["0"], f"{unit.name} gives up after five starts"
        codes = {int(code) for code in found["RestartPreventExitStatus"][0].split()}
        assert codes <= {Exit.USAGE, Exit.NO_APP, Exit.SCHEMA}, unit.name
    worker = directives(DEPLOY / "systemd" / "commandbus-worker@.service")
    assert worker["Type"] == ["notify"]
    assert float(worker["WatchdogSec"][0]) >= 10


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_its_units(unit: Path, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("commandbus")
    text = unit.read_text(encoding="utf-8").replace("/opt/%i/bin/commandbus", str(program))
    instance = tmp_path / unit.name.replace("@", "@shop")
    instance.write_text(text, encoding="utf-8")
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(instance)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert instance.name not in checked.stderr, checked.stderr
    assert checked.returncode == 0, checked.stderr


def test_the_image_is_slim_not_root_and_has_a_health_check() -> None:
    stages = re.findall(r"^FROM (\S+)", CONTAINERFILE, re.MULTILINE)
    assert all("python:${PYTHON}" in stage for stage in stages)
    (python,) = re.findall(r"^ARG PYTHON=(.*)$", CONTAINERFILE, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version, _, variant = python.partition("-")
    assert variant == "slim"
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]
    (user,) = re.findall(r"^USER (\d+):\d+$", CONTAINERFILE, re.MULTILINE)
    assert int(user) > 0
    for _, template in pods():
        assert template["spec"]["securityContext"]["runAsUser"] == int(user)
    assert "HEALTHCHECK" in CONTAINERFILE
    assert "/livez" in CONTAINERFILE
    extras = re.search(r"wheel\}\[([\w,]+)\]", CONTAINERFILE)[1].split(",")
    assert set(extras) <= project["optional-dependencies"].keys()
    assert "dist/*.whl" in (DEPLOY / "Containerfile.dockerignore").read_text(encoding="utf-8")


def test_compose_starts_programs_after_the_schema_and_publishes_the_dashboard_locally() -> None:
    services = COMPOSE["services"]
    assert services["upgrade"]["depends_on"] == {"database": {"condition": "service_healthy"}}
    for name in ("worker", "dashboard"):
        after = services[name]["depends_on"]
        assert after == {"upgrade": {"condition": "service_completed_successfully"}}
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
    assert services["dashboard"]["ports"] == ["127.0.0.1:8080:8080"]
    published = [name for name, service in services.items() if "ports" in service]
    assert published == ["dashboard"]
    build = services["worker"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
