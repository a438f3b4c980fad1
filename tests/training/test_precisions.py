"""A precision is one file: nothing else knows its name."""

import ast
from pathlib import Path

import poetc
from poetc.training import PRECISIONS

ROOM = Path("training/precisions")


def _compared_names(tree: ast.AST) -> set[str]:
    """The texts that the code compares a precision with."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and "precision" in ast.unparse(node.left):
            found |= {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return found & set(PRECISIONS)


def test_no_code_outside_its_room_asks_for_a_precision_by_name() -> None:
    root = Path(poetc.__file__).parent
    files = [path for path in root.rglob("*.py") if ROOM not in path.relative_to(root).parents]
    named = {str(path.relative_to(root)): _compared_names(ast.parse(path.read_text("utf-8"))) for path in files}
    assert {path: names for path, names in named.items() if names} == {}


def test_each_precision_has_a_file_of_its_name() -> None:
    root = Path(poetc.__file__).parent / ROOM
    assert {path.stem for path in root.glob("[!_]*.py")} == set(PRECISIONS)
