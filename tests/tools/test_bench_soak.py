"""Hours of work, in small: what is counted is there."""

from __future__ import annotations

from tools.bench import soak


def test_memory_after_each_job():
    found = soak.run(separations=2, files=2, rows=3, seconds=0.0)
    assert set(found["memory"]) == {"separations", "files", "rows"} and found["sizes"]["rounds"] == 1
    assert all(len(job["mib_after_each_round"]) == 1 for job in found["memory"].values())
    assert found["open_files"] < 200
