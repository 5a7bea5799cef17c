import csv
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from sepkit.corpora.folder import prepare_folder as _prepare_folder
from sepkit.corpora.options import FolderOptions
from sepkit.data import audio
from sepkit.data.manifest import Manifest, read_manifest
from sepkit.data.mixing import mix_entry
from sepkit.signals import active_level
from tests.complaint import complaint
from tests.corpora.calling import by_place

prepare_folder = by_place(_prepare_folder, FolderOptions, "speech", "out", "noise")
RATE = 8000
SMALL = {"segment_seconds": 1.0, "train_mixtures": 20, "dev_mixtures": 5, "test_mixtures": 6}


def manifests(out: Path) -> dict[str, Manifest]:
    return {path.stem: read_manifest(path) for path in sorted(out.glob("*.jsonl"))}


def speakers_of(manifest: Manifest) -> set[str]:
    return {source.speaker for entry in manifest for source in entry.sources}


def test_splits_are_those_of_the_folders(speech, tmp_path, capsys):
    made = manifests(prepare_folder(speech, tmp_path / "out", **SMALL))
    assert {name: len(manifest) for name, manifest in made.items()} == {"train": 20, "dev": 5, "test": 6}
    expected = {"train": set("abcd"), "dev": set("ef"), "test": {"g", "h", "x1", "x2"}}
    assert {name: speakers_of(manifest) for name, manifest in made.items()} == expected
    assert "train: 4 speakers, 12 recordings" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["n" * 90, "录音文件" * 15, "two\nlines"])
def test_names_of_any_language_and_length_become_ids(name, write_speakers, tmp_path):
    speech = write_speakers(tmp_path / "speech", "abcdefghijklmno")
    for path in [*speech.rglob("*.wav")]:
        path.rename(path.with_name(f"{name}{path.name}"))
    made = manifests(prepare_folder(speech, tmp_path / "out", speakers=(5,), **SMALL))
    ids = [entry.id for entry in made["train"]]
    assert len(set(ids)) == 20 and all(len(each.encode()) <= 200 and each.isprintable() for each in ids)


def test_every_training_utterance_occurs_and_no_speaker_is_mixed_with_itself(speech, tmp_path):
    train = manifests(prepare_folder(speech, tmp_path / "out", **SMALL))["train"]
    assert len({source.path for entry in train for source in entry.sources}) == 12
    assert all(a.speaker != b.speaker for a, b in (entry.sources for entry in train))
    combinations_used = [frozenset(source.path for source in entry.sources) for entry in train]
    assert len(set(combinations_used)) == len(train)


def test_test_mixtures_are_crops_at_equal_levels_within_the_gain_range(speech, tmp_path):
    test = manifests(prepare_folder(speech, tmp_path / "out", gain_range_db=2.0, **SMALL))["test"]
    gains_db = []
    for entry in test:
        mixed = mix_entry(entry)
        assert mixed.mixture.shape == (RATE,)
        np.testing.assert_allclose(mixed.mixture, mixed.sources.sum(axis=0), atol=1e-7)
        gains_db += [20 * np.log10(active_level(source, RATE)) + 30 for source in mixed.sources]
    assert max(map(abs, gains_db)) <= 2.0 + 1e-3
    assert np.ptp(gains_db) > 1.0


def test_training_mixtures_are_as_long_as_their_shortest_utterance(speech, tmp_path):
    entries = manifests(prepare_folder(speech, tmp_path / "out", **SMALL))["train"]
    assert entries
    for entry in entries:
        assert entry.num_samples == min(audio.info(source.path).num_samples for source in entry.sources)
        assert np.abs(mix_entry(entry).sources).max(axis=1).min() > 0


def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not(speech, tmp_path):
    folders = [prepare_folder(speech, tmp_path / str(i), seed=seed, **SMALL) for i, seed in enumerate((0, 0, 1))]
    for name in ("train", "dev", "test"):
        first, same, other = ((folder / f"{name}.jsonl").read_bytes() for folder in folders)
        assert first == same != other


def test_more_training_speakers_do_not_change_the_test_mixtures(speech, tmp_path, write_speakers):
    before = (prepare_folder(speech, tmp_path / "0", **SMALL) / "test.jsonl").read_bytes()
    write_speakers(speech / "train", ["new"])
    assert (prepare_folder(speech, tmp_path / "1", **SMALL) / "test.jsonl").read_bytes() == before


