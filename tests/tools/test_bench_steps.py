"""The line `steps` of the benchmark at a tiny size: its shares, its table, and that it continues."""

from __future__ import annotations

import json

import pytest

from sepkit.config import ConvTasNetConfig, FreeFilterbankConfig, RecurrentConfig
from tools.bench import steps
from tools.bench.table import _of_steps

BANK = FreeFilterbankConfig(num_filters=8)


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("aten::mkldnn_rnn_layer_backward", "recurrences"),
        ("_ScanBackward", "recurrences"),
        ("aten::mkldnn_convolution", "convolutions"),
        ("aten::addmm", "matrix products"),
        ("aten::native_layer_norm", "norms and elementwise"),
    ],
)
def test_kinds_of_operations(operation: str, kind: str):
    assert steps.kind_of(operation) == kind


def test_shares_sum_to_one_and_only_missing_maskers_are_measured(tmp_path, monkeypatch):
    maskers = {
        "convolutions": (ConvTasNetConfig(8, 16, 8, blocks=1, repeats=1), BANK),
        "recurrences": (RecurrentConfig(rnn="lstm", hidden_size=16, num_layers=1), BANK),
    }
    monkeypatch.setattr(steps, "SECONDS", 0.5)
    path = tmp_path / "steps.json"
    monkeypatch.setattr(steps, "MASKERS", {"convolutions": maskers["convolutions"]})
    first = steps.run(path)["rows"]
    assert json.loads(path.read_text())["rows"] == first
    monkeypatch.setattr(steps, "MASKERS", maskers)
    rows = steps.run(path)["rows"]
    assert rows["convolutions"] == first["convolutions"]
    for name, row in rows.items():
        shares = row["shares"]
        assert set(shares) == set(steps.KINDS) and sum(shares.values()) == pytest.approx(1)
        # A filterbank is made of convolutions, which do not count as the masker's, in neither direction.
        assert all(shares[kind] > 0 for kind in (name, "filterbank", "loss", "optimizer", "data"))
        assert row["seconds"] > 0 and row["fused_times_faster"] > 0
    assert rows["recurrences"]["shares"]["convolutions"] == 0
    table = _of_steps({"rows": rows}).rows
    assert [cells["masker"] for cells in table] == list(maskers) and table[0]["data"].endswith(" %")
