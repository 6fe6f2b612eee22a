"""Signal-to-quantisation-noise ratio of a whole MLP, and what each step of the integer pipeline adds.

``python -m model.snr [--json]`` measures at the LLaMA-7B shape; ``--steps`` adds a line per rule of docs/numerics.md.

The reference is float64 arithmetic on the unquantised BF16 operands. Two pipelines are compared with it: *exact*,
float64 arithmetic on MXINT8 operands with the hidden activations requantised to MXINT8, and *integer*, the one of
:mod:`model.integer`. Weights are Gaussian with standard deviation 1/sqrt(fan-in) in both cases; the inputs are Gaussian
or Student-t with two degrees of freedom (heavy tails). A ratio is taken per row (sum over the outputs) and averaged
over rows in decibels, because one row of a heavy-tailed batch would otherwise decide the sum.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
from rich.console import Console
from rich.progress import Progress

from model.integer import (
    ACCUMULATOR_EXPONENT,
    MxMatrix,
    accumulate,
    bf16_to_float,
    normalise,
    sigmoid,
    swiglu,
    to_bf16,
)
from model.mx import BLOCK, dequantize

DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "gaussian": lambda rng, shape: rng.standard_normal(shape),
    "student-t(2)": lambda rng, shape: rng.standard_t(2, shape),
}
CHUNK = 1024
"""Weight rows handled at once: bounds the memory to a few hundred MB at the 7B shape."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a measurement; ``rows`` inputs of each distribution."""

    hidden: int = 4096
    intermediate: int = 11008
    rows: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("hidden", "intermediate"):
            if getattr(self, name) < BLOCK or getattr(self, name) % BLOCK:
                raise ValueError(f"{name} must be a positive multiple of {BLOCK}, not {getattr(self, name)}")
        if self.rows < 1:
            raise ValueError(f"rows must be at least 1, not {self.rows}")


@dataclass(frozen=True)
class Sqnr:
    """Decibels of the two pipelines for one input distribution; ``gap_db`` is what the integer pipeline loses."""

    inputs: str
    exact_db: float
    integer_db: float

    @property
    def gap_db(self) -> float:
        return self.exact_db - self.integer_db


def to_bf16_values(values: np.ndarray) -> np.ndarray:
    """The nearest BF16 values (ties to even) as float32."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def sqnr_db(signal: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Decibels per row of ``[rows, n]``: power of the signal over power of the difference, infinite for equal rows."""
    with np.errstate(divide="ignore"):
        return 10 * np.log10((signal**2).sum(axis=1) / ((measured - signal) ** 2).sum(axis=1))


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


class Operand:
    """A weight matrix ``[outputs, n]`` made chunk by chunk from its own seed: BF16 values and their MXINT8 form."""

    def __init__(self, seed: tuple[int, int], outputs: int, width: int, tick: Callable[[int], None]):
        self._seed, self._outputs, self._width, self._tick = seed, outputs, width, tick
        codes, scales = [], []
        for values in self._chunks():
            part = MxMatrix.from_float(values)
            codes.append(part.codes)
            scales.append(part.scales)
        self.mx = MxMatrix(np.concatenate(codes), np.concatenate(scales))

    def _chunks(self) -> Iterator[np.ndarray]:
        rng = np.random.default_rng(self._seed)
        for start in range(0, self._outputs, CHUNK):
            rows = min(CHUNK, self._outputs - start)
            yield to_bf16_values(rng.standard_normal((rows, self._width), dtype=np.float32) / np.sqrt(self._width))
            self._tick(rows)

    def times(self, x: np.ndarray) -> np.ndarray:
        """float64 product with the unquantised values."""
        return np.concatenate([x @ values.astype(np.float64).T for values in self._chunks()], axis=1)

    def times_mx(self, x: np.ndarray) -> np.ndarray:
        """float64 product with the MXINT8 values."""
        parts = []
        for start in range(0, self._outputs, CHUNK):
            part = slice(start, start + CHUNK)
            parts.append(x @ dequantize(self.mx.codes[part], self.mx.scales[part]).T)
            self._tick(len(parts[-1][0]))
        return np.concatenate(parts, axis=1)


