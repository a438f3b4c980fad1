"""Checks of one operator kind: the C kernel against `evaluate`, and `gradient` against finite differences.

The C runtime (src/ and kernels/, no port) is compiled once per set of sources into a cached shared library, one
object a file, and called through ctypes. A file that does not compile is reported only by those who need a symbol of
it, and by `test_runtime_compiles`. `POETC_TEST_CFLAGS` adds compiler flags, for sanitizers for example.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

import poetc.runtime
from poetc.graph import Attribute, DType, Operator, Phase, Role, TensorType
from poetc.ops import Bound, Builder, Kernel, OpSpec, spec
from tests.support.compilers import cache_folder

AnyArray = npt.NDArray[np.generic]
Attributes = Mapping[str, Attribute]

RUNTIME = Path(next(iter(poetc.runtime.__path__)))
CFLAGS = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror", "-ffp-contract=off", "-fPIC")
CALLS = "-fcallgraph-info=su"
GUARD_BYTES = 64
GUARD = 0xA5


class KernelError(Exception):
    """A kernel returned a code other than 0."""

    def __init__(self, symbol: str, code: int) -> None:
        super().__init__(f"{symbol} returned {code}")
        self.code = code


# --- the library ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Library:
    path: Path
    dll: ctypes.CDLL
    failures: Mapping[str, str]  # source file name -> what the compiler said
    objects: tuple[Path, ...] = ()
    threads: bool = False  # shares of a kernel may be made beside the arena's workspace

    def function(self, symbol: str) -> Callable[..., int]:
        try:
            function: Callable[..., int] = getattr(self.dll, symbol)
        except AttributeError:
            detail = "".join(f"\n{name}:\n{message}" for name, message in self.failures.items())
            raise AssertionError(f"no kernel {symbol!r} in {RUNTIME / 'kernels'}{detail}") from None
        return function


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "cc"))


def build_library(*flags: str) -> Library:
    """Compile and link, or take both from the cache. Of several processes one compiles, and the others wait for it."""
    with (cache_folder() / "library.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _built_library(*flags)


def _built_library(*flags: str) -> Library:
    flags = (*CFLAGS, *flags, *shlex.split(os.environ.get("POETC_TEST_CFLAGS", "")))
    sources = sorted([*RUNTIME.glob("src/*.c"), *RUNTIME.glob("kernels/**/*.c")])
    headers = sorted([*RUNTIME.glob("include/*.h"), *RUNTIME.glob("src/*.h"), *RUNTIME.glob("kernels/**/*.h")])
    common = hashlib.sha256(repr((compiler(), flags)).encode())
    for header in headers:
        common.update(header.name.encode() + b"\0" + header.read_bytes())
    cache = cache_folder()
    objects: list[Path] = []
    failures: dict[str, str] = {}
    for source in sources:
        digest = common.copy()
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
        made = cache / f"{source.stem}-{digest.hexdigest()[:20]}.o"
        include = [f"-I{RUNTIME / name}" for name in ("include", "src", "kernels")]
        message = _make(made, [*compiler(), *flags, *include, "-c", str(source), "-o"])
        if message:
            failures[source.name] = message
        else:
            objects.append(made)
    total = hashlib.sha256("\n".join(made.name for made in objects).encode()).hexdigest()[:20]
    path = cache / f"libpoetc-{total}.so"
    # No -lm, and nothing may stay undefined: the runtime brings its own mathematics.
    message = _make(path, [*compiler(), *flags, "-shared", "-Wl,--no-undefined", *map(str, objects), "-o"])
    assert not message, message
    return Library(path, ctypes.CDLL(str(path)), failures, tuple(objects))


def compile_shared(sources: Sequence[Path], *flags: str) -> ctypes.CDLL:
    """A shared library of a few sources, cached like the runtime."""
    command = [*compiler(), *CFLAGS, *flags, f"-I{RUNTIME / 'include'}", "-shared", *map(str, sources)]
    digest = hashlib.sha256(repr(command).encode())
    for file in [*sources, *sorted(RUNTIME.glob("include/*.h"))]:
        digest.update(file.read_bytes())
    path = cache_folder() / f"{sources[0].stem}-{digest.hexdigest()[:20]}.so"
    message = _make(path, [*command, "-o"])
    assert not message, message
    return ctypes.CDLL(str(path))


def _make(target: Path, command: list[str]) -> str:
    """Run `command` with a temporary name in place of `target`, then rename; returns the compiler's message if it
    failed.
    """
    if target.exists():
        return ""
    scratch = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        result = subprocess.run([*command, str(scratch / target.name)], capture_output=True, text=True)
        if result.returncode:
            return result.stderr or f"exit code {result.returncode}"
        for beside in scratch.glob("*.ci"):
            beside.rename(target.parent / beside.name)
        (scratch / target.name).rename(target)
        return ""
    finally:
        shutil.rmtree(scratch)


@functools.cache
def library() -> Library:
    """With the call graph and the stack of each function beside its object, which GCC alone writes."""
    return build_library(*([] if "CC" in os.environ else [CALLS]))


@functools.cache
def wide_library() -> Library:
    """With the widest vectors of this machine, and another optimisation, which is a third quicker to compile."""
    return build_library("-O1", "-march=native")


@functools.cache
def scalar_library() -> Library:
    """As on a target without vectors."""
    return build_library("-O1", "-U__SSE2__", "-U__aarch64__")


class _Call(ctypes.Structure):
    _fields_ = (
        ("refs", ctypes.POINTER(ctypes.c_uint32)),
        ("ints", ctypes.POINTER(ctypes.c_int32)),
        ("floats", ctypes.POINTER(ctypes.c_float)),
        ("arena", ctypes.c_void_p),
        ("flash", ctypes.c_void_p),
        ("part", ctypes.c_int32),  # what follows is there only in a build with threads
        ("parts", ctypes.c_int32),
        ("workspace", ctypes.c_void_p),
    )


# --- one kind ---------------------------------------------------------------------------------------------------------


def tensor_type(array: AnyArray, narrow: DType = DType.F16) -> TensorType:
    """`narrow`: the type of words of 16 bits."""
    kinds = {"float32": DType.F32, "float64": DType.F32, "int32": DType.I32, "uint8": DType.U8, "int8": DType.I8}
    kinds["uint16"] = narrow
    return TensorType(tuple(array.shape), kinds[array.dtype.name])


def bind_kind(kind: str, attributes: Attributes, inputs: Sequence[AnyArray]) -> Bound:
    """The kind bound to the types of `inputs`, outputs inferred."""
    narrow = DType(str(attributes.get("dtype", DType.F16.value)))
    types = tuple(tensor_type(x, narrow) for x in inputs)
    return Bound(attributes, types, tuple(spec(kind).infer(Bound(attributes, types))))


def differentiable(kind: str) -> bool:
    return type(spec(kind)).gradient is not OpSpec.gradient


def evaluate(kind: str, attributes: Attributes, inputs: Sequence[AnyArray]) -> tuple[AnyArray, ...]:
    """`evaluate`, with the shapes and types of its results held against `infer`."""
    op = bind_kind(kind, attributes, inputs)
    outputs = tuple(np.asarray(y) for y in spec(kind).evaluate(op, inputs))
    assert len(outputs) == len(op.outputs), f"{kind}: {len(outputs)} results for {len(op.outputs)} outputs"
    double = any(x.dtype == np.float64 for x in inputs)
    for i, (y, t) in enumerate(zip(outputs, op.outputs, strict=True)):
        expected = np.dtype(np.float64) if double and t.dtype is DType.F32 else t.dtype.numpy
        assert y.shape == t.shape, f"{kind} output {i}: evaluate made {y.shape}, infer says {t.shape}"
        assert y.dtype == expected, f"{kind} output {i}: evaluate made {y.dtype}, expected {expected}"
    return outputs


def run_kernel(
    kind: str,
    attributes: Attributes,
    inputs: Sequence[AnyArray],
    alias: Mapping[int, int] | None = None,
    lib: Library | None = None,
    kernel: Kernel | None = None,
) -> tuple[AnyArray, ...]:
    """The outputs of the C kernel, the fastest or `kernel`. `alias` maps an output to the input whose bytes it
    overwrites (`must_alias` is always obeyed).

    Outputs and workspace start as garbage; guard bytes around every operand, and inputs that are not overwritten, are
    compared afterwards, and the workspace must have been used up to its end. Raises KernelError if the kernel returns
    an error code.
    """
    op = bind_kind(kind, attributes, inputs)
    kernel = kernel or spec(kind).kernel(op)
    overwritten = {o: i for i, o in spec(kind).must_alias} | dict(alias or {})
    inputs = [np.ascontiguousarray(x) for x in inputs]

    end = GUARD_BYTES
    offsets: list[int] = []
    sizes: list[int] = []

    def place(size_bytes: int) -> None:
        nonlocal end
        offsets.append(end)
        sizes.append(size_bytes)
        end = (end + size_bytes + 15) // 16 * 16 + GUARD_BYTES

    for t in op.inputs:
        place(t.size_bytes)
    for i, t in enumerate(op.outputs):
        if i in overwritten:
            assert t.size_bytes == op.inputs[overwritten[i]].size_bytes, f"{kind}: alias of different sizes"
            offsets.append(offsets[overwritten[i]])
            sizes.append(t.size_bytes)
        else:
            place(t.size_bytes)
    if kernel.workspace_bytes:
        place(kernel.workspace_bytes)

    storage = np.full(end + 16, GUARD, np.uint8)
    shift = -storage.ctypes.data % 16
    arena = storage[shift : shift + end]
    for offset, size in zip(offsets, sizes, strict=True):
        arena[offset : offset + size] = 0xFF  # NaN as a float, -1 as an int
    for offset, x in zip(offsets, inputs, strict=False):
        arena[offset : offset + x.nbytes] = np.frombuffer(x.tobytes(), np.uint8)

    refs = (ctypes.c_uint32 * len(offsets))(*[offset // 16 << 1 for offset in offsets])
    ints = (ctypes.c_int32 * max(1, len(kernel.ints)))(*kernel.ints)
    floats = (ctypes.c_float * max(1, len(kernel.floats)))(*kernel.floats)
    call = _Call(refs, ints, floats, arena.ctypes.data, None)
    function = (lib or library()).function(kernel.symbol)
    code = function(ctypes.byref(call))

    free = np.ones(end, bool)
    for offset, size in zip(offsets, sizes, strict=True):
        free[offset : offset + size] = False
    assert (arena[free] == GUARD).all(), f"{kernel.symbol} wrote outside its operands"
    for i, x in enumerate(inputs):
        if i not in overwritten.values():
            assert arena[offsets[i] : offsets[i] + x.nbytes].tobytes() == x.tobytes(), (
                f"{kernel.symbol} wrote input {i}"
            )
    if code:
        raise KernelError(kernel.symbol, code)
    if kernel.workspace_bytes and not (lib and lib.threads):
        # else the peak that is measured would not be the one predicted
        end = offsets[-1] + kernel.workspace_bytes
        assert (arena[end - 4 : end] != 0xFF).any(), f"{kernel.symbol} leaves the end of its workspace untouched"
    first = len(op.inputs)
    return tuple(
        np.frombuffer(arena[offsets[first + i] :][: t.size_bytes].tobytes(), t.dtype.numpy).reshape(t.shape)
        for i, t in enumerate(op.outputs)
    )


def check_kernel(
    kind: str, attributes: Attributes, inputs: Sequence[AnyArray], rtol: float = 1e-6, atol: float = 1e-6
) -> tuple[AnyArray, ...]:
    """C against `evaluate` (floats within rtol and atol, the rest exactly); in place gives the same bits as apart."""
    inputs = [x.astype(np.float32) if x.dtype == np.float64 else x for x in inputs]
    expected = evaluate(kind, attributes, inputs)
    actual = run_kernel(kind, attributes, inputs)
    for i, (y, reference) in enumerate(zip(actual, expected, strict=True)):
        if reference.dtype == np.float32:
            np.testing.assert_allclose(y, reference, rtol=rtol, atol=atol, err_msg=f"{kind} output {i}")
        else:
            np.testing.assert_array_equal(y, reference, err_msg=f"{kind} output {i}")
    op = bind_kind(kind, attributes, inputs)
    for source, target in spec(kind).may_alias(op):
        in_place = run_kernel(kind, attributes, inputs, alias={target: source})
        for i, (y, apart) in enumerate(zip(in_place, actual, strict=True)):
            assert y.tobytes() == apart.tobytes(), (
                f"{kind}: output {i} differs when output {target} overwrites input {source}"
            )
    return actual


def check_gradient(
    kind: str,
    attributes: Attributes,
    inputs: Sequence[AnyArray],
    wrt: Sequence[int] | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    step: float = 1e-5,
    outputs_of: Sequence[int] | None = None,
) -> None:
    """The operators that `gradient` emits against central differences of <output, weights>, all in float64.

    `outputs_of`: outputs through which a gradient flows, default all floats (saved statistics carry none).
    `wrt`: inputs to check, default all floats (where `gradient` gives None the derivative must be 0). Besides all
    inputs at once, each is asked for alone, and each output's gradient is given alone.
    """
    inputs = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in inputs]
    chosen = [i for i, x in enumerate(inputs) if x.dtype.kind == "f"] if wrt is None else list(wrt)
    outputs = evaluate(kind, attributes, inputs)
    random = np.random.default_rng(7)
    weights = [random.uniform(-1, 1, y.shape) if y.dtype.kind == "f" else None for y in outputs]
    active = [i for i, w in enumerate(weights) if w is not None and (outputs_of is None or i in outputs_of)]

    differences = {i: _differences(kind, attributes, inputs, i, len(outputs), weights, step) for i in chosen}
    subsets = [active, *([[i] for i in active] if len(active) > 1 else [])]
    asked = [chosen, *([[i] for i in chosen] if len(chosen) > 1 else [])]
    for given in subsets:
        for needed in asked:
            gradients = _gradients(kind, attributes, inputs, {i: weights[i] for i in given}, needed)
            for i in needed:
                expected = sum((differences[i][o] for o in given), np.zeros(inputs[i].shape))
                actual = gradients[i]
                message = f"{kind}: gradient of input {i} from outputs {given}, asked for {needed}"
                if actual is None:
                    np.testing.assert_allclose(expected, 0, atol=atol, err_msg=message + " (None given)")
                else:
                    assert actual.shape == inputs[i].shape, f"{message}: shape {actual.shape}"
                    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=message)


def _differences(
    kind: str,
    attributes: Attributes,
    inputs: Sequence[AnyArray],
    wrt: int,
    count: int,
    weights: Sequence[AnyArray | None],
    step: float,
) -> list[AnyArray]:
    """d <output o, weights o> / d input `wrt`, for every output o."""
    op = bind_kind(kind, attributes, inputs)
    result: list[AnyArray] = [np.zeros(inputs[wrt].shape) for _ in range(count)]
    for index in np.ndindex(inputs[wrt].shape):
        sides = []
        for sign in (1, -1):
            moved = [x.copy() if i == wrt else x for i, x in enumerate(inputs)]
            moved[wrt][index] += sign * step
            sides.append(spec(kind).evaluate(op, moved))
        for o, w in enumerate(weights):
            if w is not None:
                result[o][index] = ((sides[0][o] - sides[1][o]) * w).sum() / (2 * step)
    return result


def _gradients(
    kind: str,
    attributes: Attributes,
    inputs: Sequence[AnyArray],
    given: Mapping[int, AnyArray | None],
    needed: Sequence[int],
) -> list[AnyArray | None]:
    b = Builder()
    values: dict[str, AnyArray] = {}
    names = []
    for i, x in enumerate(inputs):
        names.append(b.add_tensor(f"x{i}", tensor_type(x), Role.INPUT))
        values[names[-1]] = x
    outputs = b.emit(kind, names, attributes, hint="y")
    forward: Operator = b.operators[0]
    b.phase, b.role = Phase.BACKWARD, Role.GRADIENT
    grads: list[str | None] = []
    for i, name in enumerate(outputs):
        w = given.get(i)
        if w is None:
            grads.append(None)
        else:
            grads.append(b.add_tensor(f"g{i}", b.type(name), Role.GRADIENT))
            values[f"g{i}"] = w
    wanted = [i in needed for i in range(len(inputs))]
    results = spec(kind).gradient(b, forward, grads, wanted)
    assert len(results) == len(inputs), f"{kind}: gradient returned {len(results)} results for {len(inputs)} inputs"
    for name, value in b.values.items():
        array = np.asarray(value)
        values[name] = array.astype(np.float64) if array.dtype.kind == "f" else array
    for op in b.operators:
        arguments = [values[t] for t in op.inputs]
        values.update(zip(op.outputs, evaluate(op.kind, op.attributes, arguments), strict=True))
    for i, r in enumerate(results):
        assert r is None or b.type(r).shape == inputs[i].shape, (
            f"{kind}: gradient {i} has shape {b.type(r or '').shape}"
        )
    return [None if r is None or not wanted[i] else values[r] for i, r in enumerate(results)]


# --- tables of cases --------------------------------------------------------------------------------------------------

Make = Callable[[np.random.Generator], AnyArray]
Input = tuple[int, ...] | Make | AnyArray | np.generic


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a table in `tests/ops/cases/<family>.py` (a list `CASES`), which drives all checks of `test_cases.py`.

    An input is a shape (normally distributed floats), a maker (`uniform(...)`, `integers(...)`, ...) or an array.
    `gradient` False leaves the finite differences out (the point is not smooth, or they are covered by another row);
    `wrt` restricts them to some inputs, `outputs` to some outputs.
    """

    kind: str
    inputs: tuple[Input, ...]
    attributes: Attributes = field(default_factory=dict)
    rtol: float = 1e-6
    atol: float = 1e-6
    gradient: bool = True
    wrt: tuple[int, ...] | None = None
    outputs: tuple[int, ...] | None = None
    step: float = 1e-5
    note: str = ""  # tells rows apart in test names

    def arrays(self) -> list[AnyArray]:
        seed = int.from_bytes(hashlib.sha256(str(self).encode()).digest()[:4], "little")
        random = np.random.default_rng(seed)
        return [_array(x, random) for x in self.inputs]

    @property
    def checks_gradient(self) -> bool:
        return self.gradient and differentiable(self.kind) and any(x.dtype.kind == "f" for x in self.arrays())

    def __str__(self) -> str:
        shapes = ",".join(
            "x".join(map(str, x)) if isinstance(x, tuple) else getattr(x, "label", "a") for x in self.inputs
        )
        attributes = ",".join(f"{k}={v}" for k, v in sorted(self.attributes.items()))
        return "-".join(part.replace(" ", "") for part in (self.kind, shapes, attributes, self.note) if part)


