"""Documents: byte-identical round trips, one-line errors with the file and the place, semantic validation."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poetc.errors import UsageError
from poetc.scheduling import (
    Completer,
    Compute,
    Move,
    Proof,
    Schedule,
    Scope,
    Status,
    Variant,
    keep_all,
    pack,
    plan_from_json,
    plan_to_json,
    problem_from_json,
    problem_schema,
    problem_to_json,
    schedule_from_json,
    schedule_to_json,
    validate_problem,
    verify_plan,
)
from tests.support.problems import random_dag, random_decisions, training_problem


@given(st.randoms(use_true_random=False))
def test_round_trips(random: Random) -> None:
    make = random.choice((random_dag, training_problem))
    problem = make(random, random.randint(1, 4), paging=random.random() < 0.5)
    validate_problem(problem)
    text = problem_to_json(problem)
    assert problem_from_json(text) == problem
    assert problem_to_json(problem_from_json(text)) == text
    completion = Completer(problem).run(random_decisions(random, problem, 4))
    proof = Proof(status=Status.LIMIT, objective=completion.energy_pj, bound=1, scope=Scope(), method="none")
    schedule = Schedule(solver="test", actions=completion.actions, proof=proof, log=("one", 'two "quoted" \n'))
    text = schedule_to_json(schedule)
    assert schedule_from_json(text) == schedule
    assert schedule_to_json(schedule_from_json(text)) == text
    plan = pack(problem, schedule)
    text = plan_to_json(plan)
    assert plan_from_json(text) == plan
    assert plan_to_json(plan_from_json(text)) == text


def test_defaults_may_be_left_out_and_the_order_of_keys_is_free() -> None:
    text = """{"tensors": [{"size_bytes": 16, "name": "y"}], "budget_bytes": 100, "name": "least",
      "operators": [{"energy_pj": 5, "name": "f", "inputs": [], "outputs": [0], "time_ns": 3}]}"""
    problem = problem_from_json(text)
    assert problem.compute_once_pj == 5
    assert keep_all(problem).proof.objective == 5
    assert problem_to_json(problem).count(b"\n") > 10


def test_canonical_text(golden: Callable[[str, str], None]) -> None:
    problem = training_problem(Random(0), 1, paging=True)
    schedule = keep_all(problem)
    golden("problem.json", problem_to_json(problem).decode())
    golden("schedule.json", schedule_to_json(schedule).decode())
    golden("plan.json", plan_to_json(pack(problem, schedule)).decode())
    golden("problem.schema.json", json.dumps(problem_schema(), indent=1, sort_keys=True) + "\n")


def document() -> dict[str, Any]:
    """w is updated in place by the second of two operators."""
    return {
        "name": "p",
        "budget_bytes": 1000,
        "paging": "sync",
        "tensors": [
            {"name": "x", "size_bytes": 16, "initial": "ram"},
            {"name": "w", "size_bytes": 16, "initial": "ram"},
            {"name": "y", "size_bytes": 32},
            {"name": "w@1", "size_bytes": 16, "final": "ram"},
        ],
        "operators": [
            {"name": "f", "inputs": [0, 1], "outputs": [2], "time_ns": 1, "energy_pj": 1},
            {
                "name": "u",
                "inputs": [1, 2],
                "outputs": [3],
                "time_ns": 1,
                "energy_pj": 1,
                "recomputable": False,
                "in_place": [{"input": 1, "output": 3, "required": True}],
            },
        ],
    }


def test_the_document_of_these_tests_is_valid() -> None:
    problem_from_json(json.dumps(document()))


def variant(workspace_bytes: int, time_ns: int = 1, energy_pj: int = 1) -> dict[str, int]:
    return {"workspace_bytes": workspace_bytes, "time_ns": time_ns, "energy_pj": energy_pj}


def test_variants_of_an_operator_come_back() -> None:
    """And are absent from what is written where there are none, as in files of before."""
    plain = problem_from_json(json.dumps(document()))
    assert b"low_workspace" not in problem_to_json(plain)
    with_variants = document()
    with_variants["operators"][0].update(workspace_bytes=64, low_workspace=[variant(32), variant(0, 5, 9)])
    problem = problem_from_json(json.dumps(with_variants))
    assert problem.operators[0].low_workspace == (
        Variant(workspace_bytes=32, time_ns=1, energy_pj=1),
        Variant(workspace_bytes=0, time_ns=5, energy_pj=9),
    )
    text = problem_to_json(problem)
    assert text.count(b"low_workspace") == 1 and problem_from_json(text) == problem


def test_variants_under_their_name_of_version_0_1_are_read() -> None:
    old, new = document(), document()
    old["operators"][0].update(workspace_bytes=64, leaner=[variant(32)])
    new["operators"][0].update(workspace_bytes=64, low_workspace=[variant(32)])
    assert problem_from_json(json.dumps(old)) == problem_from_json(json.dumps(new))
    new["operators"][0].update(leaner=[variant(32)])
    with pytest.raises(UsageError, match="unknown field `leaner`"):
        problem_from_json(json.dumps(new))


def test_names_of_kernels_come_back() -> None:
    with_names = document()
    named = [{**variant(32), "kernel": "f#1"}, {**variant(0, 5, 9), "kernel": "f#2"}]
    with_names["operators"][0].update(workspace_bytes=64, low_workspace=named, kernel="f")
    problem = problem_from_json(json.dumps(with_names))
    first, *others = problem.operators
    assert [first.kernel, *(v.kernel for v in first.low_workspace)] == ["f", "f#1", "f#2"]
    assert not any(op.kernel for op in others)
    text = problem_to_json(problem)
    assert text.count(b'"kernel"') == 3 and problem_from_json(text) == problem


Edit = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    "edit, message",
    [
        (lambda d: d.pop("name"), r"p.json: \$: .*missing required field `name`"),
        (lambda d: d["tensors"][0].pop("size_bytes"), r"p.json: \$.tensors\[0\]: .*`size_bytes`"),
        (lambda d: d["tensors"][1].update(size_bytes="16"), r"\$.tensors\[1\].size_bytes: expected `int`, got `str`"),
        (lambda d: d["tensors"][1].update(size_bytes=1.5), r"\$.tensors\[1\].size_bytes: expected `int`, got `float`"),
        (lambda d: d["tensors"][1].update(initial="rom"), r"\$.tensors\[1\].initial: Invalid enum value 'rom'"),
        (lambda d: d["operators"][0].update(workspace=1), r"\$.operators\[0\]: .*unknown field `workspace`"),
        (lambda d: d["operators"][1]["in_place"][0].update(must=1), r"\$.operators\[1\].in_place\[0\]: .*`must`"),
        (lambda d: d.update(format="poetc-problem-9"), r"\$.format: expected 'poetc-problem-1', got 'poetc-problem-9'"),
        (lambda d: d["tensors"][2].update(store_bytes=31), r"\$.tensors\[2\].store_bytes: 31 is less than .* 32"),
        (lambda d: d["tensors"][2].update(store_bytes=2**49), r"\$.tensors\[2\].store_bytes: .* is beyond"),
        (lambda d: d.update(operators=[]), r"\$.operators: there must be at least one"),
        (lambda d: d.update(alignment_bytes=0), r"\$.alignment_bytes: must be at least 1"),
        (lambda d: d.update(budget_bytes=-1), r"\$.budget_bytes: -1 is negative"),
        (lambda d: d["operators"][0].update(time_ns=-5), r"\$.operators\[0\].time_ns: -5 is negative"),
        (lambda d: d["tensors"][0].update(size_bytes=2**60), r"\$.tensors\[0\].size_bytes: .* is beyond"),
        (lambda d: d["tensors"][0].update(size_bytes=17), r"\$.tensors\[0\].size_bytes: 17 is not a multiple of"),
        (lambda d: d["tensors"][0].update(name=""), r"\$.tensors\[0\].name: is empty"),
        (lambda d: d["tensors"][2].update(name="x"), r"\$.tensors\[2\].name: 'x' is the name of \$.tensors\[0\]"),
        (lambda d: d["operators"][1].update(name="f"), r"\$.operators\[1\].name: 'f' is the name of \$.operators\[0\]"),
        (lambda d: d["operators"][0]["inputs"].append(9), r"\$.operators\[0\].inputs\[2\]: tensor 9, there are 4"),
        (lambda d: d["operators"][0]["outputs"].append(-1), r"\$.operators\[0\].outputs\[1\]: tensor -1, there are 4"),
        (lambda d: d["operators"].reverse(), r"\$.operators\[0\].inputs\[1\]: 'y' is read before it is made"),
        (lambda d: d["operators"][0]["outputs"].append(0), r"outputs\[1\]: 'x' is made by an operator but also there"),
        (lambda d: d["operators"][1]["outputs"].append(2), r"operators\[1\].outputs\[1\]: 'y' is made by 'f' already"),
        (lambda d: d["tensors"].append({"name": "z", "size_bytes": 0}), r"\$.tensors\[4\]: 'z' has no `initial` place"),
        (
            lambda d: d["tensors"][1].update(final="ram"),
            r"\$.tensors\[1\].final: 'w' must be in RAM at the end, but 'u'",
        ),
        (
            lambda d: d["operators"].append(
                {"name": "late", "inputs": [1], "outputs": [], "time_ns": 1, "energy_pj": 1}
            ),
            r"\$.operators\[2\].inputs\[0\]: 'w' is read after 'u' updated it in place",
        ),
        (lambda d: d["operators"][1]["in_place"][0].update(input=0), r"in_place\[0\].input: tensor 0 is not an input"),
        (lambda d: d["operators"][1]["in_place"][0].update(output=2), r"in_place\[0\].output: tensor 2 is not an out"),
        (lambda d: d["tensors"][3].update(size_bytes=32), r"in_place\[0\]: .* 32 bytes, it must have exactly .* 16"),
        (lambda d: d["tensors"][1].update(size_bytes=32), r"in_place\[0\]: .* 16 bytes, it must have exactly .* 32"),
        (
            lambda d: d["operators"][0].update(in_place=[{"input": 0, "output": 2}]),
            r"\$.operators\[0\].in_place\[0\]: the output has 32 bytes, it must have at most the input's 16",
        ),
        (
            lambda d: d["operators"][1]["in_place"].append({"input": 1, "output": 3, "required": True}),
            r"\$.operators\[1\].in_place: a tensor is in two required pairs",
        ),
        (
            lambda d: d.update(paging="none") or d["tensors"][0].update(initial="store"),
            r"\$.tensors\[0\]: 'x' is placed on the store, but paging is 'none'",
        ),
        (
            lambda d: d["operators"][0].update(low_workspace=[variant(0)]),
            r"\$.operators\[0\].low_workspace\[0\].workspace_bytes: 0 is no less than 0, of the one before",
        ),
        (
            lambda d: d["operators"][0].update(workspace_bytes=64, low_workspace=[variant(32), variant(48)]),
            r"\$.operators\[0\].low_workspace\[1\].workspace_bytes: 48 is no less than 32, of the one before",
        ),
        (
            lambda d: d["operators"][0].update(workspace_bytes=64, low_workspace=[variant(32, time_ns=2), variant(16)]),
            r"\$.operators\[0\].low_workspace\[1\].time_ns: less than of the one before: the fastest is first",
        ),
        (
            lambda d: d["operators"][0].update(workspace_bytes=64, low_workspace=[variant(32, energy_pj=0)]),
            r"\$.operators\[0\].low_workspace\[0\].energy_pj: less than of the one before",
        ),
        (
            lambda d: d["operators"][0].update(workspace_bytes=64, low_workspace=[variant(-1)]),
            r"\$.operators\[0\].low_workspace\[0\].workspace_bytes: -1 is negative",
        ),
        (
            lambda d: d["operators"][0].update(workspace_bytes=64, low_workspace=[{**variant(0), "bytes": 0}]),
            r"\$.operators\[0\].low_workspace\[0\]: .*unknown field `bytes`",
        ),
        (
            lambda d: d["operators"][0].update(
                workspace_bytes=64, kernel="f", low_workspace=[{**variant(0), "kernel": "f"}]
            ),
            r"\$.operators\[0\].kernel: the kernels \['f', 'f'\] must have different names, or none of them a name",
        ),
        (
            lambda d: d["operators"][0].update(workspace_bytes=64, low_workspace=[{**variant(0), "kernel": "f"}]),
            r"\$.operators\[0\].kernel: the kernels \['', 'f'\] must have different names, or none of them a name",
        ),
        (
            lambda d: d["tensors"][2].update(final="store", pageable=False),
            r"\$.tensors\[2\]: 'y' must end on the store but is not pageable",
        ),
    ],
)
def test_wrong_problems(edit: Edit, message: str) -> None:
    wrong = document()
    edit(wrong)
    with pytest.raises(UsageError, match=message) as caught:
        problem_from_json(json.dumps(wrong), source="p.json")
    assert str(caught.value).startswith("p.json: $")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 100_000, b'{"name": NaN}', '{"a": "\ud800"}']
)
def test_not_a_document_at_all(text: bytes | str) -> None:
    for read in (problem_from_json, schedule_from_json, plan_from_json):
        with pytest.raises(UsageError, match=r"^f.json: (\$|is no whole JSON): ") as caught:
            read(text, source="f.json")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "action, message",
    [
        ({}, "exactly one of"),
        ({"compute": 1, "free": 2}, "exactly one of"),
        ({"free": 1, "in_place": [[1, 2]]}, "exactly one of"),
        ({"compute": 1, "in_place": [[1]]}, r"in_place\[0\]: expected `array` of length 2, got 1"),
        ({"drop": 1}, "unknown field `drop`"),
    ],
)
def test_wrong_actions(action: dict[str, Any], message: str) -> None:
    proof = {"status": "feasible", "objective": 1, "bound": 1, "schedule_class": ""}
    schedule = {"solver": "s", "proof": proof, "steps": [{"compute": 0}, action]}
    with pytest.raises(UsageError, match=rf"^s.json: \$.steps\[1\].*{message}"):
        schedule_from_json(json.dumps(schedule), source="s.json")


def test_wrong_schedules_and_plans() -> None:
    proof = {"status": "feasible", "objective": 1, "bound": 1, "schedule_class": "", "gap": 1}
    with pytest.raises(UsageError, match=r"\$.proof: .*unknown field `gap`"):
        schedule_from_json(json.dumps({"solver": "s", "proof": proof, "steps": []}))
    plan = json.loads(plan_to_json(pack(*(lambda p: (p, keep_all(p)))(training_problem(Random(0), 1)))))
    plan["allocations"][0]["tensors"] = [[1, 2, 3]]
    with pytest.raises(UsageError, match=r"\$.allocations\[0\].tensors\[0\]: expected `array` of length 2, got 3"):
        plan_from_json(json.dumps(plan))


def test_schema_says_what_reading_demands() -> None:
    schema = problem_schema()
    definitions = schema["$defs"]
    assert definitions["OperatorSpec"]["required"] == ["name", "inputs", "outputs", "time_ns", "energy_pj"]
    assert definitions["OperatorSpec"]["additionalProperties"] is False
    assert definitions["OperatorSpec"]["properties"]["inputs"]["items"]["minimum"] == 0
    assert definitions["Problem"]["properties"]["deadline_ns"]["anyOf"][0] == {"type": "integer", "minimum": 0}
    assert definitions["Problem"]["properties"]["alignment_bytes"]["minimum"] == 1
    assert "format" in definitions["Problem"]["properties"]


def test_banks_come_back() -> None:
    """And are absent from what is written where there are none."""
    plain = problem_from_json(json.dumps(document()))
    assert b'"banks"' not in problem_to_json(plain)
    with_banks = document()
    with_banks["banks"] = [
        {"name": "near", "budget_bytes": 400},
        {"name": "far", "budget_bytes": 600, "address": 64, "read_ps_per_byte": 5, "write_fj_per_byte": 7},
    ]
    problem = problem_from_json(json.dumps(with_banks))
    assert problem_from_json(problem_to_json(problem)) == problem
    proof = Proof(
        status=Status.LIMIT, objective=2, bound=1, scope=Scope().with_choice("banks", (0, 0, 1, 0)), method="none"
    )
    actions = (Compute(0), Move(2, 0), Compute(1, ((1, 3),)))
    schedule = Schedule(solver="test", actions=actions, proof=proof, banks=(0, 0, 1, 0), workspace_banks=(0, 1))
    text = schedule_to_json(schedule)
    assert schedule_from_json(text) == schedule and b'{"bank":0,"move":2}' in text
    plan = pack(problem, schedule)
    assert [use.arena_bytes for use in plan.banks] == [64, 32]
    assert plan_from_json(plan_to_json(plan)) == plan
    verify_plan(problem, schedule, plan)
    with_banks["budget_bytes"] = 999
    with pytest.raises(UsageError, match=r"\$.budget_bytes: 999 is not the sum of the banks' budgets, 1000"):
        problem_from_json(json.dumps(with_banks))


def test_a_problem_of_version_0_2_says_whether_paging_takes_time() -> None:
    old, free = document(), document()
    old["semantics"] = "exact"
    assert problem_from_json(json.dumps(old)) == problem_from_json(json.dumps(document()))
    old["semantics"] = "poet"
    for tensor in free["tensors"]:
        tensor.update(page_in_ns=0, page_out_ns=0)
    assert problem_from_json(json.dumps(old)) == problem_from_json(json.dumps(free))
    with pytest.raises(UsageError, match="unknown field `semantics`"):
        problem_from_json(json.dumps(document() | {"semantics": "other"}))
