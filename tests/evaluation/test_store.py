"""Real faults of the results file: torn and damaged lines, killed writers, full and read-only disks."""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import support

from soctk_evaluation.experiments import find_experiment
from soctk_evaluation.harness.store import ResultsStore, StoreError, is_measured, locked

WRITER = """
import sys, support
from soctk_evaluation.harness.store import ResultsStore
store = ResultsStore(sys.argv[1])
for number in range(int(sys.argv[3])):
    store.append(support.row(method=sys.argv[2], seed=number, key=f"{sys.argv[2]}-{number}", note="x" * 5000))
"""


@pytest.fixture
def store(tmp_path: Path) -> ResultsStore:
    return ResultsStore(tmp_path / "deep" / "results.jsonl")


def writer(store: ResultsStore, name: str, count: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WRITER, str(store.path), name, str(count)]
    return subprocess.Popen(command, env=support.environment())


def test_absent_file_is_an_empty_store(store: ResultsStore) -> None:
    assert store.read().rows == []
    assert store.done() == set()


def test_rows_come_back_as_written_and_the_last_of_a_key_wins(store: ResultsStore) -> None:
    for value in (1.0, 2.0):
        store.append(support.row(key="same", regret_mean=value))
    store.append(support.row(key="other"))
    assert [one["regret_mean"] for one in store.read().rows] == [1.0, 2.0, 0.5]
    assert store.read().latest()["same"]["regret_mean"] == 2.0


def test_of_a_cell_measured_twice_the_row_started_last_is_the_newest_wherever_it_stands(store: ResultsStore) -> None:
    for day, value in (("03", 3.0), ("01", 1.0), ("02", 2.0)):
        store.append(support.row(key=day, started=f"2026-01-{day}T00:00:00+00:00", regret_mean=value))
    store.append(support.row(method="norm"))
    assert [one["regret_mean"] for one in store.read().newest()] == [0.5, 3.0]


def test_a_failed_row_undoes_done_and_a_quarantined_one_does_not(store: ResultsStore) -> None:
    for key, status in (
        ("a", "ok"),
        ("b", "failed: x"),
        ("c", "quarantined: y"),
        ("d", "ok"),
        ("d", "failed: z"),
    ):
        store.append(support.row(key=key, status=status))
    assert store.done() == {"a", "c"}


def test_nan_and_infinity_are_written_as_null(store: ResultsStore) -> None:
    store.append(support.row(gap_max=math.inf, regret_mean=math.nan, config={"deep": [math.nan, 1.0]}))
    text = store.path.read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text)["config"] == {"deep": [None, 1.0]}


def test_a_row_that_lacks_its_key_is_refused_and_nothing_is_written(store: ResultsStore) -> None:
    broken = support.row()
    del broken["key"]
    with pytest.raises(ValueError, match="'key' is missing"):
        store.append(broken)
    assert not store.path.exists()


def test_torn_tail_is_reported_and_the_next_row_is_whole(store: ResultsStore) -> None:
    store.append(support.row(key="first"))
    store.append(support.row(key="torn"))
    os.truncate(store.path, store.path.stat().st_size - 20)
    assert [line.number for line in store.read().bad] == [2]
    store.append(support.row(key="next"))
    contents = store.read()
    assert [one["key"] for one in contents.rows] == ["first", "next"]
    assert [line.number for line in contents.bad] == [2]
    assert store.done() == {"first", "next"}


@pytest.mark.parametrize(
    "damage", [b"\x00\xff\xfe garbage", b"[1, 2]", b"{}", b'{"key": NaN}', b"null", b"[" * 100_000, b'"text']
)
def test_a_damaged_line_costs_only_itself(store: ResultsStore, damage: bytes) -> None:
    store.append(support.row(key="before"))
    with store.path.open("ab") as file:
        file.write(damage + b"\n")
    store.append(support.row(key="after"))
    contents = store.read()
    assert set(contents.latest()) == {"before", "after"}
    assert [line.number for line in contents.bad] == [2]


