"""llama.cpp's side of bench/language_models.py, run by a Python that has llama_cpp.

`peer_llama_cpp.py train NAME TOKENS FILE` works as peer_language_models.py does. It trains as llama.cpp's example
`llama-finetune`: all matrices in f32, AdamW. It has no adapters to train. Its contexts are multiples of 256 tokens, so
a step has no fewer. FILE is a GGUF file of the model with random weights, and is written where it is not there.

`peer_llama_cpp.py scores FILE TEXT NUMBERS` writes the tokens of a text and their logits by a GGUF file, and by a copy
of it in f32 beside it, to an .npz file.
"""

from __future__ import annotations

import ctypes as c
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import llama_cpp as llama
import numpy as np

WORDS = 49152
SHAPES = {"SmolLM2-135M": (576, 1536, 30, 9, 3), "SmolLM2-360M": (960, 2560, 32, 15, 5)}
INT32, F32 = 26, 0  # of ggml
IDS = c.c_int32 * 256
SILENT = llama.llama_log_callback(lambda *_: None)


class Options(c.Structure):
    """llama_opt_params; the one of llama_cpp lacks the last field."""

    _fields_ = (
        ("context", c.c_uint32),
        ("filter", c.c_void_p),
        ("filter_data", c.c_void_p),
        ("numbers", c.c_void_p),
        ("numbers_data", c.c_void_p),
        ("optimizer", c.c_int),  # 0: AdamW
    )


