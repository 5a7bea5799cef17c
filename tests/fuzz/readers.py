"""What reads files from elsewhere: for each reader valid files to start from, and the command that reads them.

`tests/fuzz/test_fuzz.py` changes these files by Hypothesis strategies, `python -m tools.fuzz` by Atheris.
"""

import functools
import hashlib
import importlib.util
import io
import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from sepkit.models import build_model, save_model
from sepkit.models.published.shipped import DEFAULT_MODEL, SHIPPED
from sepkit.models.saved import weights_fingerprint
from tests.file_server import tar_of
from tests.fuzz import foreign_readers, graph_readers, published_readers, reader, study_readers
from tests.fuzz.reader import Reader, make, model_files, named, separate_command, sound, write_corpus, write_files
from tests.noise_voices import noise_encoder
from tests.tiny_models import RECURRENT
from tools import recordings

SIZES = ["--train-mixtures", "2", "--dev-mixtures", "1", "--test-mixtures", "1", "--segment-seconds", "0.02"]

# ------------------------------------------------------------------------------------------------ recordings, models


def _recordings() -> Reader:
    files = {"a.wav": sound(".wav"), "b.wav": sound(".wav", "PCM_16"), "c.flac": sound(".flac", "PCM_16")}
    return Reader(files, lambda f: separate_command(f / "in", write_files(f / "whole", model_files()), f), examples=25)


def _standard_input() -> Reader:
    torch.manual_seed(0)
    config = replace(RECURRENT, masker=replace(RECURRENT.masker, bidirectional=False))
    with tempfile.TemporaryDirectory() as folder:
        save_model(build_model(config), folder)
        causal = {name: Path(folder, name).read_bytes() for name in model_files()}
    files = {reader.STDIN: sound(".wav", "PCM_16")}
    return Reader(files, lambda f: ["stream", "--model", str(write_files(f / "whole", causal))], examples=25)


def _models() -> Reader:
    files = model_files()
    before = hashlib.sha256(files["model.safetensors"]).hexdigest()

    def model(given: Path) -> Path:
        # Another digest would refuse every change of the weights before anything else looks at them.
        digest = hashlib.sha256((given / "model.safetensors").read_bytes()).hexdigest()
        text = (given / "model.yaml").read_bytes()
        return write_files(given, {"model.yaml": text.replace(before.encode(), digest.encode())})

    return Reader(files, reader.with_model(model), ["model.yaml"], examples=25)


def _predictors() -> Reader:
    """The prediction of the default model, as one of a tiny model."""
    torch.manual_seed(0)
    own = f"weights: {weights_fingerprint(build_model(RECURRENT))}".encode()
    told = re.sub(rb"^weights: \w+", own, (SHIPPED / DEFAULT_MODEL / "quality.yaml").read_bytes())

    def model(given: Path) -> Path:
        return write_files(given, model_files())

    def command(folder: Path) -> list[str]:
        words = reader.with_model(model)(folder)
        # Of less sound nothing is predicted.
        write_files(folder, {"x.wav": sound(".wav", samples=8000)})
        return words

    return Reader({"quality.yaml": told}, command, ["quality.yaml"], examples=25)


# ---------------------------------------------------------------------------------------------------------- corpora


def _manifests() -> Reader:
    source = {"path": "a.wav", "speaker": "1", "sex": "F", "start": 0, "gain": 0.5, "offset": 0}
    line = {
        "id": "m", "sample_rate": 8000, "num_samples": 300, "mode": "min", "mixture": None, "resampler": "soxr_hq",
        "corpus": "c", "task": "sep_clean", "sources": [source, source | {"path": "b.wav", "offset": 7}],
        "noise": {"path": "a.wav", "start": 0, "gain": 0.2, "extend": None},
    }  # fmt: skip
    manifest = "".join(f"{json.dumps(line | {'id': name})}\n" for name in "mn").encode()
    sounds = {name: sound(".wav") for name in ("a.wav", "m_s1.wav", "m_s2.wav")} | {"b.wav": sound(".wav", "PCM_16")}

    def command(folder: Path) -> list[str]:
        write_files(folder / "in", sounds)
        places = ["--estimates", str(folder / "in"), "--out", str(folder / "out")]
        return ["evaluate", "--manifest", str(folder / "in" / "test.jsonl"), *places, "--metrics", "si_sdr"]

    # One of the two mixtures has no estimates.
    return Reader({"test.jsonl": manifest}, command, ["test.jsonl"], passes=1, examples=25)


