"""ONNX → Graph: loading, constant folding, translation of operators, pattern recognition, roles of tensors."""

from poetc.frontend._importer import Importer
from poetc.frontend._input_shapes import Sizes
from poetc.frontend._load import load
from poetc.frontend._new_head import NewHead
from poetc.frontend._node import Node
from poetc.frontend._quantized_forms import is_quantized
from poetc.frontend._reading import external_files
from poetc.frontend._translations import TRANSLATIONS, onnx_operator
from poetc.frontend._untying import Untied
from poetc.frontend._writing import DATA_SUFFIX, Written, write_back
from poetc.frontend.facts import probabilities
from poetc.frontend.onnx_group_query import most_places
from poetc.frontend.roles import ParameterDecision, parameter_decisions

__all__ = [
    "DATA_SUFFIX",
    "TRANSLATIONS",
    "Importer",
    "NewHead",
    "Node",
    "ParameterDecision",
    "Sizes",
    "Untied",
    "Written",
    "external_files",
    "is_quantized",
    "load",
    "most_places",
    "onnx_operator",
    "parameter_decisions",
    "probabilities",
    "write_back",
]
