"""The reports: true to the schedule, well-formed, self-contained, escaped, and small."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from random import Random

import pytest

from poetc.cli._text import gap_on_overhead
from poetc.devices import format_bytes, format_gap, format_ns, format_pj
from poetc.reporting import (
    Category,
    Origin,
    Solved,
    compute_once,
    gather,
    html,
    memory_timeline,
    of_keep_all,
    percent,
    recomputed,
    scope_sentence,
    shorten,
    text,
    written,
)
from poetc.reporting import proof as proof_words
from poetc.reporting.training import section
from poetc.scheduling import (
    ANY,
    Compute,
    Decision,
    MemoryPlan,
    Objective,
    OperatorSpec,
    PageIn,
    PageOut,
    Paging,
    Problem,
    Proof,
    Repetition,
    Schedule,
    Scope,
    Status,
    TensorSpec,
    allocation_banks,
    complete,
    keep_all,
    keep_all_peak_bytes,
    pack,
    verify,
)
from tests.support.banks import solved_in_banks
from tests.support.problems import random_dag, random_decisions, training_problem

NASTY = "<script>alert('&')</script>/a:b;c>\"q\"" + "é" * 170
VOID = {"meta", "link", "br", "hr", "img", "input"}


def chain(length: int, name: str = "t", paging: Paging = Paging.SYNC) -> Problem:
    """A chain of `length` forward operators and as many backward ones, each of which reads its forward output."""
    size = 4096
    tensors = [TensorSpec(name="x", size_bytes=size, initial="ram")]
    tensors.append(TensorSpec(name="w", size_bytes=1024, initial="ram", final="ram"))
    operators = []
    for i in range(length):
        page = {"page_out_ns": 5, "page_out_pj": 50, "page_in_ns": 4, "page_in_pj": 40}
        tensors.append(TensorSpec(name=f"{name}{i}", size_bytes=size, **page))
        source = 0 if i == 0 else 1 + i
        operators.append(
            OperatorSpec(
                name=f"op {name}{i}", kind="Conv", inputs=(source, 1), outputs=(2 + i,), time_ns=10, energy_pj=100 + i,
                workspace_bytes=64,
            )
        )  # fmt: skip
    for i in range(length):
        tensors.append(TensorSpec(name=f"g{name}{i}", size_bytes=size, final="ram" if i == length - 1 else ""))
        gradient = () if i == 0 else (1 + length + i,)
        saved = 1 + length - i
        operators.append(
            OperatorSpec(
                name=f"back {name}{i}", kind="ConvGrad", phase="backward", inputs=(*gradient, saved),
                outputs=(2 + length + i,), time_ns=20, energy_pj=200,
            )
        )  # fmt: skip
    return Problem(
        name=f"chain {name}", operators=tuple(operators), tensors=tuple(tensors), budget_bytes=10**9, paging=paging,
        base_bytes=500, page_buffer_bytes=512 if paging is not Paging.NONE else 0, device="board",
    )  # fmt: skip


def solved_from(problem: Problem, decisions: list[Decision], **proof_fields: object) -> Solved:
    actions = complete(problem, decisions)
    draft = Schedule(
        solver="hand",
        actions=actions,
        proof=Proof(status=Status.FEASIBLE, objective=0, bound=0, scope=Scope(repetition=Repetition.OTHER)),
        log=("event <1>",),
    )
    energy = 0
    for action in actions:
        match action:
            case Compute(operator):
                energy += problem.operators[operator].energy_pj
            case PageOut(t):
                energy += problem.tensors[t].page_out_pj
            case PageIn(t):
                energy += problem.tensors[t].page_in_pj
    fields: dict[str, object] = {"objective": energy, "bound": problem.compute_once_pj, **proof_fields}
    schedule = replace(draft, proof=replace(draft.proof, **fields))  # type: ignore[arg-type]
    trace = verify(problem, schedule)
    problem = replace(problem, budget_bytes=trace.peak_bytes + 100)
    summary = {
        "keep_all_peak_bytes": 3 * trace.peak_bytes,
        "min_budget_bytes": trace.peak_bytes,
        "notes": ["a <note>"],
        "schedule_class": "a <class>",
    }
    return Solved(problem=problem, schedule=schedule, trace=trace, plan=pack(problem, schedule), summary=summary)


def example(name: str = "t", length: int = 6) -> Solved:
    """Tensor 2 is dropped and recomputed, tensor 3 paged out and in."""
    problem = chain(length, name)
    forward: list[Decision] = [Compute(i) for i in range(length)]
    backward: list[Decision] = [Compute(length + i) for i in range(length)]
    decisions = [
        *forward[:3],
        PageOut(3),
        *forward[3:],
        *backward[:-2],
        PageIn(3),
        backward[-2],
        Compute(0),
        backward[-1],
    ]
    return solved_from(problem, decisions)


class Page(HTMLParser):
    """Checks nesting; collects text, tags, attributes."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"an attribute of <{tag}> is given twice"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text.append(data)


