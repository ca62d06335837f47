"""The documentation is true: its Python runs on what the page says to install, and its commands exist.

A block that cannot run has its reason right above it, `<!-- not run: needs a package -->`. One that is
marked `<!-- on PostgreSQL -->` or `<!-- on PGMQ -->` gets a database of its own instead of its URL;
a block marked `<!-- continued -->` goes on where the one before it ended.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psycopg
import pytest

from commandbus.domain.lifecycle import diagram
from commandbus.engines.postgres.pgmq.installation import install
from commandbus.engines.postgres.schema import upgrade
from commandbus.testing.postgres import create_database
from tests.cli.helpers import Cli
from tests.postgres.database import server
from tests.tidy.environments import interpreter_with, stated
from tests.tidy.project import ROOT, project_files, relative, report

BLOCK_SECONDS = 60
SERVER_URL = "postgresql://app@localhost/shop"
SERVERS = {"on PostgreSQL": upgrade, "on PGMQ": install}
SHOP = "create table orders (id int, total numeric); create table charge (order_id int, amount int)"
"""Tables of the application in the examples."""

FENCE = re.compile(
    r"(?:^<!--\s*(?P<mark>[^\n]*?)\s*-->\n\s*)?^```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
DIAGRAM = re.compile(
    r"^<!-- lifecycle diagram: begin -->\n```mermaid\n(?P<drawn>.*?)\n```\n"
    r"<!-- lifecycle diagram: end -->$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"\]\((?P<target>[^)\s#:]*)(?:#(?P<section>[^)\s]*))?\)")
SECTION = re.compile(r"^## ", re.MULTILINE)
HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
SHELL_COMMAND = re.compile(r"^\$ commandbus(?P<words>(?: [a-z][a-z-]*)*)", re.MULTILINE)


FOLLOWED = ROOT / "docs" / "follow-a-command.md"
GLOSSARY = ROOT / "docs" / "glossary.md"
TERMS_MAX = 25


@dataclass(frozen=True)
class Block:
    place: str
    language: str
    mark: str
    code: str
    requires: frozenset[str] = frozenset()
    """What the top of the page and the section of the block say to install."""

    @property
    def skip_reason(self) -> str | None:
        return self.mark.partition(":")[2].strip() if self.mark.startswith("not run:") else None


def blocks_of(page: str, text: str) -> list[Block]:
    found: list[Block] = []
    former = ""
    outside = FENCE.sub(lambda fence: re.sub(r"^#", " ", fence[0], flags=re.MULTILINE), text)
    starts = [0, *(match.start() for match in SECTION.finditer(outside)), len(text)]
    for match in FENCE.finditer(text):
        language, mark, code = match["language"], match["mark"] or "", match["code"]
        line = text.count("\n", 0, match.start("language")) + 1
        if language == "python":
            # Blank lines keep the line numbers of a traceback those of the page.
            padded = "\n" * (line - former.count("\n")) + code
            former = former + padded if mark == "continued" else "\n" * line + code
            code = former
        begin = max(start for start in starts if start <= match.start())
        end = min(start for start in starts if start > match.start())
        requires = stated(text[: starts[1]]) | stated(text[begin:end])
        found.append(Block(f"{page}:{line}", language, mark, code, requires))
    return found


@cache
def blocks() -> list[Block]:
    pages = [
        path
        for path in project_files()
        if path == ROOT / "README.md" or (path.suffix == ".md" and path.is_relative_to(ROOT / "docs"))
    ]
    return [
        block for page in pages for block in blocks_of(relative(page), page.read_text(encoding="utf-8"))
    ]


def python_cases() -> list[object]:
    return [
        pytest.param(block, id=block.place, marks=marks_of(block))
        for block in blocks()
        if block.language == "python"
    ]


def marks_of(block: Block) -> list[pytest.MarkDecorator]:
    if block.skip_reason:
        return [pytest.mark.skip(reason=block.skip_reason)]
    pgmq = [pytest.mark.pgmq] if block.mark == "on PGMQ" else []
    return [pytest.mark.postgres, *pgmq] if block.mark in SERVERS else []


def on_a_server(block: Block) -> str:
    """The code of a block, on a database with the tables of the bus and of the examples."""
    assert SERVER_URL in block.code, f"{block.place} does not use {SERVER_URL}."
    url = create_database(server(os.getpid()))
    SERVERS[block.mark](url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SHOP)
    return block.code.replace(SERVER_URL, url)


def shell_cases() -> list[object]:
    return [
        pytest.param(words, id=f"{block.place} {' '.join(words)}")
        for block in blocks()
        if block.language in {"console", "bash"}
        for match in SHELL_COMMAND.finditer(block.code)
        if (words := match["words"].split()) and block.skip_reason is None
    ]


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("environments")


@pytest.mark.parametrize("block", python_cases())
def test_the_code_of_the_documentation_runs_on_what_the_page_says_to_install(
    block: Block, tmp_path: Path, environments: Path
) -> None:
    script = tmp_path / "example.py"
    code = on_a_server(block) if block.mark in SERVERS else block.code
    script.write_text(code, encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COMMANDBUS_")}
    run = subprocess.run(
        [interpreter_with(block.requires, environments), script.name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BLOCK_SECONDS,
        check=False,
    )
    wanted = ", ".join(sorted(block.requires)) or "nothing more"
    assert run.returncode == 0, f"{block.place} does not run with {wanted} installed:\n{run.stderr}"


@pytest.mark.parametrize("words", shell_cases())
def test_the_commands_of_the_documentation_exist(words: list[str]) -> None:
    # A second word may be an argument, such as a domain: then the help is that of the command.
    helped = Cli()(*words[:2], "--help", code=None)
    assert helped.code == 0, f"There is no `commandbus {' '.join(words[:2])}`."


def test_the_diagram_of_states_is_the_table_of_transitions() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    found = DIAGRAM.search(page)
    assert found, "Keep the markers around the lifecycle diagram in docs/architecture.md."
    assert found["drawn"] == diagram(), "Paste what `python -m commandbus.domain.lifecycle` prints."


def test_the_way_of_a_command_names_files_and_what_is_in_them() -> None:
    missing: list[str] = []
    page = FOLLOWED.read_text(encoding="utf-8")
    for where, what in re.findall(r"^\| (`.*`) \| (.*) \|$", page, re.MULTILINE):
        files = [FOLLOWED]
        for named in re.findall(r"`([^`]+)`", where):
            whole = ROOT / "src" / "commandbus" / named
            files.append(whole if whole.is_file() else files[-1].parent / named)
        missing += [f"{file} in {where}" for file in files if not file.is_file()]
        text = "".join(file.read_text(encoding="utf-8") for file in files[1:] if file.is_file())
        for name in re.findall(r"`(?:\w+\.)*(\w+)(?<!\.py)(?:\(\w+\))?`", what):
            if not re.search(rf"\b{name}\b", text):
                missing.append(f"{name} in {where}")
    assert not missing, report("Name the files and functions as they are called now.", missing)


def test_each_decision_has_a_number_of_its_own() -> None:
    decisions = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    numbers = [int(path.name[:4]) for path in decisions]
    assert len(numbers) == len(set(numbers))
    headings = [path.read_text(encoding="utf-8").splitlines()[0] for path in decisions]
    wrong = [h for n, h in zip(numbers, headings, strict=True) if not h.startswith(f"# {n}. ")]
    assert wrong == []


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{relative(page)}: {link[0].strip('](,)')}"
        for page in project_files()
        if page.suffix == ".md"
        for link in LINK.finditer(page.read_text(encoding="utf-8"))
        if not leads_somewhere(page, link["target"], link["section"])
    ]
    assert not broken, report("Correct the link, or write the page or section.", broken)


def leads_somewhere(page: Path, target: str, section: str | None) -> bool:
    linked = page.parent / target if target else page
    if section is None or not linked.exists():
        return linked.exists()
    headings = HEADING.finditer(linked.read_text(encoding="utf-8"))
    return section in {anchor(heading["title"]) for heading in headings}


def anchor(title: str) -> str:
    """How a link names the section of this title."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def test_a_reason_is_needed_to_leave_code_out() -> None:
    unexplained = [
        block.place for block in blocks() if block.mark.startswith("not run") and not block.skip_reason
    ]
    assert not unexplained, f"Say why, as in <!-- not run: needs a server -->: {unexplained}"


