"""The losses of --loss: one, or one an output with a weight."""

from __future__ import annotations

from dataclasses import dataclass

from poetc.declare import LARGEST_FLOAT
from poetc.errors import UsageError, shortened


@dataclass(frozen=True, slots=True)
class Term:
    """A loss, of the output of that name, times a weight. One loss alone has no name."""

    kind: str
    output: str = ""
    weight: float = 1.0


def parse_terms(loss: str) -> tuple[Term, ...]:
    """The terms of --loss: a kind, or OUTPUT=KIND*WEIGHT with commas between them."""
    if "=" not in loss:
        return (Term(loss),)
    terms: list[Term] = []
    for part in loss.split(","):
        output, equals, rest = part.strip().rpartition("=")
        kind, times, number = rest.partition("*")
        try:
            weight = float(number) if times else 1.0
        except ValueError:
            weight = 0.0
        if not (equals and output and 0 < weight < LARGEST_FLOAT):
            raise UsageError(f"--loss {shortened(part, 80)!r}: write OUTPUT=KIND*WEIGHT with a weight above 0")
        if output in (term.output for term in terms):
            raise UsageError(f"--loss: output {shortened(output, 80)!r} has two losses")
        terms.append(Term(kind.strip(), output, weight))
    return tuple(terms)