def test_groups_are_tested_apart(speech, tmp_path):
    made = manifests(prepare_folder(speech, tmp_path / "out", groups=["x=x.*", "rest=.*"], **SMALL))
    assert speakers_of(made["test_x"]) == {"x1", "x2"}
    assert speakers_of(made["test_rest"]) == {"g", "h"}
    assert [entry.id for entry in made["test"]] == [e.id for name in ("test_x", "test_rest") for e in made[name]]


def test_training_on_one_group_alone(speech, tmp_path, write_speakers, capsys):
    write_speakers(speech / "train", ["x8", "x9"])
    write_speakers(speech / "dev-clean", ["x7"])
    groups = ["x=x.*", "rest=.*"]
    everyone = manifests(prepare_folder(speech, tmp_path / "all", groups=groups, **SMALL))
    capsys.readouterr()
    alone = manifests(prepare_folder(speech, tmp_path / "rest", groups=groups, train_group="rest", **SMALL))
    assert (speakers_of(alone["train"]), speakers_of(alone["dev"])) == (set("abcd"), set("ef"))
    assert "train: 4 speakers, 12 recordings" in capsys.readouterr().out
    for name in ("test", "test_x", "test_rest"):
        assert alone[name].path.read_bytes() == everyone[name].path.read_bytes()
    # The group is that of the first pattern that matches.
    assert not {"x8", "x9"} & speakers_of(alone["train"]) and "x8" in speakers_of(everyone["train"])


def test_the_same_test_mixtures_noisy_and_clean(speech, tmp_path, write_recording):
    for split in ("train", "dev", "test"):
        write_recording(tmp_path / "noise" / split / "n.wav", len(split), 0.7)
    options = SMALL | {"groups": ["x=x.*", "rest=.*"], "noise": tmp_path / "noise"}
    usual = manifests(prepare_folder(speech, tmp_path / "usual", **options))
    made = manifests(prepare_folder(speech, tmp_path / "both", noisy_and_clean=True, **options))
    names = ("test", "test_x", "test_rest")
    assert set(made) == {"train", "dev"} | {f"{name}_{task}" for name in names for task in ("noisy", "clean")}
    assert all(entry.noise is not None for name in ("train", "dev") for entry in made[name])
    for name in names:
        assert made[f"{name}_noisy"].path.read_bytes() == usual[name].path.read_bytes()
        for noisy, clean in zip(made[f"{name}_noisy"], made[f"{name}_clean"], strict=True):
            assert (noisy.id, noisy.task, clean.task) == (clean.id, "sep_noisy", "sep_clean")
            with_noise, without = mix_entry(noisy), mix_entry(clean)
            np.testing.assert_array_equal(without.sources, with_noise.sources)
            np.testing.assert_allclose(without.mixture, with_noise.mixture - with_noise.noise, atol=1e-7)
            assert np.abs(with_noise.noise).max() > 1e-4


def test_without_split_folders_the_speakers_are_divided(tmp_path, capsys, write_speakers):
    folder = write_speakers(tmp_path / "all", [f"s{i}" for i in range(20)], takes=1)
    made = manifests(prepare_folder(folder, tmp_path / "out", **SMALL))
    used = {name: speakers_of(manifest) for name, manifest in made.items()}
    assert {name: len(speakers) for name, speakers in used.items()} == {"train": 16, "dev": 2, "test": 2}
    assert all(not used[a] & used[b] for a, b in combinations(used, 2))
    assert "by seed 0" in capsys.readouterr().out


def test_a_missing_dev_folder_is_taken_from_train(tmp_path, write_speakers):
    write_speakers(tmp_path / "s" / "train", list("abcdef"), takes=1)
    write_speakers(tmp_path / "s" / "test", list("uv"), takes=1)
    made = manifests(prepare_folder(tmp_path / "s", tmp_path / "out", **SMALL))
    assert len(speakers_of(made["dev"])) == 2 and len(speakers_of(made["train"])) == 4
    assert speakers_of(made["test"]) == set("uv")


def test_a_test_folder_alone_makes_a_test_manifest_alone(tmp_path, write_speakers):
    write_speakers(tmp_path / "s" / "test", list("uv"))
    assert list(manifests(prepare_folder(tmp_path / "s", tmp_path / "out", **SMALL))) == ["test"]