@pytest.mark.parametrize("seed", range(30))
def test_the_memory_chart_counts_as_the_checker_does(seed: int) -> None:
    random = Random(seed)
    for problem in (random_dag(random, 12, paging=True), training_problem(random, 6, paging=True)):
        problem = replace(problem, budget_bytes=10**12)
        actions = complete(problem, random_decisions(random, problem, 8))
        free = replace(
            problem, objective=Objective.TIME, operators=tuple(replace(o, time_ns=0) for o in problem.operators)
        )
        free = replace(free, tensors=tuple(replace(t, page_in_ns=0, page_out_ns=0) for t in free.tensors))
        proof = Proof(status=Status.FEASIBLE, objective=0, bound=0, scope=Scope())
        schedule = Schedule(solver="random", actions=actions, proof=proof)
        trace = verify(free, schedule)
        nothing = MemoryPlan(allocations=(), arena_bytes=0, max_live_bytes=0, state_bytes=0)
        facts = gather(Solved(problem=free, schedule=schedule, trace=trace, plan=nothing))
        assert tuple(sum(m) for m in facts.memory) == trace.ram_bytes
        assert sum(r.times[0] for r in facts.redone) == trace.recomputes
        assert sum(m.times[0] for m in facts.moved) == trace.page_outs


def test_what_happened_to_tensors() -> None:
    solved = example()
    facts = gather(solved)
    assert tuple(sum(m) for m in facts.memory) == solved.trace.ram_bytes
    assert [(r.index, r.times, r.energy_pj) for r in facts.redone] == [(0, (1,), 100)]
    assert [(m.index, m.times, m.energy_pj) for m in facts.moved] == [(3, (1, 1), 90)]
    origins = {t: [s.origin for s in facts.stays if s.tensor == t] for t in (0, 2, 3, 4)}
    assert origins == {
        0: [Origin.GIVEN],
        2: [Origin.COMPUTED, Origin.RECOMPUTED],
        3: [Origin.COMPUTED, Origin.PAGED],
        4: [Origin.COMPUTED],
    }
    ((tensor, out, back),) = facts.store_spans
    actions = solved.schedule.actions
    assert (tensor, actions[out], actions[back - 1]) == (3, PageOut(3), PageIn(3))
    assert facts.categories[:3] == (Category.INPUT, Category.STATE, Category.ACTIVATION)
    assert facts.categories[-1] is Category.GRADIENT
    assert isinstance(actions[facts.backward_action or 0], Compute)


def test_the_page_is_well_formed_and_needs_nothing_from_outside() -> None:
    source = html(example())
    page = Page(source)
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for name in ("sizes", "memory", "timeline", "arena", "proof", "totals", "peak", "operators"):
        assert name in ids
    for tag, attributes in page.tags:
        assert tag not in ("img", "iframe", "object", "embed", "base")
        assert "src" not in attributes
        assert attributes.get("href", "data:,") in ("data:,", *(f"#{name}" for name in ids))
        assert not any(key.startswith("on") for key in attributes)
    assert "url(" not in source
    assert "@import" not in source
    assert re.findall(r"https?://[^\"' ]+", source) == []
    labelled = [a for t, a in page.tags if t == "svg"]
    assert labelled
    assert all(a.get("role") == "img" and (a.get("aria-labelledby") or a.get("aria-label")) for a in labelled)
    assert "$" not in source  # nothing left to fill in
    words = " ".join(page.text)
    for expected in (
        "Recomputed operators make 1 again",
        "the store gives 1 back",
        "a <class>",
        "event <1>",
        "a <note>",
        "budget",
    ):
        assert expected in words


