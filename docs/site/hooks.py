"""Hooks of the documentation site: reference pages from the code, and links that leave the site."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import reference  # type: ignore[import-not-found]  # noqa: E402  # beside this file

BORROWED = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Pages of the project's root that are pages of the site as well."""
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#:]+)(?P<section>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in reference.pages().items():
        files.append(File.generated(config, path, content=text))
    for name, path in BORROWED.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, path, content=text.replace("](docs/", "](")))
    files.append(File.generated(config, "decisions/index.md", content=decisions()))
    return files


def decisions() -> str:
    """A list of all decision records, by their first lines."""
    lines = ["# Decisions", "", "What was decided, why, and what follows from it.", ""]
    for path in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to the pages above lead to the site's own; other files of the project become plain text."""
    here = Path(page.file.src_uri)

    def mended(match: re.Match[str]) -> str:
        target = (ROOT / "docs" / here.parent / match["target"]).resolve()
        if target.is_relative_to(ROOT / "docs") or not target.exists():
            return match[0]
        name = target.relative_to(ROOT).as_posix()
        if name not in BORROWED:
            return match["text"]
        up = "../" * (len(here.parts) - 1)
        return f"[{match['text']}]({up}{BORROWED[name]}{match['section'] or ''})"

    return _LINK.sub(mended, markdown)
