"""Which parameters are trained (`--train`, `--lora`), and the settings of some of them only (`--lr-for`, ...)."""

from __future__ import annotations

import difflib
import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from poetc.errors import UsageError, shortened
from poetc.graph import Graph, Role
from poetc.ops import bind, spec, view_roots
from poetc.training._layers import PRODUCTS, Layer, adapter_names, is_adapter, layers_of, magnitude_name, module_of
from poetc.training._updates import Adapter, Channels, Update, Updates, Whole

_SHARE = re.compile(r"(.+)@([0-9]+)/([0-9]+)(:norm)?")
BEST = "best"  # as the value of --train: the updates are chosen with the schedule
_LARGEST = 2**31 - 1
_DIGITS = 10  # of the largest
# Inputs of these kinds are biases, and these belong to norms.
_BIASES = {"MatMul": (2,), "Conv": (2,), "ConvTranspose": (2,), "IntegerConv": (4,), "QLinearConv": (3,)}
_NORMS = {"LayerNorm": (1, 2), "RmsNorm": (1,), "GroupNorm": (1, 2), "BatchNormApply": (3, 4)}
_NORM_BIASES = {"LayerNorm": (2,), "GroupNorm": (2,), "BatchNormApply": (4,)}
_BIAS_NAME = re.compile(r"(.*[._])?bias")


@dataclass(frozen=True, slots=True)
class Lora:
    """One `--lora`: adapters beside the weights that match `patterns`; of no pattern, beside every one that can."""

    adapter: Adapter
    patterns: tuple[str, ...] = ()
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> Lora:
        """The adapters of RANK[:PATTERNS][:alpha=A][:dropout=P][:seed=S][:rslora][:dora]; UsageError for others."""
        usage = f"--lora {shortened(text, 80)!r}: write RANK[:PATTERNS][:alpha=A][:dropout=P][:seed=S][:rslora][:dora]"
        rank, _, rest = text.partition(":")
        parts, settings = rest.split(":") if rest else [], {}
        while parts and (setting := re.fullmatch(r"(?:(alpha|dropout|seed)=(.*))|rslora|dora", parts[-1])):
            name = setting[1] or setting[0]
            if name in settings:
                raise UsageError(f"{usage}; {name} stands there twice")
            settings[name] = setting[2] or ""
            parts.pop()
        try:
            number, alpha, dropout, seed = (
                int(rank),
                float(settings.get("alpha", 8)),
                float(settings.get("dropout", 0)),
                int(settings.get("seed", 0)),
            )
        except ValueError:
            raise UsageError(usage) from None
        patterns = tuple(p.strip() for p in ":".join(parts).split(",")) if parts else ()
        if not 1 <= number <= _LARGEST or "" in patterns:
            raise UsageError(f"{usage}, with a rank of at least 1")
        if not (0 < alpha < 3.4028234e38 and 0 <= dropout < 1 and 0 <= seed < 2**63):
            raise UsageError(f"{usage}, with alpha above 0, dropout in [0, 1) and a seed of at least 0")
        if dropout and "dora" in settings:
            raise UsageError(f"--lora {shortened(text, 80)!r}: dora has no dropout")
        return cls(Adapter(number, alpha, dropout, "rslora" in settings, "dora" in settings), patterns, seed)


def select_updates(graph: Graph, train: str, lora: Sequence[str] = ()) -> Updates:
    """The meaning of `--train` and `--lora` for the model, with its adapters or without.

    The last entry that names a parameter counts; ! before an entry takes its parameters out again.

    With `--lora`, `train` names the trained parameters besides adapters: `all` stands for nothing else. A weight that
    it names gets no adapter. Raises UsageError for a pattern that matches nothing, and for an adapter that a layer
    cannot have.
    """
    updates: dict[str, Update] = {}
    terms = [] if lora and train == "all" else [t.strip() for t in train.split(",")]
    for term in terms:
        if lora and term == "adapter":
            continue
        if term.startswith("!") and term not in graph.tensors:
            left_out = _named(graph, term[1:].strip(), "--train")
            updates = {name: update for name, update in updates.items() if name not in left_out}
            continue
        shared = _SHARE.fullmatch(term)
        if shared is None:
            updates.update(dict.fromkeys(_named(graph, term, "--train"), Whole()))
        else:
            updates.update(_shares(graph, shared[1], _share(shared), term))
    entries = [Lora.parse(text) for text in lora]
    adapters: dict[str, Update] = {}
    layers = layers_of(graph) if entries else {}
    for entry in entries:
        adapters.update(dict.fromkeys(_adapted(graph, layers, entry, updates), entry.adapter))
    return Updates({**adapters, **updates}, entries[0].seed if entries else 0)


