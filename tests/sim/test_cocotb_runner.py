import pytest

pytest.importorskip("cocotb", reason="cocotb is a development dependency")
from sim import cocotb_runner  # noqa: E402

VERILOG = """module inner(clk, hidden);
  input clk;
  output [3:0] hidden;
endmodule
module top(clk, i__payload, o);
  input clk;
  wire clk;
  input [31:0] i__payload;
  wire [31:0] i__payload;
  output o;
  wire unrelated;
endmodule
"""


@pytest.fixture
def design(tmp_path):
    path = tmp_path / "top.v"
    path.write_text(VERILOG)
    return cocotb_runner.Design("test", (path,))


def test_only_ports_of_the_top_are_visible(design):
    assert cocotb_runner.ports(design, "input") == ["clk", "i__payload"]
    assert cocotb_runner.ports(design, "output") == ["o"]
    control = cocotb_runner.visible_ports(design)
    assert control.count("public_flat_rw") == 3 and "unrelated" not in control and "hidden" not in control


def test_a_design_without_the_top_is_named(design):
    other = cocotb_runner.Design("test", design.sources, top="bench")
    with pytest.raises(ValueError, match="no module 'bench' in the Verilog of 'test'"):
        cocotb_runner.visible_ports(other)


def test_failures_are_read_from_the_report(tmp_path):
    report = tmp_path / "results.xml"
    report.write_text("""<testsuites><testsuite>
        <testcase name="good" classname="m"/>
        <testcase name="bad" classname="m"><failure message="seed 1: wrong"/></testcase>
        <testcase name="crashed" classname="m"><error>boom</error></testcase></testsuite></testsuites>""")
    assert cocotb_runner.failures(report) == {"bad": "seed 1: wrong", "crashed": "boom"}


@pytest.mark.parametrize("content", [None, "<testsuites/>", "<testsuites><testsuite/></testsuites>"])
def test_no_results_are_a_failure(tmp_path, content):
    report = tmp_path / "results.xml"
    if content is not None:
        report.write_text(content)
    assert len(cocotb_runner.failures(report)) == 1


def test_the_seed_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv(cocotb_runner.SEED_VARIABLE, "77")
    assert cocotb_runner.seed() == 77
    monkeypatch.delenv(cocotb_runner.SEED_VARIABLE)
    assert len({cocotb_runner.seed() for _ in range(8)}) > 1
