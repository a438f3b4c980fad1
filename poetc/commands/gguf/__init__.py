"""GGUF files of llama.cpp: a language model and its tokenizer as an ONNX file with a tokenizer.json beside it."""

from poetc.commands.gguf._importing import import_gguf
from poetc.commands.gguf._reading import read_gguf

__all__ = ["import_gguf", "read_gguf"]
