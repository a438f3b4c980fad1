"""GGUF files of llama.cpp: a language model and its tokenizer as an ONNX file with a tokenizer.json beside it."""

from poetc.commands.gguf._blocks import BLOCKS
from poetc.commands.gguf._decoder import MODULES, order_of_rows
from poetc.commands.gguf._importing import import_gguf
