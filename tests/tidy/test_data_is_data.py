"""No code from data: payloads are JSON, and a handler runs because it was registered under a name."""

import ast

from tests.tidy.project import SOURCE, files_below, report, syntax

CODE_MODULES = {"cloudpickle", "dill", "jsonpickle", "marshal", "pickle", "shelve"}
CODE_CALLS = {"__import__", "eval", "exec", "import_module", "import_string"}

# What becomes code in these places is the programmer's own: an annotation of a handler, the names that
# this package exports, the folders of its SQL, the operations that the table of actions names, the
# commands of the command line and of its second distribution, the app that its caller names, with the
# modules that an app of Celery includes, the types of a command's parameters, and the registries that
# Django's settings name. A child process imports the modules of handlers that its worker registered.
OWN_CODE = {
    ("domain/exact.py", "eval"),
    ("integrations/django/handling.py", "import_string"),
    ("worker/signatures.py", "eval"),
    ("__init__.py", "import_module"),
    ("store/sql_files.py", "import_module"),
    ("interfaces/actions/carrying.py", "import_module"),
    ("interfaces/cli/app.py", "import_module"),
    ("worker/isolation/options.py", "import_module"),
    ("runtimes/children/child.py", "import_module"),
    ("interfaces/cli/apps.py", "import_module"),
    ("interfaces/cli/lab.py", "import_module"),
    ("integrations/celery/app.py", "import_module"),
    ("integrations/celery/surroundings.py", "import_module"),
}


def code_makers(tree: ast.AST) -> set[str]:
    """What in a module could make code of data."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {alias.name.partition(".")[0] for alias in names} & CODE_MODULES
            case ast.ImportFrom(module=str(module)):
                found |= {module.partition(".")[0]} & CODE_MODULES
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                found |= {name} & CODE_CALLS
    return found


def in_the_source() -> set[tuple[str, str]]:
    return {
        (path.relative_to(SOURCE).as_posix(), name)
        for path in files_below(SOURCE)
        for name in code_makers(syntax(path))
    }


def test_handlers_and_payloads_never_become_code() -> None:
    surplus = [f"src/commandbus/{file}: {name}" for file, name in sorted(in_the_source() - OWN_CODE)]
    assert not surplus, report("Read data with msgspec; find handlers in the registry.", surplus)


def test_every_exception_is_still_needed() -> None:
    assert in_the_source() >= OWN_CODE, f"Take out: {sorted(OWN_CODE - in_the_source())}"


def test_what_makes_code_is_noticed() -> None:
    bad = "import pickle\nfrom shelve import open\neval(data)\nimportlib.import_module(data)"
    assert code_makers(ast.parse(bad)) == {"pickle", "shelve", "eval", "import_module"}
    assert code_makers(ast.parse("import json\nre.compile(data)\njson.loads(data)")) == set()
