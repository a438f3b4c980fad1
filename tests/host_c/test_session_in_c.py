"""The session of C: steps, predictions, saving and loading as poetc_session.h says, with the bits of the runtime."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from poetc.emit import emit
from poetc.measure import HostModel, compile_library
from poetc.program import all_inputs, find_binding, lower_inference, sample_inputs
from poetc.scheduling import keep_all, pack
from tests.program.models import make_problem, mlp, paged_decisions, state_paged_decisions, training_case

STEPS = 4
HOOKS = """
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
static inline uint32_t own_crc(uint32_t crc, const unsigned char *data, size_t size)
{
    int bit;
    for (crc = ~crc; size > 0; size--)
        for (crc ^= *data++, bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1u)));
    return ~crc;
}
#define POETC_CRC32(crc, data, size_bytes) own_crc(crc, data, size_bytes)
#define POETC_ASSERT(condition) ((condition) ? (void)0 : abort())
"""


@pytest.mark.parametrize("where", ["ram", "store"])
def test_a_program_of_a_user(where: str, tmp_path: Path) -> None:
    on_store = ("fc1.weight:velocity", "fc2.weight") if where == "store" else ()
    case = training_case(on_store=on_store, block_bytes=64)
    values = {**case.graph.values, "learning_rate": np.full(1, 0.125, np.float32)}
    names = [t.name for t in case.problem.tensors if t.initial == "store"]
    training = case.program(state_paged_decisions(case, names) if names else paged_decisions(case, "a"))
    programs = [training]
    if not names:
        forward = mlp()
        problem = make_problem(forward)
        schedule = keep_all(problem)
        programs.append(lower_inference(forward, problem, schedule, pack(problem, schedule), training))
    out = emit(programs, values, model="model", target="host", out_dir=tmp_path / "src")
    batches = [sample_inputs(training, seed) for seed in range(STEPS)]
    records = (batch[b.name].tobytes() for batch in batches for b in all_inputs(training))
    (out / "data.bin").write_bytes(b"".join(records))
    offset = find_binding(training.state, "fc1.weight").operand.offset_bytes
    (out / "main.c").write_text(Path(__file__).with_name("session.c").read_text())
    flags = f"-O2 -Werror -DFC1_OFFSET={offset}u"
    if where == "store":
        (out / "hooks.h").write_text(HOOKS)
        flags += """ -DPOETC_HOOKS='"hooks.h"'"""
    subprocess.run(["make", "-s", "-C", out, f"CFLAGS={flags}", "train"], check=True)
    if where == "store":
        symbols = subprocess.run(["nm", out / "train"], capture_output=True, text=True, check=True).stdout
        assert "crc_of_bytes" not in symbols
    done = subprocess.run(["./train"], cwd=out, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    with HostModel(compile_library(programs, values, tmp_path / "library"), programs, values) as model:
        expected = [("loss", np.float32(model.run(batch)).tobytes()) for batch in batches]
        for _ in range(3):  # two of them in pieces, and one after an undone step
            model.run(batches[-1])
        model.set_state("learning_rate", np.zeros(1, np.float32))
        if len(programs) > 1:
            model.select(programs[1])
            model.run(batches[-1])
            expected.append(("logits", model.output("logits").tobytes()))
        weights = model.state("fc1.weight")
    found = [(kind, np.array([int(w, 16) for w in words.split()], np.uint32).tobytes()) for kind, words in lines[:-1]]
    assert found == expected
    assert lines[-1] == ["weights", " ".join(f"{w:08x}" for w in weights.view(np.uint32).reshape(-1))]