def test_flipped_bytes_in_a_line_lose_that_row_only(store: ResultsStore) -> None:
    for number in range(3):
        store.append(support.row(key=f"row-{number}"))
    data = bytearray(store.path.read_bytes())
    second = data.index(b"\n") + 1
    data[second : second + 4] = b"\x80\x81\x82\x83"
    store.path.write_bytes(data)
    assert store.done() == {"row-0", "row-2"}


def test_three_writers_at_once_one_of_them_killed(store: ResultsStore) -> None:
    processes = [writer(store, name, 150) for name in ("a", "b", "c")]
    deadline = time.monotonic() + 30
    while not any(one["method"] == "c" for one in store.read().rows) and time.monotonic() < deadline:
        time.sleep(0.005)
    processes[2].send_signal(signal.SIGKILL)
    assert [process.wait(timeout=60) for process in processes[:2]] == [0, 0]
    processes[2].wait()
    store.append(support.row(key="afterwards"))
    contents = store.read()
    keys = [one["key"] for one in contents.rows]
    assert len(keys) == len(set(keys))
    assert {f"{name}-{number}" for name in "ab" for number in range(150)} <= set(keys)
    assert len(contents.bad) <= 1  # at most the line the killed writer was in


def test_file_size_limit_leaves_a_valid_file_and_a_clear_error(store: ResultsStore) -> None:
    store.append(support.row(key="first"))
    before = store.path.read_bytes()
    script = f"""
import resource, support
from soctk_evaluation.harness.store import ResultsStore, StoreError
resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) + 40}, resource.RLIM_INFINITY))
try:
    ResultsStore({str(store.path)!r}).append(support.row(key="second"))
except StoreError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], env=support.environment(), capture_output=True, text=True)
    assert f"cannot write {store.path}" in run.stdout, run.stderr
    assert store.path.read_bytes() == before
    store.append(support.row(key="second"))
    assert store.done() == {"first", "second"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_is_a_clear_error() -> None:
    with pytest.raises(StoreError, match="No space left on device"):
        ResultsStore("/dev/full").append(support.row())


def test_a_store_that_cannot_be_opened_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot write"):
        ResultsStore(tmp_path).append(support.row())
    with pytest.raises(StoreError, match="cannot read"):
        ResultsStore(tmp_path).read()


READER = """
import os, sys, support
from soctk_evaluation.harness.store import ResultsStore, StoreError
if os.geteuid() == 0:
    os.setuid(65534)  # root may write read-only files; nobody may not
store = ResultsStore(sys.argv[1])
try:
    store.append(support.row(key="second"))
except StoreError as error:
    print(error)
print(store.done())
"""


def test_read_only_file_can_be_read_and_refuses_rows() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        store = ResultsStore(Path(folder) / "results.jsonl")
        store.append(support.row(key="first"))
        store.path.chmod(0o444)
        before = store.path.read_bytes()
        command = [sys.executable, "-c", READER, str(store.path)]
        run = subprocess.run(command, env=support.environment(), capture_output=True, text=True)
        assert "Permission denied" in run.stdout, run.stderr
        assert "{'first'}" in run.stdout
        assert store.path.read_bytes() == before


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_a_store_is_a_file(kind: str, tmp_path: Path) -> None:
    """A device that never ends was read for ever, a pipe that nobody writes to waited for."""
    path = Path("/dev/full")
    if kind == "pipe":
        path = tmp_path / "pipe"
        os.mkfifo(path)
    with pytest.raises(StoreError, match="a device or a pipe, in which nothing is kept; name a file"):
        ResultsStore(path).read()


def test_a_rival_that_is_not_installed_has_no_result_and_hides_none() -> None:
    row = support.row(experiment="timing", status='not installed: pip install "soctk[rivals]"', decide_ms=None)
    assert not is_measured(row)
    assert find_experiment("timing").problem_of(row) is None


def test_a_lock_that_its_last_holder_removes_is_taken_on_the_file_that_has_the_name(tmp_path, monkeypatch) -> None:
    path, flock, taken = tmp_path / "lock", fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if not taken:  # between opening and locking
            path.unlink()
        taken.append(operation)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with locked(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX) as descriptor:
        assert os.path.samestat(os.stat(path), os.fstat(descriptor))
