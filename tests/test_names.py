"""Names of functions along the way of a request: one name says which storey it is on."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
# From the top. `poetc solve` and every solver have the name `solve`, which is that of their interface.
STOREYS = ("poetc/commands", "poetc/planning", "solvers", "poetc/scheduling")
INTERFACE = {"solve"}
# Names that say when a thing came to be. A schedule, a node, a match or a budget has a name of its own.
VAGUE = {"found", "made", "given", "words"}


def public_functions(folder: Path) -> set[str]:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py"))
    found = {node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)}
    return {name for name in found if not name.startswith("_")} - INTERFACE


def test_no_function_has_the_name_of_another_in_a_neighbouring_storey() -> None:
    names = {storey: public_functions(ROOT / storey) for storey in STOREYS}
    assert all(len(found) > 20 for found in names.values())
    shared = {(a, b): sorted(names[a] & names[b]) for a, b in [*pairwise(STOREYS), (STOREYS[1], STOREYS[3])]}
    assert not any(shared.values()), shared


def bound_names(source: str) -> list[tuple[int, str]]:
    """Line and name of everything that Python code binds: variables, parameters, functions, fields, aliases."""
    names: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                names.append((node.lineno, name))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.append((node.lineno, name))
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                names.append((node.lineno, name))
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.append((node.lineno, name))
    return names


def test_names_of_the_product_say_what_a_thing_is() -> None:
    example = "def given(made): self.found = words = 1\nimport a as found\nmatch b:\n    case [*made]: pass"
    assert sorted(n for _, n in bound_names(example)) == ["found", "found", "given", "made", "made", "words"]
    paths = [p for folder in ("poetc", "solvers") for p in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 500
    texts = {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in paths}
    assert not [
        f"{path}:{line}: {name}" for path, text in texts.items() for line, name in bound_names(text) if name in VAGUE
    ]


def test_files_have_fewer_than_600_lines() -> None:
    folders = ("poetc", "solvers", "tests", "bench", "demo", "scripts")
    paths = [p for f in folders for p in (ROOT / f).rglob("*") if p.suffix in (".py", ".c", ".h")]
    assert len(paths) > 500
    lengths = {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8").count("\n") for p in paths}
    assert not {name: length for name, length in lengths.items() if length >= 600}


def test_the_clock_of_the_day_decides_nothing_but_which_leftovers_are_old() -> None:
    """It may be set back or forward while a training runs, a fleet waits or a schedule is looked for."""
    words = ("time.time(", "datetime.now(", "gettimeofday", "CLOCK_REALTIME", "time(NULL)", "pthread_cond_timedwait")
    paths = [p for p in (ROOT / "poetc").rglob("*") if p.suffix in (".py", ".c", ".h")]
    texts = {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in paths}
    assert [name for name, text in texts.items() if any(word in text for word in words)] == [
        "poetc/output_directory.py"
    ]


def test_a_package_offers_nothing_that_nobody_takes() -> None:
    """Its `__init__` imports what it offers; packages with `__all__` are for other projects, too."""
    folders = ("poetc", "solvers", "tests", "bench", "scripts")
    paths = [p for folder in folders for p in (ROOT / folder).rglob("*.py")]
    texts = {p: p.read_text(encoding="utf-8") for p in paths}
    taken: set[tuple[str, str]] = set()
    for path, text in texts.items():
        imports = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom) and n.module]
        taken |= {(str(n.module), alias.name) for n in imports for alias in n.names}
        modules = {a.asname or a.name: f"{n.module}.{a.name}" for n in imports for a in n.names}
        taken |= {(modules[m[1]], m[2]) for m in re.finditer(r"\b(\w+)\.(\w+)\b", text) if m[1] in modules}
        if path.name == "__init__.py":  # its own functions
            own = path.parent.relative_to(ROOT).as_posix().replace("/", ".")
            taken |= {(own, name) for name in modules if len(re.findall(rf"\b{name}\b", text)) > 1}
    offered = {
        (path.parent.relative_to(ROOT).as_posix().replace("/", "."), alias.asname or alias.name)
        for path, text in texts.items()
        if path.name == "__init__.py" and path.is_relative_to(ROOT / "poetc") and "__all__" not in text
        for node in ast.parse(text).body
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("poetc.")
        for alias in node.names
    }
    assert len(offered) > 200 and not sorted(offered - taken)
