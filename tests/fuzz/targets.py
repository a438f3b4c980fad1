"""The Python targets: functions of bytes that must end, in little memory, with a value or a PoetcError."""

from __future__ import annotations

import io
import json
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnx.parser

import poetc
from poetc import artifact
from poetc.commands import locking as locks
from poetc.commands.gguf import import_gguf
from poetc.commands.sweep import read_results
from poetc.commands.weights import npz_bytes, read_safetensors, safetensors_bytes
from poetc.datasets import Samples, Settings, Slot, open_source
from poetc.devices import load_profile, profile_to_yaml
from poetc.errors import PoetcError
from poetc.files import read_arrays
from poetc.fleet.frames import Channel, Request, frame
from poetc.graph import DType, Graph
from poetc.loop.checkpoint import read_checkpoint
from poetc.planning.importance import read_importance
from poetc.program import Limit, manifest_of
from poetc.runtime.session import SessionError, read_manifest
from poetc.scheduling import (
    keep_all,
    pack,
    plan_from_json,
    plan_to_json,
    problem_from_json,
    problem_to_json,
    schedule_from_json,
    schedule_to_json,
    verify,
    verify_plan,
)
from tests.program.models import mlp
from tests.support import fuzzing, gguf_files
from tests.support.language import END, TEMPLATE, write_tokenizer
from tests.support.problems import training_problem

CHAT = b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
Seeds = Iterator[tuple[str, bytes]]
SLOTS = (
    Slot(name="x", shape=(2, 3), dtype=DType.F32, is_target=False, sample_shape=(3,)),
    Slot(name="target", shape=(2,), dtype=DType.I32, is_target=True, sample_shape=()),
)


@dataclass(frozen=True, slots=True)
class Target:
    """`run` reads bytes, with a folder to put them in as a file. `seeds` are good inputs by name."""

    run: Callable[[bytes, Path], object]
    seeds: Callable[[], Seeds]
    mutate: Callable[[bytes, Random], bytes] | None = None  # knows the format, beside the mutations of bytes


def check(name: str, data: bytes, folder: Path) -> None:
    """One input of a target: it is read, or refused with an error for users. Any other exception is a defect."""
    with suppress(PoetcError, SessionError):
        TARGETS[name].run(data, folder)


def _as_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    def run(data: bytes, folder: Path) -> object:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return run


# --- models ---


def _onnx_seeds() -> Seeds:
    for number, data in enumerate(fuzzing.seeds()):
        if number % 40 == 0:
            yield f"node_{number}", data


def _distorted(data: bytes, random: Random) -> bytes:
    """A model with one of the distortions of tests/support/fuzzing.py, where `data` still is a model."""
    model = onnx.ModelProto()
    with suppress(Exception):
        model.ParseFromString(data)
        if model.graph.node:
            random.choice(fuzzing.CHANGES)(model.graph, random)
            return bytes(model.SerializeToString())
    return data


# --- problems, schedules, plans ---


@cache
def _problem() -> poetc.scheduling.Problem:
    return training_problem(Random(1), 2)


def _read_problem(data: bytes, folder: Path) -> None:
    """A problem that is read has a schedule that the checker takes, and the same text after a round trip."""
    problem = problem_from_json(data)
    assert problem_from_json(problem_to_json(problem)) == problem
    if len(problem.operators) <= 64 and len(problem.tensors) <= 256:
        verify(problem, keep_all(problem))


def _read_schedule(data: bytes, folder: Path) -> None:
    verify(_problem(), schedule_from_json(data))


def _read_plan(data: bytes, folder: Path) -> None:
    verify_plan(_problem(), keep_all(_problem()), plan_from_json(data))


def _problem_seeds() -> Seeds:
    for seed in range(2):
        yield f"problem_{seed}", problem_to_json(training_problem(Random(seed), 1 + seed))


# --- directories ---


