"""The intermediate representation. See `_ir.py`: it fits on one screen."""

from poetc.graph._coded import BITS, Coded, encode, pack
from poetc.graph._difference import differing, matching
from poetc.graph._ir import (
    TIED,
    Array,
    Attribute,
    DType,
    Fact,
    Filed,
    Fill,
    Graph,
    Operator,
    Origin,
    Phase,
    Role,
    Tensor,
    TensorType,
    TrainingGraph,
    Value,
    materialize,
    materialize_into,
)
from poetc.graph._json import graph_from_json, graph_to_json
