"""The tensors that could be made anew from those that are there, as tensors come and go."""

from __future__ import annotations

from collections.abc import Iterable

from poetc.solvers.model import Model


class Remaking:
    """Answers at once, where a walk through all absent ancestors of a tensor would take long.

    A tensor is at hand if it is in RAM or on the store, or if it can be made anew. For that its operator has to be
    recomputable, with all inputs at hand. Giving up a tensor that can be made anew changes nothing for any other. So
    changes are rare, and each is followed to its readers alone.
    """

    def __init__(self, model: Model, there: Iterable[int]) -> None:
        self._model = model
        self._there = [False] * model.n_tensors
        for t in there:
            self._there[t] = True
        self._at_hand = list(self._there)
        self._gone = [False] * model.n_tensors
        self._executed = [False] * model.n_ops
        self._lacking = [0] * model.n_ops  # by executed operator, its inputs that are not at hand

    def may(self, t: int) -> bool:
        """Whether `t`, whose operator has been executed, could be made anew if it were not there."""
        v = self._model.producer[t]
        return v >= 0 and self._model.recomputable[v] and not self._lacking[v]

    def comes(self, t: int) -> None:
        """`t` is in RAM or on the store from now on."""
        self._there[t] = True
        self._see(t)

    def leaves(self, t: int) -> None:
        """`t` is in neither from now on."""
        self._there[t] = False
        self._see(t)

    def is_gone(self, t: int) -> None:
        """An update has overwritten the value of `t`."""
        self._gone[t] = True
        self._see(t)

    def executes(self, v: int) -> None:
        """For the first time; its outputs are there, and inputs that it took over have left."""
        self._executed[v] = True
        self._lacking[v] = sum(not self._at_hand[t] for t in self._model.inputs[v])
        for t in self._model.outputs[v]:
            self._see(t)

    def _see(self, changed: int) -> None:
        model, stack = self._model, [changed]
        while stack:
            t = stack.pop()
            at_hand = self._there[t] or (not self._gone[t] and self.may(t))
            if at_hand == self._at_hand[t]:
                continue
            self._at_hand[t] = at_hand
            for v in model.consumers[t]:
                if self._executed[v]:
                    before = self._lacking[v]
                    self._lacking[v] += -1 if at_hand else 1
                    if not before or not self._lacking[v]:
                        stack.extend(model.outputs[v])