@cache
def _solved() -> dict[str, bytes]:
    """The files of a solved directory, without those that are for readers alone."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> small (float[2, 3] x) => (float[2, 2] y)'
        " <float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[2] b = {1, 2}> { y = Gemm <transB = 1> (x, w, b) }"
    )
    solution = poetc.load(model).solve(device="stm32f746", gap=0.2, time_limit_s=20)
    with TemporaryDirectory() as name:
        folder = Path(name) / "solved"
        solution.save(folder)
        return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name not in artifact.REPORTS}


def _read_directory(data: bytes, folder: Path) -> None:
    """The first byte says which file of a good directory has the other bytes; its checksum is made right."""
    files = dict(_solved())
    names = sorted(files)
    name = names[data[0] % len(names)] if data else names[0]
    files[name] = data[1:]
    if name != artifact.KIND.manifest:
        summary = json.loads(files[artifact.KIND.manifest])
        summary["files"][name] = sha256(files[name]).hexdigest()
        files[artifact.KIND.manifest] = json.dumps(summary).encode()
    place = folder / "damaged"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for each, content in files.items():
        (place / each).write_bytes(content)
    artifact.read(place)


def _directory_seeds() -> Seeds:
    for number, (name, data) in enumerate(sorted(_solved().items())):
        yield name.replace(".", "_"), bytes([number]) + data


# --- data ---


def _read_data(name: str, slots: tuple[Slot, ...] = SLOTS) -> Callable[[bytes, Path], object]:
    def read(path: Path) -> None:
        source = open_source(str(path), slots, lambda text: None)
        if isinstance(source, Samples) and len(source) > 0:
            source.take(np.arange(min(2, len(source))))
            source.digest()

    return _as_file(name, read)


def _arrays() -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    random = np.random.default_rng(0)
    return {"x": random.standard_normal((4, 3)).astype(np.float32), "target": np.array([0, 1, 2, 1], np.int32)}


def _npy_seeds() -> Seeds:
    for name, array in (("order_c", _arrays()["x"]), ("order_fortran", np.asfortranarray(_arrays()["x"]))):
        file = io.BytesIO()
        np.save(file, array)
        yield name, file.getvalue()


def _npz_seeds() -> Seeds:
    yield "stored", npz_bytes(_arrays())
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **_arrays())
    yield "compressed", file.getvalue()


def _json_lines_seeds() -> Seeds:
    yield "line", b'{"x": [1, 2.5, 3], "target": 1}\n{"x": [1, 2.5, 3], "target": 0}\n'
    yield "features", b'{"a": 1, "b": 2, "c": 3, "label": "rose"}\n'


def _read_texts(data: bytes, folder: Path) -> None:
    """JSON lines of texts, with a tokenizer beside them."""
    if not (folder / "tokenizer.json").exists():
        write_tokenizer(folder)
    (folder / "texts.jsonl").write_bytes(data)
    limit = Limit(0, 257, -100)
    slots = tuple(
        Slot(name=n, shape=(1, 64), dtype=DType.I32, is_target=n == "target", sample_shape=(64,), limit=limit)
        for n in ("input_ids", "target")
    )
    settings = Settings(values={"mask_prompt": True, "truncate": True}, model=folder / "model.onnx")
    open_source(str(folder / "texts.jsonl"), slots, lambda text: None, settings=settings)


def _read_tokenizer(data: bytes, folder: Path) -> None:
    """A tokenizer.json beside texts."""
    _beside_texts(folder)
    (folder / "tokenizer.json").write_bytes(data)
    _read_texts(CHAT, folder)


def _read_template(data: bytes, folder: Path) -> None:
    """A chat template in tokenizer_config.json beside chats."""
    _beside_texts(folder)
    config = {"eos_token": END, "chat_template": data.decode(errors="replace")}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    _read_texts(CHAT, folder)


def _beside_texts(folder: Path) -> None:
    if not (folder / "tokenizer_config.json").exists():
        write_tokenizer(folder)


def _tokenizer_seeds() -> Seeds:
    with TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        yield "bytes", (Path(folder) / "tokenizer.json").read_bytes()


def _read_gguf(data: bytes, folder: Path) -> None:
    (folder / "m.gguf").write_bytes(data)
    import_gguf(folder / "m.gguf", folder / "m.onnx", force=True)


def _gguf_seeds() -> Seeds:
    with TemporaryDirectory() as folder:
        for architecture, kind in (("llama", "Q4_0"), ("gemma3", "Q8_0")):
            gguf_files.write(Path(folder) / "m.gguf", architecture, kind)
            yield architecture, (Path(folder) / "m.gguf").read_bytes()


def _in_the_header(data: bytes, random: Random) -> bytes:
    """Other bytes among counts, fields and the list of tensors, which are the first few thousand."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 4)):
        changed[random.randrange(min(len(changed), 6000))] = random.choice((0, 1, 127, 255, random.randrange(256)))
    return bytes(changed)


