"""Makes the problem library: `python -m tests.problems.generate MODELS [real|random]`.

MODELS is a folder with the zoo's ONNX files; light models come with the onnx package. Random problems need neither.
Solving them for best_known.json is `python -m tests.problems.solve`.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import onnx

from poetc.scheduling import (
    InPlace,
    OperatorSpec,
    Paging,
    Problem,
    TensorSpec,
    keep_all_peak_bytes,
    problem_to_json,
)
from poetc.solvers import min_budget
from tests.problems import ARCHIVES

# (model, device, batch, budget: 0 is the smallest that is known to work, 1 is keep-all's peak)
REAL = (
    ("lenet5.dynamo.onnx", "stm32f746", 8, 0.35),
    ("lenet5.dynamo.onnx", "nrf52840", 16, 0.5),
    ("ds_cnn_kws.dynamo.onnx", "stm32h743", 4, 0.4),
    ("ds_cnn_kws.dynamo.onnx", "nrf52840", 8, 0.25),
    ("ds_cnn_kws.train.onnx", "stm32f746", 8, 0.5),
    ("ad_autoencoder.dynamo.graph.onnx", "stm32f746", 32, 0.5),
    ("ad_autoencoder.dynamo.graph.onnx", "mkr1000", 64, 0.3),
    ("tcn_har.dynamo.onnx", "nrf52840", 8, 0.4),
    ("tcn_har.dynamo.onnx", "rpi4", 32, 0.6),
    ("lstm_har.dynamo.onnx", "stm32h743", 4, 0.5),
    ("gru_tagger.dynamo.onnx", "rpi4", 8, 0.5),
    ("proxyless_tiny_64.dynamo.graph.onnx", "stm32h743", 4, 0.4),
    ("mobilenetv2_w035_96.dynamo.graph.onnx", "stm32h743", 1, 0.5),
    ("mobilenetv2_w035_96.train.graph.onnx", "rpi4", 16, 0.3),
    ("mobilenetv2_cifar.train.graph.onnx", "rpi4", 16, 0.4),
    ("mobilenetv3_small_224.dynamo.graph.onnx", "rpi4", 8, 0.4),
    ("resnet18_cifar.dynamo.graph.onnx", "rpi4", 16, 0.5),
    ("resnet18_cifar.train.graph.onnx", "jetson-tx2", 32, 0.3),
    ("resnet18_cifar_slim.dynamo.graph.onnx", "mkr1000", 4, 0.4),
    ("vgg16_cifar.dynamo.graph.onnx", "rpi4", 32, 0.5),
    ("unet_convt_64.dynamo.graph.onnx", "rpi4", 8, 0.4),
    ("unet_bilinear_64.dynamo.graph.onnx", "jetson-tx2", 8, 0.3),
    ("vit_tiny_cifar.dynamo.graph.onnx", "rpi4", 16, 0.4),
    ("nanogpt_tiny.dynamo.onnx", "rpi4", 8, 0.4),
    ("bert_small.dynamo.graph.onnx", "rpi4", 8, 0.5),
    ("squeezenet11_224.dynamo.graph.onnx", "rpi4", 8, 0.4),
    ("light_squeezenet.onnx", "rpi3bplus", None, 0.3),
    ("light_inception_v1.onnx", "rpi4", None, 0.4),
    ("light_vgg19.onnx", "jetson-tx2", None, 0.5),
    ("light_resnet50.onnx", "rpi4", None, 0.3),
)
RANDOM_COUNT = 200


def real(models: Path) -> Iterator[Problem]:
    from poetc.commands.requests import ModelRequest, training_graph
    from poetc.devices import build_problem, load_profile
    from poetc.training import TrainingOptions

    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    for file, device, batch, fraction in REAL:
        source = (light if file.startswith("light_") else models) / file
        options = TrainingOptions(random_weights=0)
        _, step = training_graph(ModelRequest(source=source, batch=batch, device=device, training=options))
        name = f"{file.split('.')[0]}.{'train.' if '.train.' in file else ''}b{batch or 1}.{device}"
        problem = replace(build_problem(step, load_profile(device), budget_bytes=0), name=name)
        yield shortened(tightened(problem, fraction))


def tightened(problem: Problem, fraction: float) -> Problem:
    """With a budget `fraction` of the way from the smallest that is known to work up to keep-all's peak."""
    high = keep_all_peak_bytes(problem)
    low = min_budget(replace(problem, budget_bytes=high), time_limit_s=5.0).smallest_bytes or high
    return replace(problem, budget_bytes=-(-(low + math.ceil((high - low) * fraction)) // 16) * 16)


def shortened(problem: Problem) -> Problem:
    """Names are for people, and the archive is small without the exporter's long paths: t12, Conv.12."""
    tensors = tuple(replace(t, name=f"t{i}") for i, t in enumerate(problem.tensors))
    operators = tuple(replace(o, name=f"{o.kind}.{i}") for i, o in enumerate(problem.operators))
    return replace(problem, tensors=tensors, operators=operators)


def random_problems() -> Iterator[Problem]:
    """DAGs of 10 to 120 operators: half of them a forward graph with its mirror image, every third with a store."""
    for seed in range(RANDOM_COUNT):
        random = Random(seed)
        size = int(10 * 12 ** random.random())
        problem = _training(random, seed, size // 2) if seed % 2 else _dag(random, seed, size)
        yield tightened(problem, random.choice((0.0, 0.15, 0.3, 0.5, 0.7)))


def _tensor(random: Random, name: str, *, initial: bool = False, final: bool = False) -> TensorSpec:
    size = 16 * int(2 ** random.uniform(2, 9))
    page = random.uniform(0.5, 3) * size
    return TensorSpec(
        name=name,
        size_bytes=size,
        initial="ram" if initial else "",
        final="ram" if final else "",
        page_out_ns=int(page),
        page_out_pj=int(page * 40),
        page_in_ns=int(page / 2),
        page_in_pj=int(page * 20),
    )


def _operator(
    random: Random,
    name: str,
    inputs: Iterable[int],
    outputs: tuple[int, ...],
    phase: str = "forward",
    in_place: tuple[InPlace, ...] = (),
) -> OperatorSpec:
    time_ns = int(2 ** random.uniform(4, 13))
    return OperatorSpec(
        name=name,
        phase=phase,
        inputs=tuple(sorted(set(inputs))),
        outputs=outputs,
        time_ns=time_ns,
        energy_pj=int(time_ns * random.uniform(20, 60)),
        in_place=in_place,
    )


def _problem(random: Random, name: str, operators: list[OperatorSpec], tensors: list[TensorSpec]) -> Problem:
    paged = random.random() < 1 / 3
    return Problem(
        name=name,
        operators=tuple(operators),
        tensors=tuple(tensors),
        budget_bytes=0,
        paging=Paging.SYNC if paged else Paging.NONE,
        page_buffer_bytes=512 if paged else 0,
    )


def _near(random: Random, k: int, reach: float) -> int:
    """An index below k, nearer ones likelier."""
    return max(0, k - 1 - int(random.expovariate(1 / reach)))


def _dag(random: Random, seed: int, count: int) -> Problem:
    tensors = [_tensor(random, "x", initial=True)]
    operators: list[OperatorSpec] = []
    reach = random.uniform(1.5, count / 3)
    for k in range(count):
        sources = {_near(random, len(tensors), reach) for _ in range(random.choice((1, 2, 2, 3)))}
        operators.append(_operator(random, f"op{k}", sources, (len(tensors),)))
        tensors.append(_tensor(random, f"t{k}", final=k == count - 1))
    return _problem(random, f"dag{seed}", operators, tensors)


def _training(random: Random, seed: int, layers: int) -> Problem:
    """A forward graph with skips; the gradient of a layer reads what the layer read and the gradients after it."""
    tensors = [_tensor(random, "x", initial=True)]
    operators: list[OperatorSpec] = []
    reads: list[set[int]] = []
    reach = random.uniform(0.5, 4)
    for k in range(layers):
        sources = {k, _near(random, k + 1, reach)} if random.random() < 0.4 else {k}
        reads.append(sources)
        operators.append(_operator(random, f"forward{k}", sources, (len(tensors),)))
        tensors.append(_tensor(random, f"y{k}"))
    loss = len(tensors)
    operators.append(_operator(random, "loss", [layers], (loss,), "loss"))
    tensors.append(replace(_tensor(random, "loss"), size_bytes=16))
    gradients: dict[int, list[int]] = {layers: [loss]}
    for k in reversed(range(layers)):
        incoming = gradients.pop(k + 1)
        g = len(tensors)
        operators.append(_operator(random, f"backward{k}", {*incoming, *reads[k]}, (g,), "backward"))
        tensors.append(_tensor(random, f"g{k}", final=k == 0))
        for source in sorted(reads[k]):
            gradients.setdefault(source, []).append(g)
    return _problem(random, f"training{seed}", operators, tensors)


def write(group: str, problems: Iterable[Problem]) -> None:
    lines = [json.dumps(json.loads(problem_to_json(p)), separators=(",", ":"), sort_keys=True) for p in problems]
    text = "".join(line + "\n" for line in lines)
    ARCHIVES[group].write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{ARCHIVES[group].name}: {len(lines)} problems, {ARCHIVES[group].stat().st_size} bytes")


def main() -> None:
    groups = sys.argv[2:] or ["real", "random"]
    if "random" in groups:
        write("random", random_problems())
    if "real" in groups:
        write("real", real(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