def test_an_arena_in_banks_has_a_lane_for_each() -> None:
    solved = solved_in_banks()
    problem, schedule, trace, plan = solved.problem, solved.schedule, solved.trace, solved.plan
    assert plan is not None
    assert min(trace.bank_peaks) > problem.base_bytes
    page, told = html(solved), text(solved)
    assert len(re.findall('class="area lane"', page)) == 2
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    lanes = page[page.index('<section id="arena">') :].split('class="area lane"')[1:]
    drawn = [lane.split("</svg>")[0].count("<rect") for lane in lanes]
    served = allocation_banks(problem, schedule, plan)
    assert drawn == [
        sum(max(1, len(a.tensors)) for a, of in zip(plan.allocations, served, strict=True) if of == b) for b in (0, 1)
    ]
    for b, peak in zip(problem.banks, trace.bank_peaks, strict=True):
        assert re.search(f"peak of bank {b.name} +{re.escape(format_bytes(peak))}", told)
        assert f"{b.name}: peak {format_bytes(peak)} of {format_bytes(2**20)}" in page


def test_names_are_escaped_and_shortened() -> None:
    solved = example(NASTY)
    source = html(solved)
    page = Page(source)
    assert [t for t, _ in page.tags].count("script") == 1
    assert "alert('" not in source.replace("&#x27;", "")
    assert "<script>alert(" in " ".join(page.text)
    assert max(map(len, text(solved).splitlines())) <= 130


def test_the_page_of_a_long_schedule_is_small() -> None:
    length = 2500
    problem = chain(length, "/model/encoder/layer.11/attention/output/dense/MatMul_output_0.")
    decisions: list[Decision] = [Compute(i) for i in range(length)]
    decisions += [Compute(length)]
    for i in range(1, length):  # every tensor but the last is made again
        decisions += [Compute(length - 1 - i)] if i % 2 else []
        decisions += [Compute(length + i)]
    solved = solved_from(problem, decisions)
    assert len(problem.operators) == 5000 and len(solved.schedule.actions) > 10_000
    source = html(solved)
    Page(source)
    assert len(source.encode()) < 1_000_000
    assert "Not drawn: 2,440 of the smallest tensors; those recomputed or paged come first" in source
    assert "makes 2,500 tensors and keeps 1,250 as long as needed" in source
    assert '<g class="many">' in source and '<g class="many">' not in html(example()), "outlines would pale it"


def test_a_tensor_of_the_arena_says_what_it_costs() -> None:
    """Counted here from the actions: how often it is made, paged out and paged in, and the prices of each."""
    problem = chain(4)
    once: list[Decision] = [Compute(0), Compute(1), PageOut(2), Compute(2), Compute(3), Compute(4)]
    solved = solved_from(problem, [*once, Compute(5), Compute(1), Compute(6), PageIn(2), Compute(7)])
    arena = html(solved).partition('<section id="arena">')[2].partition("</section>")[0]
    titles = re.findall("<title>(t[0-9]): ([^<]*)</title>", arena)
    assert len(titles) == 6  # two of them are there twice
    kept, pages = "kept at no cost", "paging: 90 pJ, 9 ns"
    expected = {
        "t0": f"paged out once and in once for 90 pJ, 9 ns; remaking: 100 pJ, 10 ns; {pages}",
        "t1": f"made once more for 101 pJ, 10 ns; remaking: 101 pJ, 10 ns; {pages}",
        "t2": f"{kept}; remaking: 102 pJ, 10 ns; {pages}",
        "t3": f"{kept}; remaking: 103 pJ, 10 ns; {pages}",
    }
    for name, title in titles:
        assert re.fullmatch(r"4,096 B at [0-9,]+, actions [0-9]+ to [0-9]+; " + re.escape(expected[name]), title), title
    assert re.search(r"<title>w: 1,024 B at [0-9,]+, actions 0 to [0-9]+; kept at no cost; paging: 0 .J, 0 .s<", arena)


