import ctypes
import re

import pytest

from sim.memory import MemoryConfig, Settings


@pytest.mark.parametrize("fields, message", [
    ({"latency": 0}, "latency must be in 1..1000000 cycles, not 0"),
    ({"bytes_per_cycle": 0}, "bytes_per_cycle must be above 0 and at most 4096, not 0"),
    ({"bytes_per_cycle": float("nan")}, "bytes_per_cycle must be above 0 and at most 4096, not nan"),
    ({"stall_probability": 1.0}, "stall_probability must be in 0..0.95, not 1.0"),
    ({"seed": -1}, "seed must be in 0..2**63-1, not -1"),
    ({"outstanding": 0}, "outstanding must be in 1..1024 bursts, not 0"),
])
def test_a_setting_out_of_range_is_named(fields, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        MemoryConfig(**fields)


def test_settings_lie_in_memory_as_the_harness_reads_them():
    settings = Settings.of(MemoryConfig(latency=3, bytes_per_cycle=2.5, stall_probability=0.25, seed=7, outstanding=9))
    assert [(name, getattr(Settings, name).offset) for name, _ in Settings._fields_] == [
        ("bytes_per_cycle", 0), ("stall_probability", 8), ("seed", 16), ("latency", 24), ("outstanding", 28)]
    assert ctypes.sizeof(Settings) == 32
    assert (settings.latency, settings.bytes_per_cycle, settings.outstanding) == (3, 2.5, 9)
