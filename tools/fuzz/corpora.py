"""Kinds of input that corpora come in: archives, tables and Kaldi folders."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from tools.fuzz.kind import Kind, sound, write_files


def _archives() -> Kind:
    content = {"LibriSpeech/dev-clean/1/2/1-2-0.flac": b"x" * 900, "LibriSpeech/SPEAKERS.TXT": b"1 | F\n"}
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:gz") as archive:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("wham_noise/tr/a.wav", b"x" * 900)

    def command(folder: Path) -> list[str]:
        # What a case leaves as it was need not be tried.
        changed = next((n for n, d in files.items() if (folder / "in" / n).read_bytes() != d), "wham_noise.zip")
        names = {"dev-clean.tar.gz": ["librispeech", "--parts", "dev-clean"], "wham_noise.zip": ["wham-noise"]}
        digest = hashlib.sha256((folder / "in" / changed).read_bytes()).hexdigest()
        (folder / "sums.txt").write_text(f"{digest}  {changed}\n")
        places = ["--mirror", (folder / "in").as_uri(), "--cache", str(folder / "out")]
        return ["download", *names[changed], *places, "--checksums", str(folder / "sums.txt")]

    files = {"dev-clean.tar.gz": tar.getvalue(), "wham_noise.zip": packed.getvalue()}
    return Kind(files, command, tested=200)


def _kaldi() -> Kind:
    names = [f"{speaker}{take}" for speaker in "abcdef" for take in range(2)]
    files = {
        "wav.scp": "".join(f"{name} in/{name}.wav\n" for name in names[:-1])
        + f"{names[-1]} sph2pipe -f wav in/x.sph |\n",
        "utt2spk": "".join(f"{name} {name[0]}\n" for name in names),
        "spk2gender": "".join(f"{speaker} f\n" for speaker in "abcdef"),
    }

    def command(folder: Path) -> list[str]:
        write_files(folder / "in", {f"{name}.wav": sound(".wav") for name in names})
        sizes = ["--train-mixtures", "2", "--dev-mixtures", "1", "--test-mixtures", "1", "--segment-seconds", "0.02"]
        return ["prepare", "folder", "--kaldi", str(folder / "in"), "--out", str(folder / "out"), *sizes]

    return Kind({name: text.encode() for name, text in files.items()}, command)


def _speaker_tables() -> Kind:
    rows = [
        f"{speaker}/{take}.wav,{speaker},{split},F"
        for speaker, split in zip("abcdef", ["train", "dev", "test"] * 2, strict=True)
        for take in "01"
    ]
    files = {"speakers.csv": ("path,speaker,split,sex\n" + "\n".join(rows) + "\n").encode()}

    def command(folder: Path) -> list[str]:
        for speaker in "abcdef":
            write_files(folder / "speech" / speaker, {f"{take}.wav": sound(".wav") for take in "01"})
        sizes = ["--train-mixtures", "2", "--dev-mixtures", "1", "--test-mixtures", "1", "--segment-seconds", "0.02"]
        who = ["--speaker-from", f"csv:{folder / 'in' / 'speakers.csv'}"]
        return ["prepare", "folder", "--speech", str(folder / "speech"), *who, "--out", str(folder / "out"), *sizes]

    return Kind(files, command)


def _mixed_tables() -> Kind:
    rows = "".join(f"{name},mix/{name}.wav,400,s1/{name}.wav,s2/{name}.wav\n" for name in "ab")
    files = {"test.csv": ("mixture_ID,mixture_path,length,source_1_path,source_2_path\n" + rows).encode()}

    def command(folder: Path) -> list[str]:
        for part in ("mix", "s1", "s2"):
            write_files(folder / "in" / part, {f"{name}.wav": sound(".wav") for name in "ab"})
        return ["prepare", "mixed", str(folder / "in" / "test.csv"), "--out", str(folder / "out")]

    return Kind(files, command)


def _metadata() -> Kind:
    columns = "mixture_ID,source_1_path,source_1_gain,source_2_path,source_2_gain,noise_path,noise_gain\n"
    paths = [[f"dev-clean/{speaker}/{speaker}/{number}.flac" for speaker in "12"] for number in range(2)]
    rows = "".join(f"m{n},{one},0.5,{two},0.7,cv/{n}.wav,0.3\n" for n, (one, two) in enumerate(paths))
    files = {"libri2mix_dev-clean.csv": (columns + rows).encode()}

    def command(folder: Path) -> list[str]:
        for speaker in "12":
            place = folder / "speech" / "dev-clean" / speaker / speaker
            write_files(place, {f"{number}.flac": sound(".flac", "PCM_16", 16000) for number in range(2)})
        write_files(folder / "noise" / "cv", {f"{number}.wav": sound(".wav", "PCM_16", 16000) for number in range(2)})
        places = ["--librispeech", str(folder / "speech"), "--wham-noise", str(folder / "noise")]
        line = ["--metadata", str(folder / "in"), "--out", str(folder / "out"), "--sample-rate", "16000"]
        return ["prepare", "librimix", *places, *line, "--processes", "1"]

    return Kind(files, command)


KINDS: dict[str, Callable[[], Kind]] = {
    "archives": _archives,
    "kaldi": _kaldi,
    "speaker tables": _speaker_tables,
    "mixed tables": _mixed_tables,
    "metadata": _metadata,
}
