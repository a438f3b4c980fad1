"""`poetc train --elastic`, with the files of a control group made by the test."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from poetc.runtime.session import Session
from tests.cli.conftest import MODEL, Ended
from tests.host_c.test_pressure import Group

DATA = MODEL.with_name("digits_new_writer.npz")


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
def test_training_keeps_to_the_limit_of_its_control_group(
    poetc: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit below the smallest plan: it trains in that one, to the same bytes as without a limit."""
    bundle = tmp_path / "digits.bundle"
    solved: Ended = poetc(
        *("bundle", MODEL, "--batch", 16, "-d", "host", "-b", "100%,60%", "--time-limit", 4, "--lr", 0.03, "-o", bundle)
    )
    assert solved.code == 0, solved.err
    group = Group(tmp_path / "group")
    monkeypatch.setenv("POETC_CGROUP", str(group.path))
    written, in_use, leave = [], [], Session.__exit__

    def left(session: Session, *error: Any) -> None:
        in_use.append(session.arena_in_use_bytes)
        leave(session, *error)

    monkeypatch.setattr(Session, "__exit__", left)
    for limit in ("max", "1"):
        group.write("memory.high", limit)
        out = tmp_path / f"{limit}.onnx"
        ended: Ended = poetc(
            *("train", bundle, "--data", f"{DATA}:train_x,train_y", "--normalize", "0..255", "--epochs", 1),
            *("--elastic", "-o", out),
        )
        assert ended.code == 0, ended.err
        written.append(out.read_bytes())
    assert written[0] == written[1]
    assert in_use[1] < in_use[0]