def _array(x: Input, random: np.random.Generator) -> AnyArray:
    if isinstance(x, tuple):
        return np.asarray(random.standard_normal(x)).astype(np.float32)
    return np.asarray(x) if isinstance(x, np.ndarray | np.generic) else x(random)


def _labelled(make: Make, label: str) -> Make:
    make.label = label  # type: ignore[attr-defined]
    return make


def uniform(shape: tuple[int, ...], low: float = -2.0, high: float = 2.0, avoid: Sequence[float] = ()) -> Make:
    """Floats in [low, high], at least 0.01 away from every point of `avoid` (kinks)."""

    def make(random: np.random.Generator) -> AnyArray:
        x = np.asarray(random.uniform(low, high, shape))
        for point in avoid:
            x = np.where(np.abs(x - point) < 0.01, point + 0.02, x)
        return x.astype(np.float32)

    return _labelled(make, "x".join(map(str, shape)))


def distinct(shape: tuple[int, ...], gap: float = 0.1) -> Make:
    """Floats of both signs that differ by at least `gap`, in random order: for maxima and medians."""

    def make(random: np.random.Generator) -> AnyArray:
        n = int(np.prod(shape))
        return ((random.permutation(n) - n / 2 + 0.25) * gap).reshape(shape).astype(np.float32)

    return _labelled(make, "x".join(map(str, shape)))


def integers(shape: tuple[int, ...], low: int, high: int, dtype: type[np.generic] = np.int32) -> Make:
    """Integers in [low, high)."""

    def make(random: np.random.Generator) -> AnyArray:
        return np.asarray(random.integers(low, high, shape)).astype(dtype)

    return _labelled(make, "x".join(map(str, shape)) + np.dtype(dtype).name)