def write(path: Path, shape: tuple[int, ...]) -> None:
    width, inner, layers, heads, groups = shape
    random = np.random.default_rng(0)
    to = gguf.GGUFWriter(str(path), "llama")
    to.add_block_count(layers)
    to.add_context_length(2048)
    to.add_embedding_length(width)
    to.add_feed_forward_length(inner)
    to.add_head_count(heads)
    to.add_head_count_kv(groups)
    to.add_layer_norm_rms_eps(1e-5)
    to.add_rope_freq_base(1e5)
    to.add_rope_dimension_count(width // heads)
    to.add_vocab_size(WORDS)
    to.add_tokenizer_model("no_vocab")
    narrow = width // heads * groups
    matrices = {"attn_q": (width, width), "attn_k": (narrow, width), "attn_v": (narrow, width)}
    matrices |= {"attn_output": (width, width), "ffn_gate": (inner, width), "ffn_up": (inner, width)}
    matrices |= {"ffn_down": (width, inner)}
    ones = np.ones(width, np.float32)
    to.add_tensor("token_embd.weight", random.uniform(-0.03, 0.03, (WORDS, width)).astype(np.float32))
    to.add_tensor("output_norm.weight", ones)
    for layer in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            to.add_tensor(f"blk.{layer}.{name}.weight", ones)
        for name, size in matrices.items():
            to.add_tensor(f"blk.{layer}.{name}.weight", random.uniform(-0.03, 0.03, size).astype(np.float32))
    finish(to)


def write_floats(source: Path, path: Path) -> None:
    """A copy of a GGUF file whose blocks are decoded by the package gguf."""
    read, to = gguf.GGUFReader(source), gguf.GGUFWriter(str(path), "llama")
    for name, field in read.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            of = {"sub_type": field.types[-1]} if field.types[0] is gguf.GGUFValueType.ARRAY else {}
            to.add_key_value(name, field.contents(), field.types[0], **of)
    for tensor in read.tensors:
        to.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    finish(to)


def finish(to: gguf.GGUFWriter) -> None:
    to.write_header_to_file()
    to.write_kv_data_to_file()
    to.write_tensors_to_file()
    to.close()


def scores(path: Path, text: bytes) -> tuple[list[int], np.ndarray]:
    """The tokens of a text, and their logits [tokens, words]; caches hold f32."""
    of_model, of_context = llama.llama_model_default_params(), llama.llama_context_default_params()
    of_model.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(str(path).encode(), of_model)
    of_context.n_ctx = of_context.n_batch = of_context.n_ubatch = 256
    of_context.type_k = of_context.type_v = F32
    of_context.flash_attn_type, of_context.n_threads_batch = 0, 1
    context, words, ids = llama.llama_init_from_model(model, of_context), llama.llama_model_get_vocab(model), IDS()
    count = llama.llama_tokenize(words, text, len(text), ids, len(ids), False, True)
    batch = llama.llama_batch_init(256, 0, 1)
    batch.n_tokens = count
    for n in range(count):
        batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.seq_id[n][0], batch.logits[n] = ids[n], n, 1, 0, 1
    if llama.llama_decode(context, batch):
        raise SystemExit("llama.cpp does not decode")
    shape = count, llama.llama_vocab_n_tokens(words)
    return list(ids[:count]), np.ctypeslib.as_array(llama.llama_get_logits(context), shape).copy()


def library(name: str) -> Any:
    return c.CDLL(str(next(Path(llama.__file__).parent.rglob(f"lib{name}.so"))))


def started(path: Path, tokens: int) -> Callable[[], float]:
    """A function that takes a step and returns the loss."""
    base, ours = library("ggml-base"), library("llama")
    for name in ("ggml_opt_dataset_init", "ggml_opt_dataset_data", "ggml_opt_dataset_labels", "ggml_get_data"):
        getattr(base, name).restype = c.c_void_p
    base.ggml_opt_result_init.restype = c.c_void_p
    llama.llama_backend_init()
    of_model, of_context = llama.llama_model_default_params(), llama.llama_context_default_params()
    of_model.load_mode, of_model.n_gpu_layers, of_model.use_extra_bufts = 0, 0, False  # weights are written
    of_context.n_ctx = of_context.n_batch = of_context.n_ubatch = tokens
    of_context.n_threads = of_context.n_threads_batch = int(os.environ.get("OMP_NUM_THREADS", "1"))
    of_context.type_k = of_context.type_v = F32
    model = llama.llama_model_load_from_file(str(path).encode(), of_model)
    context = llama.llama_init_from_model(model, of_context)
    ids = np.random.default_rng(1).integers(0, WORDS, tokens + 1).astype(np.int32)
    batch = llama.llama_batch_get_one((c.c_int32 * tokens)(*map(int, ids[:-1])), tokens)
    llama.llama_decode(context, batch)  # until then there are four threads, whatever the context says
    shape = (c.c_int64(tokens), c.c_int64(tokens), c.c_int64(1), c.c_int64(1))
    data = c.c_void_p(base.ggml_opt_dataset_init(INT32, INT32, *shape))
    for tensor, part in ((base.ggml_opt_dataset_data, ids[:-1]), (base.ggml_opt_dataset_labels, ids[1:])):
        part = np.ascontiguousarray(part)
        c.memmove(base.ggml_get_data(c.c_void_p(tensor(data))), part.ctypes.data, part.nbytes)
    numbers, every = base.ggml_opt_get_default_optimizer_params, ours.llama_opt_param_filter_all
    options = Options(0, c.cast(every, c.c_void_p), None, c.cast(numbers, c.c_void_p), None, 0)
    ours.llama_opt_init.argtypes = [c.c_void_p, c.c_void_p, Options]
    at_context = c.cast(context, c.c_void_p)
    ours.llama_opt_init(at_context, c.cast(model, c.c_void_p), options)
    loss = c.c_double()

    def step() -> float:
        result = c.c_void_p(base.ggml_opt_result_init())
        ours.llama_opt_epoch(at_context, data, result, None, c.c_int64(1), None, None)
        base.ggml_opt_result_loss(result, c.byref(loss), None)
        base.ggml_opt_result_free(result)
        return loss.value

    return step


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) << 10


def main() -> None:
    kind, name, *rest = sys.argv[1:]
    llama.llama_log_set(SILENT, None)
    if kind == "scores":
        if not (plain := Path(rest[1]).with_suffix(".f32.gguf")).exists():
            write_floats(Path(name), plain)
        ids, own = scores(Path(name), rest[0].encode())
        np.savez(rest[1], ids=ids, own=own, floats=scores(plain, rest[0].encode())[1])
        return
    tokens, path = int(rest[0]), Path(rest[1])
    if not path.exists():
        write(path, SHAPES[name])
    step = started(path, -(-tokens // 256) * 256)
    print("ready", flush=True)
    for _ in sys.stdin:
        wall, busy = time.perf_counter(), time.process_time()
        loss = step()
        busy, wall = time.process_time() - busy, time.perf_counter() - wall
        print(1e3 * busy, loss, peak_bytes(), 1e3 * wall, flush=True)


if __name__ == "__main__":
    main()