def value(acc: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """float64 values of accumulators ``[rows, n]``."""
    return np.ldexp(acc.astype(np.float64), exponent[:, None] + ACCUMULATOR_EXPONENT)


def values_of(matrix: MxMatrix) -> np.ndarray:
    return dequantize(matrix.codes, matrix.scales)


class Measurement:
    """Both distributions through reference, exact and integer pipelines, sharing one set of weights."""

    def __init__(self, shape: Shape, tick: Callable[[int], None] = lambda rows: None):
        self.shape = shape
        self.gate, self.up, self.down = (
            Operand((shape.seed, index), *size, tick) for index, size in enumerate(
                [(shape.intermediate, shape.hidden)] * 2 + [(shape.hidden, shape.intermediate)]))
        rng = np.random.default_rng((shape.seed, 3))
        self.x = np.concatenate([to_bf16_values(draw(rng, (shape.rows, shape.hidden)))
                                 for draw in DISTRIBUTIONS.values()])
        self.x_mx = MxMatrix.from_float(self.x)
        x = self.x.astype(np.float64)
        self.reference = self.down.times(silu(self.gate.times(x)) * self.up.times(x))
        x = values_of(self.x_mx)
        self.gate_value, self.up_value = self.gate.times_mx(x), self.up.times_mx(x)
        self.exact_hidden = silu(self.gate_value) * self.up_value
        self.exact_hidden_mx = MxMatrix.from_float(self.exact_hidden)
        self.exact = self.down.times_mx(values_of(self.exact_hidden_mx))
        self.gate_acc, self.up_acc = accumulate(self.x_mx, self.gate.mx), accumulate(self.x_mx, self.up.mx)
        tick(2 * shape.intermediate)
        self.down_acc = accumulate(swiglu(*self.gate_acc, *self.up_acc), self.down.mx)
        tick(shape.hidden)
        self.integer = bf16_to_float(to_bf16(*self.down_acc)).astype(np.float64)

    def sqnr(self) -> list[Sqnr]:
        exact = self._by_distribution(self.reference, self.exact)
        measured = self._by_distribution(self.reference, self.integer)
        return [Sqnr(name, exact[name], measured[name]) for name in DISTRIBUTIONS]

    def steps(self) -> dict[str, dict[str, float]]:
        """Decibels of each step alone, infinite where it changed nothing.

        Operand formats are measured at the MLP's output with everything else unquantised, the other steps at the
        quantity they produce, against exact arithmetic from the same point on.
        """
        x, exact_x = self.x.astype(np.float64), values_of(self.x_mx)
        plain_hidden = silu(self.gate.times(x)) * self.up.times(x)
        gate, up = value(*self.gate_acc), value(*self.up_acc)
        sign, mantissa, power = normalise(self.gate_acc[0], self.gate_acc[1][:, None])
        factor, shift = sigmoid(sign, mantissa, power)
        table_sigmoid = np.ldexp(factor.astype(np.float64), -16 - shift)
        hidden_mx = values_of(self.exact_hidden_mx)
        pairs = {
            "x to MXINT8": (self.reference, self.down.times(silu(self.gate.times(exact_x)) * self.up.times(exact_x))),
            "gate, up to MXINT8": (self.reference, self.down.times(silu(self.gate.times_mx(x)) * self.up.times_mx(x))),
            "down to MXINT8": (self.reference, self.down.times_mx(plain_hidden)),
            "hidden to MXINT8": (self.exact_hidden, hidden_mx),
            "alignment of gate": (self.gate_value, gate),
            "alignment of up": (self.up_value, up),
            "16-bit gate mantissa": (gate, np.where(sign, -1, 1) * np.ldexp(mantissa.astype(np.float64), power - 15)),
            "sigmoid table": (silu(gate), gate * table_sigmoid),
            "alignment of down": (self.exact, value(*accumulate(self.exact_hidden_mx, self.down.mx))),
            "output to BF16": (value(*self.down_acc), self.integer),
        }
        return {step: self._by_distribution(*pair) for step, pair in pairs.items()}

    def _by_distribution(self, signal: np.ndarray, measured: np.ndarray) -> dict[str, float]:
        decibels = sqnr_db(signal, measured)
        return {name: float(decibels[index * self.shape.rows:(index + 1) * self.shape.rows].mean())
                for index, name in enumerate(DISTRIBUTIONS)}


def report(sqnr: list[Sqnr], steps: dict[str, dict[str, float]]) -> str:
    lines = [f"{'inputs':<14}{'exact dB':>10}{'integer dB':>12}{'gap dB':>9}"]
    lines += [f"{s.inputs:<14}{s.exact_db:>10.3f}{s.integer_db:>12.3f}{s.gap_db:>9.4f}" for s in sqnr]
    if steps:
        lines += ["", f"{'step alone, dB':<24}" + "".join(f"{name:>14}" for name in DISTRIBUTIONS)]
        lines += [f"{step:<24}" + "".join(f"{row[name]:>14.1f}" for name in DISTRIBUTIONS)
                  for step, row in steps.items()]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model.snr", description=__doc__.split("\n")[0])
    for name, unit in (("hidden", "model width"), ("intermediate", "MLP width"),
                       ("rows", "inputs of each distribution"), ("seed", "random seed")):
        parser.add_argument(f"--{name}", type=int, default=getattr(Shape(), name), help=f"{unit} (default %(default)s)")
    parser.add_argument("--steps", action="store_true", help="measure each step alone as well")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    options = parser.parse_args(argv)
    try:
        shape = Shape(hidden=options.hidden, intermediate=options.intermediate, rows=options.rows, seed=options.seed)
    except ValueError as error:
        parser.error(str(error))
    # Every matrix is made, used unquantised, used quantised and accumulated; the steps use each three times more.
    passes = 7 if options.steps else 4
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("MLP", total=passes * (2 * shape.intermediate + shape.hidden))
        measurement = Measurement(shape, lambda rows: progress.advance(task, rows))
        sqnr, steps = measurement.sqnr(), measurement.steps() if options.steps else {}
    print(report(sqnr, steps), file=sys.stderr if options.json else sys.stdout)
    if options.json:
        # JSON has no infinity: null is a step that changed nothing.
        finite = {step: {k: v if np.isfinite(v) else None for k, v in row.items()} for step, row in steps.items()}
        print(json.dumps({**asdict(shape), "sqnr": [{**asdict(s), "gap_db": s.gap_db} for s in sqnr], "steps": finite}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
