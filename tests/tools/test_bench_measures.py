"""What the benchmark counts and fits, against closed forms; its lines `metrics` and `scaling` at tiny sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tools.bench import metrics, scaling
from tools.bench.peaks import bytes_moved, measure_peaks


def test_bytes_moved():
    x = torch.randn(10, 20)
    # Read once, written once; a view moves nothing.
    assert bytes_moved(lambda: x.T + 1) == 2 * 4 * 200
    assert bytes_moved(lambda: x.view(200)[:100]) == 0
    assert bytes_moved(lambda: x.mul_(2.0)) == 2 * 4 * 200


def test_peaks_are_plausible():
    peaks = measure_peaks(1, seconds=0.1, matrices=(128, 256), vector_bytes=2**22)
    assert 0.1 < peaks.gflops < 10_000 and 0.1 < peaks.gigabytes_per_second < 2000


def test_exponents():
    values = [2, 4, 8, 16]
    assert scaling.fit_exponent(values, [3 * value**2 for value in values]) == pytest.approx(2)
    assert scaling.fit_exponent(values, [5.0] * 4) == pytest.approx(0)
    assert scaling._row("a", "b", values, [value**1.2 for value in values], 1.0)["met"] is False
    assert scaling._row("a", "b", values, [value**1.05 for value in values], 1.0)["met"] is True


def test_scaling_runs(monkeypatch, contestant_in_this_process):
    monkeypatch.setattr(scaling, "Contestant", contestant_in_this_process)
    monkeypatch.setattr(scaling, "NUM_SAMPLES", 800)
    monkeypatch.delenv("SEPKIT_DATA", raising=False)
    result = scaling.run((0.5, 1.0), (2, 3), (1, 2), seconds=0.01, files=(1, 2))
    axes = [
        "duration in seconds",
        "duration in seconds",
        "number of files",
        "sources",
        "sources",
        "hypotheses",
        "batch",
    ]
    assert [row["by"] for row in result["rows"]] == axes
    assert all(np.isfinite(row["exponent"]) for row in result["rows"])


def test_metrics_have_equal_digits(monkeypatch):
    for package in ("mir_eval", "pb_bss_eval"):
        pytest.importorskip(package, reason=f"{package} is missing: pip install 'sepkit[peers,dev]'")
    monkeypatch.delenv("SEPKIT_DATA", raising=False)
    monkeypatch.setattr(metrics, "LEAST_TURNS", 1)
    result = metrics.run(0.01, mixture_seconds=1.0)
    assert [row["what"] for row in result["rows"]] == ["SDR", "SDR, SIR, SAR", "SI-SDR"]
    assert all(row["difference_db"] < 1e-6 for row in result["rows"])
    monkeypatch.setattr(metrics, "TOLERANCE_DB", -1.0)
    with pytest.raises(RuntimeError, match="SDR: the scores differ by"):
        metrics.run(0.01, mixture_seconds=1.0)
