"""`poetc generate`: the text that a language model writes behind a prompt, to see the effect of a training.

The model runs in the reference numerics of its operators, on this machine, the whole text for each token. Nothing is
cached, so a text of hundreds of tokens takes minutes.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from poetc import artifact, frontend, training
from poetc.commands.export import find_model
from poetc.commands.weights import model_of
from poetc.datasets import Span, Tokenizer, find_tokenizer
from poetc.errors import UnsupportedModelError, UsageError
from poetc.events import Progress, silent
from poetc.files import open_file
from poetc.graph import Array, DType, Graph, materialize
from poetc.ops import bind, spec

_CAUSAL = 1e-3  # the most that a later token may move a score, as a share of the largest


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """`source`: an ONNX file or a solved directory. `top_p` 0 takes the likeliest token each time."""

    source: Path
    prompt: str
    tokens: int = 64
    chat: bool = False
    top_p: float = 0.0
    temperature: float = 1.0
    seed: int = 0
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
    writer = _Writer(graph, str(request.source))
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
    """Scores of the next token. The values of weights are made once."""

    def __init__(self, graph: Graph, where: str) -> None:
        self.graph, self.where = graph, where
        self.input, self.length = _tokens_input(graph, where)
        self.output = training.pick_output(graph, "")
        shape = graph.tensors[self.output].shape
        if len(shape) != 3 or shape[1] != self.length:
            raise UnsupportedModelError(f"{where}: its output {self.output!r} {list(shape)} is no score for each token")
        self.words, self.rows = shape[2], graph.tensors[self.input].shape[0]
        self.held: dict[str, Array] = {}
        self.is_causal = False

    def scores(self, ids: list[int]) -> Array:
        """Of each word to come behind `ids`. UnsupportedModelError where later places have a part in them."""
        found = self._run(ids, 0)
        if not self.is_causal and len(ids) < self.length:
            other = self._run(ids, self.words - 1)
            if np.abs(found - other).max() > _CAUSAL * np.abs(found).max():
                raise UnsupportedModelError(f"{self.where}: a token sees those behind it, so no text can be generated")
            self.is_causal = True
        if not math.isfinite(float(np.abs(found).max())):
            raise UnsupportedModelError(f"{self.where}: its scores are no numbers")
        return found

    def _run(self, ids: list[int], filler: int) -> Array:
        graph, count = self.graph, len(ids)
        row = np.full(self.length, filler, np.int32)
        row[:count] = ids
        rows = (self.rows, self.length)
        values: dict[str, Array] = {}
        for name in graph.inputs:
            if name == self.input:
                values[name] = np.broadcast_to(row, rows)
            elif name.endswith("_mask"):
                values[name] = np.broadcast_to((np.arange(self.length) < count).astype(np.int32), rows)
            else:
                places = np.arange(self.length) if name.endswith("position_ids") else np.zeros(self.length)
                values[name] = np.broadcast_to(places.astype(np.int32), rows)
        readers: dict[str, int] = {}
        for op in graph.operators:
            for name in op.inputs:
                readers[name] = readers.get(name, 0) + 1
        for op in graph.operators:
            inputs = [values[n] if n in values else self._weight(n) for n in op.inputs]
            with np.errstate(all="ignore"):
                results = spec(op.kind).evaluate(bind(op, graph.tensors), inputs)
            values.update(zip(op.outputs, results, strict=True))
            for name in op.inputs:
                readers[name] -= 1
                if not readers[name] and name != self.output:
                    values.pop(name, None)
        return np.asarray(values[self.output][0, count - 1])

    def _weight(self, name: str) -> Array:
        if name not in self.held:
            self.held[name] = materialize(self.graph.values[name], self.graph.tensors[name].type)
        return self.held[name]
