"""`poetc generate`: the text that a language model writes behind a prompt, to see the effect of a training.

The model runs in the reference numerics of its operators, on this machine. The values that a later token reads are
cached (`next_token`).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from poetc import artifact, frontend, training
from poetc.commands.export import find_model
from poetc.commands.next_token import Cache, Plan
from poetc.commands.weights import model_of
from poetc.datasets import Span, Tokenizer, find_tokenizer
from poetc.errors import UnsupportedModelError, UsageError
from poetc.events import Progress, silent
from poetc.files import open_file
from poetc.graph import Array, DType, Graph, Role, materialize
from poetc.ops import bind, spec

SHORT = 13  # tokens of the text on which a step is planned; a prime, so that no other axis has this length
_CAUSAL = 1e-3  # the most that a later token may move a score, as a share of the largest


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """`source`: an ONNX file or a solved directory. `top_p` 0 takes the likeliest token each time.

    `cache`: the values of the tokens before are kept; else all of the text is computed for each token.
    """

    source: Path
    prompt: str
    tokens: int = 64
    chat: bool = False
    top_p: float = 0.0
    temperature: float = 1.0
    seed: int = 0
    cache: bool = True
    tokenizer: str | None = None
    chat_template: str | None = None


def generate(request: GenerateRequest, progress: Progress = silent) -> dict[str, Any]:
    """The answer of `--json`. Raises UsageError, and UnsupportedModelError for a model that is no decoder of tokens."""
    solved = artifact.read(request.source) if request.source.is_dir() else None
    file = request.source if solved is None else find_model(solved, None)
    template = None if request.chat_template is None else Path(request.chat_template)
    tokenizer = Tokenizer(find_tokenizer(request.tokenizer, file), template)
    ids = _prompt(request, tokenizer)
    progress("reading the model")
    if solved is not None:
        graph = model_of(solved)
        solved_length = _tokens_input(graph, str(request.source))[1]
        if len(ids) >= solved_length:
            raise UsageError(f"--prompt: {len(ids)} tokens; {request.source} is solved for {solved_length}")
    else:
        graph = _loaded(file, len(ids) + request.tokens)
    short = graph if solved is not None else _loaded(file, SHORT)
    writer = _Writer(graph, str(request.source), short if request.cache else None)
    if max(ids) >= writer.words:
        raise UsageError(f"{tokenizer.path}: has token {max(ids):,}; the model knows {writer.words:,}")
    random, prompt_tokens, started = np.random.default_rng(request.seed), len(ids), time.perf_counter()
    while len(ids) - prompt_tokens < request.tokens and len(ids) < writer.length:
        progress(f"token {len(ids) - prompt_tokens + 1} of {request.tokens}")
        token = _chosen(writer.scores(ids), request, random)
        if token == tokenizer.end:
            break
        ids.append(token)
    made = ids[prompt_tokens:]
    return {
        "model": str(request.source),
        "prompt": request.prompt,
        "text": tokenizer.decode(made),
        "tokens": made,
        "prompt_tokens": prompt_tokens,
        "seconds": time.perf_counter() - started,
    }


def _prompt(request: GenerateRequest, tokenizer: Tokenizer) -> list[int]:
    text = request.prompt
    if request.chat:
        text = tokenizer.render([{"role": "user", "content": text}], where="--chat", asks=True)
    found = tokenizer.encode([Span(text, True)], special=not request.chat)
    if not found.ids:
        raise UsageError("--prompt: holds no token")
    return found.ids


def _chosen(scores: Array, request: GenerateRequest, random: np.random.Generator) -> int:
    """The likeliest token, or one of the likeliest that share `top_p` of the probability."""
    if not request.top_p:
        return int(scores.argmax())
    scores = scores.astype(np.float64) / request.temperature
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    order = np.argsort(-shares, kind="stable")
    sums = np.cumsum(shares[order])
    kept = order[: int(np.searchsorted(sums, request.top_p)) + 1]
    return int(random.choice(kept, p=shares[kept] / shares[kept].sum()))


def _loaded(path: Path, length: int) -> Graph:
    """The model for one text of `length` tokens; lengths that the file fixes stay."""
    with open_file(path):
        pass
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf raises several kinds
        raise UsageError(f"{path}: not an ONNX file") from error
    given = {t.name for t in proto.graph.initializer}
    dims: dict[str, int] = {}
    for value in proto.graph.input:
        tensor = value.type.tensor_type
        names = [d.dim_param for d in tensor.shape.dim]
        if value.name not in given and tensor.elem_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
            for name, size in zip(names, (1, length), strict=False):
                if name:
                    dims.setdefault(name, size)
    return frontend.load(path, dims=dims)


def _tokens_input(graph: Graph, where: str) -> tuple[str, int]:
    """The input of the tokens, and its length."""
    inputs = [i for i in graph.inputs if graph.tensors[i].dtype is DType.I32 and len(graph.tensors[i].shape) == 2]
    tokens = [i for i in inputs if not i.endswith(("_mask", "position_ids", "token_type_ids"))]
    if len(tokens) != 1 or len(inputs) != len(graph.inputs):
        raise UnsupportedModelError(f"{where}: text is generated by a model whose one input are tokens [1, length]")
    return tokens[0], graph.tensors[tokens[0]].shape[1]


class _Writer:
    """Scores of the next token. The values of weights are made once.

    `short`: the same model for fewer tokens, on which `next_token` plans; None: each token is computed with all before.
    """

    def __init__(self, graph: Graph, where: str, short: Graph | None) -> None:
        self.graph, self.where = graph, where
        self.input, self.length = _tokens_input(graph, where)
        self.output = training.pick_output(graph, "")
        shape = graph.tensors[self.output].shape
        if len(shape) != 3 or shape[1] != self.length:
            raise UnsupportedModelError(f"{where}: its output {self.output!r} {list(shape)} is no score for each token")
        self.words = shape[2]
        self.held: dict[str, Array] = {}
        self.is_causal = False
        self.known = 0  # tokens whose values are in the cache
        self.cache = None if short is None else self._planned(short)

    def _planned(self, short: Graph) -> Cache | None:
        """None where the short model is another one, or too short."""
        length = short.tensors[self.input].shape[1] if self.input in short.tensors else 0
        if length < 4 or [op.kind for op in short.operators] != [op.kind for op in self.graph.operators]:
            return None
        ids = list(np.random.default_rng(0).integers(0, self.words, length // 2))
        texts: list[dict[str, Array]] = []
        for filler, seen in ((0, len(ids)), (self.words - 1, length)):
            values: dict[str, Array] = {}
            self._run(short, self._inputs(short, ids, filler, seen), values.__setitem__)
            texts.append(values)
        plan = Plan.of(short, self.output, texts[0], texts[1], len(ids), partial(self._weight, short))
        return None if plan is None else Cache(self.graph, plan, partial(self._weight, self.graph))

    def scores(self, ids: list[int]) -> Array:
        """Of each word to come behind `ids`. UnsupportedModelError where later places have a part in them."""
        inputs = self._inputs(self.graph, ids, 0, len(ids))
        if self.cache is not None and 0 < self.known == len(ids) - 1:
            found = self.cache.scores(self.known, inputs, self.output)
        else:
            keep = self.cache.keep if self.cache is not None else _drop
            found = self._run(self.graph, inputs, keep)[0, len(ids) - 1]
        self.known = len(ids)
        if not self.is_causal and len(ids) < self.length:
            other = self._run(self.graph, self._inputs(self.graph, ids, self.words - 1, len(ids)), _drop)
            if np.abs(found - other[0, len(ids) - 1]).max() > _CAUSAL * np.abs(found).max():
                raise UnsupportedModelError(f"{self.where}: a token sees those behind it, so no text can be generated")
            self.is_causal = True
        if not math.isfinite(float(np.abs(found).max())):
            raise UnsupportedModelError(f"{self.where}: its scores are no numbers")
        return found

    def _inputs(self, graph: Graph, ids: list[int], filler: int, seen: int) -> dict[str, Array]:
        """All inputs for a text of `ids`, then fillers; masks show the first `seen` places."""
        rows, length = graph.tensors[self.input].shape
        row = np.full(length, filler, np.int32)
        row[: len(ids)] = ids
        values: dict[str, Array] = {}
        for name in graph.inputs:
            if name == self.input:
                values[name] = np.broadcast_to(row, (rows, length))
            elif name.endswith("_mask"):
                values[name] = np.broadcast_to((np.arange(length) < seen).astype(np.int32), (rows, length))
            else:
                places = np.arange(length) if name.endswith("position_ids") else np.zeros(length)
                values[name] = np.broadcast_to(places.astype(np.int32), (rows, length))
        return values

    def _run(self, graph: Graph, inputs: Mapping[str, Array], keep: Callable[[str, Array], None]) -> Array:
        """The scores of all places; `keep` is shown every value."""
        values = dict(inputs)
        readers = Counter(name for op in graph.operators for name in op.inputs)
        for name, value in inputs.items():
            keep(name, value)
        for op in graph.operators:
            read = [values[n] if n in values else self._weight(graph, n) for n in op.inputs]
            with np.errstate(all="ignore"):
                results = spec(op.kind).evaluate(bind(op, graph.tensors), read)
            for name, value in zip(op.outputs, results, strict=True):
                values[name] = value
                keep(name, value)
            for name in op.inputs:
                readers[name] -= 1
                if not readers[name] and name != self.output:
                    values.pop(name, None)
        return np.asarray(values[self.output])

    def _weight(self, graph: Graph, name: str) -> Array:
        """Weights are the same in both models; constants, such as a mask, follow the length."""
        key = name if graph.tensors[name].role is Role.PARAMETER else f"{name} {graph.tensors[self.input].shape[1]}"
        if key not in self.held:
            self.held[key] = materialize(graph.values[name], graph.tensors[name].type)
        return self.held[key]


def _drop(_name: str, _value: Array) -> None:
    """Keep nothing of a run."""
