"""What README and SECURITY promise: nothing is written outside --out, and no name is looked up."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sepkit.corpora.archives import WEB_RUNTIME_FILES
from sepkit.data import audio
from tests.file_server import Server, tar_of
from tests.noise_voices import buzz

SOURCES = ["{folder}/s1", "{folder}/s2"]
TALK = ["{talk}", "--out", "{out}"]
SMALL = ["--model.masker.name", "recurrent", "--model.masker.hidden_size", "8", "--model.masker.num_layers", "1"]
DATA = ["--data.train", "{manifest}", "--data.dev", "{manifest}", "--data.segment_seconds", "1"]
PLAN = ["--dimension", "2", "--radius", "3", "--heavy-weight", "0.7", "--steps", "99"]
COMMANDS = {
    "separate": ["separate", *TALK],
    "separate in two processes": ["separate", *TALK, "--processes", "2"],
    "cluster": ["cluster", *TALK],
    "evaluate": ["evaluate", "--manifest", "{manifest}", "--metrics", "si_sdr", "--processes", "2", "--out", "{out}"],
    "models": ["models"],
    "public models": ["models", "--public"],
    "stream": ["stream", "-"],
    "web": ["web", "boxed_8k", "--out", "{out}/page", "--runtime", "{folder}/runtime"],
    "summarize": ["summarize", "{folder}/ev", "--out", "{out}/table.md"],
    "find-temperature": ["find-temperature", "--manifest", "{manifest}", "--out", "{out}"],
    "plan-schedule": ["plan-schedule", "inverse-temperature", *PLAN],
    "smoke": ["smoke", *SMALL],
    "train": ["train", *SMALL, *DATA, "--trainer.max_epochs", "1", "--data.batch_size", "1", "--out", "{out}/exp"],
    "export": ["export", "{exp}", "--out", "{out}/model.onnx"],
    "calibrate": ["calibrate", "{exp}", "--manifest", "{folder}/many.jsonl"],
    "prepare": ["prepare", "mixed", "--mixture", "{folder}/mix", "--sources", *SOURCES, "--out", "{out}"],
    "report": ["report", "{folder}/ev", "--out", "{out}/page.html"],
    "download": ["download", "wsj0-mix-lists", "--mirror", "{server}", "--cache", "{out}"],
    "upload": ["upload", "{exp}", "--repo", "somebody/separator", "--license", "mit"],
    "audiogram": ["audiogram", "next", "--model", "{audiograms}", "--measured", "right_1000=35"],
    "quantize": ["quantize", "sines", "--config", "{folder}/sines.yaml", "--out", "{out}"],
    "voices": ["voices", "score", "mean_mfcc", "--collection", "{folder}/voices.csv", "--out", "{out}/score.json"],
}  # fmt: skip
# Of matplotlib, which keeps a list of fonts in the user's cache: docs/install.md names it.
CACHES = re.compile(r"/(matplotlib|fontconfig)(/|$)")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    parts = {"s1": buzz(120, 3.0), "s2": buzz(190, 3.0)}
    for name, waveform in (parts | {"mix": parts["s1"] + parts["s2"]}).items():
        audio.write(folder / name / "a.wav", waveform, 8000)
    sources = [{"path": f"{name}/a.wav"} for name in parts]
    entry = {"id": "a", "sample_rate": 8000, "num_samples": 24000, "sources": sources}
    (folder / "m.jsonl").write_text(json.dumps(entry) + "\n")
    lines = []
    for k in range(60):
        louder = [sources[0] | {"gain": 1 + k / 20}, sources[1]]
        lines.append(json.dumps(entry | {"id": str(k), "sources": louder}) + "\n")
    (folder / "many.jsonl").write_text("".join(lines))
    for name in parts:
        audio.write(folder / "est" / f"a_{name}.wav", parts[name], 8000)
    for name in WEB_RUNTIME_FILES:
        (folder / "runtime").mkdir(exist_ok=True)
        (folder / "runtime" / name).touch()
    (folder / "sines.yaml").write_text("sines: {seeds: 1, steps: 2}\n")
    rows = [f"{name}/a.wav,{start},1.5,{name}\n" for name in parts for start in (0, 1.5)]
    (folder / "voices.csv").write_text("path,start_seconds,duration_seconds,speaker\n" + "".join(rows))
    words = ["evaluate", "--manifest", folder / "m.jsonl", "--estimates", folder / "est", "--metrics", "si_sdr"]
    subprocess.run([sys.executable, "-m", "sepkit", *map(str, words), "--out", str(folder / "ev")], check=True)
    return folder


@pytest.fixture(scope="module")
def experiment(inputs: Path) -> Path:
    words = [word.format(manifest=inputs / "m.jsonl", out=inputs) for word in COMMANDS["train"]]
    subprocess.run([sys.executable, "-m", "sepkit", *words], check=True)
    return inputs / "exp"


@pytest.fixture(scope="module")
def audiograms(inputs: Path) -> Path:
    out, data = inputs / "audiograms", [f"--data.{part}={inputs}/thresholds/{part}.csv" for part in ("train", "dev")]
    for words in (
        ["prepare", "audiograms", "--examples", "60", "--out", str(inputs / "thresholds")],
        ["train", "--config", "audiogram", *data, "--trainer.max_epochs", "1", "--out", str(out)],
    ):
        subprocess.run([sys.executable, "-m", "sepkit", *words], check=True)
    return out


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A mirror with one archive, and a hub that takes nothing."""
    server, names = Server(), ("metadata/mix_2_spk_tr.txt", "metadata/activlev/activlev_tr.txt")
    server.put("pywsj0-mix.tar.gz", tar_of({f"pywsj0-mix-0123abc/{name}": b"" for name in names}))
    yield server
    server.close()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sk") as folder:
        yield Path(folder)


