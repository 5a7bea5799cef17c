"""Tar shards: the same mixtures as without, item by item, from files that WebDataset's readers understand."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from sepkit.cli.main import main
from sepkit.config import DynamicMixingConfig
from sepkit.corpora.options import ShardsOptions
from sepkit.corpora.sharding import write_shards as _write_shards
from sepkit.data import audio
from sepkit.data.dataset import EpochSampler, MixtureDataset
from sepkit.data.manifest import MixtureEntry, NoiseEntry, SourceEntry, read_manifest, write_manifest
from sepkit.errors import UserError


def write_shards(*places, **options):
    names = ("manifest", "out", "shard_megabytes")
    return _write_shards(ShardsOptions(**dict(zip(names, places, strict=False)), **options))


RATE = 8000
FORMATS = {"a": (".wav", "PCM_16"), "b": (".flac", "PCM_16"), "c": (".wav", "FLOAT"), "d": (".wav", "PCM_24"),
           "e": (".flac", "PCM_24"), "f": (".ogg", "VORBIS")}  # fmt: skip


def write_recording(path: Path, seed: int, subtype: str) -> Path:
    samples = 0.1 * np.random.default_rng(seed).standard_normal(2 * (9000 + 100 * seed))
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, 2 * RATE, subtype)
    return path


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> Path:
    """Twelve mixtures at 8 kHz of six speakers' recordings at 16 kHz, in six formats; every third with noise."""
    folder = tmp_path_factory.mktemp("plain")
    paths = {}
    for number, (speaker, (suffix, subtype)) in enumerate(FORMATS.items()):
        for take in range(2):
            paths[speaker, take] = write_recording(
                folder / "wav" / speaker / f"{take}{suffix}", 2 * number + take, subtype
            )
    write_recording(folder / "noise.wav", 30, "PCM_16")
    entries, speakers = [], list(FORMATS)
    for number in range(12):
        chosen = [speakers[number % 6], speakers[(number + 1 + number // 6) % 6]]
        sources = [
            SourceEntry(
                str(paths[name, number % 2].relative_to(folder)), speaker=name, gain=0.5 + 0.1 * number, sex="F"
            )
            for name in chosen
        ]
        entry = MixtureEntry(f"mix {number}.x", RATE, 8000 + number, sources, resampler="scipy_poly", corpus="tiny")
        if number % 3 == 0:
            entry.noise = NoiseEntry("noise.wav", start=7, gain=0.3)
        entries.append(entry)
    return write_manifest(folder / "train.jsonl", entries)


@pytest.fixture(scope="module")
def sharded(manifest, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("sharded")
    write_shards([manifest], out, 0.4, processes=1)
    return out / "train.jsonl"


def equal(one, other) -> bool:
    return one.id == other.id and all(
        torch.equal(getattr(one, name), getattr(other, name)) for name in ("mixture", "sources", "active")
    )


def test_every_item_of_every_epoch_is_that_of_the_plain_manifest(manifest, sharded):
    assert len(list(sharded.parent.glob("train-*.tar"))) > 2
    for options in ({}, {"segment_seconds": 0.4, "seed": 3}):
        plain, tar = MixtureDataset(manifest, **options), MixtureDataset(sharded, **options)
        assert len(plain) == len(tar) == 12
        for epoch in range(2):
            assert all(equal(plain[epoch, index], tar[epoch, index]) for index in range(12))


@pytest.mark.parametrize("options", [{}, {"speed_range": 0.05, "overlap_probability": 0.5}])
def test_dynamic_mixing_is_that_of_the_plain_manifest(manifest, sharded, options):
    config = DynamicMixingConfig(enabled=True, **options)
    plain, tar = (
        MixtureDataset(path, segment_seconds=0.4, seed=5, dynamic_mixing=config, mixtures_per_epoch=30)
        for path in (manifest, sharded)
    )
    assert all(equal(plain[2, index], tar[2, index]) for index in range(30))


def test_recorded_mixtures_are_kept(manifest, tmp_path):
    folder = tmp_path / "wavs"
    assert main(["prepare", "wavs", "--manifest", str(manifest), "--out", str(folder)]) == 0
    for kind in ("mix", "s1", "s2"):
        assert len(list((folder / kind).iterdir())) == 12
    sources = [str(folder / "s1"), str(folder / "s2")]
    command = [
        "prepare",
        "mixed",
        "--mixture",
        str(folder / "mix"),
        "--sources",
        *sources,
        "--out",
        str(tmp_path / "m"),
    ]
    assert main(command) == 0
    write_shards([tmp_path / "m" / "test.jsonl"], tmp_path / "t", 1, processes=1)
    plain, tar = MixtureDataset(tmp_path / "m" / "test.jsonl"), MixtureDataset(tmp_path / "t" / "test.jsonl")
    assert all(equal(plain[index], tar[index]) for index in range(12))
    with tarfile.open(tmp_path / "t" / "test-000000.tar") as shard:
        assert shard.getnames()[:4] == [f"000000000.{part}" for part in ("json", "mix.wav", "s1.wav", "s2.wav")]


def test_the_layout_is_that_of_webdataset(manifest, sharded):
    """Members of a sample stand together under one key, the base name up to its first dot."""
    entries = {entry.id: entry for entry in read_manifest(manifest)}
    lines = {entry.id: entry for entry in read_manifest(sharded)}
    keys: list[str] = []
    for shard in sorted(sharded.parent.glob("train-*.tar")):
        samples: dict[str, dict[str, bytes]] = defaultdict(dict)
        with tarfile.open(shard) as tar:
            for member in tar:
                key, _, extension = member.name.partition(".")
                if key not in keys:
                    keys.append(key)
                assert key == keys[-1], "a sample is in one piece"
                file = tar.extractfile(member)
                assert file is not None and (member.mtime, member.uid, member.uname) == (0, 0, "")
                samples[key][extension] = file.read()
        for key, sample in samples.items():
            row = json.loads(sample.pop("json"))
            entry = entries[row["id"]]
            assert [source["path"] for source in row["sources"]] == [s.path for s in lines[row["id"]].sources]
            assert row["sources"][0]["path"].startswith(f"{shard.name}::{key}.s1.")
            wanted = {f"s{i}": source.path for i, source in enumerate(entry.sources, start=1)}
            wanted |= {"noise": entry.noise.path} if entry.noise else {}
            assert {name.partition(".")[0] for name in sample} == set(wanted)
            for name, data in sample.items():
                part, _, suffix = name.partition(".")
                original = entry.resolve(wanted[part])
                lossless = original.suffix in (".flac", ".ogg") or soundfile.info(original).subtype == "FLOAT"
                assert suffix == (original.suffix[1:] if lossless else "flac")
                if lossless:
                    assert data == original.read_bytes()
                samples_read, rate = soundfile.read(io.BytesIO(data), dtype="float32")
                np.testing.assert_array_equal(samples_read, soundfile.read(original, dtype="float32")[0])
                assert rate == 2 * RATE
    assert keys == [f"{number:09d}" for number in range(12)]


def test_only_the_bytes_of_the_crop_are_read(tmp_path, monkeypatch):
    path = tmp_path / "long.wav"
    soundfile.write(path, np.random.default_rng(0).uniform(-0.9, 0.9, 60 * RATE), RATE)
    entry = MixtureEntry("long", RATE, 60 * RATE, [SourceEntry("long.wav", speaker="a")])
    write_shards([write_manifest(tmp_path / "train.jsonl", [entry])], tmp_path / "out", processes=1)
    (tar,) = read_manifest(tmp_path / "out" / "train.jsonl")
    name = tar.resolve(tar.sources[0].path)
    read, pread = [], os.pread
    monkeypatch.setattr(os, "pread", lambda *a: read.append(len(data := pread(*a))) or data)
    crop = audio.read(name, 30 * RATE, RATE)
    np.testing.assert_array_equal(crop, audio.read(path, 30 * RATE, RATE))
    size = Path(str(name).partition("::")[0]).stat().st_size
    assert 0 < sum(read) < size / 5


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_share_an_epoch_and_go_on_in_the_middle_of_it(sharded, world):
    dataset = MixtureDataset(sharded, segment_seconds=0.2, seed=1)
    samplers = [EpochSampler(len(dataset), seed=1, rank=rank, world=world, batch_size=2) for rank in range(world)]
    batches = [list(sampler) for sampler in samplers]
    seen = [key for rank in batches for batch in rank for key in batch]
    assert sorted(seen) == [(0, index) for index in range(12)], "each item once"
    ids = [dataset[key].id for key in seen]
    assert len(set(ids)) == 12
    resumed = EpochSampler(len(dataset), seed=1, rank=0, world=world, batch_size=2)
    resumed.load_state_dict({"epoch": 0, "batches_done": 1})
    rest = list(resumed)
    assert rest == batches[0][1:]
    again = MixtureDataset(sharded, segment_seconds=0.2, seed=1)
    for batch in rest:
        assert all(equal(again[key], dataset[key]) for key in batch)


def loader(path: Path, workers: int) -> list:
    dataset = MixtureDataset(path, segment_seconds=0.2, seed=1)
    sampler = EpochSampler(len(dataset), seed=1, batch_size=3)
    return list(torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=workers, collate_fn=list))


def test_workers_make_no_difference(sharded):
    for one, other in zip(loader(sharded, 0), loader(sharded, 2), strict=True):
        assert all(equal(*pair) for pair in zip(one, other, strict=True))


def test_the_same_command_again_makes_only_what_is_missing(manifest, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["prepare", "shards", "--manifest", str(manifest), "--out", str(out), "--shard-megabytes", "0.4",
               "--processes", "1"]  # fmt: skip
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out)
    shards = sorted(out.glob("train-*.tar"))
    contents = {path: path.read_bytes() for path in [*shards, out / "train.jsonl"]}
    times = {path: path.stat().st_mtime_ns for path in shards}
    # Gone, cut short, and without index: as after a crash, or an unfinished copy.
    shards[0].unlink()
    shards[1].write_bytes(contents[shards[1]][:-600])
    Path(f"{shards[2]}.index").unlink()
    assert main(command) == 0
    assert {path: path.read_bytes() for path in contents} == contents
    assert [path.stat().st_mtime_ns == times[path] for path in shards[3:]] == [True] * len(shards[3:])
    # Larger shards are fewer, and the old ones are removed.
    assert main([*command[:-4], "--shard-megabytes", "100", "--processes", "1"]) == 0
    assert [path.name for path in sorted(out.glob("*.tar*"))] == ["train-000000.tar", "train-000000.tar.index"]
    assert len(read_manifest(out / "train.jsonl")) == 12


def test_bad_recordings_are_left_out_and_listed(manifest, tmp_path, capsys):
    folder = tmp_path / "copy"
    (folder / "wav").mkdir(parents=True)
    entries = [*read_manifest(manifest)]
    for entry in entries:
        for source in entry.sources:
            target = folder / source.path
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(entry.resolve(source.path).read_bytes())
        entry.noise = None
    (folder / "wav/a/0.wav").unlink()
    flac = folder / "wav/b/1.flac"
    flac.write_bytes(flac.read_bytes()[:9000])
    path = write_manifest(folder / "train.jsonl", entries)
    bad = {e.id for e in entries if {s.path for s in e.sources} & {"wav/a/0.wav", "wav/b/1.flac"}}
    assert 0 < len(bad) < 12
    write_shards([path], tmp_path / "out", 0.4, processes=1)
    assert [e.id for e in read_manifest(tmp_path / "out" / "train.jsonl")] == [e.id for e in entries if e.id not in bad]
    listed = (tmp_path / "out" / "skipped.tsv").read_text().splitlines()
    assert {line.split("\t")[0] for line in listed} == {f"train.jsonl: {name}" for name in bad}
    assert "mixture(s) left out" in capsys.readouterr().err


def test_what_is_wrong_is_said_in_one_line(manifest, sharded, tmp_path):
    for manifests, out, message in [
        ([manifest], manifest.parent, "which its sharded form would replace"),
        ([manifest, manifest], tmp_path / "out", "two manifests are called train"),
        ([tmp_path / "no.jsonl"], tmp_path / "out", "no such file"),
    ]:
        with pytest.raises(UserError, match=message) as caught:
            write_shards(manifests, out, processes=1)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="more than 0"):
        write_shards([manifest], tmp_path / "out", 0)
    copy = tmp_path / "copy"
    copy.mkdir()
    names = ("train-000000.tar", "train-000000.tar.index", "train-000001.tar", "train-000002.tar.index")
    for name in names:
        (copy / name).write_bytes((sharded.parent / name).read_bytes())
    with open(copy / "train-000000.tar", "ab") as file:
        file.truncate(5000)
    for member, message in [
        ("train-000000.tar::000000000.s1.flac", "holds 5000 bytes, but its index says"),
        ("train-000001.tar::000000000.s1.flac", "train-000001.tar.index: no such file"),
        ("train-000002.tar::000000000.s1.flac", "train-000002.tar: no such file"),
    ]:
        with pytest.raises(UserError, match=message) as caught:
            audio.read(copy / member)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"has no member '000000000\.s7\.flac'"):
        audio.info(sharded.parent / "train-000000.tar::000000000.s7.flac")
    (copy / "train-000001.tar.index").write_text("nonsense\n")
    with pytest.raises(UserError, match="not the index of a shard"):
        audio.info(copy / "train-000001.tar::000000000.s1.flac")


def test_shards_of_shards(sharded, tmp_path):
    write_shards([sharded], tmp_path / "again", 100, processes=1)
    one, other = MixtureDataset(sharded), MixtureDataset(tmp_path / "again" / "train.jsonl")
    assert all(equal(one[index], other[index]) for index in range(12))


def test_prepare_commands_take_shards(speech, tmp_path, capsys):
    command = ["prepare", "folder", "--speech", str(speech), "--out", str(tmp_path / "out"), "--shards"]
    small = ["--segment-seconds", "1", "--train-mixtures", "3", "--dev-mixtures", "2", "--test-mixtures", "2"]
    assert main([*command, *small]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "out" / "shards")
    for name in ("train", "dev", "test"):
        plain, tar = (MixtureDataset(tmp_path / "out" / part / f"{name}.jsonl") for part in ("", "shards"))
        assert len(plain) == len(tar) > 1
        assert all(equal(plain[index], tar[index]) for index in range(len(plain)))