def test_an_empty_backward_pass_and_no_summary() -> None:
    problem = replace(chain(3, paging=Paging.NONE), operators=chain(3).operators[:3])
    problem = replace(problem, tensors=problem.tensors[:5])
    schedule = keep_all(problem)
    solved = Solved(problem=problem, schedule=schedule, trace=verify(problem, schedule), plan=pack(problem, schedule))
    source = html(solved)
    Page(source)
    assert "Nothing is recomputed" in source
    assert "backward pass</span>" not in source
    assert "keep-all" not in text(solved)


def test_text_tells_the_essentials() -> None:
    report = text(example())
    for expected in (
        "RAM",
        "budget",
        "Recomputed: 1 of 12 operators, once",
        "Paged: 1 tensor,",
        "1 out, 1 in",
        "modelled",
        "- a <note>",
    ):
        assert expected in report
    assert report.endswith("\n")
    assert all(line == line.rstrip() for line in report.splitlines())


def test_the_peak_names_the_workspace() -> None:
    problem, schedule = example().problem, example().schedule
    at = example().trace.peak_action
    action = schedule.actions[at]
    assert isinstance(action, Compute)
    operators = [
        replace(op, workspace_bytes=5_000_000) if i == action.operator else op for i, op in enumerate(problem.operators)
    ]
    problem = replace(problem, operators=tuple(operators), budget_bytes=100_000_000)
    solved = replace(example(), problem=problem, trace=verify(problem, schedule), plan=pack(problem, schedule))
    name = operators[action.operator].name
    section = text(solved).split("In RAM at the peak")[1].split("\n\n")[0]
    assert section.splitlines()[1].split("  ")[1].strip() == f"workspace of {name}"
    assert section.splitlines()[1].endswith("5.000 MB")
    assert f"workspace of {name}" in html(solved).split('id="peak"')[1].split("</section>")[0]


def test_the_peak_leaves_out_what_takes_no_ram() -> None:
    """Operands on the store alone, which a step reads through windows."""
    solved = example()
    resident = [solved.problem.tensors[t].name for t in solved.trace.resident_at(solved.trace.peak_action)]
    tensors = tuple(replace(t, size_bytes=0) if t.name == resident[0] else t for t in solved.problem.tensors)
    solved = replace(solved, problem=replace(solved.problem, tensors=tensors))
    section = text(solved).split("In RAM at the peak")[1].split("\n\n")[0]
    shown = [line.split()[0] for line in section.splitlines()[1:]]
    assert sorted(shown) == sorted(resident[1:])
    table = html(solved).split('id="peak"')[1].split("</section>")[0]
    assert ">0 B<" not in table and f">{resident[1]}<" in table


def test_claims_are_no_wider_than_their_proof() -> None:
    solved = example()
    words = proof_words(solved)
    assert "class “a <class>”" in words
    assert "outside this class" in words
    assert "optimal" not in words.lower()
    limit = replace(
        solved, schedule=replace(solved.schedule, proof=replace(solved.schedule.proof, status=Status.LIMIT))
    )
    assert "stopped at its time limit" in proof_words(limit)
    objective = solved.schedule.proof.objective
    third = replace(limit.schedule.proof, bound=math.ceil(objective * 2 / 3))
    words = proof_words(replace(solved, schedule=replace(solved.schedule, proof=third)))
    assert "at most 33.32 % of it could be saved" in words, "rounded up"
    best = replace(solved.schedule.proof, status=Status.OPTIMAL, bound=objective, scope=Scope())
    words = proof_words(replace(solved, schedule=replace(solved.schedule, proof=best)))
    assert words.startswith("Proven optimal. No schedule that fits this budget")
    assert "outside this class" not in words


