"""Small helpers for fixed-latency pipelines."""

from collections.abc import Callable, Sequence
from typing import Any

from amaranth.hdl import Module, Signal, Value


def delay(m: Module, value: Any, cycles: int, name: str, *, reset: bool = False) -> Any:
    """``value`` (a signal or a view) ``cycles`` clock cycles later.

    Data needs no reset and gets none (shift-register primitives have none); pass ``reset=True`` for a valid bit.
    """
    for cycle in range(cycles):
        stage = Signal(value.shape(), name=f"{name}_{cycle + 1}", reset_less=not reset)
        m.d.sync += stage.eq(value)
        value = stage
    return value


def tree(values: Sequence[Value], combine: Callable[[Value, Value], Value]) -> Value:
    """Combine ``values`` pairwise in a balanced tree."""
    values = list(values)
    while len(values) > 1:
        paired = [combine(a, b) for a, b in zip(values[0::2], values[1::2])]
        values = paired + (values[-1:] if len(values) % 2 else [])
    return values[0]
