from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.corpora.options import PulsesOptions
from sepkit.corpora.pulses import conditions
from sepkit.corpora.pulses import prepare_pulses as _prepare_pulses
from sepkit.data import audio
from sepkit.data.dataset import MixtureDataset
from sepkit.data.manifest import read_manifest
from sepkit.data.mixing import mix_entry
from sepkit.data.pulses import PulseParameters, pulse_noise, pulse_sources
from sepkit.errors import UserError


def prepare_pulses(*places, **options):
    names = ("out",)
    return _prepare_pulses(PulsesOptions(**dict(zip(names, places, strict=False)), **options))


TINY = {"train_mixtures": 6, "dev_mixtures": 3, "test_mixtures": 4, "seconds": 0.5}
TRAINING = PulseParameters(seconds=0.5)


@pytest.fixture(scope="module")
def pulses(tmp_path_factory) -> Path:
    return prepare_pulses(tmp_path_factory.mktemp("pulses"), **TINY)


def indices_of(pulses: Path, name: str) -> list[int]:
    return [int(entry.id.rsplit("-", 1)[1]) for entry in read_manifest(pulses / f"{name}.jsonl")]


def test_indices_are_those_of_the_thesis(pulses, tmp_path):
    assert indices_of(pulses, "train") == list(range(100000, 100006))
    assert indices_of(pulses, "dev") == list(range(100006, 100009))
    manifests = {path.stem for path in pulses.glob("*.jsonl")}
    assert manifests == {"train", "dev", "test", *(f"test_{name}" for name in conditions())}
    for name in manifests - {"train", "dev"}:
        assert indices_of(pulses, name) == list(range(100009, 100013))
    other = prepare_pulses(tmp_path, **TINY, replicate=3, conditions=["noise_low"])
    assert indices_of(other, "dev")[0] == 300006
    assert {path.name for path in other.glob("test*.jsonl")} == {"test.jsonl", "test_noise_low.jsonl"}


@pytest.mark.parametrize("name", ["train", "dev", "test"])
def test_mixtures_are_what_the_index_says(pulses, name):
    dataset = MixtureDataset(pulses / f"{name}.jsonl")
    for example, index in zip((dataset[i] for i in range(len(dataset))), indices_of(pulses, name), strict=True):
        sources, noise = pulse_sources(index, TRAINING), pulse_noise(index, "white", TRAINING)
        np.testing.assert_array_equal(example.sources.numpy(), sources)
        np.testing.assert_allclose(example.mixture.numpy(), sources.sum(axis=0) + 0.5 * noise, atol=1e-6)
        assert example.active.all() and np.isfinite(example.mixture.numpy()).all()


@pytest.mark.parametrize("name", conditions())
def test_conditions_differ_in_one_thing(pulses, name):
    condition = conditions(TRAINING)[name]
    usual = read_manifest(pulses / "test.jsonl")
    for entry, index in zip(read_manifest(pulses / f"test_{name}.jsonl"), indices_of(pulses, "test"), strict=True):
        mixed = mix_entry(entry)
        sources = pulse_sources(index, condition.parameters)
        noise = pulse_noise(index, condition.noise, condition.parameters)
        np.testing.assert_array_equal(mixed.sources, sources)
        np.testing.assert_allclose(mixed.mixture, sources.sum(axis=0) + condition.noise_amplitude * noise, atol=1e-6)
        before = mix_entry(usual[index - indices_of(pulses, "test")[0]])
        same_noise = mixed.noise is not None and np.array_equal(mixed.noise, before.noise)
        assert np.array_equal(mixed.sources, before.sources) != same_noise


def test_conditions_are_those_of_appendix_m():
    found = conditions()
    assert [found[f"noise_{name}"].noise_amplitude for name in ("none", "low", "0_25", "0_75", "high")] == [
        0, 0.1, 0.25, 0.75, 1,
    ]  # fmt: skip
    assert {found[f"pulses_{count}"].parameters.pulses for count in (2, 4)} == {2, 4}
    assert [found[f"overtones_{name}"].parameters.overtones for name in ("none", "one_more", "twice")] == [0, 5, 8]
    widths = [found[f"widths_{name}"].parameters.sigma_range_seconds for name in ("any", "short", "long")]
    assert widths == [(0.01, 0.5), (0.01, 0.05), (0.3, 0.5)]
    assert found["frequencies_expanded"].parameters.frequency_ranges_hz == ((275, 425), (75, 225))
    gaps = []
    for name in ("expanded", "near", "overlapping"):
        (upper, _), (_, lower) = found[f"frequencies_{name}"].parameters.frequency_ranges_hz
        gaps.append(upper - lower)
    assert gaps[0] > gaps[1] > 0 > gaps[2]