def test_marks_and_line_numbers_of_a_page_are_understood() -> None:
    page = (
        "# A\n\n```python\na = 1\n```\n\ntext\n\n"
        "<!-- continued -->\n```python\nb = a\n```\n\n"
        "<!-- not run: slow -->\n```python\nc\n```\n"
    )
    first, second, third = blocks_of("a.md", page)

    assert first.place == "a.md:3"
    assert first.code.splitlines()[3] == "a = 1"
    assert second.code.splitlines()[3] == "a = 1"
    assert second.code.splitlines()[10] == "b = a"
    assert (first.skip_reason, second.skip_reason, third.skip_reason) == (None, None, "slow")


def test_the_guide_has_every_situation_of_why() -> None:
    """The table in docs/guide/why.md is `render()` of the staged situations."""
    from commandbus.testing.conformance.situations import TABLE, render

    assert len(TABLE) >= 40
    assert render() in (ROOT / "docs" / "guide" / "why.md").read_text(encoding="utf-8")


def test_the_guide_has_a_meaning_and_a_cure_for_every_code_of_why() -> None:
    page = (ROOT / "docs" / "guide" / "why.md").read_text(encoding="utf-8")
    source = (ROOT / "src" / "commandbus" / "operations" / "insight.py").read_text(encoding="utf-8")
    made = set(re.findall(r"[A-Z_]{4,}", " ".join(re.findall(r"Reason\(([^,]+),", source))))
    codes = page.partition("\n## Codes\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \|$", codes, re.MULTILINE)
    assert {"HELD", "QUIET", "STOPPING", "NO_ROUTER"} <= made
    assert set(rows) == made
    assert rows == sorted(rows)


def test_the_glossary_is_short_and_in_order() -> None:
    rows = re.findall(r"^\| ([^|]+?) \| ", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)
    heading, *terms = rows
    assert heading == "term"
    assert terms == sorted(terms)
    assert len(terms) <= TERMS_MAX, "Use the word of the field in place of one of ours."
