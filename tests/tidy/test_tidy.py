"""The project's rules, as tests. Each failure says where, and what to do."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.project import (
    ROOT,
    SOURCE,
    files_below,
    functions,
    project_files,
    relative,
    report,
    syntax,
)

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70

# Applied to this file too: neither the hosts nor the paths match their own pattern.
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
PACKAGE_HOST = re.compile(r"files\.pythonhosted|pypi\.org|registry\.npmjs|deb\.debian")
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|root|home/\w+|Users/\w+)/")

# A whole word in prose (`job`), or a part of a name (`job_id`, `runJobs`, `JOB_LIMIT`).
FOREIGN_WORD = re.compile(
    r"(?:(?<![A-Za-z])[jJ]|(?<=[a-z])J)obs?(?![a-z])|(?<![A-Za-z])JOBS?(?![A-Za-z])"
)
# Persons for machines, and words that a reader of technical English stumbles over.
ODD_WORDS = (
    "whoever|somebody|everybody|anybody|nobody|anew|glance|told|wish|wishes|in[ _]vain|lately|ails"
)
ODD_WORD = re.compile(rf"(?<![-\"\w])({ODD_WORDS})(?![\"\w])", re.IGNORECASE)
ODD_NAME = re.compile(rf"\b(?:def|class) \w*(?<![a-z])({ODD_WORDS})(?![a-z])")
QUOTED = re.compile(r"`[^`]*`|\S+\.db\b")

CHECKING_CALL = re.compile(r"^_*(assert|check|expect|verify|raises|warns|fail|deprecated_call)")


def lines_matching(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    return [
        f"{relative(path)}:{number} {line.strip()[:100]}"
        for path in files
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if pattern.search(line)
    ]


def text_of(path: Path) -> str:
    """The file's text, empty for a binary file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def test_engines_read_rows_by_names() -> None:
    """A column added to a query must not move the meaning of others. What a statement answers is
    unpacked where it arrives, and travels on under names."""
    found = [
        f"{relative(path)}:{node.lineno} {ast.unparse(node)}"
        for path in files_below(SOURCE / "engines" / "postgres", SOURCE / "engines" / "sqlite")
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.Subscript) and is_column(node)
    ]
    assert not found, report("Unpack the row: `for seq, status in rows`, `scalar(rows)`.", found)


def is_column(node: ast.Subscript) -> bool:
    """A part of a row by its position: `row[3]`, `row[:3]`, `rows[0][1]`, `(yield …)[0][1]`."""
    base, index = node.value, node.slice
    bounds = [index.lower, index.upper] if isinstance(index, ast.Slice) else [index]
    if not any(isinstance(bound, ast.Constant | ast.UnaryOp) for bound in bounds):
        return False
    if isinstance(base, ast.Subscript):
        return isinstance(base.value, ast.Yield | ast.Name) and isinstance(base.slice, ast.Constant)
    return isinstance(base, ast.Name) and base.id in ("row", "r")


def test_no_file_is_long() -> None:
    long = [
        f"{relative(path)}: {length} lines"
        for path in [*files_below(SOURCE), *files_below(ROOT / "tests")]
        if (length := len(path.read_text(encoding="utf-8").splitlines())) > MAX_FILE_LINES
    ]
    assert not long, report("Split the file: it has two subjects.", long)


