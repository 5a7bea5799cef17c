"""`sepkit web`: what stands in the folder, who serves it, and the page in a browser."""

import base64
import http.client
import json
import math
import os
import re
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import numpy as np
import pytest
import soundfile
import torch

from sepkit.cli.main import main
from sepkit.config import FreeFilterbankConfig, ModelConfig, RecurrentConfig
from sepkit.corpora.archives import WEB_RUNTIME, WEB_RUNTIME_FILES
from sepkit.data import audio
from sepkit.files import cache_folder, parse_json
from sepkit.inference import load_model
from sepkit.inference.diarization.clustering import unit_rows
from sepkit.inference.diarization.swaps import find_orders
from sepkit.inference.quality.features import hypothesis_features
from sepkit.inference.quality.voices import changes_speakers
from sepkit.inference.runners.base import ModelOutput
from sepkit.inference.runners.level import RunningLevel, standardize
from sepkit.inference.selection import gains_of, products_of
from sepkit.inference.separated import summary_line
from sepkit.models import build_model, save_model
from sepkit.reporting import web
from sepkit.reporting.web import MOST_SECONDS, find_runtime, serving, write_web_page
from tests.complaint import complaint
from tests.noise_voices import voice

RATE = 8000
TONE_HZ = 440


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    masker = RecurrentConfig(hidden_size=8, num_layers=1)
    config = ModelConfig(filterbank=FreeFilterbankConfig(num_filters=16), masker=masker)
    return save_model(build_model(config), tmp_path_factory.mktemp("web") / "small", {})


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of the runtime's names."""
    folder = tmp_path_factory.mktemp("runtime")
    for name in WEB_RUNTIME_FILES:
        (folder / name).write_bytes(name.encode())
    return folder