def test_few_files_and_none_twice(pulses):
    """Two speakers and noise for train, dev and test, two speakers for each other kind of source, two more noises."""
    other_sources = sum(found.parameters != PulseParameters() for found in conditions().values())
    assert len(list(pulses.rglob("*.wav"))) == 3 * 3 + 2 * other_sources + 2 == 33
    header = audio.info(pulses / "wav" / "train_speaker0.wav")
    assert header.subtype == "FLOAT" and header.num_samples == 6 * 4000


def test_running_again_makes_nothing_again(pulses):
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in pulses.rglob("*.wav")}
    manifests = {path: path.read_bytes() for path in pulses.glob("*.jsonl")}
    victims = {pulses / "wav" / "test_speaker1.wav", pulses / "wav" / "test_noise_band_noise.wav"}
    for victim in victims:
        victim.unlink()
    prepare_pulses(pulses, **TINY)
    assert {path for path in before if path.stat().st_mtime_ns != before[path][1]} == victims
    assert {path: path.read_bytes() for path in pulses.rglob("*.wav")} == {
        path: data for path, (data, _) in before.items()
    }
    assert {path: path.read_bytes() for path in pulses.glob("*.jsonl")} == manifests


def test_samples_do_not_depend_on_how_many_there_are(pulses, tmp_path):
    more = prepare_pulses(tmp_path, **(TINY | {"train_mixtures": 9}), conditions=[])
    few = MixtureDataset(pulses / "train.jsonl")
    many = MixtureDataset(more / "train.jsonl")
    assert all(few[i].mixture.equal(many[i].mixture) for i in range(6))
    # Indices that a larger training set takes are not in validation.
    assert indices_of(more, "dev")[0] == 100009


def test_conditions_can_be_added_later(tmp_path):
    prepare_pulses(tmp_path, **TINY, conditions=["noise_low"])
    prepare_pulses(tmp_path, **TINY, conditions=["widths_long"])
    assert {path.name for path in tmp_path.glob("test_*.jsonl")} == {"test_noise_low.jsonl", "test_widths_long.jsonl"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_mixtures": 0}, "train_mixtures: found 0, expected at least 1"),
        ({"replicate": 0}, "replicate: found 0, expected at least 1"),
        ({"train_mixtures": 99_999}, "found 100006 mixtures of train, dev and test, expected at most 100000"),
        ({"seconds": 0.0}, r"seconds: found 0\.0"),
        ({"seconds": 30000.0}, r"found 6 mixtures of 30000\.0 s, expected at most 4"),
        ({"sample_rate": 800}, "frequency_ranges_hz"),
        ({"sample_rate": 0}, "sample_rate: found 0"),
        (
            {"conditions": ["noise_low", "loud"]},
            "--conditions: found 'loud', expected any of noise_none, noise_low",
        ),
    ],
)
def test_arguments_out_of_range(tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        prepare_pulses(tmp_path / "out", **(TINY | options))
    assert not (tmp_path / "out").exists()


def test_recordings_made_in_another_way_are_not_mixed_in(pulses):
    for options, words in ({"replicate": 2}, "replicate 1, not 2"), ({"dev_mixtures": 4}, "dev_mixtures 3, not 4"):
        with pytest.raises(UserError, match=rf"pulses\.json: made with {words}; choose another --out"):
            prepare_pulses(pulses, **(TINY | options))
    assert json.loads((pulses / "pulses.json").read_text())["replicate"] == 1


def test_from_the_command_line(tmp_path, capsys):
    options = ["--train-mixtures", "2", "--dev-mixtures", "1", "--test-mixtures", "1", "--seconds", "0.2"]
    out = str(tmp_path / "out")
    assert main(["prepare", "pulses", "--out", out, *options, "--conditions", "noise_low", "noise_high"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == out
    assert {path.stem for path in Path(out).glob("*.jsonl")} == {
        "train",
        "dev",
        "test",
        "test_noise_low",
        "test_noise_high",
    }
    assert main(["prepare", "pulses", "--out", out, *options, "--conditions", "quiet"]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and error.startswith("sepkit prepare: --conditions: found 'quiet'")
