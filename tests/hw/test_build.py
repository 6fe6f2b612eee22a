"""Verilog build: reproducible, one core module, current documents, honest messages."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hw.build import BOARDS, BuildError, build, emit, main
from hw.config import PRESETS, preset
from hw.reference import describe, registers_markdown
from hw.registers import REGISTERS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return emit(preset("tiny"), tmp_path_factory.mktemp("tiny"))


def test_every_board_has_a_preset():
    assert set(BOARDS) == set(PRESETS)


def test_verilog_has_the_documented_ports_and_one_core(tiny):
    text = tiny[0].read_text()
    modules = re.findall(r"^module ([^\s(]+)", text, re.M)
    assert modules.count("fastcar_core") == 1 and modules.count("top") == 1
    assert len(re.findall(r"^\s+fastcar_core ", text, re.M)) == preset("tiny").cores
    for port in ("clk", "rst", "interrupt", "csr__awaddr", "csr__rdata", "data__awvalid", "data__araddr",
                 "weights_0__rdata", "weights_0__arready"):
        assert re.search(rf"^  (input|output) .*\b{port};", text, re.M), port


def test_other_process_other_folder_same_bytes(tiny, tmp_path):
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    subprocess.run([sys.executable, "-m", "hw.build", "--board", "tiny", "--out", str(tmp_path)], check=True, cwd=ROOT,
                   env=environment, capture_output=True)
    for path in tiny:
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name
    assert str(ROOT) not in tiny[0].read_text() + tiny[1].read_text()


def test_second_emit_writes_nothing_and_a_damaged_file_is_repaired(tiny):
    before = [path.stat().st_mtime_ns for path in tiny]
    steps = []
    assert emit(preset("tiny"), tiny[0].parent, steps.append) == tiny
    assert not steps and [path.stat().st_mtime_ns for path in tiny] == before
    good = tiny[0].read_bytes()
    tiny[0].write_text("module top(); endmodule\n")
    emit(preset("tiny"), tiny[0].parent, steps.append)
    assert steps and tiny[0].read_bytes() == good


def test_sidecar_says_what_was_built(tiny):
    sidecar = json.loads(tiny[1].read_text())
    assert sidecar["config"] == preset("tiny").to_dict()
    assert {r["name"]: r["address"] for r in sidecar["registers"]} == {r.name: r.address for r in REGISTERS}
    assert sidecar["verilog_sha256"] == hashlib.sha256(tiny[0].read_bytes()).hexdigest()
    assert sidecar["instructions"]["opcodes"]["LOAD"] == {"code": 0x30, "fields": ["slot", "offset"]}
    assert sorted(p for p in sidecar["ports"] if p.startswith("weights_")) == ["weights_0"]
    assert describe(preset("u280"))["ports"]["weights_31"]["region"] == 31 << 28


def test_register_documentation_is_current():
    text = (ROOT / "docs" / "registers.md").read_text()
    assert text == registers_markdown(), "docs/registers.md is stale; run python -m hw.build --docs"


def test_command_line_reports_one_json_line(tiny, capsys):
    assert main(["--board", "tiny", "--out", str(tiny[0].parent), "--json"]) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out.splitlines()[-1])
    assert len(captured.out.splitlines()) == 1 and summary["verilog"] == str(tiny[0]) and summary["bitstream"] is None
    assert "simulation only" in captured.err


def test_unknown_board_names_the_known_ones(capsys):
    with pytest.raises(BuildError, match="unknown board 'zynq'; known: xcvu9p, u280, sim, tiny"):
        build("zynq")
    assert main(["--board", "zynq"]) == 2
    assert "known: xcvu9p" in capsys.readouterr().err


def test_unwritable_output_is_a_plain_error(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["--board", "tiny", "--out", str(tmp_path / "file" / "below")]) == 1
    assert "choose another --out" in capsys.readouterr().err


@pytest.mark.slow
def test_full_size_builds_and_says_what_is_left_out(tmp_path, capsys):
    assert main(["--board", "xcvu9p", "--out", str(tmp_path), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["macs"] == 4096
    assert "vivado" in captured.err and "bitstream" in captured.err
    assert len(re.findall(r"^\s+fastcar_core ", (tmp_path / "fastcar.v").read_text(), re.M)) == 16