def test_no_gap_is_stated_for_an_overhead_that_is_not_there() -> None:
    """Two processors may cost less than computing once on one of them; nothing is proven about the difference then."""
    solved = example()
    heading = "gap on the overhead"
    proof = replace(solved.schedule.proof, objective=compute_once(solved), bound=compute_once(solved))
    assert heading in html(replace(solved, schedule=replace(solved.schedule, proof=proof)))
    proof = replace(proof, bound=proof.bound - 1)
    assert heading not in html(replace(solved, schedule=replace(solved.schedule, proof=proof)))
    below = replace(proof, objective=11 * proof.bound // 10).overhead_gap(proof.bound + 1)
    assert below == 1, "a bound below computing once saves no more than all of the overhead"
    assert gap_on_overhead({"gap": 0.03, "overhead_gap": 0.0}) == ""
    assert gap_on_overhead({"gap": 0.0, "overhead_gap": 0.0}) == "0 %"
    assert gap_on_overhead({"gap": 0.03, "overhead_gap": 0.5}) == "50.0 %"


def test_recomputed_means_operators_everywhere() -> None:
    assert recomputed([1, 1]) == "none of 2 operators"
    assert recomputed([1, 2]) == "1 of 2 operators, once"
    assert recomputed([2, 2, 1]) == "2 of 3 operators, once each"
    assert recomputed([2, 3, 1]) == "2 of 3 operators, 3 times in all"
    solved = example()
    words = recomputed(solved.trace.executions)
    assert f"Recomputed: {words}" in text(solved) and f"recomputed      {words}" in text(solved)
    assert html(solved).count(words) >= 2


def test_a_budget_above_keep_all_is_no_percentage() -> None:
    assert of_keep_all(4, 10) == "40.0 % of keep-all"
    assert of_keep_all(10, 10) == "100.0 % of keep-all"
    assert of_keep_all(58_217, 10) == "more than keep-all needs"
    assert of_keep_all(4, None) == ""


def test_a_budget_far_above_the_peak_leaves_the_charts_legible() -> None:
    """As that of a computer does, for a small model."""
    near = example()
    far = replace(near, problem=replace(near.problem, budget_bytes=1 << 33))
    page, near_page = html(far), html(near)
    assert 'class="budget"' in near_page and 'class="budget"' not in page
    assert "budget 8.590 GB, above the chart" in page
    assert max(map(len, re.findall("[#=]+", text(far).split("RAM over the actions")[1]))) == 40


def test_what_is_written_to_the_store_is_one_phrase() -> None:
    summary = {"store_life_steps": 1000, "store_life_years": 2.0}
    assert written({}, 512, None) == "512 B a step"
    assert written({}, 512, 1024) == "512 B a step, of 1,024 B allowed"
    worn = "worn out after 1,000 steps (2.0 years without a pause)"
    assert written(summary, 512, None) == f"512 B a step; {worn}"
    assert written(summary, 512, 1024) == f"512 B a step, of 1,024 B allowed; {worn}"
    eternal = {"store_life_steps": 10**15, "store_life_years": 412_358.0}
    assert written(eternal, 512, None).endswith("(more than 100 years without a pause)")
    assert "100.0 years" in written(eternal | {"store_life_years": 100.0}, 512, None)
    solved = replace(example(), summary=summary)
    assert f"a step; {worn}" in html(solved) and f"a step; {worn}" in " ".join(text(solved).split())


def test_an_arena_over_the_budget_is_not_said_to_fit() -> None:
    solved = example()
    over = replace(solved, plan=replace(solved.plan, arena_bytes=solved.problem.budget_bytes + 1))
    assert "One step fits" in text(solved)
    assert "One step fits" not in text(over)
    assert "One step fits" not in html(over)


def test_gaps_are_rounded_up_and_no_gap_above_zero_reads_as_zero() -> None:
    assert [format_gap(f) for f in (0, 1e-12, 1e-5, 0.0029377, 0.005, 0.01, 0.01231, 0.4, 0.99999, 1)] == [
        "0 %", "0.001 %", "0.001 %", "0.294 %", "0.5 %", "1.0 %", "1.24 %", "40.0 %", "100.0 %", "100.0 %",
    ]  # fmt: skip


def test_percentages_and_names() -> None:
    assert [percent(f) for f in (0, 1e-9, 0.0006, 0.005, 0.0123, 1.5)] == [
        "0 %", "< 0.001 %", "0.06 %", "0.5 %", "1.2 %", "150.0 %",
    ]  # fmt: skip
    assert shorten("a" * 70) == "a" * 70
    assert len(shorten("a" * 50 + "b" * 50, 21)) == 21
    assert shorten("begin" + "x" * 90 + "finish", 21).endswith("finish")


def test_the_timeline_shows_both_peaks_and_the_budget() -> None:
    solved = example()
    kept = keep_all_peak_bytes(solved.problem)
    assert solved.trace.peak_bytes < kept
    solved = replace(solved, summary={**solved.summary, "keep_all_peak_bytes": kept})
    picture = memory_timeline(solved)
    root = ElementTree.fromstring(picture)
    texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert f"Every tensor kept: peak {format_bytes(kept)}" in " ".join(texts)
    assert f"peak {format_bytes(solved.trace.peak_bytes)}, {format_ns(solved.trace.time_ns)} a step" in " ".join(texts)
    assert texts.count(f"budget {format_bytes(solved.problem.budget_bytes)}") == 2
    described = root.findtext("{http://www.w3.org/2000/svg}desc") or ""
    more = solved.trace.energy_pj / solved.compute_once_pj - 1
    assert f"{percent(more)} more energy" in described
    assert "http://www.w3.org/2000/svg" in picture and "src=" not in picture and "href=" not in picture
    chosen = replace(solved, summary={**solved.summary, "keep_all_peak_bytes": 2 * kept})  # of a step that encodes none
    assert f"choices of this schedule (without them {format_bytes(2 * kept)}): peak" in memory_timeline(chosen)
    # Areas stay within their panels, and the fullest reaches the top of the first.
    heights = [float(y) for d in re.findall(r' d="(M[^"]*Z)"', picture) for y in re.findall(r"V([\d.]+)", d)]
    assert min(heights) == 34 and max(heights) <= 34 + 2 * 190 + 56


def test_the_parts_that_a_step_does_without_are_listed() -> None:
    from poetc.reporting import _words

    less = {"saved_bytes": 20_000, "keep_all_peak_bytes": -16, "energy_pj": 10**9, "macs": 5, "operators": 2}
    rows = dict(_words.savings_of_part({"pruned": {**less, "kernels": ["poetc_op_relu_grad"], "code_bytes": 12_300}}))
    assert rows["saved for backward"] == "-20.00 kB" and rows["keep-all peak"] == "+16 B"
    assert rows["kernels not needed"] == "1: relu_grad" and rows["code of kernels in flash"] == "-12.30 kB"
    assert _words.savings_of_part({"pruned": None}) == _words.savings_of_part({}) == []


def bundle() -> tuple[Solved, Solved]:
    """A bundle of two plans, and the smaller one alone."""
    large, small = example(length=8), example(length=6)
    plan = {"budget_bytes": 90_000, "ram_bytes": 80_000, "micro_batches": 1, "gap": 0.01}
    row = {"points": 9, "longest_ns": 1_500_000, "most_gap": 0.125, "mean_extra": 0.5, "most_extra": 1.0}
    document = {
        "plans": [{**plan, "cost": 4_000_000_000}, {**plan, "cost": 6_000_000_000, "micro_batches": 2}],
        "switches": [{**row, "source": a, "target": 1 - a, "switches": 3 + a} for a in (0, 1)],
        "switch_bytes": 2048,
        "switch_flash_bytes": 4096,
    }
    return replace(large, summary={"bundle": document}, other_traces=(small.trace,)), small


def test_a_bundle_shows_its_plans_and_switches() -> None:
    """Peaks are those of the replays, and costs are shares of the plan that is gone to."""
    solved, small = bundle()
    report = text(solved)
    assert max(map(len, report.splitlines())) <= 80
    lines = [line.split() for line in report.splitlines()]
    for number, trace in enumerate((solved.trace, small.trace)):
        shown = [str(number), "90.00", "kB", str(1 + number), *format_bytes(trace.peak_bytes).split(), "80.00", "kB"]
        shown += [*format_pj(trace.energy_pj).split(), *format_ns(trace.time_ns).split(), "1.0", "%"]
        assert shown in lines, report
    costs = {0: "50.0 %, 3.000 mJ 100.0 %, 6.000 mJ", 1: "50.0 %, 2.000 mJ 100.0 %, 4.000 mJ"}
    for source, cost in costs.items():
        assert f"{source} to {1 - source} {3 + source} of 9 1.500 ms {cost} 12.5 %".split() in lines, report
    assert "The tables of switches take 2,048 B of flash of 4,096 B" in " ".join(report.split())
    assert html(solved).count('id="bundle"') == 1
    assert 'id="bundle"' not in html(small) and "Plans" not in text(small)


def test_the_peak_and_the_life_of_a_tensor_are_named() -> None:
    solved = example()
    source = html(solved)
    action = solved.schedule.actions[solved.trace.peak_action]
    assert isinstance(action, Compute)
    name = solved.problem.operators[action.operator].name
    at = f"at action {solved.trace.peak_action} of {len(solved.schedule.actions)}"
    assert f"alive at once, {at} while {name} runs" in source
    told = [a["title"] for t, a in Page(source).tags if t == "li" and "title" in a]
    assert told and all("in RAM in actions " in words for words in told)
    assert any("on the store from action" in words and "out and in cost" in words for words in told)
    assert any(" makes it for " in words for words in told)


def test_a_gap_is_no_claim_about_schedules_outside_of_its_scope() -> None:
    one, all_of_them = example(), solved_from(chain(6), [Compute(i) for i in range(12)], scope=Scope())
    assert "the most energy that another schedule of the proof&#x27;s class could save" in html(one)
    assert "the most energy that another schedule could save" in html(all_of_them)


def test_a_bound_for_all_ways_names_the_cores_that_it_is_about() -> None:
    solved = solved_from(chain(6), [Compute(i) for i in range(12)], scope=Scope())
    plain = proof_words(solved)
    assert "No schedule that fits" in plain
    solved = replace(solved, summary={**solved.summary, "core_ways": {"cores": ["main", "core1"], "ways": 2}})
    assert proof_words(solved) == plain.replace("No schedule", "No schedule in any of 2 ways of using main and core1")
    of_class = replace(example(), summary=solved.summary)
    assert scope_sentence(Scope(), solved.summary["core_ways"]).endswith("; any of 2 ways of using main and core1")
    assert "No schedule of the class" in proof_words(of_class) and " not excluded from" in proof_words(of_class)


def test_a_bound_for_one_option_of_an_unknown_kind_says_so() -> None:
    scope = Scope().with_choice("kernels", (0, 1))
    assert scope_sentence(scope.with_choice("colours", ANY)) == scope_sentence(scope)
    assert scope_sentence(scope.with_choice("colours", (1, 2))) == f"{scope_sentence(scope)}; this option of 'colours'"


def test_a_single_epoch_has_no_curve() -> None:
    row = {"loss": 1.0, "validation_loss": 0.5, "validation_accuracy": 0.5, "rate": 0.1, "seconds": 1.0}
    document = {"best_epoch": 1, "stopped_early": False, "steps": 9, "batch": 2, "step_ms": 1.0, "output": "o.onnx"}
    one, two = (section({**document, "epochs": [{**row, "epoch": n + 1} for n in range(count)]}) for count in (1, 2))
    assert "<svg" not in one and "0.5" in one
    assert two.count("<svg") == 3
