"""The lines `accelerator`, `assignment` and `weak_scaling` of the benchmark, at tiny sizes on the processor."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tools.bench import accelerator, assignment, pairs, weak_scaling
from tools.bench.table import _of_pairs


@pytest.mark.slow
def test_every_model_and_precision_has_a_row() -> None:
    pytest.importorskip("asteroid")
    pytest.importorskip("speechbrain")
    result = accelerator.run(accelerator.REHEARSAL)
    rows = {row["what"]: row for row in result["rows"]}
    assert len(rows) == 5 * 3 * 2
    for row in rows.values():
        assert row["ratio"]["median"] > 0
        assert all(math.isfinite(value) and value > 0 for value in row["share_of_peak"].values())
    assert rows["DPRNN, bf16, compiled"]["least_ratio"] == 1.5
    assert 0 <= result["data_loading"]["share"] < 1
    assert _of_pairs(result).rows[0]["against"] == "asteroid"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_pair_has_a_ratio_and_a_share(precision: str) -> None:
    pytest.importorskip("asteroid")
    row = accelerator._row("Conv-TasNet", precision, False, accelerator.REHEARSAL, 1e-3)
    assert row["ratio"]["median"] > 0
    assert set(row["samples_per_second"]) == set(row["share_of_peak"]) == {"ours", "theirs"}
    # Multiply-adds are those of the modules, whatever way the model goes: twice the batch, twice as many.
    sizes = accelerator.REHEARSAL
    assert accelerator._operations("Conv-TasNet", replace(sizes, batch=2 * sizes.batch)) == pytest.approx(
        2 * accelerator._operations("Conv-TasNet", sizes)
    )


def test_a_peer_that_is_not_installed_is_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'asteroid'", name="asteroid")

    monkeypatch.setattr(pairs, "theirs", absent)
    row = accelerator._row("Conv-TasNet", "fp32", False, accelerator.REHEARSAL, 1e-3)
    assert row["remark"] == "asteroid is not installed (asteroid)"
    assert set(row["samples_per_second"]) == {"ours"}
    assert "ratio" not in row
    assert _of_pairs({"rows": [row | {"what": "Conv-TasNet", "peer": "asteroid"}]}).rows[0]["remark"]


def test_full_sizes_are_those_of_the_peer() -> None:
    models = pytest.importorskip("asteroid").models
    from sepkit.models.bridges import from_asteroid

    for name, known in pairs.MODELS.items():
        if known.asteroid is not None:
            theirs = from_asteroid(getattr(models, known.asteroid)(2)).config
            assert pairs.config_of(name, accelerator.FULL) == theirs


def test_without_a_device_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert accelerator.missing() == "there is no CUDA device here"
    assert accelerator.main([]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_two_processes_train_under_torchrun() -> None:
    result = weak_scaling.run(replace(weak_scaling.REHEARSAL, epochs=2), most=2)
    assert [row["processes"] for row in result["rows"]] == [1, 2]
    first, second = result["rows"]
    assert first["efficiency"] == 1.0
    assert second["efficiency"] == pytest.approx(
        second["samples_per_second"]["ours"] / (2 * first["samples_per_second"]["ours"])
    )


def test_matching_continues_where_it_stopped(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def rows(n: int, peer: str, levels: tuple[float, ...], seconds: float, threads: int, heap: str) -> list:
        asked.append((n, peer, threads, heap))
        if len(asked) == 3:
            raise KeyboardInterrupt
        case = {"speakers": n, "peer": peer, "threads": threads, "heap": heap}
        return [case | {"level_db": level, "measured": "loss", "ratios": {}} for level in levels]

    monkeypatch.setattr(assignment, "_in_a_process_of_its_own", rows)
    path = tmp_path / "assignment.json"
    with pytest.raises(KeyboardInterrupt):
        assignment.run((2,), path=path)
    found = assignment.run((2,), path=path)["rows"]
    # The case that was interrupted is the only one that is asked for twice.
    assert len(asked) == len(set(asked)) + 1 and set(asked) == {assignment._case(row) for row in found}
    assert {row["heap"] for row in found if row["threads"] == 1} == {"fresh", "grown"}
    assert len(assignment._known_rows(path, "another machine")) == 0
