"""`python -m bench.variants`: what another Python costs, and cores of their own for server and workers.

The same work in turns: with this interpreter, with the others that are on the PATH, and with this one
while the server has cores of its own. Each other interpreter gets an environment in the cache folder.
The section that `--page` writes stays on the page until this runs again.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

from bench.cpus import Cpus
from bench.figures import METRICS, Results, number
from bench.lab import Lab
from bench.page import PAGE, VARIANTS_HEADING, with_variants
from bench.peers.catalogue import subjects
from bench.peers.environments import DRIVERS, Environment, NotInstalled, cache_folder, run
from bench.scenarios import SCENARIOS
from tests.support.revision import revision

PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14", "python3.14t")
MEASURED = ("drain", "drain_2", "singles", "pickup")
SHOWN = ("drain_100", "drain_2", "send_16", "pickup_p50", "worker_cpu", "server_cpu")


@dataclass(frozen=True)
class Variant:
    title: str
    python: str = sys.executable
    cpus: Cpus | None = None


def variants(pythons: list[str], cpus: Cpus | None) -> list[Variant]:
    """This interpreter comes first: the others are compared with it."""
    found = [Variant(f"Python {platform.python_version()}")]
    for name in pythons:
        try:
            python = environment(name)
            title = f"Python {run([python, '-c', 'import platform; print(platform.python_version())'])}"
        except NotInstalled as error:
            print(f"{name}: not measured: {error}", file=sys.stderr)
            continue
        found.append(Variant(title.strip(), python))
    if cpus is not None:
        found.append(Variant(f"{found[0].title}, `--cpus {cpus}`", cpus=cpus))
    return found


def others() -> list[str]:
    """Interpreters that start, of another version than this one."""
    mine = f"python3.{sys.version_info.minor}"
    return [name for name in PYTHONS if name != mine and _starts(name)]


def _starts(name: str) -> bool:
    if (program := shutil.which(name)) is None:
        return False
    return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0


def environment(name: str) -> str:
    """The bus with this interpreter, as it is in this folder; returns how to start it."""
    folder = cache_folder() / f"ours-{name}"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        run([name, "-m", "venv", str(folder)])
    run([str(python), "-m", "pip", "install", "-q", "-c", "constraints.txt", "-e", ".[postgres,fast]"])
    (folder / "installed").touch()
    return str(python)


def measure(chosen: list[Variant], repeat: int, scale: float) -> Results:
    results = Results()
    (subject,) = subjects(["commandbus"])
    everywhere = os.sched_getaffinity(0)
    for turn in range(repeat):
        for variant in chosen:
            driver = str(DRIVERS / subject.driver)
            ready = {
                subject.name: Environment((variant.python, driver), {}, version("durable-commandbus"))
            }
            try:
                with Lab(ready, cpus=variant.cpus) as lab:
                    results.about["postgres"] = lab.server.binaries.version
                    for name in MEASURED:
                        results.add(variant.title, SCENARIOS[name](lab, subject, scale))
            finally:
                os.sched_setaffinity(0, everywhere)
            print(f"turn {turn + 1}, {variant.title}: {_line(results, variant)}", file=sys.stderr)
    return results


def _line(results: Results, variant: Variant) -> str:
    last: Mapping[str, list[float]] = results.values[variant.title]
    return ", ".join(f"{METRICS[name].heading} {number(last[name][-1])}" for name in SHOWN)


def section(results: Results, repeat: int) -> str:
    (first, base), *_ = results.values.items()
    found = [
        VARIANTS_HEADING,
        "",
        (
            f"Command Bus with asyncio, {os.cpu_count()} cores, PostgreSQL {results.about['postgres']},"
            f" medians of {repeat} turns in one run on {datetime.now(UTC):%Y-%m-%d} at {revision()}; in"
            f" brackets the ratio to {first}. Ratios between 0.9 and 1.1 are noise."
        ),
        "",
        "| | " + " | ".join(f"{METRICS[name].heading}, {METRICS[name].unit}" for name in SHOWN) + " |",
        "|---|" + "---:|" * len(SHOWN),
    ]
    for title in results.values:
        cells = []
        for name in SHOWN:
            here, there = results.median(title, name), results.median(first, name)
            assert here is not None
            assert there
            ratio = f" ({here / there:.2f})" if results.values[title] is not base else ""
            cells.append(number(here) + ratio)
        found.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join([*found, "", "`python -m bench.variants --page` writes this section."])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.variants", description=__doc__)
    parser.add_argument("--pythons", nargs="*", help="such as python3.13 (all others on the PATH)")
    parser.add_argument(
        "--cpus", type=Cpus.read, help="cores of the server and of the rest, such as 0/1"
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of all amounts")
    parser.add_argument("--page", action="store_true", help=f"write the section into {PAGE}")
    options = parser.parse_args()
    chosen = variants(others() if options.pythons is None else options.pythons, options.cpus)
    results = measure(chosen, options.repeat, options.scale)
    found = section(results, options.repeat)
    print(found)
    if options.page:
        PAGE.write_text(with_variants(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
