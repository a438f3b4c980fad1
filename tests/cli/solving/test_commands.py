"""The commands on the model that the project ships."""

from __future__ import annotations

import functools
import inspect
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest

from poetc import api
from poetc.cli import _text
from poetc.commands import emit as emitting
from poetc.commands import requests
from poetc.commands import solve as solving
from poetc.commands.solve import solve
from poetc.emit import Memory
from poetc.errors import LimitError
from poetc.planning import SmallestRam, plain, smallest_ram
from poetc.scheduling import DEFAULT_GAP, Objective, Problem, Schedule, SolveOptions, problem_to_json
from tests.cli.conftest import Ended
from tests.support.problems import training_problem
from tests.support.streamed import dense

Run = Callable[..., Ended]
Solved = tuple[Path, Ended]

SOLVE_KEYS = {"status", "solver", "solve_seconds", "out", "operators", "recomputes", "page_outs", "page_ins"}
SOLVE_KEYS |= {"energy_pj", "energy_bound_pj", "compute_once_pj", "gap", "overhead_gap", "time_ns", "deadline_ns"}
SOLVE_KEYS |= {"store_bytes", "store_written_bytes", "store_life_steps", "store_life_years"}
SOLVE_KEYS |= {
    "state",
    "state_on_store_bytes",
    "budget_bytes",
    "peak_bytes",
    "arena_bytes",
    "keep_all_peak_bytes",
    "min_budget_bytes",
}
VALIDATE_KEYS = {"loss_rel_error", "max_grad_rel_error", "bit_identical_to_keep_all", "tensors"}
VALIDATE_KEYS |= {"peak_predicted_bytes", "peak_measured_bytes"}


@pytest.mark.usefixtures("brief_analyses")
def test_analyze(poetc: Run, digits: Path) -> None:
    answer = poetc("analyze", digits, "--batch", "4", "--device", "stm32f746", "--json").json
    assert answer["supported"] is True
    assert answer["parameters"] == 20090
    # Every weight of a convolution meets every pixel of its output.
    macs = 64 * (9 * 16 + 2 * 9 * 16 * 16) + 16 * (9 * 16 * 32 + 9 * 32 * 32) + 128 * 10
    assert answer["forward_macs"] == 4 * macs
    assert answer["min_budget_bytes"] < answer["keep_all_peak_bytes"]
    text = poetc("analyze", digits, "--batch", "4", "--parameters").out
    assert "20,090" in text
    assert "0.weight" in text
    assert answer["pruned"] is None and "beside training all" not in text
    ended = poetc("analyze", digits, "--batch", "4", "--train", "last:1", "--json").json
    pruned = ended["pruned"]
    assert pruned["macs"] == answer["step_macs"] - ended["step_macs"] > 4 * macs
    assert pruned["saved_bytes"] == answer["saved_bytes"] - ended["saved_bytes"] > 0
    assert any(symbol.startswith("poetc_op_conv_grad") for symbol in pruned["kernels"])
    assert "beside training all" in poetc("analyze", digits, "--batch", "4", "--train", "last:1").out


def test_the_smallest_budget_is_what_was_found(poetc: Run, tmp_path: Path) -> None:
    """Not more than that, in the words of `report`."""
    (path := tmp_path / "p.json").write_bytes(problem_to_json(training_problem(Random(1), 4)))
    solved = poetc("solve", path, "-b", "100%", "-o", tmp_path / "out").out
    labels = [line.split("  ")[0] for line in solved.splitlines()]
    assert "smallest budget found" in labels and "smallest budget" not in labels
    assert "smallest budget found" in poetc("report", tmp_path / "out").out


@pytest.mark.usefixtures("no_ways_to_save")
@pytest.mark.long
def test_a_smallest_budget_as_printed_is_enough(poetc: Run, tmp_path: Path) -> None:
    """In bytes and as a share; with streams, and in the error of one that is too small."""
    model = dense(tmp_path / "dense.onnx")
    options = ("--batch", "4", "--device", "nrf52840")
    analyzed = poetc("analyze", model, *options)
    assert analyzed.code == 0, analyzed.err
    lines = analyzed.out.splitlines()
    found = [re.split(r"  +", line.strip()) for line in lines if re.match(r"smallest budget|  operands streamed", line)]
    assert len(found) == 2, found
    ended = poetc("solve", model, *options, "-b", "2kB", "--time-limit", "4", "-o", tmp_path / "none")
    as_it_is = re.search(r"^as it is +no +(.*)$", ended.err, re.MULTILINE)
    assert as_it_is is not None, ended.err
    budgets = [*(row[1] for row in found), *(row[2].removeprefix("(").split(" of ")[0] for row in found)]
    for budget in [*budgets, as_it_is[1].strip()]:
        limits = ("--time-limit", "4", "--gap", "0.99")  # any schedule does
        solved = poetc("solve", model, *options, "-b", budget, *limits, "-o", tmp_path / "o", "--force")
        assert solved.code == 0, (budget, solved.err)