@pytest.mark.parametrize(
    ("speaker_from", "expected"),
    [
        ("first", {"room"}), ("parent", {"p", "q"}), (r"regex:(\w+)-\d\.wav", {"p", "q"}),
        ("regex:^train/room/.", {"train/room/p", "train/room/q"}),
    ],
)  # fmt: skip
def test_speaker_from(tmp_path, speaker_from, expected, write_speakers):
    from sepkit.corpora._recordings import find_recordings

    write_speakers(tmp_path / "train" / "room", ["p", "q"])
    recordings, left_out = find_recordings(tmp_path, speaker_from)
    assert {recording.speaker for recording in recordings} == expected and not left_out
    assert {recording.split for recording in recordings} == {"train"}


def test_speakers_from_a_table(speech, tmp_path):
    table = tmp_path / "who.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "speaker", "sex", "split"])
        for path in sorted(speech.rglob("*.wav"))[:-1]:
            speaker = path.stem[0]
            writer.writerow([path.relative_to(speech), speaker, "f", "test" if speaker in "xgh" else "train"])
    out = prepare_folder(speech, tmp_path / "out", speaker_from=f"csv:{table}", speakers=[2], **SMALL)
    made = manifests(out)
    assert speakers_of(made["test"]) == {"x", "g", "h"}
    assert {source.sex for entry in made["test"] for source in entry.sources} == {"F"}
    assert "has no speaker for it" in (out / "skipped.tsv").read_text()


def test_sexes_from_a_speaker_file_above_the_folder(speech, tmp_path, capsys):
    (tmp_path / "SPEAKERS.TXT").write_text("; comment\nG |F| test | x\nh  | M | test | a|b\ng|F|\n")
    made = manifests(prepare_folder(speech, tmp_path / "out", **SMALL))
    sexes = {source.speaker: source.sex for entry in made["test"] for source in entry.sources}
    assert sexes == {"g": "F", "h": "M", "x1": None, "x2": None}
    assert "test: 4 speakers (1 F, 1 M)" in capsys.readouterr().out


