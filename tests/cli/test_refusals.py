"""Options that do not go together, or files of another kind: one line that says what to do, and nothing written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from poetc.scheduling import problem_to_json
from tests.cli.conftest import Ended
from tests.support.problems import training_problem

BOARD = "--batch 4 -d stm32f746"
CASES = [
    ("compare MODEL --batch 4 -d stm32f746 --budgets ,", "--budgets is empty: give at least one, such as 60%"),
    ("profile new -o OUT/n.yaml", "--like and --title are needed"),
    ("profile new -o OUT/n.txt --like stm32f746 --title x", "n.txt: a profile's file ends in .yaml"),
    ("profile bench", "-o FILE.csv is needed"),
    ("profile bench --emit OUT/e", "--emit needs --device and takes no -o"),
    ("profile bench -o OUT/x.csv --device host", "--device and --board go with --emit"),
    ("profile fit --cycles --like rpi4 -o OUT/n.txt", "n.txt: a profile's file ends in .yaml"),
    ("profile fit IN/p.json --cycles --like rpi4 -o OUT/n.yaml", "--cycles needs no measurements"),
    (f"train MODEL -o OUT/m.onnx {BOARD} --data IN/a.npy", "1 .npy files; needed are 2: image, target"),
    (f"train MODEL -o OUT/m.onnx {BOARD} --data IN/a.npy --epochs 1", "1 .npy files; needed are 2: image, target"),
    (f"train MODEL -o OUT/m.onnx {BOARD} --data IN --epochs 1 --schedule step", "as in step:every=1000"),
    (f"train MODEL -o OUT/m.onnx {BOARD} --data IN --epochs 1 --augment flip:3", "choose from crop:PIXELS"),
    ("bundle IN/p.json --budgets 60%,50% -o OUT/o", "p.json: a bundle needs a model, not a problem alone"),
    (f"solve MODEL {BOARD} -o OUT/o --solver checkmat", "unknown solver 'checkmat': did you mean 'checkmate'?"),
    (f"compare MODEL {BOARD} --budgets 60% --solvers Kusomoto", "'Kusomoto': did you mean 'kusumoto'?"),
    (f"solve MODEL {BOARD} -o OUT/o --optimizer adem", "'--optimizer': 'adem': did you mean 'adam'?"),
    (f"solve MODEL {BOARD} -o OUT/o --loss cross_entropy", "'--loss': 'cross_entropy': did you mean 'cross-entropy'?"),
    (f"solve MODEL {BOARD} -o OUT/o --loss z", "'--loss': 'z': choose from auto, cross-entropy, "),
    ("emit IN --target cortex-m44f -o OUT/o", "'--target': 'cortex-m44f': did you mean 'cortex-m4f'?"),
    ("emit IN --target z80 -o OUT/o", "'--target': 'z80': choose from c99, "),
    ("check IN/half.lock", "half.lock: not JSON"),
    ("check IN/none.lock", "no such file or directory; poetc lock writes it"),
    ("solve IN/p.json -b 60% -o OUT/o --processors a", "p.json says itself which processors there are"),
    *(
        (f"solve IN/p.json -b 60% -o OUT/o {option} {value}", f"{option}: IN/p.json is a problem, which has no model")
        for option, value in (
            ("--device", "rpi4"),
            ("--batch", "3"),
            ("--infer-batch", "3"),
            ("--loss", "mse"),
            ("--lr", "5"),
            ("--random-weights", "3"),
            ("--train", "best"),
        )
    ),
    ("solve IN/p.json -b 60% -o OUT/o --batch 3 --lr 5", "--batch, --lr: IN/p.json is a problem"),
    ("compare IN/p.json --budgets 60% --solvers keep_all -o OUT/o --loss mse", "--loss: IN/p.json is a problem"),
    ("solve IN/p.json -b 60% -o OUT/o --dma", "p.json says itself how it pages: 'none'"),
    (f"solve MODEL {BOARD} -o OUT/o -b 60% --train best", "--train best needs --importance FILE"),
    (f"solve MODEL {BOARD} -o OUT/o -b 60% --train nothing*", "--train 'nothing*' matches no parameter"),
    (f"solve MODEL {BOARD} -o OUT/o -b 3parsec", "unknown unit 'parsec'; write for example 256MB"),
    (f"solve MODEL {BOARD} -o OUT/o -b 60% --deadline 3parsec", "unknown unit 'parsec'; write for example 2.5s"),
    (f"solve MODEL {BOARD} -o OUT/o -b 60% --shape image", "--shape 'image': write INPUT=N,N,... with whole numbers"),
    (f"solve MODEL {BOARD} -o OUT/o -b 60% --shape image=1,2 --shape image=2,2", "--shape: 'image' has two shapes"),
    (f"solve MODEL {BOARD} -o OUT/o -b 60% --dim n=1,2", "write NAME=N; --shape takes several numbers"),
    (f"solve MODEL {BOARD} -o OUT/o --no-paging --max-written 9kB", "--max-written does nothing with --no-paging"),
    ("sweep MODEL -d stm32f746,rpi5000 -b 60% -o OUT/o.jsonl", "unknown device 'rpi5000'"),
    *(
        (f"analyze MODEL -d rpi4 --largest-batch {option}", f"{option.split()[0]} does nothing with --largest-batch")
        for option in ("--data IN", "--epochs 3", "--battery 3Wh", "--parameters", "--facts")
    ),
    ("solve MODEL --batch 4 -d IN/a.yaml -o OUT/o -b 60%", "a.yaml:3: 'sources' is a section"),
    ("solve MODEL --batch 4 -d IN/b.yaml -o OUT/o -b 60%", "b.yaml:3: source 'a' is a section with 'kind' and 'text'"),
    ("solve MODEL --batch 4 -d IN/c.yaml -o OUT/o -b 60%", "c.yaml:5: the note of 'power.active_w' must be text"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("given")
    (path / "p.json").write_bytes(problem_to_json(training_problem(Random(1), 4)))
    (path / "half.lock").write_text("{")
    np.save(path / "a.npy", np.zeros((8, 1, 8, 8), np.float32))
    note = "sources: {a: {kind: estimated, text: x}}\npower:\n  active_w: {value: 3, source: a, note: 7}\n"
    for name, lines in (("a", "sources: 3\n"), ("b", "sources: {a: 3}\n"), ("c", note)):
        (path / f"{name}.yaml").write_text(f"inherits: stm32f746\ntitle: t\n{lines}")
    return path


@pytest.mark.parametrize(("command", "says"), CASES, ids=[command for command, _ in CASES])
def test_one_line_says_what_to_do(
    poetc: Callable[..., Ended], model: Path, folder: Path, tmp_path: Path, command: str, says: str
) -> None:
    named = {"MODEL": str(model), "IN": str(folder), "OUT": str(tmp_path)}
    words = []
    for word in command.split():
        first, slash, rest = word.partition("/")
        words.append(named.get(first, first) + slash + rest)
    ended = poetc(*words)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1), ended.err
    assert ended.err.startswith("poetc: error: ") and says.replace("IN/", f"{folder}/") in ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_streams_that_there_are_none_of_are_left_out(poetc: Callable[..., Ended], digits: Path, tmp_path: Path) -> None:
    """Nothing is read from the store."""
    limits = ("--budget", "6kB", "--no-paging", "--time-limit", 1)
    ended = poetc("solve", digits, "--batch", 4, "-d", "rpi4", *limits, "-o", tmp_path / "out")
    assert ended.code == 4 and "smallest budget known" in ended.err, ended.err
    assert "streamed" not in ended.err
