"""State: fresh for every sequence, bounded, freed; calls outside generation; errors that say what to do."""

import gc
import re

import pytest
import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

from model.hf import ReplayConfig, ReplayError, disable_replay, enable_replay, replay_statistics, replay_summary
from model.hf.hook import controller
from tests.model.hf.tiny import SEPARATOR, MlpOutputs, cache_name, feed, make, tokens

STRIDE = 5
CONFIG = {"thresholds": 0.2, "tokens_per_frame": 4, "stride": STRIDE, "separator_ids": (SEPARATOR,)}


def test_run_1_and_run_20_agree():
    model, ids = make(), tokens(2, 6, 3, 4)
    enable_replay(model, ReplayConfig(**CONFIG))
    runs = [feed(model, ids, 6) for _ in range(20)]
    assert torch.equal(runs[0], runs[19])
    assert replay_statistics(model).sequence_count == 20


def test_enabling_twice_and_disabling_twice_say_so():
    model = make()
    enable_replay(model, ReplayConfig(**CONFIG))
    with pytest.raises(ReplayError, match="^replay is enabled on this LlamaForCausalLM already; call disable_replay"):
        enable_replay(model, ReplayConfig(**CONFIG))
    disable_replay(model)
    for call in (disable_replay, replay_summary):
        with pytest.raises(ReplayError, match="^replay is not enabled on this LlamaForCausalLM; call enable_replay"):
            call(model)


def test_100_cycles_leak_nothing():
    model, ids = make(num_hidden_layers=2), tokens(1, 4, 2, 4)
    dense = feed(model, ids, 4)

    def cycle():
        enable_replay(model, ReplayConfig(**CONFIG))
        feed(model, ids, 4)
        disable_replay(model)

    def alive():
        gc.collect()
        objects = gc.get_objects()
        return len(objects), sum(issubclass(type(item), torch.Tensor) for item in objects)

    cycle()
    before = alive()
    for _ in range(100):
        cycle()
    after = alive()
    assert after[1] == before[1] and after[0] - before[0] < 100, (before, after)
    assert torch.equal(dense, feed(model, ids, 4))
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks and "forward" not in module.__dict__


def test_memory_is_one_frame_constant_in_length_and_freed():
    model = make()
    for frames in (16, 64):
        ids = tokens(2, 3, frames, 4)
        cache = DynamicCache()
        enable_replay(model, ReplayConfig(**CONFIG))
        feed(model, ids, 3, cache=cache)
        wanted = 3 * STRIDE * 2 * 32 * 4
        assert replay_statistics(model).memory_bytes == {"outputs": wanted, "references": 0, "keys": 0}
        assert replay_statistics(model).peak_memory_bytes == wanted
        del cache
        gc.collect()
        assert sum(replay_statistics(model).memory_bytes.values()) == 0
        disable_replay(model)


def test_generate_of_transformers_works_with_left_padding():
    model = make()
    prompt = torch.tensor([[0, 0, 5, 6], [7, 8, 9, 10]])
    settings = {"attention_mask": (prompt != 0).long(), "do_sample": True, "max_new_tokens": 26, "min_new_tokens": 26}
    config = {**CONFIG, "stride": 4, "separator_ids": ()}

    def run():
        torch.manual_seed(2)
        return model.generate(prompt, **settings)

    dense = run()
    enable_replay(model, ReplayConfig(**{**config, "thresholds": float("inf")}))
    assert torch.equal(run(), dense)
    disable_replay(model)
    enable_replay(model, ReplayConfig(**config))
    assert not torch.equal(run(), dense)
    assert 0 < replay_statistics(model).ratio() < 1
    disable_replay(model)
    assert torch.equal(run(), dense)


def test_guidance_with_a_cache_of_its_own_keeps_the_branches_apart():
    model = make()
    first, second = tokens(1, 6, 3, 4), tokens(1, 3, 3, 4, seed=1)
    enable_replay(model, ReplayConfig(**CONFIG))
    alone = feed(model, first, 6), feed(model, second, 3)
    caches, name = (DynamicCache(), DynamicCache()), cache_name(model)
    with torch.no_grad():
        for ids, prelude, cache in ((first, 6, caches[0]), (second, 3, caches[1])):
            model(ids[:, :prelude], use_cache=True, **{name: cache})
        for step in range(first.shape[1] - 6):
            for ids, prelude, cache, wanted in zip((first, second), (6, 3), caches, alone):
                got = model(ids[:, prelude + step:prelude + step + 1], use_cache=True, **{name: cache}).logits[:, -1]
                assert torch.equal(got, wanted[step]), step


def test_unbatched_guidance_of_transformers_runs():
    model = make()
    prompt = torch.tensor([[3, 4, 5, 6]])
    enable_replay(model, ReplayConfig(**{**CONFIG, "separator_ids": ()}))
    model.generate(prompt, attention_mask=torch.ones_like(prompt), negative_prompt_ids=prompt[:, :2],
                   guidance_scale=2.0, do_sample=False, max_new_tokens=20, min_new_tokens=20)
    statistics = replay_statistics(model)
    assert statistics.sequence_count == 2 and all(one.replayed for one in statistics.sequences)


def test_calls_outside_generation_are_dense():
    model, ids = make(), tokens(2, 6, 3, 4)
    with torch.no_grad():
        dense = model(ids, use_cache=False).logits
        mlp_input = torch.randn(2, 1, 32)
        alone = model.model.layers[0].mlp(mlp_input)
        enable_replay(model, ReplayConfig(**{**CONFIG, "thresholds": float("-inf")}))
        assert torch.equal(model(ids, use_cache=False).logits, dense)
        assert torch.equal(model(ids).logits, dense)
        assert torch.equal(model.model.layers[0].mlp(mlp_input), alone)
    # Training: no cache, and gradients flow.
    model(ids, labels=ids, use_cache=False).loss.backward()
    assert model.model.layers[0].mlp.up_proj.weight.grad.abs().sum() > 0