def select_parameters(graph: Graph, train: str, lora: Sequence[str] = ()) -> frozenset[str]:
    """Names of the parameters that `--train` and `--lora` mean, those of adapters that the graph has included.

    `last:N` counts layers that hold a product (convolution, matrix product); norms and biases that follow a layer
    belong to it. Raises UsageError for a pattern that matches nothing.
    """
    return trained_parameters(graph, select_updates(graph, train, lora))


def trained_parameters(graph: Graph, updates: Updates) -> frozenset[str]:
    """The tensors of the graph that `updates` move."""
    pairs = adapter_names(graph, updates.adapters) if updates.adapters else {}
    names = {n for pair in pairs.values() for n in (*pair, magnitude_name(pair)) if n in graph.tensors}
    return updates.whole | frozenset(updates.channels) | names


def parse_entry(option: str, entry: str) -> tuple[str, float]:
    """PATTERN and VALUE of "PATTERN=VALUE"; the value is a number of at least 0. UsageError names the option."""
    pattern, equals, value = entry.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (equals and pattern.strip() and 0 <= number < 3.4028234e38):  # the C holds 32 bits
        raise UsageError(f"{option} {shortened(entry, 80)!r}: write PATTERN=NUMBER with a number of at least 0")
    return pattern, number


def values_by_pattern(
    graph: Graph, option: str, entries: Sequence[str], trained: frozenset[str], default: float
) -> dict[str, float]:
    """The value of each trained parameter: that of the last entry that matches it, or `default`.

    Raises UsageError for an entry that matches no parameter, or none that is trained.
    """
    values = dict.fromkeys(sorted(trained), default)
    for entry in entries:
        patterns, value = parse_entry(option, entry)
        chosen = {n for pattern in patterns.split(",") for n in _named(graph, pattern.strip(), option)} & trained
        if not chosen:
            raise UsageError(f"{option} {shortened(entry, 80)!r}: none of these parameters is trained (--train)")
        values.update(dict.fromkeys(sorted(chosen), value))
    return values


# --- parameters by name -----------------------------------------------------------------------------------------------


def _named(graph: Graph, term: str, option: str) -> frozenset[str]:
    """The parameters of one term: all, last:N, a ready set, a pattern, or several of these with & between them.

    Tensors that a fact says nobody trains are meant by a pattern that matches no others.
    """
    fixed = {f.subject for f in graph.facts if f.kind == "fixed tensor"}
    chosen = _named_all(graph, term, option)
    return chosen if chosen <= fixed and term != "all" else chosen - fixed


def _named_all(graph: Graph, term: str, option: str) -> frozenset[str]:
    parameters = [name for name, t in graph.tensors.items() if t.role is Role.PARAMETER]
    if not parameters:
        raise UsageError(f"{graph.name}: the model has no trainable parameters")
    if "&" in term and term not in parameters:
        sets = [_named(graph, part.strip(), option) for part in term.split("&")]
        both = frozenset.intersection(*sets)
        if not both:
            raise UsageError(f"{option} {term!r}: no parameter is in all of these sets")
        return both
    if term == "all":
        return frozenset(parameters)
    if term.startswith("last:"):
        return _last_layers(graph, term, option)
    if term in _SETS and term not in parameters:
        chosen = _SETS[term](graph) & frozenset(parameters)
        if not chosen:
            remedy = "; --lora RANK puts some in" if term == "adapter" else ""
            raise UsageError(f"{option} {term}: the model has no {_SET_WORDS[term]}{remedy}")
        return chosen
    matched = _matching(parameters, term)
    if not matched and term == BEST:
        raise UsageError(
            f"{option} {BEST}: the updates are chosen for a budget, by solve, train, sweep, compare, lock or bundle"
            " with --importance FILE; give them by name here"
        )
    if not matched:
        raise UsageError(
            f"{option} {term!r} matches no parameter; there are for example {_near(term, parameters)}"
            " (poetc analyze MODEL --parameters lists all)"
        )
    return frozenset(matched)


