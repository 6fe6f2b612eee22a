"""Keys and values that a step attends to: the whole prelude, and a ring of the last ``window`` visual steps.

Attention sinks plus a local window, as in StreamingLLM. Memory does not grow with the length of the video.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.config import RunSizes
from model.transformer import apply_rope


class KvCache:
    """Rotated keys and values, float32 ``[layers, rows, heads, prelude + window, head_dim]`` each.

    The order in the ring is that of arrival modulo ``window``; attention does not care, because keys carry their
    position. A window that does not reach back one stride has evicted the key that the temporal attention score needs:
    then the keys of the last ``stride + 1`` steps are kept in a ring of their own.

    Parameters
    ----------
    dtype, device :
        Of everything held.
    movable_prelude : :class:`bool`
        Whether :meth:`move_prelude` will be called; the keys of the prelude are then held twice.
    """

    def __init__(self, config: RunSizes, rows: int, *, dtype: torch.dtype = torch.float32,
                 device: torch.device | str = "cpu", movable_prelude: bool = False):
        self._layout, self._window = config.layout, config.window
        shape = (config.layers, rows, config.heads, config.layout.prelude + config.window, config.head_dim)
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros_like(self._keys)
        recent = config.layout.stride + 1 if config.window <= config.layout.stride else 0
        self._recent = self._keys.new_zeros(*shape[:3], recent, config.head_dim)
        self._prelude = self._keys.new_zeros(*shape[:3], config.layout.prelude if movable_prelude else 0,
                                             config.head_dim)

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        elements = 2 * self._keys.numel() + self._recent.numel() + self._prelude.numel()
        return elements * self._keys.element_size()

    def store_prelude(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Keep the prelude of ``layer``, ``[rows, heads, prelude, head_dim]`` each."""
        self._keys[layer, :, :, :self._layout.prelude] = keys
        self._values[layer, :, :, :self._layout.prelude] = values
        if self._prelude.shape[3]:
            self._prelude[layer] = keys

    def move_prelude(self, layer: int, tables: tuple[Tensor, Tensor]) -> None:
        """Rotate the keys of the prelude from where they were stored, by rotary ``tables`` of the distance."""
        self._keys[layer, :, :, :self._layout.prelude] = apply_rope(self._prelude[layer], tables)

    def store(self, layer: int, step: int, key: Tensor, value: Tensor) -> None:
        """Keep visual step ``step`` of ``layer``, ``[rows, heads, 1, head_dim]`` each, in place of the oldest one."""
        slot = self._slot(step)
        self._keys[layer, :, :, slot:slot + 1] = key
        self._values[layer, :, :, slot:slot + 1] = value
        if self._recent.shape[3]:
            self._recent[layer, :, :, step % self._recent.shape[3]] = key[:, :, 0]

    def visible(self, layer: int, step: int) -> tuple[Tensor, Tensor]:
        """Keys and values that step ``step``, stored already, attends to: ``[rows, heads, n, head_dim]`` each."""
        filled = self._layout.prelude + min(step + 1, self._window)
        return self._keys[layer, :, :, :filled], self._values[layer, :, :, :filled]

    def aligned_key(self, layer: int, step: int) -> Tensor:
        """Key ``[rows, heads, head_dim]`` of the step one frame before ``step``, which is stored already."""
        aligned = step - self._layout.stride
        if self._recent.shape[3]:
            return self._recent[layer, :, :, aligned % self._recent.shape[3]]
        return self._keys[layer, :, :, self._slot(aligned)]

    def _slot(self, step: int) -> int:
        return self._layout.prelude + step % self._window