def _archives() -> Reader:
    content = {"LibriSpeech/dev-clean/1/2/1-2-0.flac": b"x" * 900, "LibriSpeech/SPEAKERS.TXT": b"1 | F\n"}
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

    files = {"dev-clean.tar.gz": tar_of(content), "wham_noise.zip": packed.getvalue()}
    return Reader(files, command, examples=25)


def _kaldi() -> Reader:
    names = [f"{speaker}{take}" for speaker in "abcdef" for take in range(2)]
    scp = [f"{name} in/{name}.wav\n" for name in names[:-1]] + [f"{names[-1]} sph2pipe -f wav in/x.sph |\n"]
    speakers = "".join(f"{name} {name[0]}\n" for name in names)
    genders = "".join(f"{speaker} f\n" for speaker in "abcdef")
    files = {"wav.scp": "".join(scp).encode(), "utt2spk": speakers.encode(), "spk2gender": genders.encode()}

    def command(folder: Path) -> list[str]:
        write_files(folder / "in", {f"{name}.wav": sound(".wav") for name in names})
        return ["prepare", "folder", "--kaldi", str(folder / "in"), "--out", str(folder / "out"), *SIZES]

    return Reader(files, command)


def _speaker_tables() -> Reader:
    splits = dict(zip("abcdef", ["train", "dev", "test"] * 2, strict=True))
    rows = [(f"{who}/{take}.wav", who, split, "F") for who, split in splits.items() for take in "01"]
    files = {"speakers.csv": reader.text_of([("path", "speaker", "split", "sex"), *rows])}

    def command(folder: Path) -> list[str]:
        write_files(folder / "speech", {f"{who}/{take}.wav": sound(".wav") for who in splits for take in "01"})
        who = ["--speaker-from", f"csv:{folder / 'in' / 'speakers.csv'}"]
        return ["prepare", "folder", "--speech", str(folder / "speech"), *who, "--out", str(folder / "out"), *SIZES]

    return Reader(files, command)


def _mixed_tables() -> Reader:
    rows = [(name, f"mix/{name}.wav", 400, f"s1/{name}.wav", f"s2/{name}.wav") for name in "ab"]
    head = ("mixture_ID", "mixture_path", "length", "source_1_path", "source_2_path")

    def command(folder: Path) -> list[str]:
        names = [f"{part}/{name}.wav" for part in ("mix", "s1", "s2") for name in "ab"]
        write_files(folder / "in", {name: sound(".wav") for name in names})
        return ["prepare", "mixed", str(folder / "in" / "test.csv"), "--out", str(folder / "out")]

    return Reader({"test.csv": reader.text_of([head, *rows])}, command)


def _metadata() -> Reader:
    parts = [f"{part}_{what}" for part in ("source_1", "source_2", "noise") for what in ("path", "gain")]
    head = ["mixture_ID", *parts]
    paths = {f"dev-clean/{who}/{who}/{n}.flac": sound(".flac", "PCM_16", 16000) for who in "12" for n in range(2)}
    names = [(n, f"dev-clean/1/1/{n}.flac", f"dev-clean/2/2/{n}.flac") for n in (0, 1)]
    rows = [(f"m{n}", first, 0.5, second, 0.7, f"cv/{n}.wav", 0.3) for n, first, second in names]

    def command(folder: Path) -> list[str]:
        speech = write_files(folder / "speech", paths)
        noise = write_files(folder / "noise", {f"cv/{n}.wav": sound(".wav", "PCM_16", 16000) for n in (0, 1)})
        places = ["--librispeech", str(speech), "--wham-noise", str(noise), "--metadata", str(folder / "in")]
        options = ["--out", str(folder / "out"), "--sample-rate", "16000", "--processes", "1"]
        return ["prepare", "librimix", *places, *options]

    return Reader({"libri2mix_dev-clean.csv": reader.text_of([head, *rows])}, command)


