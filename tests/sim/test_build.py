import multiprocessing
import time

import pytest

from hw.config import preset
from sim import build


def test_every_port_is_bound():
    glue = build.port_glue(preset("sim"))
    assert "constexpr int kPorts = 5;" in glue
    for name in ("data", "weights_0", "weights_3"):
        assert f"&t.{name}___05Faraddr" in glue and f"t.{name}___05Frdata.data()" in glue
    assert "weights_4" not in glue and "t.weights_0___05Fawaddr" not in glue


def test_the_hash_sees_every_part_and_where_it_ends():
    hashes = {build.content_hash(parts) for parts in ([b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"abc", b""], [])}
    assert len(hashes) == 5


def test_a_failed_build_leaves_nothing(tmp_path):
    target = tmp_path / "result"
    with pytest.raises(RuntimeError), build.staged(target) as folder:
        (folder / "half").write_text("")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "result.killed").mkdir()
    with build.staged(target) as folder:
        (folder / "whole").write_text("x")
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["whole"] and len(list(tmp_path.iterdir())) == 1


def _hold(path, log, name):
    with build.exclusive(path):
        log.append((name, "in"))
        time.sleep(0.2)
        log.append((name, "out"))


def test_one_of_two_processes_builds_at_a_time(tmp_path):
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        log = manager.list()
        workers = [context.Process(target=_hold, args=(tmp_path / "a.lock", log, n)) for n in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        events = list(log)
    assert [what for _, what in events] == ["in", "out", "in", "out"], events