def _matching(names: Iterable[str], pattern: str) -> list[str]:
    names = list(names)
    return fnmatch.filter(names, pattern) or [name for name in names if name == pattern]


def _near(pattern: str, names: Sequence[str]) -> str:
    return ", ".join(difflib.get_close_matches(pattern, names, n=3, cutoff=0.3) or names[:3])


def _in_positions(graph: Graph, positions: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    roots = view_roots(graph)
    return frozenset(
        roots[op.inputs[k]] for op in graph.operators for k in positions.get(op.kind, ()) if k < len(op.inputs)
    )


def _biases(graph: Graph) -> frozenset[str]:
    """By position, or by the name that PyTorch gives them."""
    named = frozenset(n for n in graph.tensors if _BIAS_NAME.fullmatch(n))
    summands = {  # a bias behind a product without one
        t
        for op in graph.operators
        if op.kind == "Add"
        for t in op.inputs
        if graph.tensors[t].type.elements == max(graph.tensors[t].shape, default=1) > 1
    }
    return named | summands | _in_positions(graph, _BIASES) | _in_positions(graph, _NORM_BIASES)


_SETS: dict[str, Callable[[Graph], frozenset[str]]] = {
    "norm": lambda graph: _in_positions(graph, _NORMS),
    "bias": _biases,
    "adapter": lambda graph: frozenset(n for n in graph.tensors if is_adapter(n)),
}
_SET_WORDS = {"norm": "norm with trained scales or shifts", "bias": "trained biases", "adapter": "adapters"}


def _last_layers(graph: Graph, train: str, option: str) -> frozenset[str]:
    try:
        wanted = int(train.removeprefix("last:"))
    except ValueError:
        wanted = 0
    if wanted < 1:
        raise UsageError(f"{option} {train!r}: write last:N with a whole number N of at least 1, e.g. last:2")
    return last_layers(graph, wanted)[0]


def last_layers(graph: Graph, wanted: int) -> tuple[frozenset[str], tuple[str, ...]]:
    """The parameters of the last `wanted` layers, and the layers' names in the model, the last one first.

    A layer is one node of the file with its products, so that those of a recurrent layer are one layer.
    """
    roots = view_roots(graph)
    fixed = {f.subject for f in graph.facts if f.kind == "fixed tensor"}
    chosen: set[str] = set()
    layers: list[str] = []
    for op in reversed(graph.operators):
        own = {roots[t] for t in op.inputs if graph.tensors[roots[t]].role is Role.PARAMETER} - fixed
        if spec(op.kind).is_view or not own or (len(layers) == wanted and op.source not in layers):
            continue
        chosen |= own
        if spec(op.kind).work(bind(op, graph.tensors)).macs > 0 and not all(map(is_adapter, own)):
            name = op.source or op.name
            if name not in layers:
                layers.append(name)
    return frozenset(chosen), tuple(layers)


def layer_notes(graph: Graph, train: str) -> list[str]:
    """A note that names the layers of each last:N in `train`."""
    notes = []
    for term in {t.strip(): None for t in train.split(",")}:
        if re.fullmatch(r"last:[1-9][0-9]{0,8}", term):
            names = last_layers(graph, int(term.removeprefix("last:")))[1]
            shown = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            notes.append(
                f"--train {term}: the layers {shown}" if len(names) > 1 else f"--train {term}: the layer {shown}"
            )
    return notes


# --- shares of channels -----------------------------------------------------------------------------------------------


def _share(match: re.Match[str]) -> Channels:
    above, below = (int(part) if len(part) <= _DIGITS else 0 for part in match.group(2, 3))
    if not 0 < above < below <= _LARGEST:
        raise UsageError(f"--train {shortened(match[0], 80)!r}: write PATTERN@1/4, with a share between 0 and 1")
    return Channels(Fraction(above, below), match[4] is not None)


def _shares(graph: Graph, pattern: str, part: Channels, term: str) -> dict[str, Update]:
    """The share of each weight that matches; biases and norms that match have no input channels: all of them."""
    names, layers = _named(graph, pattern, "--train"), layers_of(graph)
    result: dict[str, Update] = {}
    for name in sorted(names):
        layer = layers.get(name)
        if layer is None and sum(n > 1 for n in graph.tensors[name].shape) < 2:
            result[name] = Whole()
            continue
        why = "is no weight of a Gemm, MatMul or convolution" if layer is None else layer.no_share
        if not why and layer is not None and not part.count(layer.inputs):
            why = f"has {layer.inputs} input channels, less than one in that share"
        if why:
            raise UsageError(f"--train {shortened(term, 80)!r}: {name!r} {why}")
        result[name] = part
    if not any(isinstance(u, Channels) for u in result.values()):
        raise UsageError(f"--train {shortened(term, 80)!r}: matches no weight, of which a share could be trained")
    return result


# --- adapters ---------------------------------------------------------------------------------------------------------


def _read_beside_products(graph: Graph) -> set[str]:
    """Weights that another operator than a product reads, such as the table of an embedding that is the head too.

    An adapter beside such a product unties the weight in the written file: a user names it with a pattern.
    """
    roots = view_roots(graph)
    others = (op for op in graph.operators if op.kind not in PRODUCTS)
    return {roots[t] for op in others for t in op.inputs if t in roots and roots.get(op.outputs[0]) != roots[t]}


def _heads(graph: Graph, layers: Mapping[str, Layer]) -> set[str]:
    """Weights whose product is an output of the model, a score for each row of a table of tokens: peft leaves them."""
    roots = view_roots(graph)
    tables = {
        graph.tensors[roots[op.inputs[0]]].shape[0]
        for op in graph.operators
        if op.kind == "Gather" and roots[op.inputs[1]] in graph.inputs and graph.tensors[roots[op.inputs[0]]].shape
    }
    ends = {roots[name] for name in graph.outputs}
    sums = {t for op in graph.operators if op.kind == "Add" and op.outputs[0] in ends for t in op.inputs}
    return {
        name
        for name, layer in layers.items()
        if layer.outputs in tables and any(op.outputs[0] in ends | sums for op in layer.operators)
    }


def _names_module(pattern: str, module: str) -> bool:
    """As a whole, with * and ?, or by its last words, as peft's target_modules: q_proj, mlp.up_proj."""
    return bool(_matching([module], pattern)) or module.endswith(f".{pattern}")


def _adapted(graph: Graph, layers: dict[str, Layer], entry: Lora, trained: Iterable[str]) -> list[str]:
    """The weights that get the adapter: all that can, or those that the patterns match, by tensor or by module."""
    option, rank = "--lora", entry.adapter.rank
    fixed = {f.subject for f in graph.facts if f.kind == "fixed tensor"}
    free = {n: layer for n, layer in layers.items() if n not in trained and n not in fixed}
    if not entry.patterns:
        shared = _read_beside_products(graph) | _heads(graph, layers)
        able = [
            n for n, layer in free.items() if not layer.no_adapter and layer.smaller_side >= rank and n not in shared
        ]
        if entry.adapter.magnitudes:
            able = [n for n in able if free[n].operators[0].kind == "MatMul"]
        if not able:
            most = max((layer.smaller_side for layer in free.values() if not layer.no_adapter), default=0)
            raise UsageError(
                f"{option} {rank}: no weight takes an adapter of that rank"
                + (f"; the largest rank that one takes is {most}" if most else "")
            )
        return able
    result: list[str] = []
    for pattern in entry.patterns:
        matched = _matching(free, pattern)
        matched += [n for n in free if n not in matched and _names_module(pattern, module_of(graph, n))]
        if not matched:
            names = [module_of(graph, n) for n in free] or ["none"]
            raise UsageError(
                f"{option} {pattern!r} matches no weight of a Gemm, MatMul or convolution that is frozen; there are for"
                f" example {_near(pattern, names)}"
            )
        result += matched
    for name in result:
        layer = free[name]
        if layer.no_adapter:
            raise UsageError(f"{option}: {name!r} {layer.no_adapter}")
        if entry.adapter.magnitudes and layer.operators[0].kind != "MatMul":
            raise UsageError(f"{option}: {name!r} belongs to a convolution, which takes no dora")
        if rank > layer.smaller_side:
            raise UsageError(
                f"{option} {rank}: {name!r} is {layer.outputs} x {layer.terms}; the rank is at most"
                f" {layer.smaller_side}"
            )
    return result