def test_no_function_is_long() -> None:
    long = [
        f"{relative(path)}:{function.lineno} {function.name}: {length} lines"
        for path in [*files_below(SOURCE), *files_below(ROOT / "tests")]
        for function in functions(syntax(path))
        if (length := (function.end_lineno or 0) - function.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert not long, report("Name a part of the function and move it out.", long)


def test_nothing_is_left_unfinished() -> None:
    found = lines_matching(UNFINISHED, files_below(SOURCE) + files_below(SOURCE, suffix=".sql"))
    assert not found, report("Finish it, or take it out; docs/features.md says what is planned.", found)


def test_no_package_host_is_named() -> None:
    found = lines_matching(PACKAGE_HOST, list(project_files()))
    assert not found, report("Leave the choice of the package index to the user's settings.", found)


def test_no_path_of_one_machine_is_named() -> None:
    found = lines_matching(MACHINE_PATH, list(project_files()))
    assert not found, report("Use a path relative to the project, or a temporary folder.", found)


def test_every_source_module_says_what_it_is_for() -> None:
    silent = [relative(path) for path in files_below(SOURCE) if not ast.get_docstring(syntax(path))]
    assert not silent, report("Open the module with a docstring: what it holds, and why.", silent)


def is_broad(node: ast.expr | None) -> bool:
    match node:
        case None | ast.Name(id="Exception" | "BaseException"):
            return True
        case ast.Tuple(elts=parts):
            return any(map(is_broad, parts))
    return False


def is_silent(step: ast.stmt) -> bool:
    return isinstance(step, ast.Pass | ast.Continue) or (
        isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant)
    )


def swallowed_errors(tree: ast.AST) -> Iterator[int]:
    """Lines of `except Exception: pass`, in any of its spellings."""
    for node in ast.walk(tree):
        match node:
            case ast.ExceptHandler(type=caught, body=body):
                if is_broad(caught) and all(map(is_silent, body)):
                    yield node.lineno
            case ast.Call(
                func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=arguments
            ):
                if any(map(is_broad, arguments)):
                    yield node.lineno


def test_no_error_is_swallowed() -> None:
    found = [
        f"{relative(path)}:{line}"
        for path in files_below(ROOT / "src", ROOT / "tests", ROOT / "bench")
        for line in swallowed_errors(syntax(path))
    ]
    assert not found, report("Catch what you expect by name, or record what you caught.", found)


def test_every_broad_except_has_a_reason() -> None:
    found = [
        f"{relative(path)}:{node.lineno} {lines[node.lineno - 1].strip()}"
        for path in files_below(SOURCE)
        for lines in [path.read_text(encoding="utf-8").splitlines()]
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.ExceptHandler) and is_broad(node.type)
        # Tidying up and passing the error on catches nothing.
        if not (isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None)
        # On its own line, or on the first line below it.
        if not any("#" in line for line in lines[node.lineno - 1 : node.lineno + 1])
    ]
    assert not found, report("Say in a comment at the except why anything may be caught.", found)


def test_prose_is_plain() -> None:
    suffixes = (".py", ".sql", ".html", ".js")
    code = [path for suffix in suffixes for path in files_below(SOURCE, suffix=suffix)]
    # The page of the laboratory is made from its runs.
    docs = [
        path
        for path in [*files_below(ROOT / "docs", suffix=".md"), *ROOT.glob("*.md")]
        if path.stem != "reliability"
    ]
    # These names are given by what the tests of the worker were taken from, and by recorded runs.
    given = ("test_worker.py", "bugs.py")
    tests = [path for path in files_below(ROOT / "tests", suffix=".py") if path.name not in given]
    found = lines_matching(ODD_WORD, [*code, *docs]) + lines_matching(ODD_NAME, tests)
    assert not found, report(
        "Say which worker, process, operator or caller; say again, restart or check.", found
    )


def test_one_word_per_concept() -> None:
    found = [
        f"{relative(path)}:{number} {line.strip()[:100]}"
        for suffix in (".py", ".sql", ".html")
        for path in files_below(SOURCE, suffix=suffix)
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if FOREIGN_WORD.search(QUOTED.sub("", line))
    ]
    assert not found, report(
        "Say command (or service, for periodic work). A peer's own word goes in backticks.", found
    )


def test_a_thread_of_a_test_cannot_keep_the_run_from_ending() -> None:
    """A failing assertion leaves its threads behind; Python waits at its end for those that are not
    daemons."""
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in files_below(ROOT / "tests")
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.Call)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "Thread"
        if not any(keyword.arg == "daemon" for keyword in node.keywords)
    ]
    assert not found, report("Give the thread daemon=True.", found)


def called_names(function: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                names.add(name)
    return names


def checks_something(function: ast.AST) -> bool:
    return any(isinstance(node, ast.Assert) for node in ast.walk(function)) or any(
        CHECKING_CALL.match(name) for name in called_names(function)
    )


def toothless_tests(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Tests that neither check anything nor call a helper of their module that does."""
    checking = {function.name for function in functions(tree) if checks_something(function)}
    while grown := {
        function.name
        for function in functions(tree)
        if function.name not in checking and called_names(function) & checking
    }:
        checking |= grown
    for function in functions(tree):
        if function.name.startswith("test_") and function.name not in checking:
            yield function


def test_every_test_can_fail() -> None:
    found = [
        f"{relative(path)}:{test.lineno} {test.name}"
        for path in files_below(ROOT / "tests", SOURCE / "testing")
        for test in toothless_tests(syntax(path))
    ]
    assert not found, report(
        "State the fact as an assert, or let a helper named check_… or assert_… do it.", found
    )
