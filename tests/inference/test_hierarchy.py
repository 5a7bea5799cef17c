"""Groups of hypotheses along a cooling, from models whose hypotheses are known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sepkit.cli.main import main
from sepkit.config import FreeFilterbankConfig, ModelConfig, RecurrentConfig
from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.inference import hierarchy
from sepkit.inference.hierarchy import Hierarchy, Level, find_kept_models, group_hypotheses, mutual_si_sdr_db
from sepkit.models import build_model, save_model
from sepkit.reporting.matching_figures import dendrogram

CONFIG = ModelConfig(
    hypotheses=3,
    filterbank=FreeFilterbankConfig(num_filters=8),
    masker=RecurrentConfig(hidden_size=4, num_layers=1),
)


def make_run(folder: Path, temperatures: list[float]) -> Path:
    """An experiment whose kept models have masks that all are alike at first and come apart in the second half."""
    torch.manual_seed(0)
    model = build_model(CONFIG).eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    # The last layer of the masker makes n masks, one block of rows after the other; blocks that are equal make masks
    # that are equal.
    name = max((n for n, t in state.items() if t.shape[:1] == (3 * 8,)), key=lambda n: state[n].ndim)
    biases = [n for n, t in state.items() if t.shape == (3 * 8,)]
    for number, temperature in enumerate(temperatures):
        changed = {key: tensor.clone() for key, tensor in state.items()}
        for key in (name, *biases):
            rows = changed[key]
            rows[8:16] = rows[:8]
            if number < len(temperatures) / 2:
                rows[16:24] = rows[:8]
        model.load_state_dict(changed)
        info = {"epoch": 10 * (number + 1), "step": 1, "temperature": temperature}
        save_model(model, folder / "models" / f"epoch_{10 * (number + 1):04d}", info)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "exp", [5.0, 2.0, 0.5, 0.0])


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "x.wav"
    audio.write(path, 0.1 * np.random.default_rng(0).standard_normal(4000).astype(np.float32), 8000)
    return path


def test_similarity_is_the_si_sdr_both_ways() -> None:
    generator = np.random.default_rng(0)
    a = generator.standard_normal(4000)
    b = 3 * a + generator.standard_normal(4000) + 5
    found = mutual_si_sdr_db(np.stack([a, b, np.zeros(4000)]))

    def si_sdr(estimate: np.ndarray, source: np.ndarray) -> float:
        estimate, source = estimate - estimate.mean(), source - source.mean()
        target = estimate @ source / (source @ source) * source
        return 10 * np.log10(target @ target / ((estimate - target) @ (estimate - target)))

    assert found[0, 1] == pytest.approx(si_sdr(a, b)) and found[1, 0] == pytest.approx(si_sdr(b, a))
    assert found[0, 2] == -np.inf and found[2, 2] == found[0, 0] == np.inf


def test_groups_are_connected_and_numbered_by_their_lowest_member() -> None:
    similarity = np.full((4, 4), -10.0)
    np.fill_diagonal(similarity, np.inf)
    for pair in ((1, 3), (3, 1)):
        similarity[pair] = 25.0
    assert group_hypotheses(similarity) == [0, 1, 2, 1]
    assert group_hypotheses(similarity, same_db=30.0) == [0, 1, 2, 3]
    # 0 is like 2 and 2 like 1: all of one group.
    chain = np.full((3, 3), 0.0)
    for i, j in ((0, 2), (1, 2)):
        chain[i, j] = chain[j, i] = 40.0
    assert group_hypotheses(chain) == [0, 0, 0]


def test_splits_name_members_and_parts() -> None:
    def level(temperature: float, groups: list[int]) -> Level:
        return Level(1, temperature, groups, np.zeros((max(groups) + 1, 4)), np.zeros((4, 4)))

    tree = Hierarchy([level(9.0, [0, 0, 0, 0]), level(4.0, [0, 1, 0, 1]), level(1.0, [0, 1, 0, 2])])
    assert tree.splits() == [
        {"temperature_above": 9.0, "temperature_below": 4.0, "hypotheses": [1, 2, 3, 4], "into": [[1, 3], [2, 4]]},
        {"temperature_above": 4.0, "temperature_below": 1.0, "hypotheses": [2, 4], "into": [[2], [4]]},
    ]


def test_kept_models_are_in_order_and_the_last_one_ends_them(run: Path) -> None:
    model = build_model(CONFIG)
    save_model(model, run / "last_model", {"epoch": 40, "temperature": 0.0})
    assert [kept.epoch for kept in find_kept_models(run)] == [10, 20, 30, 40]
    # Of models at temperature 0 the last one is enough.
    save_model(model, run / "last_model", {"epoch": 47, "temperature": 0.0})
    assert [kept.epoch for kept in find_kept_models(run)] == [10, 20, 30, 47]
    assert [kept.temperature for kept in find_kept_models(run)] == [5.0, 2.0, 0.5, 0.0]


def test_a_run_without_kept_models_or_temperatures_is_refused(tmp_path: Path, run: Path) -> None:
    with pytest.raises(UserError, match="keep_every_epochs"):
        find_kept_models(tmp_path)
    save_model(build_model(CONFIG), run / "models" / "epoch_0050", {"epoch": 50})
    with pytest.raises(UserError, match="no temperature"):
        find_kept_models(run)


def test_a_recording_is_replayed_and_done_only_once(tmp_path: Path, run: Path, recording: Path) -> None:
    (recording.parent / "bad.wav").write_text("no audio")
    out, drawn = tmp_path / "out", []

    def draw(found: Hierarchy, path: Path) -> None:
        drawn.append(found)
        path.write_bytes(b"png")

    report = hierarchy.separate_hierarchy([recording.parent], run, out, draw=draw)
    assert report.separated == 1 and list(report.failed) == [str(recording.parent / "bad.wav")]
    written = json.loads((out / "x_hierarchy.json").read_text())
    assert [level["groups"] for level in written["levels"]] == [[[1, 2, 3]]] * 2 + [[[1, 2], [3]]] * 2
    assert [level["temperature"] for level in written["levels"]] == [5.0, 2.0, 0.5, 0.0]
    (split,) = written["splits"]
    assert (split["temperature_above"], split["temperature_below"]) == (2.0, 0.5)
    assert split["hypotheses"] == [1, 2, 3] and split["into"] == [[1, 2], [3]]
    names = [name for level in written["levels"] for name in level["estimates"]]
    assert len(names) == 6 and all((out / name).is_file() for name in names)
    assert audio.info(out / names[0]).num_samples == 4000
    assert len(drawn) == 1 and (out / "x_hierarchy.png").is_file()
    again = hierarchy.separate_hierarchy([recording], run, out, draw=draw)
    assert (again.separated, again.already_done) == (0, 1)
    (out / names[0]).unlink()
    assert hierarchy.separate_hierarchy([recording], run, out, draw=draw).separated == 1


def test_the_mean_of_a_group_is_written(run: Path, recording: Path) -> None:
    models = find_kept_models(run)[2:3]
    separator = hierarchy.load_model(models[0].folder)
    waveform = audio.read(recording)
    (level,) = hierarchy.replay(waveform, 8000, [separator], models).levels
    estimates = separator.separate(waveform, 8000).estimates
    assert level.estimates == pytest.approx(np.stack([estimates[:2].mean(0), estimates[2]]), abs=1e-7)


def test_the_dendrogram_joins_what_is_together() -> None:
    axes = dendrogram([8.0, 2.0, 0.0], [[0, 0, 0], [0, 1, 0], [0, 1, 2]], ["s1", "s2", "s3"]).axes[0]
    lines = [line for line in axes.lines if line.get_linestyle() == "-"]
    starts = {float(line.get_xdata()[0]) for line in lines}
    ends = {float(line.get_xdata()[-1]) for line in lines}
    assert len(starts) == 1 and ends == {0.0, 1.0, 2.0}
    # s1 and s3 part last, so that they are neighbors.
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert abs(names.index("s1") - names.index("s3")) == 1
    assert axes.get_yscale() == "log"


def test_the_command_writes_tree_and_picture(tmp_path: Path, run: Path, recording: Path, capsys) -> None:
    out = tmp_path / "out"
    line = ["replay", str(recording), "--model", str(run), "--out", str(out), "--device", "cpu"]
    assert main(line) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out)
    assert (out / "x_hierarchy.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "x_hierarchy" / "epoch_0030_g2.wav").is_file()
    assert main([*line, "--speakers", "2"]) == 2
    assert "--speakers" in capsys.readouterr().err
