"""Values of the constant registers of a build: one definition for the register file, the boards and the host."""

import hashlib
import json

from hw.config import AcceleratorConfig
from hw.registers import MAGIC, PROTOCOL_VERSION


def build_id(config: AcceleratorConfig) -> int:
    """First 32 bits (big-endian) of the SHA-256 of the configuration as JSON with sorted keys."""
    return int.from_bytes(hashlib.sha256(json.dumps(config.to_dict(), sort_keys=True).encode()).digest()[:4], "big")


def identification(config: AcceleratorConfig) -> dict[str, int]:
    """Register name -> value, for every register that is constant in a build of ``config``."""
    return {
        "MAGIC": MAGIC, "VERSION": PROTOCOL_VERSION, "BUILD": build_id(config),
        "CORES": config.cores, "PORTS": config.ports, "GROUPS": config.groups,
        "MAX_HIDDEN_BLOCKS": config.max_hidden_blocks, "MAX_INTERMEDIATE_BLOCKS": config.max_intermediate_blocks,
        "MAX_HEADS": config.max_heads, "PROGRAM_LENGTH": config.program_length,
        "CHANNEL_BITS": config.channel_bytes.bit_length() - 1, "CLOCK_HZ": config.clock_hz,
    }
