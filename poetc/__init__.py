"""poetc compiles the training of neural networks for small Arm boards.

    import poetc
    model = poetc.load("model.onnx", batch=16)
    solution = model.solve(device="stm32f746", budget="60%")
    solution.emit("src", target="cortex-m")

The names below are loaded when they are first used, so that `import poetc` costs nothing.

Two packages stand beside this folder: solvers/ is `poetc.solvers`, and profiles/ is `poetc.profiles`.
docs/explanation/architecture.md names the rooms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poetc.api import Model, Solution, list_devices, load, load_problem, open_solution
    from poetc.api_train import train
    from poetc.errors import PoetcError
    from poetc.training import TrainingOptions

__all__ = [
    "Model",
    "PoetcError",
    "Solution",
    "TrainingOptions",
    "list_devices",
    "load",
    "load_problem",
    "open_solution",
    "train",
]

_MODULES = {"PoetcError": "poetc.errors", "TrainingOptions": "poetc.training", "train": "poetc.api_train"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_MODULES.get(name, "poetc.api")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
