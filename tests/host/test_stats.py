import dataclasses

import pytest

from host.engine import DECODE, PREFILL
from host.stats import JobStatistics
from hw.config import preset
from hw.registers import COUNTERS

CONFIG = dataclasses.replace(preset("tiny"), cores=4)


def counters(**values: int) -> dict[str, int]:
    return {name.lower(): 0 for name in COUNTERS} | values


def test_jobs_are_added_up_and_ratios_formed():
    jobs = JobStatistics()
    jobs.add(PREFILL, 0, counters(cycles=100, rows_computed=8, weight_bytes=10, busiest_rows=2))
    jobs.add(DECODE, 0, counters(cycles=60, rows_computed=5, busiest_rows=2, weight_bytes=10, mac_cycles=30,
                                 fetch_cycles=4, score_cycles=3, drs_cycles=2, exposed_cycles=1))
    jobs.add(DECODE, 1, counters(cycles=40, rows_computed=0, rows_replayed=5))
    found = jobs.summary(CONFIG, hidden=64, intermediate=32)
    assert found["jobs"] == {PREFILL: 1, DECODE: 2} and found["jobs_without_weight_reads"] == 1
    assert (found["cycles"], found["cycles_prefill"], found["cycles_decode"]) == (200, 100, 100)
    assert found["cycles_per_layer"] == [60, 40]
    assert found["weight_bytes"] == 20
    assert found["rows_per_core"] == [2, 1, 1, 1]
    assert found["busiest_rows"] == {"0": 1, "2": 1}
    assert found["exposed_scheduling_cycles"] == 10
    assert found["mac_utilisation"] == pytest.approx(13 * 3 * 64 * 32 / (200 * 4 * 2 * 32))
    assert found["mac_busy_share"] == 0.15
    assert found["mlp_seconds_at_clock"] == 200 / 100e6


def test_nothing_run_gives_no_ratios():
    found = JobStatistics().summary(CONFIG, hidden=64, intermediate=32)
    assert found["cycles"] == 0 and found["mac_utilisation"] is None and found["rows_per_core"] == [0, 0, 0, 0]