def test_frames_in_the_prompt_are_replayed_from():
    model, ids = make(), tokens(2, 6, 3, 4)
    enable_replay(model, ReplayConfig(**{**CONFIG, "thresholds": float("-inf")}, prelude=6))
    feed(model, ids, 6 + STRIDE)  # frame 0 is in the prompt
    assert replay_statistics(model).ratio() == 1
    assert replay_statistics(model).mlp_calls == 0


def test_other_hooks_on_the_mlp_see_whole_batches():
    model, ids = make(), tokens(3, 6, 3, 4)
    enable_replay(model, ReplayConfig(**CONFIG))
    recorder = MlpOutputs(model)
    feed(model, ids, 6)
    assert all(len(layer) == 15 and all(y.shape == (3, 32) for y in layer) for layer in recorder.seen)


def test_a_hook_that_writes_into_the_output_does_not_spoil_what_is_kept():
    model, ids = make(num_hidden_layers=1), tokens(2, 6, 3, 4)
    enable_replay(model, ReplayConfig(**{**CONFIG, "thresholds": float("-inf")}))
    recorder = MlpOutputs(model)
    handle = model.model.layers[0].mlp.register_forward_hook(lambda module, args, y: y.add_(1.0).data)
    feed(model, ids, 6)
    handle.remove()
    assert recorder.replayed(STRIDE)[:, STRIDE:].all()


def test_names_of_weights_stay():
    model = make()
    names = list(model.state_dict())
    enable_replay(model, ReplayConfig(**CONFIG))
    assert list(model.state_dict()) == names


def test_cropped_and_reshaped_sequences_and_beams_are_refused():
    model, ids = make(), tokens(2, 6, 3, 4)
    name = cache_name(model)
    enable_replay(model, ReplayConfig(**CONFIG))
    cache = DynamicCache()
    with torch.no_grad():
        model(ids[:, :6], use_cache=True, **{name: cache})
        with pytest.raises(ReplayError, match="^the sequence has 2 rows, this call 1; begin with a new cache$"):
            model(ids[:1, 6:7], use_cache=True, **{name: cache})
        short = DynamicCache()
        model(ids[:, :6], use_cache=True, **{name: short})
        with pytest.raises(ReplayError, match="^beam search reorders the rows of a sequence"):
            short.reorder_cache(torch.tensor([1, 0]))
        with pytest.raises(ReplayError, match="^beam search reorders the rows of a sequence"):
            model.generate(ids[:, :6], attention_mask=torch.ones(2, 6), num_beams=2, max_new_tokens=4)
        for layer in short.layers:
            layer.keys, layer.values = layer.keys[:, :, :-1], layer.values[:, :, :-1]
        with pytest.raises(ReplayError, match=re.escape("the cache holds 5 positions, replay has seen 6 of them: it "
                                                        "was cropped, or a call failed; begin with a new cache, or "
                                                        "call disable_replay")):
            model(ids[:, 6:7], use_cache=True, **{name: short})
    disable_replay(model)
    assert "reorder_cache" not in cache.__dict__


def test_unsuitable_models_and_attention_are_refused():
    gpt = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=16))
    with pytest.raises(ReplayError, match="^GPT2LMHeadModel has 0 decoders of layers with self_attn and mlp"):
        enable_replay(gpt, ReplayConfig(**CONFIG))
    model = make()
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(ReplayError, match="^the model uses 'flex_attention' attention; replay works with sdpa and "
                       "eager: call model.set_attn_implementation\\('sdpa'\\) first$"):
        enable_replay(model, ReplayConfig(**CONFIG))
    model = make()
    model.model.layers[1].mlp = torch.nn.Identity()
    with pytest.raises(ReplayError, match="^layer 1 has a Identity, not a gated MLP with gate_proj, up_proj, "
                       "down_proj; put 1 into exclude_layers$"):
        enable_replay(model, ReplayConfig(**CONFIG))
    enable_replay(model, ReplayConfig(**CONFIG, exclude_layers=(1,)))
    with pytest.raises(ReplayError, match="^exclude_layers leaves no layer to replay$"):
        enable_replay(make(), ReplayConfig(**CONFIG, exclude_layers=(0, 1, 2)))


def test_changing_the_attention_while_enabled_is_noticed():
    model, ids = make(), tokens(2, 6, 3, 4)
    enable_replay(model, ReplayConfig(**CONFIG))
    model.set_attn_implementation("eager")
    with pytest.raises(ReplayError, match="^layer 0 has no score: its attention did not go through the registered"):
        feed(model, ids, 6)


def test_replay_attention_without_replay_is_an_error():
    model = make()
    enable_replay(model, ReplayConfig(**CONFIG))
    name = model.config._attn_implementation
    disable_replay(model)
    model.set_attn_implementation(name)
    with pytest.raises(ReplayError, match="^LlamaAttention was given a replaying attention without enable_replay"):
        feed(model, tokens(1, 6, 1, 4), 6)


def test_a_failed_call_leaves_no_half_state():
    model, ids = make(), tokens(2, 6, 3, 4)
    enable_replay(model, ReplayConfig(**CONFIG))
    wanted = feed(model, ids, 6)
    with pytest.raises(ValueError):
        model()
    with pytest.raises(IndexError):
        model(torch.full((1, 3), 1000))
    assert controller(model)._sequence() is None
    assert torch.equal(feed(model, ids, 6), wanted)