def test_folder_holds_all_that_the_page_asks_for(model: Path, stand_in: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "page"
    assert main(["web", str(model), "--out", str(out), "--runtime", str(stand_in)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out)
    told = json.loads((out / "model.json").read_text())
    assert told["bytes"] == (out / told["file"]).stat().st_size
    assert (told["name"], told["sample_rate"], told["hypotheses"]) == ("small", RATE, 2)
    assert {path.name for path in (out / "runtime").iterdir()} == WEB_RUNTIME_FILES
    names = {path.name for path in out.iterdir()}
    scripts = {"app.js", "prediction.js", "sound.js", "worker.js"}
    assert names == scripts | {"index.html", "icon.svg", "style.css", "model.json", "model.onnx", "runtime"}
    # An exported graph makes the same page.
    again = write_web_page(str(out / "model.onnx"), tmp_path / "again", stand_in)
    assert (again / "model.onnx").read_bytes() == (out / "model.onnx").read_bytes()


def test_it_is_served_to_this_machine_with_the_types_that_browsers_want(stand_in: Path, tmp_path: Path) -> None:
    (tmp_path / "runtime").symlink_to(stand_in)
    with serving(tmp_path, 0) as address:
        parts = urlsplit(address)
        assert parts.hostname == "127.0.0.1"
        connection = http.client.HTTPConnection("127.0.0.1", parts.port or 0, timeout=10)
        for name in WEB_RUNTIME_FILES:
            connection.request("GET", f"/runtime/{name}")
            response = connection.getresponse()
            kind = "application/wasm" if name.endswith(".wasm") else "text/javascript"
            assert (response.status, response.getheader("Content-Type")) == (200, kind)
            assert response.read() == name.encode()
        connection.close()


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [
        ("/", "127.0.0.1", 200), ("/index.html?x=1", "localhost:9", 200), ("/", "attacker.example", 421),
        ("/", "127.0.0.1.attacker.example:80", 421), ("/", "[::1", 421), ("/", None, 421),
        ("/private.txt", "localhost", 404), ("/model.json", "localhost", 404), ("/runtime/", "localhost", 404),
        ("/runtime/../index.html", "localhost", 404), ("//etc/passwd", "localhost", 404), ("/%00", "localhost", 404),
        ("/%2e%2e/index.html", "localhost", 404),
    ],
)  # fmt: skip
def test_nothing_but_the_page_is_served_and_under_no_other_name(path, host, status, tmp_path, capfd) -> None:
    (tmp_path / "runtime").mkdir()
    for name in ("index.html", "private.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "model.json").symlink_to(tmp_path / "private.txt")
    with serving(tmp_path, 0) as address:
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(address).port or 0, timeout=10)
        connection.putrequest("GET", path, skip_host=True)
        if host is not None:
            connection.putheader("Host", host)
        connection.endheaders()
        response = connection.getresponse()
        assert response.status == status and (response.read() == b"index.html") == (status == 200)
        assert response.getheader("X-Content-Type-Options") == "nosniff"
        assert response.getheader("Content-Security-Policy") == "frame-ancestors 'none'"
        connection.close()
        with socket.create_connection(("127.0.0.1", urlsplit(address).port or 0)) as broken:
            broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            broken.sendall(b"GET / HTT")
    assert capfd.readouterr() == ("", "")


def test_mistakes_are_one_line(model: Path, stand_in: Path, tmp_path: Path, refused) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        complaint(serving(stand_in, taken.getsockname()[1]).__enter__, "cannot be used")
        pass
    complaint(lambda: find_runtime(tmp_path), r"has no ort.*sepkit download onnxruntime-web")
    refused(["web", "no_such_model", "--out", tmp_path / "x", "--runtime", stand_in])


# -------------------------------------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser_flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A microphone that hears a tone, and leave to use it."""
    tone = 0.2 * np.sin(2 * np.pi * TONE_HZ * np.arange(3 * 48_000) / 48_000)
    heard = tmp_path_factory.mktemp("microphone") / "tone.wav"
    audio.write(heard, tone.astype(np.float32), 48_000, subtype="PCM_16")
    leave = ("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream")
    return (*leave, f"--use-file-for-fake-audio-capture={heard}")


@pytest.fixture(scope="module")
def runtime() -> Path:
    """ONNX Runtime Web; nothing is fetched for it: `make test` does, or an earlier `sepkit web`."""
    runtime = cache_folder("web") / WEB_RUNTIME
    if not runtime.is_dir():
        pytest.skip(f"ONNX Runtime Web is not in {runtime.parent} (make test fetches it where npm is)")
    return runtime


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> Iterator[str]:
    """The page of the default model, served."""
    with serving(write_web_page("boxed_8k", tmp_path_factory.mktemp("page"), runtime), 0) as address:
        yield address


@pytest.fixture(scope="module")
def loaded_page(opened_page: Any) -> Any:
    """The page with its model, which takes seconds to load: one for all tests, as people use it."""
    opened_page.get_by_text("The model is ready").wait_for(timeout=60_000)
    return opened_page


@pytest.fixture
def ready(loaded_page: Any) -> Any:
    """The page, ready, without what the test before it left there."""
    loaded_page.evaluate("""() => {
        document.getElementById("status").textContent = "";
        document.getElementById("status").classList.remove("error");
        document.getElementById("results").replaceChildren();
    }""")
    return loaded_page


@pytest.fixture(scope="module")
def command() -> Any:
    """The same model as the command has it."""
    return load_model("boxed_8k")


def recording(path: Path, seconds: float, level: float = 0.1) -> np.ndarray:
    noise = np.random.default_rng(0).standard_normal(int(seconds * RATE))
    samples = (level * np.convolve(noise, np.array([1, 6, 15, 20, 15, 6, 1]) / 32, mode="same")).astype(np.float32)
    audio.write(path, samples, RATE)
    return samples


def downloaded(page: Any) -> dict[str, np.ndarray]:
    """Name -> samples of each file that the page offers."""
    voices = {}
    for link in page.locator("a[download]").all():
        with page.expect_download() as download:
            link.click()
        voices[download.value.suggested_filename] = audio.read(download.value.path(), sample_rate=RATE)
    return voices


def separated(page: Any, path: Path) -> None:
    page.locator("#file").set_input_files(str(path))
    page.get_by_text("were separated in").wait_for(timeout=120_000)


def assert_as_the_command(page: Any, expected: Any, least_db: float = 50) -> None:
    """The page shows and offers what the command makes of the same recording."""
    voices = np.stack([*downloaded(page).values()])
    assert voices.shape == expected.estimates.shape
    energies, errors = (np.square(own).sum(1) for own in (expected.estimates, voices - expected.estimates))
    # Both have the rounding of one network, which is more for an output 30 dB or more below the other.
    assert 10 * np.log10(np.maximum(energies, 1e-3 * energies.max()) / errors).min() > least_db
    printed = summary_line(expected).replace("_s", "voice ").replace(" (--speakers 2 if there are more)", "")
    # The numbers, which may be rounded to another digit, are compared below.
    words = [
        re.sub(r"-?[\d.]+ dB \(.*?\)", "N dB", text) for text in (page.locator("#summary").inner_text(), printed + ".")
    ]
    assert words[0] == words[1]
    shown = [float(value.get_attribute("value")) for value in page.locator("h2 data").all()]
    told = np.zeros(0) if expected.out_of_domain else expected.predicted_si_sdr_db
    np.testing.assert_allclose(shown, told[np.isfinite(told)], atol=0.05)


def test_estimates_and_prediction_are_those_of_the_command(ready: Any, command: Any, tmp_path: Path) -> None:
    samples = recording(tmp_path / "two.wav", 4)
    separated(ready, tmp_path / "two.wav")
    assert_as_the_command(ready, command.separate(samples, RATE))
    links = ready.locator("a[download]").all()
    assert [link.get_attribute("download") for link in links] == ["two_s1.wav", "two_s2.wav"]
    played = ready.evaluate("""async () => Promise.all([...document.querySelectorAll("audio")].map(async (player) => {
        player.playbackRate = 4;
        const ended = new Promise((resolve) => { player.onended = () => resolve(true); });
        await player.play();
        return ended;
    }))""")
    assert played == [True] * 3


def speech(data_folder: Path, first: int, count: int = 1, seconds: float = 6, sample_rate: int = RATE) -> np.ndarray:
    """Recordings of test speakers one after the other, from each of them `seconds`."""
    test = data_folder / "speech_mini" / f"wav{sample_rate // 1000}k" / "test"
    folders = sorted(test.iterdir())[first : first + count]
    parts = [audio.read(sorted(folder.rglob("*.flac"))[0], sample_rate=sample_rate) for folder in folders]
    return np.concatenate([np.resize(part, round(seconds * sample_rate)) for part in parts])


@pytest.mark.parametrize(("kind", "rate", "least_db"), [("wav", 16_000, 60), ("flac", 48_000, 50), ("wav", 44_100, 40)])
def test_other_rates_are_resampled_as_the_command_does(kind, rate, least_db, ready, command, data_folder, tmp_path):
    # Speech with all of its treble: noise is unlike what the model knows, so it magnifies the least difference.
    samples = sum(speech(data_folder, number, seconds=3, sample_rate=16_000) for number in (0, 1))
    samples = audio.resample((0.5 * samples / np.abs(samples).max()).astype(np.float32), 16_000, rate)
    audio.write(tmp_path / f"two.{kind}", samples, rate, subtype="PCM_16")
    separated(ready, tmp_path / f"two.{kind}")
    mixture = audio.read(tmp_path / f"two.{kind}", sample_rate=RATE)
    assert_as_the_command(ready, command.separate(mixture, RATE), least_db)


def test_rates_are_read_from_headers(ready: Any, tmp_path: Path) -> None:
    samples = np.random.default_rng(0).uniform(-0.1, 0.1, 4000).astype(np.float32)
    found, written = {}, {}
    for rate in (16_000, 44_100):
        for kind in ("wav", "flac", "ogg", "mp3", *(["m4a"] if shutil.which("ffmpeg") else [])):
            path = tmp_path / f"{rate}.{kind}"
            if kind == "m4a":
                command = ["ffmpeg", "-loglevel", "error", "-i", str(path.with_suffix(".wav")), str(path)]
                subprocess.run(command, check=True)
            else:
                soundfile.write(path, samples, rate)
            written[path.name] = rate
            found[path.name] = ready.evaluate(
                """async (content) => {
                    const { rateOf } = await import("./sound.js");
                    return rateOf(new DataView(new Uint8Array(content).buffer));
                }""",
                list(path.read_bytes()),
            )
    assert found == written
    cut = """async () => (await import("./sound.js")).rateOf(new DataView(new Uint8Array([82, 73, 70, 70]).buffer))"""
    assert ready.evaluate(cut) == 48_000


@pytest.mark.parametrize("case", ["two at once", "one alone", "two in turn", "longer than 30 s"])
def test_speech_is_told_as_the_command_tells_it(case: str, ready: Any, data_folder: Path, tmp_path: Path) -> None:
    samples = {
        "two at once": lambda: speech(data_folder, 0, seconds=4) + speech(data_folder, 1, seconds=4),
        "one alone": lambda: speech(data_folder, 2, seconds=4),
        "two in turn": lambda: speech(data_folder, 0, 2, 4),
        "longer than 30 s": lambda: speech(data_folder, 0, 4, 7.6) + speech(data_folder, 4, 4, 7.6),
    }[case]()
    samples = (0.5 * samples / np.abs(samples).max()).astype(np.float32)
    audio.write(tmp_path / "talk.wav", samples, RATE)
    separated(ready, tmp_path / "talk.wav")
    # The page separates at once, however long the recording is.
    assert_as_the_command(ready, load_model("boxed_8k", whole_seconds=math.inf).separate(samples, RATE))


def test_features_are_those_of_python(ready: Any) -> None:
    """At rates whose frames are no power of two, with more than two estimates, and with one."""
    generator = np.random.default_rng(0)
    for rate, count in ((8000, 2), (22050, 3), (16000, 1)):
        fade = np.linspace(0.01, 0.2, rate, dtype=np.float32)
        estimates = generator.standard_normal((count, rate), np.float32) * fade
        estimates[:1] = np.repeat(estimates[:1, ::2], 2, axis=1)
        mixture = estimates.sum(0) + 0.01 * generator.standard_normal(rate, np.float32)
        found = ready.evaluate(
            """async ([rate, mixture, estimates]) => {
                const { hypothesisFeatures } = await import("./prediction.js");
                const output = { estimates: estimates.map((one) => Float32Array.from(one)), features: {} };
                return hypothesisFeatures(Float32Array.from(mixture), output, rate);
            }""",
            [rate, mixture.tolist(), estimates.tolist()],
        )
        expected = hypothesis_features(mixture, ModelOutput(estimates[None]), rate)
        assert set(found) == set(expected)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("constant", [0.0, 0.3])
def test_levels_are_those_of_python(constant: float) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on this machine (Debian: apt-get install nodejs)")
    mixture = constant + np.random.default_rng(0).standard_normal(5000) * np.logspace(-3, -1, 5000)
    mixtures = [samples.astype(np.float32) for samples in (mixture, np.full(500, constant))]
    script = """
        const { standardize, standardizeRunning } = await import(`data:text/javascript;base64,${process.argv[1]}`);
        let text = "";
        for await (const part of process.stdin) text += part;
        const told = JSON.parse(text).map((one) => {
            const samples = Float32Array.from(one), whole = standardize(samples, 0.07), running = standardizeRunning(samples, 0.07, 8000);
            return [[...whole.standardized], whole.factor, [...running.standardized], [...running.factors]];
        });
        console.log(JSON.stringify(told));
    """  # noqa: E501
    code = base64.b64encode((Path(web.__file__).parent / "assets" / "web" / "sound.js").read_bytes()).decode()
    given = json.dumps([samples.tolist() for samples in mixtures])
    command = [node, "--input-type=module", "-e", script, code]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    for samples, (whole, factor, running, factors) in zip(mixtures, parse_json(done.stdout), strict=True):
        expected, back = standardize(samples[None], 0.07)
        np.testing.assert_allclose(whole, expected[0], rtol=1e-5, atol=1e-7)
        assert factor == pytest.approx(back[0, 0], rel=1e-6)
        expected, back = RunningLevel(RATE, 0.07).standardize(samples[None])
        np.testing.assert_allclose(running, expected[0], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(factors, back[0], rtol=1e-6)


class Differences:
    """An encoder that hears how far samples differ that are 1 to 12 samples apart."""

    sample_rate, embedding_size = RATE, 12

    def embed(self, waveforms: np.ndarray) -> np.ndarray:
        found = [np.abs(waveforms[:, lag:] - waveforms[:, :-lag]).sum(1) for lag in range(1, 13)]
        return unit_rows(np.stack(found, 1) - np.mean(found, 0)[:, None])


def test_swapped_estimates_are_noticed_and_arranged_in_the_page_too(ready: Any) -> None:
    bright, dark = 0.1 * np.random.default_rng(0).standard_normal((2, 4 * RATE), np.float32)
    speakers = np.stack([bright, np.convolve(dark, np.ones(8, np.float32) / 8, "same")])
    swapped = np.concatenate([speakers[:, : 2 * RATE], speakers[::-1, 2 * RATE :]], axis=1)
    late = speakers * (np.arange(4 * RATE) > 3 * RATE)
    # Two who take turns of 1.5 s, and change places at 2.6 s.
    undone = np.stack([voice(0, 4, 0), voice(2, 4, 1)]) * (np.arange(4 * RATE) // 12_000 % 2 == [[0], [1]])
    turns = np.concatenate([undone[:, :20_800], undone[::-1, 20_800:]], axis=1)
    cases = speakers, swapped, late, turns
    found = ready.evaluate(
        """async (all) => {
            const { changesSpeakers, withoutSwaps } = await import("./prediction.js");
            const embed = Object.assign(async (windows) => windows.map((one) => {
                const found = Array.from({ length: 12 }, (_, k) => one.reduce((sum, x, t) => sum + (t > k ? Math.abs(x - one[t - k - 1]) : 0), 0));
                const middle = found.reduce((a, b) => a + b) / 12, centered = Float64Array.from(found, (x) => x - middle);
                return centered.map((x) => x / Math.hypot(...centered));
            }), { rate: 8000 });
            const told = [];
            for (const rows of all) {
                const [mixture, ...estimates] = rows.map((one) => Float32Array.from(one));
                const arranged = await withoutSwaps(embed, mixture, estimates, 8000);
                told.push([await changesSpeakers(embed, estimates, 8000), arranged.map((one) => [...one])]);
            }
            return told;
        }""",  # noqa: E501
        [[(0.5 * one.sum(0)).tolist(), *one.tolist()] for one in cases],
    )
    for (changes, arranged), estimates in zip(found, cases, strict=True):
        assert changes == changes_speakers(Differences(), estimates, RATE)
        gains = gains_of(products_of(0.5 * estimates.sum(0), estimates), "mixture", False, np.arange(2))[:, None]
        orders = find_orders(Differences(), lambda *span, own=gains * estimates: own[:, slice(*span)], 4 * RATE, RATE)
        expected = estimates if orders is None else orders.arrange(gains * estimates)
        np.testing.assert_allclose(arranged, expected, atol=1e-6)
    assert [changes for changes, _ in found[:3]] == [False, True, False]
    assert np.abs(found[3][1] - 0.5 * undone).mean() < 0.05 * np.abs(turns - undone).mean()


def test_a_causal_model_runs_in_the_page_too(browser: Any, runtime: Path, tmp_path: Path) -> None:
    samples = recording(tmp_path / "two.wav", 2.01)
    with serving(write_web_page("boxed_8k_causal", tmp_path / "page", runtime), 0) as address:
        page = browser.new_page()
        page.goto(address)
        page.get_by_text("The model is ready").wait_for(timeout=60_000)
        separated(page, tmp_path / "two.wav")
        assert_as_the_command(page, load_model("boxed_8k_causal").separate(samples, RATE))
        page.close()


def test_a_file_can_be_dropped(ready: Any, tmp_path: Path) -> None:
    recording(tmp_path / "dropped.wav", 1)
    carried = ready.evaluate_handle(
        """(content) => {
            const carried = new DataTransfer();
            carried.items.add(new File([new Uint8Array(content)], "dropped.wav", { type: "audio/wav" }));
            return carried;
        }""",
        list((tmp_path / "dropped.wav").read_bytes()),
    )
    ready.dispatch_event("body", "dragenter", {"dataTransfer": carried})
    assert ready.locator("#drop.over").count() == 1
    # Anywhere on the page will do.
    ready.dispatch_event("h1", "drop", {"dataTransfer": carried})
    ready.get_by_text("dropped.wav: 1.0 s of sound were separated in").wait_for(timeout=60_000)
    assert ready.locator("#drop.over").count() == 0
    assert ready.locator("a[download]").count() == 2


def test_the_microphone_is_recorded_until_it_is_stopped(ready: Any) -> None:
    button = ready.locator("#record")
    button.click()
    ready.get_by_text("Recording, 10 seconds at most").wait_for(timeout=20_000)
    ready.wait_for_timeout(1200)
    assert button.inner_text() == "Stop"
    button.click()
    ready.get_by_text("of sound were separated in").wait_for(timeout=60_000)
    assert button.inner_text() == "Record 10 seconds"
    heard = sum(downloaded(ready).values())
    assert 1 < len(heard) / RATE < 5
    spectrum = np.abs(np.fft.rfft(heard * np.hanning(len(heard))))
    assert np.argmax(spectrum) * RATE / len(heard) == pytest.approx(TONE_HZ, abs=5)


def test_a_microphone_that_is_refused_is_told_in_a_sentence(ready: Any) -> None:
    ready.evaluate("""() => {
        navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException("", "NotAllowedError"));
    }""")
    ready.locator("#record").click()
    ready.get_by_text("The microphone cannot be used (NotAllowedError); allow it for this page").wait_for()
    assert ready.locator("#status.error").count() == 1 and ready.locator("#record").is_enabled()
    ready.evaluate("() => { delete navigator.mediaDevices.getUserMedia; }")


@pytest.mark.parametrize("size", [(1280, 900), (390, 844)])
def test_nothing_is_wider_than_the_screen(size: tuple[int, int], ready: Any, tmp_path: Path) -> None:
    ready.set_viewport_size({"width": size[0], "height": size[1]})
    recording(tmp_path / f"{'long_name_' * 12}.wav", 1)
    ready.locator("#file").set_input_files(str(tmp_path / f"{'long_name_' * 12}.wav"))
    ready.get_by_text("were separated in").wait_for(timeout=60_000)
    assert ready.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    colors = ready.evaluate("""() => [...document.querySelectorAll("canvas")].map((canvas) => {
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return new Set(data).size;
    })""")
    assert len(colors) == 6 and min(colors) >= 3
    if folder := os.environ.get("SEPKIT_SCREENSHOTS"):
        ready.screenshot(path=f"{folder}/web_{size[0]}.png", full_page=True)


def test_keyboard_reaches_everything(page: Any) -> None:
    # From the beginning: on a busy machine the browser starts to tell of choosers some keys later.
    page.on("filechooser", lambda chooser: None)
    reached = []
    for _ in range(2):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
    assert reached == ["choose", "record"]
    with page.expect_file_chooser():
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Enter")


def test_the_page_of_a_site_links_back_to_it(page: Any, address: str) -> None:
    page.get_by_text("The model is boxed_8k").wait_for()
    assert page.locator("#home").is_hidden()
    page.route("**/model.json", lambda route: route.fulfill(json={**route.fetch().json(), "home": "../index.html"}))
    page.reload()
    page.locator("#home a").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.href") == urljoin(address, "../index.html")


def test_bad_recordings_are_told_in_a_sentence(ready: Any, tmp_path: Path) -> None:
    (tmp_path / "no.wav").write_text("no audio")
    recording(tmp_path / "silent.wav", 1, 0.0)
    recording(tmp_path / "long.wav", MOST_SECONDS + 2)
    complaints = {"no": "finds no sound in it", "silent": "is silent", "long": "found 62 s, expected at most"}
    for name, told in complaints.items():
        ready.locator("#file").set_input_files(str(tmp_path / f"{name}.wav"))
        ready.get_by_text(told).wait_for(timeout=20_000)
        assert ready.locator("#status.error").count() == 1