def _text_seeds() -> Seeds:
    yield "pair", b'{"prompt": "2+2=", "completion": "4"}\n{"prompt": "a", "completion": "bc"}\n'
    yield "chat", CHAT


def _csv_seeds() -> Seeds:
    yield "header", b"a,b,c,label\n1,2,3,cat\n4,5,6,dog\n7,8,9,cat\n"
    yield "quoted", b'a,"b, c",d,target\n1,2,"3.5e-3",0\n-4,5,6,1\n'
    yield "bare", b"1,2,3,0\n4,5,6,1\n"


def _parquet_seeds() -> Seeds:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.table({"a": [1.0, 2.0], "b": [1.0, 2.0], "c": [3.0, 4.0], "target": [0, 1]}), file)
    yield "flat", file.getvalue()
    file = io.BytesIO()
    pq.write_table(pa.table({"x": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "target": [0, 1]}), file)
    yield "lists", file.getvalue()


def _read_image(data: bytes, folder: Path) -> None:
    """A folder of images by class, one of which has these bytes."""
    from PIL import Image

    place = folder / "images"
    for name in ("cat", "dog"):
        (place / name).mkdir(parents=True, exist_ok=True)
        if not (place / name / "good.png").exists():
            Image.new("L", (4, 4), 7).save(place / name / "good.png")
    (place / "cat" / "damaged.png").write_bytes(data)
    slots = (
        Slot(name="x", shape=(2, 1, 4, 4), dtype=DType.F32, is_target=False, sample_shape=(1, 4, 4)),
        SLOTS[1],
    )
    source = open_source(str(place), slots, lambda text: None)
    assert isinstance(source, Samples)
    source.take(np.arange(len(source)))


def _image_seeds() -> Seeds:
    from PIL import Image

    for kind in ("PNG", "BMP", "JPEG", "GIF"):
        file = io.BytesIO()
        Image.new("L", (4, 4), 9).save(file, kind)
        yield kind.lower(), file.getvalue()


# --- other files ---


@cache
def _graph() -> Graph:
    return mlp()


def _importance_seeds() -> Seeds:
    yield (
        "whole",
        (
            b"format: poetc-importance-1\nname: mlp\nby: fisher\nunit: nats\nseed: 0\ncandidates:\n"
            b"- {parameter: fc1.weight, update: whole, importance: 1.5}\n"
            b"- {parameter: fc2.weight, update: whole, importance: 0.5}\n"
        ),
    )


def _profile_seeds() -> Seeds:
    for name in ("rpi4", "stm32f746", "rp2040"):
        yield name, profile_to_yaml(load_profile(name)).encode()
    yield "inherits", b"inherits: stm32f746\ntitle: mine\n"


def _lock_seeds() -> Seeds:
    options = locks.Options(model="model.onnx", device="rpi4")
    hashes = locks.Hashes(model="0" * 64, profile="0" * 64, options=locks.hash_of(options), problem="0" * 64)
    result = locks.Result(
        status="optimal",
        objective=1,
        bound=1,
        schedule_class="x",
        energy_pj=1,
        time_ns=1,
        budget_bytes=1,
        peak_bytes=1,
        arena_bytes=1,
        ram_bytes=1,
        recomputes=0,
        page_outs=0,
        page_ins=0,
    )
    entry = locks.Entry(name="a", options=options, hashes=hashes, result=result, versions={})
    yield "one", locks.dumps(locks.LockFile(version=locks.VERSION, entries=(entry,))).encode()


def _read_frames(data: bytes, folder: Path) -> None:
    """Replies of a board: first some requests get through, then only the bytes are left."""

    class Bytes:
        left = data

        def write(self, data: bytes, timeout_s: float) -> None:
            pass

        def read(self, size: int, timeout_s: float) -> bytes:
            part, self.left = self.left[:64], self.left[64:]
            return part

        def close(self) -> None:
            pass

    channel = Channel(Bytes(), "line", timeout_s=60.0)
    for kind in (Request.HELLO, Request.READ):
        channel.ask(kind, reply_bytes=None)