def test_help_names_every_exit_code(poetc: Run) -> None:
    text = poetc("--help").out
    assert all(f"{code} " in text for code in (0, 1, 2, 3, 4, 5, 70, 130, 143))


def test_the_least_ram_that_a_deadline_leaves(poetc: Run, tmp_path: Path) -> None:
    problem = tmp_path / "p.json"
    problem.write_bytes(problem_to_json(training_problem(Random(1), 4)))

    def least(*deadline: str) -> dict[str, Any]:
        ended = poetc("solve", problem, "--budget", "least", *deadline, "-o", tmp_path / "out", "--json")
        assert ended.code == 0, ended.err
        assert ended.json["ram_bytes"] <= ended.json["budget_bytes"] == ended.json["min_budget_bytes"]
        return ended.json

    at_once, soon, ever = least("--deadline", "1x"), least("--deadline", "1.2x"), least()
    assert at_once["recomputes"] == 0
    assert soon["time_ns"] <= soon["deadline_ns"] < ever["time_ns"]
    assert ever["budget_bytes"] < soon["budget_bytes"] < at_once["budget_bytes"]
    late = poetc("solve", problem, "--budget", "least", "--deadline", "0.9x", "-o", tmp_path / "late")
    assert late.code == 4
    assert late.err.count("\n") == 1 and "not even keep-all obeys the deadline" in late.err


