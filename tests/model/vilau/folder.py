"""A small VILA-U folder with random weights, written by the tests themselves."""

import json
from pathlib import Path

import sentencepiece
import torch
from safetensors.torch import save_file

from model.vilau.config import read_config
from model.vilau.loader import FOLDERS, build, expected_tensors

REFERENCE = Path(__file__).parents[3].parent / "shared" / "reference"
VOCAB = 96
PROMPTS = ["a red car", "fireworks in the air at night"]


def write_folder(folder: Path, *, shared: bool = False, rope_factor: float | None = None, seed: int = 0) -> Path:
    """Configuration, tokenizer and weights: 2 layers, 2x2 tokens a frame, depth 2, 40 codes."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    scaling = None if rope_factor is None else {"type": "linear", "factor": rope_factor}
    shape = [2, 2, 2]
    _json(folder / "config.json", {"model_type": "vila_u_llama", "num_video_frames": 3})
    _json(folder / "llm" / "config.json", sizes | {"vocab_size": VOCAB, "rms_norm_eps": 1e-5, "rope_scaling": scaling,
                                                   "architectures": ["LlamaForCausalLM"]})
    _json(folder / "mm_projector" / "config.json", {"mm_projector_type": "mlp2x_gelu"})
    _json(folder / "siglip" / "config.json", {
        "vision_config": sizes | {"image_size": 8, "patch_size": 4},
        "text_config": sizes | {"vocab_size": 16, "max_position_embeddings": 4}})
    _json(folder / "vision_tower" / "config.json", {
        "rqtransformer": {"block_size": shape, "embed_dim": 32, "head": {"block": {"n_head": 2}, "n_layer": 1},
                          "input_embed_dim_1": 32, "input_embed_dim_2": 32, "vocab_size": 40},
        "rqvaesiglip": {"code_shape": shape, "decoder_latent_shape": [3, 3], "embed_dim": 32, "n_embed": 40,
                        "pretrained_model": "siglip", "shared_codebook": shared,
                        "ddconfig": {"attn_resolutions": [4], "ch": 32, "ch_mult": [1, 2], "num_res_blocks": 1,
                                     "out_ch": 3, "resolution": 8, "z_channels": 32}}})
    with (folder / "llm" / "tokenizer.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*PROMPTS, "A chat USER: ASSISTANT: 's, the quick brown fox jumps over a lazy dog"]),
            model_writer=file, vocab_size=VOCAB - 4, model_type="char", hard_vocab_limit=False, minloglevel=2)
    generator = torch.Generator().manual_seed(seed)
    for part, tensors in random_weights(folder, generator).items():
        save_file(tensors, folder / part / "model.safetensors")
    return folder


def random_weights(folder: Path, generator: torch.Generator) -> dict[str, dict[str, torch.Tensor]]:
    """Random tensors as the folder's configuration wants them; a shared codebook comes once."""
    shapes = expected_tensors(build(read_config(folder)))
    shared = json.loads((folder / "vision_tower" / "config.json").read_text())["rqvaesiglip"]["shared_codebook"]
    weights: dict[str, dict[str, torch.Tensor]] = {part: {} for part in FOLDERS}
    for part, entries in shapes.items():
        for name, shape in entries.items():
            if shared and ".codebooks." in name and ".codebooks.0." not in name:
                continue
            values = torch.randn(shape, generator=generator)
            is_norm = len(shape) == 1 and name.endswith("weight")
            weights[part][name] = 1 + 0.1 * values if is_norm else values * max(1, values[0].numel()) ** -0.5
    return weights


def _json(path: Path, fields: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(fields))