def _frame_seeds() -> Seeds:
    hello = frame(Request.HELLO + 128, 1, struct.pack("<5I", 1, 2, 128, 64, 4096))
    yield "hello", hello
    yield "read", hello + frame(Request.READ + 128, 2, bytes(16))
    yield "failed", b"noise" + frame(255, 1, struct.pack("<iI", -22, 3))


def _checkpoint_seeds() -> Seeds:
    yield "empty", _sealed(b'{"progress": {"number": 1}, "arrays": []}')
    header = {"group": "state", "name": "w", "type": "<f4", "shape": [2]}
    yield "array", _sealed(json.dumps({"progress": {}, "arrays": [header]}).encode(), bytes(8))


def _sealed(header: bytes, arrays: bytes = b"") -> bytes:
    from poetc.loop.checkpoint import TAG

    body = TAG + struct.pack("<Q", len(header)) + header + arrays
    return body + sha256(body).digest()


def _resealed(data: bytes, random: Random) -> bytes:
    """A few bytes of the body are others, and the digest is that of the new body."""
    body = bytearray(data[8:-32])
    for _ in range(random.randint(1, 4)):
        at = random.randint(0, len(body))
        body[at : at + random.randint(0, 2)] = random.randbytes(random.randint(0, 2))
    return (sealed := data[:8] + bytes(body)) + sha256(sealed).digest()


def _result_seeds() -> Seeds:
    yield "two", b'{"key": "a", "status": "optimal"}\n{"key": "b", "status": "error"}\n'


EARLIER_MANIFEST = Path(__file__).parents[1] / "program" / "golden" / "earlier" / "poetc-emit.json"


def _manifest_seeds() -> Seeds:
    yield "session", b'{"model": "model", "session": {"inputs": []}}'


TARGETS: dict[str, Target] = {
    "onnx": Target(lambda data, folder: fuzzing.examine(data, folder, compare=False), _onnx_seeds, _distorted),
    "problem": Target(_read_problem, _problem_seeds),
    "schedule": Target(_read_schedule, lambda: iter([("keep_all", schedule_to_json(keep_all(_problem())))])),
    "plan": Target(_read_plan, lambda: iter([("packed", plan_to_json(pack(_problem(), keep_all(_problem()))))])),
    "directory": Target(_read_directory, _directory_seeds),
    "profile": Target(_as_file("profile.yaml", load_profile), _profile_seeds),
    "lock": Target(_as_file("poetc.lock", locks.read), _lock_seeds),
    "importance": Target(_as_file("i.yaml", lambda path: read_importance(path, _graph())), _importance_seeds),
    "npy": Target(_read_data("data.npy", SLOTS[:1]), _npy_seeds),
    "npz": Target(_read_data("data.npz"), _npz_seeds),
    "csv": Target(_read_data("data.csv"), _csv_seeds),
    "json-lines": Target(_read_data("data.jsonl"), _json_lines_seeds),
    "texts": Target(_read_texts, _text_seeds),
    "tokenizer": Target(_read_tokenizer, _tokenizer_seeds),
    "template": Target(_read_template, lambda: iter([("chat", TEMPLATE.encode())])),
    "gguf": Target(_read_gguf, _gguf_seeds, _in_the_header),
    "parquet": Target(_read_data("data.parquet"), _parquet_seeds),
    "image": Target(_read_image, _image_seeds),
    "arrays": Target(_as_file("arrays.npz", read_arrays), _npz_seeds),
    "safetensors": Target(
        _as_file("w.safetensors", read_safetensors), lambda: iter([("two", safetensors_bytes(_arrays()))])
    ),
    "frames": Target(_read_frames, _frame_seeds),
    "checkpoint": Target(_as_file("training.ckpt", read_checkpoint), _checkpoint_seeds, _resealed),
    "results": Target(_as_file("sweep.jsonl", read_results), _result_seeds),
    "manifest": Target(_as_file("poetc-emit.json", read_manifest), _manifest_seeds),
    "whole-manifest": Target(
        _as_file("poetc-emit.json", manifest_of), lambda: iter([("earlier", EARLIER_MANIFEST.read_bytes())])
    ),
}
