from pathlib import Path

import pytest

from sepkit.corpora.folder import prepare_folder as _prepare_folder
from sepkit.corpora.kaldi import read_kaldi
from sepkit.corpora.options import FolderOptions
from sepkit.data.dataset import MixtureDataset
from sepkit.data.manifest import read_manifest
from sepkit.data.mixing import mix_entry
from tests.complaint import complaint
from tests.corpora.calling import by_place

prepare_folder = by_place(_prepare_folder, FolderOptions, "speech", "out", "noise")
SMALL = {"segment_seconds": 0.5, "train_mixtures": 6, "dev_mixtures": 2, "test_mixtures": 2}


@pytest.fixture
def kaldi(tmp_path, write_speakers) -> Path:
    """Data folders train, dev_clean and test of two speakers each, two recordings a speaker."""
    for split in ("train", "dev_clean", "test"):
        audio_folder = write_speakers(tmp_path / "wav" / split, [f"{split}A", f"{split}B"], takes=2)
        folder = tmp_path / "data" / split
        folder.mkdir(parents=True)
        paths = sorted(audio_folder.rglob("*.wav"))
        (folder / "wav.scp").write_text("".join(f"{path.stem} {path}\n" for path in paths))
        (folder / "utt2spk").write_text("".join(f"{path.stem} {path.parent.name}\n" for path in paths))
        (folder / "spk2gender").write_text(f"{split}A f\n{split}B m\n")
    return tmp_path / "data"


def test_three_data_folders(kaldi, tmp_path):
    out = prepare_folder(None, tmp_path / "out", kaldi=kaldi, **SMALL)
    for split, name in (("train", "train"), ("dev", "dev_clean"), ("test", "test")):
        sources = [source for entry in read_manifest(out / f"{split}.jsonl") for source in entry.sources]
        assert {(source.speaker, source.sex) for source in sources} == {(f"{name}A", "F"), (f"{name}B", "M")}


def test_segments_are_parts_of_files(kaldi, tmp_path):
    folder = kaldi / "train"
    lines = [line.split()[0] for line in (folder / "wav.scp").read_text().splitlines()]
    (folder / "segments").write_text("".join(f"{name}-x {name} 0.25 0.85\n{name}-y {name} 0.5 -1\n" for name in lines))
    speakers = dict(line.split() for line in (folder / "utt2spk").read_text().splitlines())
    (folder / "utt2spk").write_text("".join(f"{n}-x {speakers[n]}\n{n}-y {speakers[n]}\n{n}-z none\n" for n in lines))
    recordings, left_out = read_kaldi(folder)
    assert len(recordings) == 8 and len(left_out) == 4
    assert "no line in" in next(iter(left_out.values()))
    train = read_manifest(prepare_folder(None, tmp_path / "out", kaldi=kaldi, **SMALL) / "train.jsonl")
    parts = {(source.start, source.num_samples) for entry in train for source in entry.sources if source.start == 2000}
    assert parts == {(2000, 4800)}
    assert any(source.start == 4000 for entry in train for source in entry.sources)
    assert all(mix_entry(entry).mixture.any() for entry in train)
    assert len(MixtureDataset(train, segment_seconds=0.2)[0].mixture) == 1600


def test_an_utterance_without_a_file_is_left_out(kaldi):
    with (kaldi / "train" / "utt2spk").open("a") as file:
        file.write("z none\n")
    recordings, left_out = read_kaldi(kaldi / "train")
    assert len(recordings) == 4 and ["no line in" in reason for reason in left_out.values()] == [True]


def test_decoding_commands_are_read_as_their_file_and_others_refused(tmp_path):
    (tmp_path / "utt2spk").write_text("a s1\nb s1\nc s2\n")
    lines = ["a flac -c -d -s /x/a.flac |", "b /usr/bin/sph2pipe -f wav -p /x/b.sph |", "c sub/c.wav"]
    (tmp_path / "wav.scp").write_text("\n".join(lines) + "\n")
    recordings, _ = read_kaldi(tmp_path)
    assert [recording.path for recording in recordings] == [Path("/x/a.flac"), Path("/x/b.sph"), tmp_path / "sub/c.wav"]
    victim = tmp_path / "victim"
    (tmp_path / "wav.scp").write_text(f"a touch {victim} |\n")
    complaint(lambda: read_kaldi(tmp_path), r"wav\.scp:1: command .* not run")
    (tmp_path / "wav.scp").write_text(f"a flac -c -d x.flac | touch {victim} |\n")
    complaint(lambda: read_kaldi(tmp_path), "not run")
    assert not victim.exists()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("wav.scp", None, r"no wav\.scp"), ("utt2spk", None, r"utt2spk: no such file"),
        ("utt2spk", "a\n", r"utt2spk:1: found only 'a'"), ("utt2spk", "a s\na t\n", r"utt2spk:2: a has a line already"),
        ("utt2spk", "z s\n", "share no utterance"), ("segments", "a a 1.0\n", r"segments:1: found 'a 1\.0'"),
        ("segments", "a a nan -1\n", "segments:1: found 'nan', expected a finite number"),
        ("segments", "a a 2 1\n", "a start before the end"),
    ],
)  # fmt: skip
def test_lines_that_cannot_be_understood(tmp_path, name, text, message):
    files = {"wav.scp": "a /x/a.wav\n", "utt2spk": "a s\n"} | {name: text}
    for file, content in files.items():
        if content is not None:
            (tmp_path / file).write_text(content)
    complaint(lambda: read_kaldi(tmp_path), message)
