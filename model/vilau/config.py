"""Sizes of a VILA-U model, read from the ``config.json`` files of its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.checkpoint import CheckpointError
from model.vilau.llm import LlamaConfig


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Sizes of one SigLIP encoder: ``positions`` patches or text tokens; pre-norm layers of ``heads`` heads."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    positions: int

    def __post_init__(self) -> None:
        for name in ("hidden", "intermediate", "layers", "heads", "positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.hidden % self.heads:
            raise ValueError(f"heads must divide hidden = {self.hidden}, not {self.heads!r}")


@dataclass(frozen=True, kw_only=True)
class SiglipConfig:
    """SigLIP: the vision encoder, whose features are quantised, and the text encoder, which is stored but not used."""

    vision: EncoderConfig
    text: EncoderConfig
    patch: int
    text_vocab: int

    @classmethod
    def from_published(cls, fields: dict[str, Any]) -> SiglipConfig:
        """From the fields of a published SigLIP ``config.json``; what it omits has the published defaults."""
        vision, text = fields.get("vision_config", {}), fields.get("text_config", {})
        patch = vision.get("patch_size", 16)
        patches = (vision.get("image_size", 224) // patch) ** 2
        return cls(vision=_encoder(vision, patches), text=_encoder(text, text.get("max_position_embeddings", 64)),
                   patch=patch, text_vocab=text.get("vocab_size", 32000))


def _encoder(fields: dict[str, Any], positions: int) -> EncoderConfig:
    return EncoderConfig(hidden=fields.get("hidden_size", 768), intermediate=fields.get("intermediate_size", 3072),
                         layers=fields.get("num_hidden_layers", 12), heads=fields.get("num_attention_heads", 12),
                         positions=positions)


def _square(hidden: int, intermediate: int, layers: int, image: int, patch: int) -> SiglipConfig:
    """A published SigLIP whose two encoders have the same sizes."""
    sizes = {"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
             "num_attention_heads": 16}
    return SiglipConfig.from_published({"vision_config": sizes | {"image_size": image, "patch_size": patch},
                                        "text_config": sizes})


PUBLISHED_SIGLIP = {
    "google/siglip-large-patch16-256": _square(1024, 4096, 24, 256, 16),
    "google/siglip-large-patch16-384": _square(1024, 4096, 24, 384, 16),
    "google/siglip-so400m-patch14-384": _square(1152, 4304, 27, 384, 14),
}
"""Encoders that a ``vision_tower`` names by hub name instead of a folder."""


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes of the image decoder; fields as in the ``ddconfig`` of ``vision_tower/config.json``."""

    ch: int
    out_ch: int
    ch_mult: tuple[int, ...]
    num_res_blocks: int
    attn_resolutions: tuple[int, ...]
    resolution: int
    z_channels: int


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """Sizes of the vision tower.

    Parameters
    ----------
    grid : (rows, columns) of codes per frame
    depth : residual codes per token
    codebook : codes per codebook; ``shared``: one codebook for all depths
    embed : width of code embeddings and image features
    latent : (rows, columns) that features are resized to before decoding, or None
    depth_hidden, depth_layers, depth_heads : sizes of the depth transformer
    """

    siglip: SiglipConfig
    decoder: DecoderConfig
    grid: tuple[int, int]
    depth: int
    codebook: int
    shared: bool
    embed: int
    latent: tuple[int, int] | None
    depth_hidden: int
    depth_layers: int
    depth_heads: int

    def __post_init__(self) -> None:
        if self.siglip.vision.hidden != self.embed:
            raise ValueError(f"SigLIP features are {self.siglip.vision.hidden} wide, but code embeddings "
                             f"{self.embed!r}; they must be the same")

    @property
    def picture(self) -> tuple[int, int]:
        """Rows and columns of a decoded frame."""
        rows, columns = self.latent or self.grid
        scale = 2 ** (len(self.decoder.ch_mult) - 1)
        return rows * scale, columns * scale

    @classmethod
    def from_published(cls, fields: dict[str, Any], siglip: SiglipConfig) -> VisionConfig:
        """From the fields of ``vision_tower/config.json``. Raises KeyError, TypeError or ValueError."""
        codes, rq = fields["rqvaesiglip"], fields["rqtransformer"]
        *grid, depth = codes["code_shape"]
        if list(codes["code_shape"]) != list(rq["block_size"]) or rq["vocab_size"] != codes["n_embed"]:
            raise ValueError(f"the depth transformer predicts {rq['block_size']} codes of {rq['vocab_size']}, but the "
                             f"quantiser has {codes['code_shape']} of {codes['n_embed']}")
        dd = codes["ddconfig"]
        decoder = DecoderConfig(ch=dd["ch"], out_ch=dd["out_ch"], ch_mult=tuple(dd["ch_mult"]),
                                num_res_blocks=dd["num_res_blocks"], attn_resolutions=tuple(dd["attn_resolutions"]),
                                resolution=dd["resolution"], z_channels=dd["z_channels"])
        latent = codes.get("decoder_latent_shape")
        return cls(siglip=siglip, decoder=decoder, grid=(grid[0], grid[1]), depth=depth, codebook=codes["n_embed"],
                   shared=codes["shared_codebook"], embed=codes["embed_dim"],
                   latent=None if latent is None else (latent[0], latent[1]), depth_hidden=rq["embed_dim"],
                   depth_layers=rq["head"]["n_layer"], depth_heads=rq["head"]["block"]["n_head"])