# What imports torch takes many seconds under strace.
SLOW = {"models", "smoke", "train", "export", "calibrate", "find-temperature", "upload", "audiogram", "quantize"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in COMMANDS])
def test_nothing_is_written_elsewhere_and_no_host_is_contacted(name, inputs, server, tmp_path, short_folder, request):
    # The names of sockets between processes, which are in TMPDIR, have at most 107 characters.
    home, temporary, out = tmp_path / "home", short_folder, tmp_path / "out"
    for folder in (home, out):
        folder.mkdir()
    places = {"folder": inputs, "talk": inputs / "mix" / "a.wav", "manifest": inputs / "m.jsonl", "out": out}
    places["server"] = server.url
    for place, fixture in (("exp", "experiment"), ("audiograms", "audiograms")):
        if f"{{{place}}}" in COMMANDS[name]:
            places[place] = request.getfixturevalue(fixture)
    words = [sys.executable, "-m", "sepkit", *(word.format(**places) for word in COMMANDS[name])]
    hidden = {"ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR", "CI"}
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment |= {"HOME": str(home), "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"HF_ENDPOINT": server.url, "HF_TOKEN": "none"}
    trace = tmp_path / "trace"
    if shutil.which("strace"):
        calls = "trace=openat,open,creat,connect,sendto,rename,renameat,mkdir,mkdirat"
        words = ["strace", "-f", "--seccomp-bpf", "-qq", "-s", "300", "-e", calls, "-o", str(trace), *words]
    with (inputs / "mix" / "a.wav").open("rb") as recording:
        options = {"capture_output": True, "errors": "replace", "env": environment, "cwd": tmp_path}
        done = subprocess.run(words, stdin=recording, timeout=600, **options)
    assert done.returncode == (2 if name == "upload" else 0), done.stderr
    left = [str(path) for folder in (home, temporary) for path in folder.rglob("*") if not list(path.glob("*"))]
    assert [path for path in left if not CACHES.search(path)] == []
    assert sorted(path.name for path in tmp_path.iterdir() if path != trace) == ["home", "out"]
    if not trace.exists():
        pytest.skip("no strace on this machine (Debian: apt-get install strace): files were looked at, calls were not")
    lines = trace.read_text(errors="replace").splitlines()
    calls = [line for line in lines if re.search(r"connect\(.*sa_family=AF_INET|sendto\(.*sa_family=AF_INET", line)]
    if name in ("download", "upload"):
        port = f"htons({server.url.rpartition(':')[2]})"
        assert calls, "the server of this test was not called"
        calls = [line for line in calls if port not in line or "127.0.0.1" not in line]
    assert calls == [], "an address was called"
    assert [line for line in lines if re.search(r'"/etc/(hosts|resolv\.conf)"', line)] == [], "a name was looked up"
    opened = (re.search(r'open(?:at)?\(.*?"([^"]+)", (\S+)', line) for line in lines)
    written = {found[1] for found in opened if found and re.search("O_WRONLY|O_RDWR|O_CREAT", found[2])}
    own = [str(places["exp"])] if name == "calibrate" else []  # It writes beside the model.
    allowed = ("/dev/", "/proc/", str(out), str(temporary), *own)
    strange = [path for path in written if not path.startswith(allowed) and not CACHES.search(path)]
    assert strange == [], "a file was opened for writing"
