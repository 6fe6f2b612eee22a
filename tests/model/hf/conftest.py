"""Without transformers there is nothing to test here."""

collect_ignore_glob: list[str] = []
try:
    import transformers  # noqa: F401
except ImportError:
    collect_ignore_glob.append("test_*.py")


def pytest_report_header() -> str:
    return "model.hf: not tested, transformers is not installed" if collect_ignore_glob else ""