@dataclass(frozen=True, kw_only=True)
class VilaConfig:
    """A whole VILA-U model; ``frames`` is the length of a clip it was trained on."""

    llm: LlamaConfig
    vision: VisionConfig
    frames: int = 8

    @property
    def tokens_per_frame(self) -> int:
        """Visual tokens of one frame, and its stride: nothing separates frames."""
        return self.vision.grid[0] * self.vision.grid[1]


def read_config(folder: Path) -> VilaConfig:
    """The configuration of a VILA-U ``folder``. Raises :exc:`~model.checkpoint.CheckpointError`."""
    tower = _json(folder / "vision_tower" / "config.json")
    projector = _json(folder / "mm_projector" / "config.json")
    try:
        if projector.get("mm_projector_type") != "mlp2x_gelu":
            raise ValueError(f"mm_projector_type must be 'mlp2x_gelu', not {projector.get('mm_projector_type')!r}")
        siglip = _siglip(folder, tower["rqvaesiglip"]["pretrained_model"])
        config = VilaConfig(llm=LlamaConfig.from_published(_json(folder / "llm" / "config.json")),
                            vision=VisionConfig.from_published(tower, siglip),
                            frames=_json(folder / "config.json").get("num_video_frames", 8))
        if tower["rqtransformer"]["input_embed_dim_2"] != config.llm.hidden:
            raise ValueError(f"the depth transformer takes hidden states {tower['rqtransformer']['input_embed_dim_2']} "
                             f"wide, but the LLaMA's are {config.llm.hidden}")
        return config
    except KeyError as error:
        raise CheckpointError(f"{folder}: the configuration lacks {error}; take all files of the release") from error
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{folder}: {error}") from error


def _siglip(folder: Path, name: str) -> SiglipConfig:
    local = folder / name / "config.json"
    if local.is_file():
        return SiglipConfig.from_published(_json(local))
    if name not in PUBLISHED_SIGLIP:
        raise ValueError(f"SigLIP {name!r} is neither one of {', '.join(PUBLISHED_SIGLIP)} nor a folder in {folder}; "
                         f"put its config.json at {local}")
    return PUBLISHED_SIGLIP[name]


def _json(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text())
    except OSError as error:
        raise CheckpointError(f"no readable {path}: a VILA-U folder has config.json, llm/, vision_tower/ and "
                              "mm_projector/, each with its config.json") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise CheckpointError(f"{path} must hold one JSON object, not {type(fields).__name__}")
    return fields
