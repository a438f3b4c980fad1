"""Parameters of linear_loss.c and linear_loss_classes.c."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poetc.kernels.gemm.coded import CodedProduct
from poetc.kernels.gemm.selection import PackedProduct, Product
from poetc.kernels.kernel import Block, Kernel, Parameters

_PLAIN_TERMS = 64  # of a block of a sum: BLOCK of matmul.c
_KNOWN_FLOATS = 7  # of each row between blocks
_ALIGN_FLOATS = 4
FLOPS, FLOPS_GRAD = 13, 15  # for each logit, of the loss and of its gradient


@dataclass(frozen=True, slots=True)
class LinearLoss(Parameters):
    """`at_once` of `rows` rows have logits at a time. C reads the sizes of the two products before them."""

    rows: int
    at_once: int
    classes: int
    features: int
    ignored: int
    has_bias: bool
    has_upstream: bool
    weights: int
    forward: Product | PackedProduct | CodedProduct
    backward: Product | PackedProduct | CodedProduct

    @property
    def sizes(self) -> tuple[int, ...]:
        """The integer parameters of the C function, without those of its two products."""
        sizes = (self.rows, self.at_once, self.classes, self.features, self.ignored)
        return (*sizes, int(self.has_bias), int(self.has_upstream), self.weights)

    def ints(self) -> tuple[int, ...]:
        return (*self.sizes, *_of_products(self.forward, self.backward))

    def in_block(self, kernel: Kernel, axis: str, block: Block) -> Kernel | None:
        """Of one pass, with all classes in it."""
        if axis != "pass":
            return None
        return replace(kernel, parameters=LinearLossClasses(self, block.begin, 0, self.classes))


@dataclass(frozen=True, slots=True)
class LinearLossClasses(Parameters):
    """A block of classes of `whole`, in the first pass or the second. `is_first`: it begins with class 0."""

    whole: LinearLoss
    number: int  # of the pass
    is_first: int
    units: int

    @property
    def terms(self) -> int:
        """Terms of a block of a sum of the second product."""
        back = self.whole.backward
        return _PLAIN_TERMS if isinstance(back, Product) else back.terms

    @property
    def forward(self) -> Product | PackedProduct | CodedProduct:
        """The product that makes the logits of the block."""
        p = self.whole.forward
        if not isinstance(p, PackedProduct):
            return replace(p, columns=self.units)
        b_term = 1 if p.strides.b_column != 1 else self.units
        return replace(p, columns=self.units, strides=replace(p.strides, b_term=b_term, y_row=self.units))

    @property
    def backward(self) -> Product | PackedProduct | CodedProduct:
        """That of the gradient of `terms` logits, which lie together."""
        p = self.whole.backward
        if isinstance(p, PackedProduct):
            column = p.strides.b_column if p.strides.b_column == 1 else self.units
            return replace(p, depth=self.terms, strides=replace(p.strides, a_row=self.terms, b_column=column))
        return replace(p, depth=self.terms)

    @property
    def steps(self) -> tuple[int, ...]:
        """The distance between classes, bytes, in each operand of the weight: numbers, or codes, scales and zeros."""
        w, p = self.whole, self.whole.backward
        if not isinstance(p, CodedProduct):
            turned = isinstance(p, Product) or p.strides.b_column == 1
            return (4 * w.features if turned else 4, 0, 0)
        blocks = -(-w.features // p.block) if p.block else 0
        bits = min(p.bits, 16)
        zeros = 4 * blocks if p.has_zeros == 2 else -(-blocks * bits // 8) if p.has_zeros else 0
        return (-(-w.features * bits // 8), 4 * blocks, zeros)

    @property
    def floats(self) -> int:
        """Of workspace, without that of the products."""
        w = self.whole
        parts = (_KNOWN_FLOATS * w.rows, *(w.at_once * n for n in (self.units, self.terms, w.features)))
        return _ALIGN_FLOATS + sum(-(-n // _ALIGN_FLOATS) * _ALIGN_FLOATS for n in parts)

    def ints(self) -> tuple[int, ...]:
        own = (self.units, self.number, self.is_first, self.terms, *self.steps)
        return (*self.whole.sizes, *own, *_of_products(self.forward, self.backward))

    def in_block(self, kernel: Kernel, axis: str, block: Block) -> Kernel | None:
        """Of a block within the pass."""
        if axis != "classes":
            return None
        parameters = replace(self, is_first=int(block.begin == 0), units=block.units)
        space = kernel.workspace_bytes - 4 * logits_floats(self.whole)
        return replace(
            kernel,
            symbol=f"{kernel.symbol}_classes",
            parameters=parameters,
            workspace_bytes=4 * parameters.floats + max(0, space),
        )


def _of_products(*products: Product | PackedProduct | CodedProduct) -> tuple[int, ...]:
    """The kernel of each, and how many numbers it has; then the numbers."""
    ints = [p.ints() for p in products]
    heads = [n for p, own in zip(products, ints, strict=True) for n in (_KERNELS.index(type(p)), len(own))]
    return (*heads, *(n for own in ints for n in own))


def logits_floats(p: LinearLoss) -> int:
    return -(-p.at_once * p.classes // _ALIGN_FLOATS) * _ALIGN_FLOATS


_KERNELS: tuple[type[Parameters], ...] = (Product, PackedProduct, CodedProduct)  # as C numbers them