# ------------------------------------------------------------------------------------------------------------- runs


def _configuration(manifest: str) -> dict[str, Any]:
    return {
        "model": {
            "filterbank": {"name": "free", "num_filters": 8},
            "masker": {"name": "recurrent", "hidden_size": 4, "num_layers": 1},
            "encoding": {"name": "gaussian"},
        },
        "objective": {
            "cost": {"name": "neg_si_sdr"},
            "assignment": {"name": "amcl", "temperature": {"name": "truncated_linear", "initial": 1.0, "end": 2.0}},
            "rates": {"encoding": {"weight": {"name": "constant", "value": 0.1}}},
        },
        "data": {
            "train": manifest, "dev": manifest, "segment_seconds": 0.05, "batch_size": 2, "workers": 0,
            "dynamic_mixing": {"enabled": True, "speed_range": 0.05},
        },
        "trainer": {
            "max_epochs": 1, "learning_rate": 0.001, "seed": 3, "accelerator": "cpu", "max_minutes": 0.05, "ema": 0.9,
            "warmup_steps": 1, "gradient_clip_norm": 5.0, "weight_decay": 0.0, "accumulate_batches": 1,
        },
    }  # fmt: skip


def _configurations() -> Reader:
    """Configurations that name a manifest that is not there: nothing is trained."""
    files = {"config.yaml": yaml.safe_dump(_configuration("absent.jsonl")).encode()}
    command = lambda f: ["train", "--config", str(f / "in" / "config.yaml"), "--out", str(f / "out")]  # noqa: E731
    return Reader(files, command, ["config.yaml"], passes=2, examples=25)


def _trainings() -> Reader:
    """Configurations that are trained with, on manifests that are there."""
    files = {"config.yaml": yaml.safe_dump(_configuration("../data/test.jsonl")).encode()}

    def command(folder: Path) -> list[str]:
        manifest = str(write_corpus(folder / "data"))
        # In smoke no change makes a run of hours.
        config = str(folder / "in" / "config.yaml")
        return ["smoke", "--config", config, "--data.train", manifest, "--data.dev", manifest]

    return Reader(files, command, ["config.yaml"], examples=5)


