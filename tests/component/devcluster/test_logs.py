"""The log files of the node's containers."""

from datetime import UTC, datetime
from pathlib import Path

from dlspawner.devcluster.node.streaming.logs import KEPT_FILES, ROTATE_BYTES, LogFile, Query, read


async def test_log_is_bounded_and_long_lines_are_whole_when_read(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "0.log")
    line = b"x" * 100_000 + b"\n"
    for _ in range(ROTATE_BYTES // len(line) * (KEPT_FILES + 1)):
        log.write("stdout", line)
    log.write("stderr", b"last")
    log.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= KEPT_FILES * ROTATE_BYTES
    text = b"".join([chunk async for chunk in read(tmp_path / "0.log", None, Query())])
    assert text.endswith(line + b"last\n")
    future = Query(since=datetime(2999, 1, 1, tzinfo=UTC))
    assert [chunk async for chunk in read(tmp_path / "0.log", None, future)] == []
