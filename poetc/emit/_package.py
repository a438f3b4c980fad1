"""A Python package around an emitted model: the library, its manifest and the session, for a machine without poetc."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from poetc.boards import TARGETS, Target
from poetc.emit._module import Module, entries
from poetc.errors import UsageError
from poetc.program import Binding, all_inputs

BUILD = "package"
MODULES = ("library.py", "session.py")  # of the runtime; copied as they are


def as_package(target: Target) -> Target:
    """The same core and compiler, for a library instead of a program. UsageError where no Python runs."""
    if not target.hosted:
        names = " or ".join(name for name, t in TARGETS.items() if t.hosted and not name.startswith("generic-"))
        raise UsageError(f"--package is for a target with Python, {names}, not {target.name}")
    return replace(target, build=BUILD, ports=("host", "posix"))


def init_source(module: Module) -> str:
    """`__init__.py` of the package."""
    return f'''"""{_plain(module.model)}: training, evaluation and predictions on numpy arrays. Made by poetc."""

from pathlib import Path

from .session import Session, SessionError

__all__ = ["Session", "SessionError", "trainer"]

FOLDER = Path(__file__).resolve().parent


def trainer(store=None, *, undo=False):
    """A session from the initial weights; `Session` in session.py says what it does, and what the arguments are."""
    return Session(FOLDER / "libmodel.so", FOLDER / "poetc-emit.json", store, undo=undo)
'''


def package_readme(module: Module, target: Target) -> str:
    """README.md of the package."""
    return "\n".join([*_use(module, target), *_build(target)])


def _use(module: Module, target: Target) -> Iterator[str]:
    train = all_inputs(entries(module)["train"])
    yield from (f"# {_plain(module.model)}", "")
    yield f"A Python package for {target.name}, made by poetc. It needs Python 3.9 or later and numpy, nothing else."
    yield "Copy the folder; its name is the name to import. Here it is `model`:"
    yield from ("", "```python", "import model", "", "with model.trainer() as trainer:")
    yield f"    loss = trainer.step({', '.join(_argument(i) for i in range(len(train)))})  # numpy arrays, see below"
    for name, program in entries(module).items():
        arguments = ", ".join(_argument(i) for i in range(len(all_inputs(program))))
        if name == "evaluate":
            yield f"    loss = trainer.evaluate({arguments})"
        if name == "infer":
            yield f"    outputs = trainer.predict({arguments})"
    yield "    trainer.learning_rate *= 0.5"
    yield '    trainer.save("trained.bin")'
    yield from ("```", "", "The arrays of a step, in order:", "")
    yield from (f"- {_described(binding)}" for binding in train)
    yield ""
    yield "`trainer.load` reads `trained.bin`; `trainer.state_dict()` has all weights by name. Wrong data raise"
    yield "ValueError, which names the array; everything else is in `session.py`. The same from C:"
    yield "`runtime/include/poetc_session.h`."
    yield ""


def _argument(index: int) -> str:
    return "xyzuvw"[index] if index < 6 else f"x{index}"


def _described(binding: Binding) -> str:
    type = binding.operand.type
    shape = " x ".join(map(str, type.shape)) or "one"
    return f"`{binding.name}`: {shape} of {type.dtype.name.lower()}"


def _build(target: Target) -> Iterator[str]:
    yield from ("## Building", "")
    if target.cross_compile:
        yield f"`make` builds `libmodel.so` with {target.cross_compile}gcc; on the device itself `make CROSS_COMPILE=`"
        yield "does. After a change of options: `make clean` first."
    else:
        yield "`make` builds `libmodel.so`. After a change of options: `make clean` first."
    yield "`make THREADS=N` lets large kernels run in N threads, with the same bits."
    yield ""


def _plain(text: str) -> str:
    """A name as one line of a docstring or a heading."""
    return "".join(c if c.isprintable() and c not in '"\\' else "_" for c in text)
