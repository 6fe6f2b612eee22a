"""The project as a whole: every module imports, dependencies go one way, documents name things that exist."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("hw", "host", "model", "sim")
LIGHT = ["model/__init__.py", "model/mx.py", "model/integer.py", "hw/config.py", "hw/isa.py", "hw/registers.py",
         "hw/layout.py"]
"""Modules that need numpy at most, so that builds run without torch and hosts without the hardware tools."""
NUMPY_MODULES = {"model", "model.mx", "model.integer", "hw", "hw.config", "hw.isa", "hw.registers", "hw.layout"}
FORBIDDEN = {"hw": {"torch", "host", "sim"}, "model": {"amaranth", "host", "sim", "hw"}}
DOCUMENTS = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")])
SOURCES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> set[str]:
    """Absolute names of every module a file imports, at any depth of its code."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import in line {node.lineno}; name the module in full"
            names.add(str(node.module))
    return names


def test_there_is_something_to_check():
    assert {path.relative_to(ROOT).parts[0] for path in SOURCES} == set(PARTS)
    assert ROOT / "docs" / "numerics.md" in DOCUMENTS


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_module_imports(path):
    if name_of(path).rpartition(".")[2].startswith("test_"):
        pytest.skip("a testbench, collected by itself")
    importlib.import_module(name_of(path))


@pytest.mark.parametrize("path", [p for p in SOURCES if p.relative_to(ROOT).parts[0] in FORBIDDEN], ids=name_of)
def test_parts_depend_one_way(path):
    roots = {name.split(".")[0] for name in imported(path)}
    assert not roots & FORBIDDEN[path.relative_to(ROOT).parts[0]]


@pytest.mark.parametrize("file", LIGHT)
def test_contracts_need_numpy_at_most(file):
    foreign = {name for name in imported(ROOT / file) if name.split(".")[0] not in sys.stdlib_module_names}
    assert {name for name in foreign if name.split(".")[0] != "numpy"} <= NUMPY_MODULES


def test_the_gateware_loads_without_torch():
    modules = [name_of(path) for path in SOURCES if path.relative_to(ROOT).parts[0] == "hw"]
    code = f"import sys, {', '.join(modules)}; print(sorted({{'torch', 'host', 'sim'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


# Documents

FILE_PATTERN = re.compile(r"`((?:hw|host|model|sim|tests|docs|constraints)/[\w./-]+\.\w+)`")
MODULE_PATTERN = re.compile(r"python -m ((?:hw|host|model|sim)(?:\.\w+)+)")
OBJECT_PATTERN = re.compile(r"`((?:hw|host|model|sim)(?:\.\w+)+)`")
TEST_PATTERN = re.compile(r"`(test_\w+)`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_existing_files_commands_and_objects(document):
    text = document.read_text(encoding="utf-8")
    assert [file for file in FILE_PATTERN.findall(text) if not (ROOT / file).exists()] == []
    assert [module for module in MODULE_PATTERN.findall(text) if not module_file(module)] == []
    assert [name for name in OBJECT_PATTERN.findall(text) if not resolves(name)] == []
    testbenches = [path for part in ("tests", "sim") for path in (ROOT / part).rglob("test_*.py")]
    tests = "\n".join(path.read_text(encoding="utf-8") for path in testbenches)
    assert [test for test in TEST_PATTERN.findall(text) if f"def {test}(" not in tests] == []


def module_file(module: str) -> bool:
    base = ROOT.joinpath(*module.split("."))
    return base.with_suffix(".py").exists() or (base / "__main__.py").exists()


def resolves(name: str) -> bool:
    """Whether a dotted name is a module or an attribute of one."""
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            target = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[split:]:
            target = getattr(target, attribute, None)
        return target is not None
    return False


def test_constants_of_the_numerics_document_are_those_of_the_code():
    from model import integer, mx
    text = (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z0-9_]+)` \| (\S+) \|", text, flags=re.MULTILINE)
    assert len(rows) >= 17
    for name, value in rows:
        code = getattr(mx, name, None) if hasattr(mx, name) else getattr(integer, name)
        assert int(value, 0) == code, f"docs/numerics.md: {name} is {code}, not {value}"