def _states() -> Reader:
    """What a training leaves, when it goes on."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        manifest = write_corpus(folder / "data")
        configuration = yaml.safe_dump(_configuration("test.jsonl")).encode()
        write_files(folder, {"config.yaml": configuration})
        places = ["--data.train", manifest, "--data.dev", manifest]
        make("train", "--config", folder / "config.yaml", "--out", folder / "exp", *places)
        paths = [path for path in (folder / "exp").rglob("*") if path.is_file()]
        run = {str(path.relative_to(folder / "exp")): path.read_bytes() for path in paths}
        before = str(manifest.parent).encode()
    names = {Path(name).name: name for name in ("config.yaml", "resume/last.ckpt", "metrics.jsonl")}

    def command(folder: Path) -> list[str]:
        manifest = write_corpus(folder / "data")
        given = {name: (folder / "in" / short).read_bytes() for short, name in names.items()}
        # The digests at its end are those of the manifest, whose folder is another here.
        given["config.yaml"] = given["config.yaml"].replace(before, str(manifest.parent).encode())
        out = write_files(folder / "out" / "exp", run | given)
        whole = write_files(folder, {"whole.yaml": configuration}) / "whole.yaml"
        places = ["--data.train", str(manifest), "--data.dev", str(manifest), "--trainer.max_epochs", "2"]
        return ["train", "--config", str(whole), "--out", str(out), *places]

    files = {short: run[name] for short, name in names.items()}
    return Reader(files, command, ["config.yaml", "metrics.jsonl"], examples=8)


def _evaluation(manifest: Path, out: Path) -> list[str]:
    places = ["--manifest", str(manifest), "--estimates", str(manifest.parent / "estimates"), "--out", str(out)]
    return ["evaluate", *places, "--metrics", "si_sdr"]


@functools.cache
def _evaluated() -> reader.Files:
    with tempfile.TemporaryDirectory() as temporary:
        make(*_evaluation(write_corpus(Path(temporary)), Path(temporary) / "out"))
        names = ("utterances.csv", "summary.json", "journal.jsonl")
        return {name: (Path(temporary) / "out" / name).read_bytes() for name in names}


def _reports() -> Reader:
    """A run with an evaluation, of which a page is made."""
    kinds = {"kind": "epoch", "train_loss": -1.0, "dev_loss": -1.0}
    log = [kinds | {"epoch": n, "step": n, "temperature": 1 / n} for n in (1, 2, 3)]
    evaluated = {name: _evaluated()[name] for name in ("utterances.csv", "summary.json")}
    files = evaluated | {
        "config.yaml": yaml.safe_dump(_configuration("test.jsonl")).encode(),
        "metrics.jsonl": "".join(json.dumps(line) + "\n" for line in log).encode(),
    }

    def command(folder: Path) -> list[str]:
        read = {name: (folder / "in" / name).read_bytes() for name in files}
        run = write_files(folder / "run", {f"evaluation/{n}" if n in evaluated else n: d for n, d in read.items()})
        return ["report", str(run), "--out", str(folder / "out" / "page.html")]

    return Reader(files, command, ["summary.json", "config.yaml", "metrics.jsonl"], examples=8)


def _journals() -> Reader:
    """What an evaluation that was interrupted leaves."""

    def command(folder: Path) -> list[str]:
        manifest = write_corpus(folder / "data")
        (folder / "out").mkdir()
        shutil.copy(folder / "in" / "journal.jsonl", folder / "out")
        return _evaluation(manifest, folder / "out")

    return Reader({"journal.jsonl": _evaluated()["journal.jsonl"]}, command, ["journal.jsonl"])


def _compared() -> Reader:
    """Another evaluation, which a new one is compared with."""

    def command(folder: Path) -> list[str]:
        return [*_evaluation(write_corpus(folder / "data"), folder / "out"), "--compare", str(folder / "in")]

    files = {name: _evaluated()[name] for name in ("utterances.csv", "summary.json")}
    return Reader(files, command, ["summary.json"], examples=8)


def _separated() -> Reader:
    """What `separate` wrote beside estimates, whose speakers `cluster` finds."""
    files = {"x.json": json.dumps({"estimates": ["x_s1.wav", "x_s2.wav"]}).encode()}

    def command(folder: Path) -> list[str]:
        write_files(folder / "in", {f"x_s{k}.wav": sound(".wav", samples=16000) for k in (1, 2)})
        encoder = ["--speaker-encoder", "mean_mfcc", "--speakers", "1"]
        return ["cluster", str(folder / "in"), *encoder, "--out", str(folder / "out")]

    return Reader(files, command, ["x.json"], examples=8)


def _descriptions() -> Reader:
    """What `separate` wrote beside estimates, when it runs again."""

    def separation(folder: Path) -> list[str]:
        write_files(folder, {"x.wav": sound(".wav")})
        return separate_command(folder / "x.wav", write_files(folder / "model", model_files()), folder)

    with tempfile.TemporaryDirectory() as temporary:
        make(*separation(Path(temporary)))
        files = {name: (Path(temporary) / "out" / name).read_bytes() for name in ("x.json", "x_s1.wav")}

    def command(folder: Path) -> list[str]:
        write_files(folder / "out", {name: (folder / "in" / name).read_bytes() for name in files})
        return [*separation(folder), "--verify"]

    return Reader(files, command, ["x.json"])


def _turns() -> Reader:
    """A table of who speaks in what, beside the recordings."""
    head = ("path", "start_seconds", "duration_seconds", "speaker", "confidence")
    known = reader.text_of([head, ("x.wav", 0.0, 1.0, "anna", 0.9), ("y.wav", 1.0, 2.0, "bob", "")])

    def command(folder: Path) -> list[str]:
        write_files(folder / "speech", {"x.wav": sound(".wav", samples=16000)})
        places = ["--reference", str(folder / "in" / "reference.csv"), "--out", str(folder / "out")]
        encoder = ["--speaker-encoder", "mean_mfcc", "--speakers", "1"]
        return ["cluster", str(folder / "speech"), *encoder, *places]

    return Reader({"reference.csv": known}, command)


def _lists() -> Reader:
    """The list of `tools.recordings`, and an archive that lacks what it names."""
    lines = recordings.LIST.read_bytes().splitlines(keepends=True)
    files = {"list.csv": b"".join([lines[0], *[line for line in lines if b",train-clean-100," in line][:3]])}

    def command(folder: Path) -> list[str]:
        mirror = write_files(folder / "mirror", {"train-clean-100.tar.gz": b""})
        places = ["--list", folder / "in" / "list.csv", "--cache", folder / "out", "--out", folder / "out" / "tree"]
        return [*map(str, places), "--mirror", mirror.as_uri()]

    return Reader(files, command, passes=2, program=recordings.main)


def _enrollments() -> Reader:
    """A recording of a speaker alone, who is looked for in another."""

    def command(folder: Path) -> list[str]:
        write_files(folder, {"x.wav": sound(".wav", samples=16000)})
        model = write_files(folder / "model", model_files())
        named = ["--link-speakers", "2", "--enroll", f"anna={folder / 'in' / 'anna.wav'}"]
        # To this encoder all sound is speech.
        named += ["--speaker-encoder", str(save_model(noise_encoder(), folder / "encoder"))]
        return [*separate_command(folder / "x.wav", model, folder), *named]

    return Reader({"anna.wav": sound(".wav", samples=16000)}, command)


def _meetings() -> Reader:
    """Who says what when, as found and as known."""
    turns = [("anna", 0.0, 1.1, "good day"), ("bob", 1.1, 3.0, "and you"), ("anna", 3.0, 4.0, "")]
    names = ("speaker", "start_time", "end_time", "words")
    rows = [{"session_id": "m"} | dict(zip(names, turn, strict=True)) for turn in turns]
    lines = [f"SPEAKER m 1 {start} {end - start} <NA> <NA> {who} <NA> <NA>\n" for who, start, end, _ in turns]
    files = {name: json.dumps(rows).encode() for name in ("reference.json", "found.json")}
    files["found.rttm"] = "".join(lines).encode()

    def command(folder: Path) -> list[str]:
        changed = (folder / "in" / "found.rttm").read_bytes() != files["found.rttm"]
        found = folder / "in" / f"found.{'rttm' if changed else 'json'}"
        places = ["--reference", str(folder / "in" / "reference.json"), "--hypothesis", str(found)]
        return ["evaluate", "--meeting", *places, "--out", str(folder / "out")]

    return Reader(files, command, ["reference.json", "found.json"])


READERS: dict[str, Callable[[], Reader]] = {
    name: functools.cache(make)
    for name, make in {
        **named(_recordings, _standard_input),
        **foreign_readers.READERS,
        **named(_models, _predictors),
        **published_readers.READERS,
        **graph_readers.READERS,
        **named(_manifests, _archives, _kaldi, _speaker_tables, _mixed_tables, _metadata, _lists, _configurations),
        **named(_trainings, _states, _reports, _journals, _compared, _separated, _descriptions, _turns, _enrollments),
        **(named(_meetings) if importlib.util.find_spec("meeteval") else {}),
        **study_readers.READERS,
    }.items()
}
"""Name -> what makes the reader."""
