"""Switches replay on and off for a Hugging Face model.

The decoder gets one hook before and one after its forward, every participating MLP a forward of its own, and the
attention a registered function. No parameter, buffer or submodule is added: names and weights stay as they are.
"""

from __future__ import annotations

import inspect
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from transformers import Cache, PreTrainedModel

from model.hf.attention import PREFIX, SLOT, original, register
from model.hf.config import ReplayConfig
from model.hf.decoder import check_version, find_decoder, layers_of, participating
from model.hf.errors import ReplayError
from model.hf.layer import LayerReplay, MlpRunner, run_needed_rows
from model.hf.layout_check import LayoutCheck, embedding_keys, id_keys
from model.hf.preset import ReplayPreset
from model.hf.sequence import Sequence
from model.hf.statistics import ReplayStatistics


def enable_replay(model: nn.Module, config: ReplayConfig | ReplayPreset) -> None:
    """Let ``model`` replay MLP outputs in every generation from now on.

    A call with an empty cache begins a sequence; single-token calls that continue its cache decide, layer by layer;
    calls of several tokens, or without a cache, compute everything. A preset is refused on other weights.

    Raises
    ------
    ReplayError
        Replay is enabled already, or the model, its attention or the version of ``transformers`` is not supported.
    ValueError
        The configuration does not fit the model.
    """
    if isinstance(config, ReplayPreset):
        config.check(model)
        config = config.config
    enable_with(model, config, run_needed_rows)


def enable_with(model: nn.Module, config: ReplayConfig, runner: MlpRunner) -> None:
    """:func:`enable_replay` with another way to evaluate the rows that compute (benchmarks)."""
    check_version()
    decoder = find_decoder(model)
    if SLOT in decoder.__dict__:
        raise ReplayError(f"replay is enabled on this {type(model).__name__} already; call disable_replay first")
    setattr(decoder, SLOT, Replay(decoder, config, runner))


def disable_replay(model: nn.Module) -> None:
    """Make ``model`` what it was before, and free all replay memory. Raises :exc:`ReplayError` if it is not enabled."""
    decoder = find_decoder(model)
    controller(model).remove()
    delattr(decoder, SLOT)


def replay_statistics(model: nn.Module) -> ReplayStatistics:
    """Everything counted since replay was enabled. Raises :exc:`ReplayError` if it is not."""
    return controller(model).measured()


def controller(model: nn.Module) -> Replay:
    """The replay of ``model``. Raises :exc:`ReplayError` if it is not enabled."""
    found = find_decoder(model).__dict__.get(SLOT)
    if found is None:
        raise ReplayError(f"replay is not enabled on this {type(model).__name__}; call enable_replay(model, config)")
    return found


class Replay:
    """Replay of one decoder: which sequence a call belongs to, and everything that must be undone."""

    def __init__(self, decoder: PreTrainedModel, config: ReplayConfig, runner: MlpRunner):
        there = layers_of(decoder)
        thresholds = config.per_layer(len(there))
        layers = participating(decoder, config.exclude_layers)
        self.config, self._decoder = config, decoder
        self._implementation = decoder.config._attn_implementation
        functions = [original(layer.self_attn, self._implementation) for layer in there]
        register()
        self.thresholds = tuple(thresholds[layer] for layer in layers)
        self.statistics = ReplayStatistics(layers=layers, branches=2 if config.guided else 1)
        self._sequences: WeakKeyDictionary[Cache, Sequence] = WeakKeyDictionary()
        self._current: Sequence | None = None
        self._layers = {
            layer: LayerReplay(config, place, layer, thresholds[layer], there[layer].mlp, functions[layer],
                               self.statistics, self._sequence, runner)
            for place, layer in enumerate(layers)}
        for layer, function in enumerate(functions):
            setattr(there[layer].self_attn, SLOT, (function, self._layers.get(layer)))
        self._arguments = list(inspect.signature(type(decoder).forward).parameters)[1:]
        self._handles = [decoder.register_forward_pre_hook(self._before, with_kwargs=True),
                         decoder.register_forward_hook(self._after, with_kwargs=True, always_call=True)]
        decoder.set_attn_implementation(PREFIX + self._implementation)

    def remove(self) -> None:
        """Undo everything."""
        self._decoder.set_attn_implementation(self._implementation)
        for handle in self._handles:
            handle.remove()
        for layer in self._layers.values():
            layer.remove()
        for layer in layers_of(self._decoder):
            delattr(layer.self_attn, SLOT)
        for cache in list(self._sequences):
            cache.__dict__.pop("reorder_cache", None)
        self._sequences.clear()

    def measured(self) -> ReplayStatistics:
        """The statistics, with the memory that is held now."""
        parts = [sequence.size_bytes for sequence in self._sequences.values()]
        self.statistics.memory_bytes = {name: sum(part[name] for part in parts)
                                        for name in ("outputs", "references", "keys")}
        return self.statistics

    def _sequence(self) -> Sequence | None:
        return self._current

    def _before(self, module: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = {**dict(zip(self._arguments, args)), **kwargs}
        input_ids, embeddings = given.get("input_ids"), given.get("inputs_embeds")
        fed = input_ids if input_ids is not None else embeddings
        if fed is None:
            return  # the model has an error of its own for this
        rows, tokens = fed.shape[:2]
        cache = given["cache"] if given.get("cache") is not None else given.get("past_key_values")
        if cache is not None and not isinstance(cache, Cache):
            raise ReplayError(f"replay needs a cache object of transformers, not {type(cache).__name__}; "
                              "pass a DynamicCache, or none")
        self._current = sequence = self._find(cache, rows)
        sequence.advance(tokens)
        visual = sequence.visual(tokens)
        if visual and self.config.separator_ids != ():
            table: Any = module.get_input_embeddings()
            keys = id_keys(fed) if input_ids is not None else embedding_keys(fed, table.weight,
                                                                             self.config.separator_ids or ())
            for number, offset in visual:
                sequence.check.feed(number, keys[offset])

    def _find(self, cache: Cache | None, rows: int) -> Sequence:
        """The sequence that continues ``cache``, or a new one."""
        past = 0 if cache is None else int(cache.get_seq_length())
        known = None if cache is None else self._sequences.get(cache)
        if known is not None and past:
            if known.total != past:
                raise ReplayError(f"the cache holds {past} positions, replay has seen {known.total} of them: it was "
                                  "cropped, or a call failed; begin with a new cache, or call disable_replay")
            if known.rows != rows:
                raise ReplayError(f"the sequence has {known.rows} rows, this call {rows}; begin with a new cache")
            return known
        return self._remember(cache, Sequence(self.config, len(self._layers), rows, past, LayoutCheck(self.config),
                                              self.statistics.begin()))

    def _remember(self, cache: Cache | None, sequence: Sequence) -> Sequence:
        if cache is not None:
            self._sequences[cache] = sequence
            cache.__dict__["reorder_cache"] = _refuse_reorder
        return sequence

    def _after(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: Any) -> None:
        sequence, self._current = self._current, None
        if sequence is None or output is None:
            return
        values = output.values() if isinstance(output, dict) else output
        cache = next((value for value in values if isinstance(value, Cache)), None)
        if cache is not None and cache not in self._sequences:
            self._remember(cache, sequence)
        held = sum(sum(live.size_bytes.values()) for live in self._sequences.values())
        self.statistics.peak_memory_bytes = max(self.statistics.peak_memory_bytes, held)


def _refuse_reorder(*_: object) -> None:
    raise ReplayError("beam search reorders the rows of a sequence, replay does not support it; use num_beams=1, "
                      "or call disable_replay")
