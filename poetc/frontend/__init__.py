"""ONNX → Graph: loading, constant folding, translation of operators, pattern recognition, roles of tensors."""

from poetc.frontend._load import load
from poetc.frontend._reading import external_files
from poetc.frontend.roles import ParameterDecision, parameter_decisions

__all__ = ["ParameterDecision", "external_files", "load", "parameter_decisions"]