def test_other_rates_and_channels(tmp_path):
    for number, speaker in enumerate("abcdef"):
        split = ("train", "dev", "test")[number // 2]
        rate = (44100, 16000)[number % 2]
        waveform = 0.1 * np.random.default_rng(number).standard_normal((2, round(1.5 * rate)))
        audio.write(tmp_path / "s" / split / speaker / "1.wav", waveform.astype(np.float32), rate)
    made = manifests(prepare_folder(tmp_path / "s", tmp_path / "out", **SMALL))
    shapes = {split: {mix_entry(entry).mixture.shape for entry in manifest} for split, manifest in made.items()}
    assert shapes == {"train": {(12000,)}, "dev": {(8000,)}, "test": {(8000,)}}


def test_noise_at_the_ratio_asked_for(speech, tmp_path, write_recording):
    for split, seconds in (("train", 0.3), ("dev", 3.0), ("test", 0.7)):
        write_recording(tmp_path / "noise" / split / "n.wav", len(split), seconds)
    (tmp_path / "noise" / "test" / "bad.wav").write_bytes(b"RIFF")
    out = prepare_folder(speech, tmp_path / "out", tmp_path / "noise", noise_snr_db=(5.0, 5.0), **SMALL)
    made = manifests(out)
    assert all(made.values())
    for manifest in made.values():
        for entry in manifest:
            mixed = mix_entry(entry)
            snr_db = 20 * np.log10(np.linalg.norm(mixed.sources.sum(axis=0)) / np.linalg.norm(mixed.noise))
            assert snr_db == pytest.approx(5.0, abs=1e-3)
            assert manifest.path.stem in entry.noise.path and entry.task == "sep_noisy"
    assert "bad.wav" in (out / "skipped.tsv").read_text()


def test_crops_avoid_pauses(tmp_path):
    generator = np.random.default_rng(0)
    for split in ("train", "dev", "test"):
        for speaker in (f"{split}1", f"{split}2"):
            waveform = 1e-5 * generator.standard_normal(RATE * 12)
            waveform[5 * RATE : 11 * RATE] = 0.1 * generator.standard_normal(6 * RATE)
            audio.write(tmp_path / "s" / split / speaker / "1.wav", waveform.astype(np.float32), RATE)
    out = prepare_folder(tmp_path / "s", tmp_path / "out", segment_seconds=2, test_mixtures=1, dev_mixtures=1)
    for name in ("dev", "test"):
        power = np.square(mix_entry(manifests(out)[name][0]).sources).mean(axis=1)
        assert (power > 10 ** (-3.0 - 0.25 - 0.7)).all()


def test_bad_files_are_left_out_and_listed(speech, tmp_path, capsys):
    folder = speech / "train" / "a"
    (folder / "empty.wav").write_bytes(b"")
    (folder / "text.flac").write_text("hello")
    audio.write(folder / "silent.wav", np.zeros(9000, np.float32), RATE)
    (folder / "cover.jpg").write_bytes(b"not audio at all")
    whole = audio.write(folder / "cut.flac", 0.1 * np.random.default_rng(0).standard_normal(20000), RATE, "PCM_16")
    whole.write_bytes(whole.read_bytes()[:12000])
    from scipy.io import wavfile

    wavfile.write(folder / "no_samples.wav", RATE, np.zeros(0, np.int16))
    wavfile.write(folder / "nan.wav", RATE, np.array([0.1, np.nan] * 5000, np.float32))
    out = prepare_folder(speech, tmp_path / "out", **SMALL)
    listed = dict(line.split("\t", 1) for line in (out / "skipped.tsv").read_text().splitlines())
    assert {Path(path).name for path in listed} == {
        "empty.wav", "text.flac", "silent.wav", "cut.flac", "no_samples.wav", "nan.wav",
    }  # fmt: skip
    for path, reason in listed.items():
        assert Path(path).name in reason
    assert re.search(r"warning: 6 item\(s\) left out, listed in .*skipped\.tsv", capsys.readouterr().err)
    assert len({source.path for entry in manifests(out)["train"] for source in entry.sources}) == 12
    for path in listed:
        Path(path).unlink()
    prepare_folder(speech, tmp_path / "out", **SMALL)
    assert not (out / "skipped.tsv").exists()


def test_a_speaker_in_two_splits_and_recordings_slower_than_the_rate_are_said(speech, tmp_path, capsys, write_speakers):
    write_speakers(speech / "test", ["a"], takes=1)
    prepare_folder(speech, tmp_path / "out", sample_rate=16000, **SMALL)
    error = capsys.readouterr().err
    assert "warning: 1 speaker(s) of test are in train too (a)" in error and "less than 16000 Hz" in error


def test_fewer_combinations_than_asked_for(tmp_path, write_speakers):
    for split in ("train", "dev", "test"):
        write_speakers(tmp_path / "s" / split, [f"{split}1", f"{split}2"], takes=2)
    made = manifests(prepare_folder(tmp_path / "s", tmp_path / "out", segment_seconds=1.0))
    assert {len(manifest) for manifest in made.values()} == {4}


def check_message(action, *patterns: str) -> None:
    message = complaint(action)
    for pattern in patterns:
        assert re.search(pattern, message), message


def test_what_cannot_be_prepared(speech, tmp_path, write_speakers, write_recording):
    out = tmp_path / "out"
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    one = write_speakers(tmp_path / "one", ["only"])
    flat = tmp_path / "flat"
    write_recording(flat / "1.wav", 0)
    for action, *patterns in [
        (lambda: prepare_folder(tmp_path / "nowhere", out), "nowhere: no such folder"),
        (lambda: prepare_folder(speech / "test" / "g" / "g-0.wav", out), "it is a file"),
        (lambda: prepare_folder(tmp_path / "empty", out), "empty: no audio files"),
        (lambda: prepare_folder(one, out), r"found 1 speaker\(s\) \(only\), expected at least 6"),
        (lambda: prepare_folder(flat, out), "no folder between .* names its speaker", "--speaker-from"),
        (lambda: prepare_folder(speech, out, speakers=[3], **SMALL), r"dev: found 2 speaker\(s\) \(e, f\).*3"),
        (lambda: prepare_folder(speech, out, segment_seconds=9.0), r"at least 9 s", "--segment-seconds"),
        (lambda: prepare_folder(speech, out, groups=["x"]), "NAME=PATTERN"),
        (lambda: prepare_folder(speech, out, groups=["x=("]), "not a regular expression"),
        (lambda: prepare_folder(speech, out, groups=["x=nobody"], **SMALL), r"test_x: 0 speaker\(s\)"),
        (lambda: prepare_folder(speech, out, train_group="x"), "--train-group x", "none given"),
        (lambda: prepare_folder(speech, out, groups=["g=.*"], train_group="x"), r"--train-group x: .*\(g\)"),
        (
            lambda: prepare_folder(speech, out, groups=["x=x.*"], train_group="x", **SMALL),
            r"train: found 0 speaker\(s\)",
        ),
        (lambda: prepare_folder(speech, out, noisy_and_clean=True), "--noisy-and-clean", "--noise DIR"),
        (lambda: prepare_folder(speech, out, speaker_from="second"), "expected one of first, parent, regex"),
        (lambda: prepare_folder(speech, out, speaker_from="regex:["), "not a regular expression"),
        (lambda: prepare_folder(speech, out, speaker_from="regex:zzz"), "no speaker of 30 files is known"),
        (lambda: prepare_folder(speech, out, speaker_from="csv:nowhere.csv"), "nowhere.csv: no such file"),
        (lambda: prepare_folder(speech, out, speakers=[]), "--speakers"),
        (lambda: prepare_folder(speech, out, speakers=[2, 2]), "--speakers 2 2"),
        (lambda: prepare_folder(speech, tmp_path / "file" / "out"), "cannot be written to"),
        (lambda: prepare_folder(speech, out, noise_snr_db=(3.0, 1.0)), "--noise-snr-db: found 3 and 1"),
        (lambda: prepare_folder(speech, out, tmp_path / "empty"), "empty: no audio files"),
        (lambda: prepare_folder(None, out), "--speech and --kaldi"),
    ]:
        check_message(action, *patterns)
    assert not list(out.glob("*.jsonl"))


def test_speech_mini(data_folder, tmp_path):
    """The recipe's preparation: no test speaker is in the training manifest, and the corpora are tested apart."""
    speech = data_folder / "speech_mini" / "wav8k"
    groups = [r"librispeech=\d{1,4}", r"speechocean762=9\d{4}"]
    made = manifests(prepare_folder(speech, tmp_path, groups=groups))
    assert {name: len(manifest) for name, manifest in made.items() if name != "train"} == {
        "dev": 200, "test": 600, "test_librispeech": 300, "test_speechocean762": 300,
    }  # fmt: skip
    train, test = speakers_of(made["train"]), speakers_of(made["test"])
    assert len(train) == 385 and not train & test and not train & speakers_of(made["dev"])
    assert len({source.path for entry in made["train"] for source in entry.sources}) == 952
    assert all(len(speaker) < 5 for speaker in speakers_of(made["test_librispeech"]))
    assert all(len(speaker) == 5 for speaker in speakers_of(made["test_speechocean762"]))
    for entry in made["test"]:
        assert (entry.num_samples, entry.mode, len(entry.sources)) == (32000, "min", 2)
        assert None not in {source.sex for source in entry.sources}
    sources = [source for entry in made["test_librispeech"][:40] for source in mix_entry(entry).sources]
    levels_db = [20 * np.log10(active_level(source, RATE)) for source in sources]
    assert np.abs(np.array(levels_db) + 30).max() <= 2.5 + 1e-3


def test_several_numbers_of_speakers_take_turns_in_equal_shares(speech, tmp_path, write_speakers, capsys):
    write_speakers(speech / "dev-clean", ["e2"])
    counts = SMALL | {"train_mixtures": 20, "dev_mixtures": 9, "test_mixtures": 7}
    made = manifests(prepare_folder(speech, tmp_path / "out", speakers=[1, 2, 3], **counts))
    assert [len(entry.sources) for entry in made["dev"]] == 3 * [1, 2, 3]
    assert [len(entry.sources) for entry in made["test"]] == [1, 2, 3, 1, 2, 3, 1]
    assert sorted(len(entry.sources) for entry in made["train"]) == 7 * [1] + 7 * [2] + 6 * [3]
    for manifest in made.values():
        assert [entry.id[:6] for entry in manifest] == [f"{k:05d}_" for k in range(len(manifest))]
        for entry in manifest:
            assert len({source.speaker for source in entry.sources}) == len(entry.sources)
            assert mix_entry(entry).sources.shape == (len(entry.sources), entry.num_samples)
    assert "9 mixtures (3 of 1; 3 of 2; 3 of 3)" in capsys.readouterr().out


def test_mixtures_of_one_number_do_not_depend_on_the_others(speech, tmp_path):
    sources = []
    for numbers in ([1, 2], [2, 1]):
        out = prepare_folder(speech, tmp_path / str(numbers), speakers=numbers, **SMALL | {"train_mixtures": 10})
        pairs = [entry.sources for entry in manifests(out)["train"] if len(entry.sources) == 2]
        sources.append([[source.path for source in pair] for pair in pairs])
    assert sources[0] == sources[1]


def test_no_more_mixtures_of_one_speaker_than_utterances(speech, tmp_path):
    counts = SMALL | {"train_mixtures": 40}
    train = manifests(prepare_folder(speech, tmp_path / "out", speakers=[1, 2], **counts))["train"]
    assert [len(entry.sources) for entry in train].count(1) == 12
    assert [len(entry.sources) for entry in train[-8:]] == 8 * [2]
