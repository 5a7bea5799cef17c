"""What recipes refuse: one line that names the option, and exit code 2, before anything is made."""

import subprocess
from pathlib import Path

import pytest

EGS = Path(__file__).resolve().parents[2] / "egs"
SPEECH, NOISE = ["--speech", "."], ["--noise", "."]
MISTAKES = [
    ("folder", ["--nonsense", "1"], "--nonsense: unknown option"),
    ("folder", ["--stage"], "expected a value"),
    ("folder", ["x"], "expected --option"),
    ("folder", [], "--speech: nothing given"),
    ("folder", ["--speech", "absent"], "absent: no such file or folder"),
    ("librimix", ["--task", "dirty"], "--task dirty: expected clean or noisy"),
    ("librimix", ["--checksums", "absent.txt"], "absent.txt: no such file"),
    ("librimix", ["--conf", "absent.yaml"], "absent.yaml: no such file"),
    ("librimix", ["--stage", "1", "--cache", "."], "LibriSpeech: no such file or folder"),
    ("vctk", ["--task", "dirty"], "--task dirty: expected clean or noisy"),
    ("wsj0-mix", ["--wsj0", "absent", "--stage", "1"], "absent: no such file or folder"),
    ("generalization", NOISE, "--speech: nothing given"),
    ("generalization", SPEECH, "--noise: nothing given"),
    ("generalization", ["--speech", "absent", *NOISE], "absent: no such file or folder"),
    ("generalization", [*SPEECH, *NOISE, "--methods", "magic"], "cpu_magic.yaml: no such file"),
    ("generalization", [*SPEECH, *NOISE, "--conf", "absent.yaml"], "absent.yaml: no such file or folder"),
    ("generalization", ["--librimix", "."], "--librimix and --vctk: expected both"),
    ("generalization", ["--librimix", ".", "--vctk", ".", *SPEECH], "--speech and --librimix: expected one"),
    ("counting", SPEECH, "--noise: nothing given"),
    ("counting", [*SPEECH, *NOISE, "--methods", "magic"], "--methods magic: expected mcl, amcl"),
    ("pulses", ["--rates", "1 many"], "--rates many: expected numbers"),
    ("pulses", ["--rates", ""], "--rates: none given"),
    ("pulses", ["--conditions", "loud"], "--conditions: found 'loud', expected any of noise_none"),
    ("speaker_clustering", [], "--speech DIR: expected"),
    ("speaker_clustering", ["--speech", "absent"], "absent: no such file or folder"),
    ("audiogram", ["--csv", "absent"], "absent: no such file or folder"),
    ("annealed_inference", ["--stage", "5", "--stop-stage", "5"], "--speech, --noise"),
    *((path.parent.name, ["--ngpu", "none"], "--ngpu none: expected") for path in sorted(EGS.glob("*/run.sh"))),
]


@pytest.mark.parametrize(("recipe", "options", "words"), MISTAKES)
def test_a_mistake_is_one_line(recipe, options, words, environment, tmp_path) -> None:
    places = ["--data", str(tmp_path / "data"), "--exp", str(tmp_path / "exp")]
    done = subprocess.run(
        [EGS / recipe / "run.sh", *places, *options],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