def test_the_least_ram_is_searched_once_and_always_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was found with is the answer where a solve for it finds nothing."""
    path, searches = tmp_path / "p.json", list[SmallestRam]()
    path.write_bytes(problem_to_json(training_problem(Random(1), 4)))
    find = smallest_ram.find_smallest_ram

    def counted(problem: Problem, time_limit_s: float, *work: float) -> SmallestRam:
        searches.append(find(problem, time_limit_s))
        return searches[-1]

    def nothing(*arguments: object) -> Schedule:
        raise LimitError("found no schedule")

    monkeypatch.setattr(smallest_ram, "find_smallest_ram", counted)
    monkeypatch.setattr("poetc.solvers.solve", nothing)
    request = requests.SolveRequest(
        model=requests.ModelRequest(source=path), budget=requests.LEAST, options=SolveOptions(time_limit_s=2)
    )
    found = solve(request)
    assert len(searches) == 1 and found.plan == searches[0].plan
    assert found.summary["status"] == "limit"
    assert found.summary["ram_bytes"] == found.summary["budget_bytes"] == searches[0].ram_bytes
    assert found.summary["energy_pj"] >= found.summary["energy_bound_pj"] == found.problem.compute_once_pj
    # With state placed, or none found to pack, too; but others' methods answer for themselves.
    monkeypatch.setattr(plain, "solve_and_pack", nothing)
    assert solve(request).plan == searches[0].plan
    with pytest.raises(LimitError, match="found no schedule"):
        solve(replace(request, solver="dtr"))


def test_solve_answers_with_every_key(solved: Solved) -> None:
    out, ended = solved
    answer = ended.json
    assert answer.keys() >= SOLVE_KEYS
    assert answer["status"] in ("optimal", "feasible", "limit")
    assert answer["out"] == str(out)
    assert answer["peak_bytes"] <= answer["budget_bytes"] < answer["keep_all_peak_bytes"]
    assert answer["min_budget_bytes"] <= answer["budget_bytes"]
    assert answer["compute_once_pj"] <= answer["energy_bound_pj"] <= answer["energy_pj"]
    assert answer["recomputes"] + answer["page_ins"] > 0
    assert all(line.startswith("poetc: note: ") for line in ended.err.splitlines())


def test_streamed_outputs_wear_the_store_too(poetc: Run, digits: Path, tmp_path: Path) -> None:
    """No page is written, and yet the card is."""
    limits = ("--batch", "2", "--device", "stm32f746", "--budget", "24kB", "--time-limit", "2")
    streamed = poetc("solve", digits, *limits, "-o", tmp_path / "streamed", "--json").json
    assert streamed["store_written_bytes"] > 0
    assert streamed["store_life_steps"] == 1000 * 4_000_000_000 // streamed["store_written_bytes"]


@pytest.mark.long
def test_what_is_written_to_the_store_is_said_and_limited(poetc: Run, digits: Path, tmp_path: Path) -> None:
    """A card on the board, and a budget at which paging pays."""
    limits = ("--batch", "4", "--device", "stm32f746", "--budget", "65%", "--gap", "0.1", "--time-limit", "10")
    free = poetc("solve", digits, *limits, "-o", tmp_path / "free", "--json").json
    assert free["store_written_bytes"] >= free["page_outs"] * 512 > 0
    assert free["store_life_steps"] == 1000 * 4_000_000_000 // free["store_written_bytes"]
    report = (tmp_path / "free" / "report.txt").read_text()
    assert f"worn out after {free['store_life_steps']:,} steps" in " ".join(report.split())
    allowed = free["store_written_bytes"] // 2
    ended = poetc("solve", digits, *limits, "--max-written", allowed, "-o", tmp_path / "limited", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["store_written_bytes"] <= allowed == ended.json["store_write_limit_bytes"]
    ran = poetc("run", tmp_path / "limited", "--on", "host", "--steps", "1", "--json").json
    assert ran["store_written_bytes"] == ended.json["store_written_bytes"]


def test_micro_batches_are_chosen_and_run(poetc: Run, model: Path, tmp_path: Path) -> None:
    limits = ("--batch", "8", "--batch-norm", "frozen", "--device", "stm32f746", "--gap", "0.2", "--time-limit", "60")
    auto = poetc("solve", model, *limits, "-b", "70%", "--micro-batches", "auto", "-o", tmp_path / "auto", "--json")
    assert auto.code == 0, auto.err
    assert auto.json["micro_batches"] > 1, auto.json["notes"]
    assert any(note.startswith("micro-batches tried: 1:") for note in auto.json["notes"])
    assert poetc("validate", tmp_path / "auto").code == 0
    refused = poetc("solve", model, *limits, "--micro-batches", "3")
    assert refused.code == 2
    assert "does not divide the batch of 8; choose from 1, 2, 4, 8" in refused.err


def test_by_default_a_search_stops_at_a_proven_tenth_of_a_per_cent(poetc: Run, tmp_path: Path) -> None:
    """The command line, the Python interface and lock files alike; `--gap 0` proves to the end."""
    (path := tmp_path / "p.json").write_bytes(problem_to_json(training_problem(Random(1), 4)))
    assert inspect.signature(api.Model.solve).parameters["gap"].default == DEFAULT_GAP == 0.001
    for more, asked in (((), 0.001), (("--gap", 0), 0.0)):
        assert poetc("solve", path, "-b", "100%", "-o", tmp_path / "out", *more, "--json").json["asked_gap"] == asked
        locked = poetc("lock", path, "-b", "100%", "-o", tmp_path / "poetc.lock", *more, "--json").json
        assert locked["options"]["gap"] == asked


def test_solve_says_it_in_words_too(poetc: Run, model: Path, tmp_path: Path) -> None:
    ended = poetc("solve", model, "--batch", "2", "--budget", "100%", "-v", "-o", tmp_path / "out")
    assert ended.code == 0
    assert "status" in ended.out
    assert "optimal" in ended.out
    assert "poetc: reading the model\n" in ended.err


def test_the_written_problem_can_be_solved_again(poetc: Run, solved: Solved, tmp_path: Path) -> None:
    out, ended = solved
    again = poetc("solve", out / "problem.json", "--gap", "0.05", "-o", tmp_path / "again", "--json")
    assert again.code == 0
    # From there without the order in which state was placed: not the same schedule, but as near the bound.
    assert again.json["gap"] <= 0.05
    for one, other in ((again, ended), (ended, again)):
        if other.json["scope"]["order"] != "own":  # a bound of one order says nothing of schedules in another
            assert one.json["energy_pj"] >= (1 - other.json["gap"]) * other.json["energy_pj"]
    twice = poetc("solve", out / "problem.json", "--gap", "0.05", "-o", tmp_path / "twice", "--json")
    assert twice.json["energy_pj"] == again.json["energy_pj"]
    ended = poetc("emit", tmp_path / "again", "-o", tmp_path / "src")
    assert ended.code == 2
    assert "no model" in ended.err


def test_the_schedule_of_another_model_stays(poetc: Run, model: Path, tmp_path: Path) -> None:
    """The same file, or a copy of it, may be solved again; another one needs --force."""
    copy, other = tmp_path / "copy.onnx", tmp_path / "other.onnx"
    shutil.copy(model, copy)
    onnx.save(onnx.helper.make_model(onnx.load(model).graph, producer_name="another"), other)
    options = ("--batch", 2, "--time-limit", 1, "-q", "-o", out := tmp_path / "out")
    assert [poetc("solve", source, *options).code for source in (model, model, copy)] == [0, 0, 0]
    for command in (("solve", other), ("bundle", other, "--budgets", "60%,80%")):
        before = (out / "summary.json").read_bytes()
        ended = poetc(*command, *options)
        said = f"poetc: error: {out}: holds the schedule of {copy}, not of {other}; choose another directory with -o"
        assert (ended.code, ended.out) == (2, "") and ended.err.startswith(said) and ended.err.count("\n") == 1
        assert (out / "summary.json").read_bytes() == before
    assert poetc("solve", other, *options, "--force").code == 0
    onnx.save(onnx.helper.make_model(onnx.load(model).graph, producer_name="trained"), other)
    assert poetc("solve", other, *options).code == 0  # the same file with other content


def test_a_problem_brings_its_own_objective(poetc: Run, tmp_path: Path) -> None:
    problem = tmp_path / "quick.json"
    problem.write_bytes(problem_to_json(replace(training_problem(Random(1), 2), objective=Objective.TIME)))
    own = poetc("solve", problem, "-o", tmp_path / "own", "--json")
    assert (own.code, own.json["objective"]) == (0, "time")
    other = poetc("solve", problem, "--objective", "energy", "-o", tmp_path / "other", "--json")
    assert (other.code, other.json["objective"]) == (0, "energy")
    compared = poetc("compare", problem, "--budgets", "100%", "--solvers", "poetc", "-o", tmp_path / "c", "--json")
    assert (compared.code, compared.json["objective"]) == (0, "time")
    lock = tmp_path / "poetc.lock"
    assert poetc("lock", problem, "-o", lock).code == 0
    assert json.loads(lock.read_text())["entries"][0]["options"]["objective"] == "time"
    assert poetc("check", lock).code == 0


def test_validate(poetc: Run, solved: Solved) -> None:
    ended = poetc("validate", solved[0], "--json")
    answer = ended.json
    assert ended.code == 0
    assert answer.keys() >= VALIDATE_KEYS
    assert answer["bit_identical_to_keep_all"] is True
    assert answer["peak_measured_bytes"] == answer["peak_predicted_bytes"] <= solved[1].json["budget_bytes"]
    assert answer["page_ins"] > 0 or solved[1].json["page_ins"] == 0


def test_validate_fails_in_one_object(poetc: Run, solved: Solved, tmp_path: Path) -> None:
    inputs = {"in.image": np.zeros((4, 1, 8, 8), np.float32), "target": np.zeros(4, np.int64)}
    np.savez(tmp_path / "wrong.npz", **inputs, loss=np.float64(1234))
    ended = poetc("validate", solved[0], "--reference", tmp_path / "wrong.npz", "--json")
    assert ended.code == 1
    assert ended.json["passed"] is False
    assert ended.json["loss_rel_error"] > 0.9
    assert "loss differs" in ended.json["error"]
    ended = poetc("validate", solved[0], "--reference", tmp_path / "wrong.npz")
    assert ended.code == 1
    assert "loss, relative error" in ended.out
    assert ended.err.startswith("poetc: error: loss differs")
    np.savez(tmp_path / "other.npz", **{**inputs, "in.image": np.zeros((4, 3), np.float32)}, loss=np.float64(1))
    ended = poetc("validate", solved[0], "--reference", tmp_path / "other.npz")
    assert ended.code == 2
    assert ended.err.startswith(f"poetc: error: --reference {tmp_path / 'other.npz'} gives 'in.image' in shape (4, 3)")


def test_the_least_budget_and_the_smallest_one_are_one_number(solved: Solved) -> None:
    """Rounded up both: 13,101 bytes as 13.10 kB would be a budget that does not work."""
    same = dict.fromkeys(("budget_bytes", "peak_bytes", "min_budget_bytes"), 13_101)
    rows = _text.solve_text({**solved[1].json, **same}).splitlines()
    shown = [row for row in rows if row.startswith(("budget ", "peak ", "smallest budget found "))]
    assert len(shown) == 3 and all("13.11 kB" in row for row in shown)


def test_a_peak_below_the_budget_does_not_seem_to_exceed_it(solved: Solved) -> None:
    sizes = {"budget_bytes": 51_444_100} | dict.fromkeys(("peak_bytes", "ram_bytes", "min_budget_bytes"), 51_443_952)
    rows = _text.solve_text({**solved[1].json, **sizes}).splitlines()
    shown = [row.split()[-5 if "(" in row else -2] for row in rows if row.startswith(("budget ", "peak "))]
    assert len(shown) == 2 and shown[0] == shown[1], shown


@pytest.mark.parametrize(
    ("processors", "said"),
    [
        ("auto", "any of 3 ways of using main, core1, core2 and core3"),
        ("core1", "any of 3 ways of using main and core1"),
    ],
)
def test_a_bound_names_the_cores_in_whose_ways_it_holds(poetc: Run, digits: Path, processors: str, said: str) -> None:
    asked = ("solve", digits, "--batch", "4", "--device", "rpi4", "--gap", "0.2", "--processors")
    assert poetc(*asked, processors, "--json").json["schedule_class"].endswith(f"; {said}")
    alone = poetc(*asked, "main", "--json").json
    assert "ways" not in alone["schedule_class"] and alone["core_ways"] is None


def test_a_smallest_budget_that_was_not_searched_is_no_finding(
    poetc: Run, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = "no time was left to look for the smallest budget"
    monkeypatch.setattr(solving, "smallest_budget_known", lambda *_: (None, late))
    out = tmp_path / "solved"
    ended = poetc("solve", digits, "--batch", "4", "--device", "stm32f746", "--budget", "80%", "--no-paging", "-o", out)
    assert re.search("^smallest budget found +not searched for lack of time$", ended.out, re.MULTILINE), ended.out
    assert late in ended.err
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["min_budget_bytes"] == summary["ram_bytes"] and not summary["min_budget_searched"]
    assert "smallest budget found" not in (out / "report.txt").read_text(encoding="utf-8")


def test_emit_names_a_stack_that_kernels_may_need_more_of(
    poetc: Run, solved: Solved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = ("--target", "cortex-m4f", "--board", "mps2-an386", "-o")
    assert "of stack aside" not in poetc("emit", solved[0], *to, tmp_path / "usual").err
    usual = emitting.memory_of
    monkeypatch.setattr(emitting, "memory_of", lambda one: Memory(usual(one).budget_bytes, 512))
    ended = poetc("emit", solved[0], *to, tmp_path / "small")
    assert ended.code == 0 and "sets 512 bytes of stack aside, kernels may need 1,536" in ended.err


def test_an_option_of_a_step_that_is_solved_has_a_way_out(poetc: Run, solved: Solved, tmp_path: Path) -> None:
    data = ("--data", "no.npz", "--epochs", "1", "-o", tmp_path / "t.onnx")
    ended = poetc("train", solved[0], *data, "--lr", "0.1")
    assert ended.code == 2
    assert ended.err.endswith("leave it out, solve again with it, or train the ONNX file\n")


def test_emit_builds_with_one_make(poetc: Run, solved: Solved, tmp_path: Path) -> None:
    answer = poetc("emit", solved[0], "--target", "host", "-o", tmp_path / "src", "--json").json
    assert answer["programs"] == ["train", "infer", "evaluate"]
    command = ["make", "-s", "-C", tmp_path / "src", "CFLAGS=-O1 -Werror"]
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "src" / "train").exists()
    assert "DIGITS_TRAIN_ARENA_BYTES" in (tmp_path / "src" / "model.h").read_text()


@pytest.mark.usefixtures("brief_analyses")
def test_emit_says_that_weights_were_absent(poetc: Run, model: Path, tmp_path: Path) -> None:
    """The file of external data was left behind: the schedule does not care, but who trains the program does."""
    proto = onnx.load(model)
    weight = next(t for t in proto.graph.initializer if t.name == "layer0.weight")
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="model.onnx.data")
    onnx.save(proto, tmp_path / "model.onnx")
    out, options = tmp_path / "solved", (tmp_path / "model.onnx", "--batch", "1", "-d", "rpi4")
    note = "1 weight is external data whose file is absent"
    refused = poetc("solve", *options, "-b", "100%", "-o", out)
    assert refused.code == 2
    assert refused.err.startswith("poetc: error: ")
    assert f"{note} ('model.onnx.data')" in refused.err
    assert "pass --random-weights SEED" in refused.err
    assert not out.exists()
    assert f"{note}: seeded numbers instead" in poetc("analyze", *options).err
    assert poetc("solve", *options, "--random-weights", "0", "-b", "100%", "--gap", "0.9", "-o", out).code == 0
    ended = poetc("emit", out, "--target", "host", "-o", tmp_path / "src")
    assert ended.code == 0, ended.err
    assert f"{note}: seeded numbers instead" in ended.err


def test_report(poetc: Run, solved: Solved, tmp_path: Path) -> None:
    ended = poetc("report", solved[0], "--html", tmp_path / "page.html")
    assert ended.code == 0
    assert str(tmp_path / "page.html") in ended.out
    assert (tmp_path / "page.html").read_text().startswith("<!")
    assert poetc("report", solved[0], "--json").json["energy_pj"] == solved[1].json["energy_pj"]


def test_the_same_input_gives_the_same_files(
    poetc: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the clock ends no search, counted work does: a machine that is ten times as slow writes the same files."""
    monkeypatch.setattr("poetc.scheduling.schedule.SolveOptions", functools.partial(SolveOptions, work_limit_s=3.0))
    limits = ("--device", "stm32f746", "--budget", "80%", "--gap", "0.1", "--time-limit", "3600")
    clock = time.monotonic
    for name, factor in (("once", 1), ("again", 10)):
        monkeypatch.setattr(time, "monotonic", lambda factor=factor: factor * clock())
        assert poetc("solve", model, "--batch", "2", *limits, "-o", tmp_path / name).code == 0
    for name in ("problem.json", "schedule.json", "plan.json", "graph.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "once" / name).read_bytes(), name


@pytest.mark.usefixtures("no_ways_to_save")
@pytest.mark.long
def test_profile_show_can_be_used_as_a_profile(poetc: Run, model: Path, tmp_path: Path) -> None:
    profile = tmp_path / "my-board.yaml"
    profile.write_text(poetc("profile", "show", "stm32f746").out)
    first = poetc("analyze", model, "--batch", "2", "--device", "stm32f746", "--json").json
    second = poetc("analyze", model, "--batch", "2", "--device", profile, "--json").json
    assert first["supported"] and first["estimate"]["budgets"]
    same = {"device": "", "estimate": None}  # the estimate names the device too, and searches by the clock
    assert {**first, **same} == {**second, **same}


def test_every_json_answer_is_one_object(poetc: Run, solved: Solved) -> None:
    for arguments in (("solvers",), ("profile", "list"), ("profile", "show", "rpi4"), ("report", solved[0])):
        assert isinstance(json.loads(poetc(*arguments, "--json").out), dict)


@pytest.mark.long
def test_transfers_overlap_compute_where_the_store_can(poetc: Run, digits: Path, tmp_path: Path) -> None:
    limits = ("--batch", "4", "--budget", "65%", "--gap", "0.1", "--time-limit", "10")
    document = poetc("solve", digits, *limits, "-d", "stm32f746", "--dma", "-o", tmp_path / "dma", "--json").json
    assert '"paging":"dma"' in (tmp_path / "dma" / "problem.json").read_text()
    assert 0 <= document["stall_ns"] < document["time_ns"]
    assert poetc("validate", tmp_path / "dma").code == 0
    refused = poetc("solve", digits, *limits, "-d", "nrf52840", "--dma")
    assert refused.code == 2
    assert "cannot transfer while the processor computes" in refused.err
    assert "exclude each other" in poetc("solve", digits, *limits, "-d", "stm32f746", "--dma", "--no-paging").err
    fastest = poetc("solve", digits, *limits, "-d", "stm32f746", "--dma", "--objective", "time", "--json").json
    assert fastest["objective"] == "time"
    assert (1 - fastest["gap"]) * fastest["time_ns"] <= document["time_ns"] + 1, "no schedule is below the bound"


@pytest.mark.parametrize("budget", ["100%", "50%"])
def test_per_cent_of_keep_all_are_those_of_the_budget(poetc: Run, digits: Path, budget: str) -> None:
    """Whether or not saved tensors get encodings, whose step has another keep-all."""
    asked = ("--batch", 16, "--device", "stm32f746", "--budget", budget, "--saved", "int8", "--no-paging", "--gap", 0.9)
    document = poetc("solve", digits, *asked, "--time-limit", 4, "--json").json
    assert document["keep_all_peak_bytes"] == 676_176
    assert document["budget_bytes"] == 676_176 * int(budget[:-1]) // 100
