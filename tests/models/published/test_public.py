"""Public models by name: the table against what sepkit builds, and fetches from a web server on this machine."""

import dataclasses
import hashlib
import json
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sepkit import config as c
from sepkit import fetching
from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.models import build_model, load_pretrained
from sepkit.models.published import public
from sepkit.models.published.facts import multiply_adds
from sepkit.models.published.names import TOOLKITS, license_of
from sepkit.models.published.public import PUBLIC, PublicFile
from sepkit.models.storage.layout import build_on_meta
from tests import published
from tests.complaint import complaint
from tests.file_server import Server

# ------------------------------------------------------------------------------------------------------------ the table


MAPPING = {"compression": 1.0, "features": "real_imaginary", "complex_masks": True, "mapping": True}


def points(activation: str) -> c.DeterministicConfig:
    return c.DeterministicConfig(activation=activation)  # type: ignore[arg-type]


def conv_tasnet(rate: int, speakers: int) -> c.ModelConfig:
    """asteroid's, by the training configurations on the models' cards: 2 ms windows at 8 and 16 kHz."""
    bank = c.FreeFilterbankConfig(512, rate // 500, rate // 1000)
    masker = c.ConvTasNetConfig(128, 512, 128, blocks=8, repeats=3)
    return c.ModelConfig(rate, speakers, bank, points("linear"), masker, points("relu"), pad="asteroid")


def dual_path_rnn() -> c.ModelConfig:
    masker = c.DualPathRNNConfig(128, 128, chunk_size=250, hop_size=125, repeats=6)
    return c.ModelConfig(8000, 2, c.FreeFilterbankConfig(64, 2, 1), points("linear"), masker, points("sigmoid"))


def sepformer(rate: int, speakers: int) -> c.ModelConfig:
    """speechbrain's published hyperparams.yaml, which differ only in rate and speakers."""
    bank = c.FreeFilterbankConfig(256, 16, 8)
    return c.ModelConfig(rate, speakers, bank, points("relu"), c.SepFormerConfig(), points("relu"), pad="asteroid")


def sepreformer() -> c.ModelConfig:
    bank = c.FreeFilterbankConfig(256, 16, 4, multiple=4, mapping=True)
    masker = c.SepReformerConfig(channels=128)
    return c.ModelConfig(8000, 2, bank, points("gelu"), masker, points("linear"), pad="asteroid")


def sudormrf(blocks: int, filters: int) -> c.ModelConfig:
    """Improved SuDoRM-RF of the names of its files: blocks and bases; the rest is as in its authors' repository."""
    channels, depth = {16: (256, 5), 36: (512, 6)}[blocks]
    bank = c.FreeFilterbankConfig(filters, 21, 10, 10, 9, multiple=10 * 2**depth, together=2)
    masker = c.ImprovedSuDoRMRFConfig(channels, 512, blocks, depth)
    return c.ModelConfig(8000, 2, bank, points("linear"), masker, points("relu"), pad="asteroid", input_norm="mixture")


def tf_locoformer(rate: int, speakers: int, window: int, stride: int, *sizes: int) -> c.ModelConfig:
    """Of the authors' config.yaml: n_fft, hop_length, emb_dim, n_layers, ffn_hidden_dim, conv1d_kernel."""
    bank = c.STFTFilterbankConfig(window, stride, **MAPPING, like_torch=True)
    masker = c.TFLocoformerConfig(sizes[0], sizes[1], feedforward_dim=sizes[2], kernel_size=sizes[3])
    return c.ModelConfig(rate, speakers, bank, points("linear"), masker, points("linear"), input_norm="mixture")


def sr_corrnet(name: str, speakers: int, counts: bool) -> c.ModelConfig:
    """Of the configs in the authors' repository."""
    window = 256 if name == "sr-corrnet-whamr" else 128
    bank = c.STFTFilterbankConfig(window, 64, **MAPPING, like_sr_corrnet=True)
    masker = {
        "sr-corrnet-l-wsj0": c.SRCorrNetConfig(192, 3, 5, 4, 512, 768),
        "sr-corrnet-whamr": c.SRCorrNetConfig(128, 2, 4, 4, 256, 512, kernel_size=5, frame_taps=3),
    }.get(name, c.SRCorrNetConfig(count_speakers=counts))
    return c.ModelConfig(8000, speakers, bank, points("linear"), masker, points("linear"), input_norm="mixture")


def architecture(name: str) -> c.ModelConfig:
    """What the table's numbers are counted on."""
    row = PUBLIC[name]
    speakers = int((re.findall(r"\d", row.task) or ["1"])[-1])
    sizes = {
        "tf-locoformer-whamr": (256, 64, 128, 6, 192, 8),
        "tf-locoformer-whamr-s": (256, 64, 96, 4, 128, 8),
        "tf-locoformer-dns": (256, 128, 128, 6, 384, 4),
    }
    return {
        "convtasnet": lambda: conv_tasnet(row.sample_rate, speakers),
        "dprnn": dual_path_rnn,
        "sepformer": lambda: sepformer(row.sample_rate, speakers),
        "sepreformer": sepreformer,
        "sudormrf": lambda: sudormrf(*map(int, re.findall(r"U(\d+)_Bases(\d+)", row.files[0].name)[0])),
        "sr": lambda: sr_corrnet(name, speakers, "to" in row.task),
        "tf": lambda: tf_locoformer(row.sample_rate, speakers, *sizes.get(name, (128, 64, 128, 6, 384, 4))),
    }[name.partition("-")[0]]()


COUNTED = {}


def counted(config: c.ModelConfig, device: str):
    """Parameters, 1e9 multiply-adds a second of audio, and numbers in the weights of a model, without values."""
    model = build_model(config) if device == "cpu" else build_on_meta(lambda: build_model(config), "the model", 10**4)
    model.eval().to(device).requires_grad_(False)
    mixture, operations = torch.zeros(1, 4 * config.sample_rate, device=device), None
    # Of how many speakers a model finds its operations depend.
    if not getattr(config.masker, "count_speakers", False):
        with torch.inference_mode():
            operations = pytest.approx(multiply_adds(lambda: model(mixture)) / 4e9, abs=0.006)
    numbers = sum(tensor.numel() for tensor in model.state_dict().values())
    return sum(parameter.numel() for parameter in model.parameters()), operations, numbers


# LSTMs are slow where operations are counted.
MEASURED = [name for name, row in PUBLIC.items() if row.parameters is not None]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * name.startswith("dprnn")) for name in MEASURED]
)
def test_parameters_operations_and_bytes_are_those_of_the_architecture(name):
    row, config = PUBLIC[name], architecture(name)
    if repr(config) not in COUNTED:
        COUNTED[repr(config)] = counted(config, "cpu" if name.startswith("dprnn") else "meta")
    parameters, operations, numbers = COUNTED[repr(config)]
    if isinstance(config.masker, c.ImprovedSuDoRMRFConfig):
        # Of the last slopes of a block its authors have one for all channels, sepkit has one for each.
        parameters -= config.masker.blocks * (config.masker.hidden_channels - 1)
    assert (row.parameters, row.giga_multiply_adds_per_second) == (parameters, operations)
    # Files of four bytes a weight; speechbrain's hold tables of positions. SepReformer's holds two moments of each
    # weight besides, and four masks and decoders that only training uses.
    numbers = 3 * (numbers + 4 * (4 * 128 * 129 + 256 * 257 + 256 * 16)) if name == "sepreformer-b-wsj0" else numbers
    assert row.megabytes is None or row.megabytes == pytest.approx(4e-6 * numbers, rel=0.025)


@pytest.mark.parametrize("name", PUBLIC)
def test_rows_say_where_files_are_and_what_reads_them(name):
    row = PUBLIC[name]
    assert row.bridge in TOOLKITS and re.fullmatch("separate [23]( to [35])?|enhance", row.task)
    names = [file.name for file in row.files]
    assert len({*names}) == len(names) and (not row.given or row.given.partition("@")[0] in names)
    for file in row.files:
        assert file.url.startswith("https://") and file.url.endswith(f"/{file.name}")
        assert not file.digest or re.fullmatch("sha256:[0-9a-f]{64}", file.digest)
        # What lies in a repository on GitHub is pinned by commit, digest and size.
        assert "github" not in file.url or (file.digest and file.size and re.search("/[0-9a-f]{40}/", file.url))


def test_the_table_is_printed_and_is_json(printed, capsys):
    assert main(["models", "--public", "--model", "boxed_8k"]) == 2
    assert "--public: lists all public models; leave out --model" in capsys.readouterr().err
    rows = {row["name"]: row for row in json.loads(printed(["models", "--public", "--json"]))}
    assert rows.keys() == PUBLIC.keys()
    assert rows["sepreformer-b-wsj0"]["files"][0] == dataclasses.asdict(PUBLIC["sepreformer-b-wsj0"].files[0])


# ------------------------------------------------------------------------------------------------------------- fetching


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setattr(fetching, "_PAUSE_SECONDS", 0.001)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("weights")
    torch.save(published.tf_locoformer_weights(), folder / "valid.loss.ave_5best.pth")
    (folder / "config.yaml").write_text(published.tf_locoformer_yaml())
    torch.save(published.sepreformer_checkpoint(published.sepreformer_weights()), folder / "epoch.0180.pth")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def serve(server: Server, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], name: str, **ways: object) -> None:
    """Let a row of the table point at this server, with the digests of these files if it has digests."""
    row, moved = PUBLIC[name], []
    for file in row.files:
        content = files[file.name]
        server.put(file.name, content, **ways)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}" if file.digest else ""
        moved.append(PublicFile(file.name, f"{server.url}/{file.name}", digest, len(content) if file.size else None))
    monkeypatch.setitem(PUBLIC, name, dataclasses.replace(row, files=tuple(moved)))


def separate(tmp_path, name: str) -> int:
    audio.write(tmp_path / "talk.wav", 0.1 * np.random.default_rng(0).standard_normal(4000).astype(np.float32), 8000)
    arguments = [str(tmp_path / "talk.wav"), "--model", name, "--out", str(tmp_path / "out"), "--device", "cpu"]
    return main(["separate", *arguments])


def test_a_model_is_fetched_once_after_two_breaks_and_its_license_said(server, weights, monkeypatch, tmp_path, capsys):
    name, file = "tf-locoformer-wsj0", "valid.loss.ave_5best.pth"
    serve(server, monkeypatch, weights, name, drop_after=len(weights[file]) // 3 + 1)
    assert separate(tmp_path, name) == 0
    part = len(weights[file]) // 3 + 1
    assert server.files[file].seen == [None, f"bytes={part}-", f"bytes={2 * part}-"]
    assert (tmp_path / "cache/sepkit/models" / name / file).read_bytes() == weights[file]
    lines = capsys.readouterr().err.splitlines()
    (told,) = [line for line in lines if "license" in line or "weights are under" in line]
    folder = tmp_path / "cache/sepkit/models" / name
    assert told == f"{name}: 60 MB; the weights are under Apache-2.0; fetched once, to {folder}"
    found = json.loads((tmp_path / "out/talk.json").read_text())
    assert (found["model"], found["license"]) == (name, "Apache-2.0")
    server.close()
    shutil.rmtree(tmp_path / "out")
    assert separate(tmp_path, name) == 0 and "Apache" not in capsys.readouterr().err
    assert json.loads((tmp_path / "out/talk.json").read_text())["license"] == "Apache-2.0"


def test_a_wrong_digest_and_no_network_are_one_line(server, weights, monkeypatch, tmp_path, capsys):
    name, file = "sepreformer-b-wsj0", "epoch.0180.pth"
    config = b"config: {model: {module_audio_enc: {stride: 2}}, dataset: {sampling_rate: 8000}}"
    files = weights | {"configs.yaml": config}
    serve(server, monkeypatch, files, name)
    middle = len(files[file]) // 2
    server.put(file, files[file][:middle] + b"?" + files[file][middle + 1 :])
    assert separate(tmp_path, name) == 2
    folder = tmp_path / "cache/sepkit/models" / name
    *_, line = capsys.readouterr().err.splitlines()
    assert re.search("epoch.0180.pth: its sha256 is [0-9a-f]{64}, expected [0-9a-f]{64}; it is another file", line)
    assert not (folder / file).exists()
    server.close()
    assert separate(tmp_path, name) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert "no connection" in line and line.endswith(f"; or put {file}, configs.yaml into {folder} yourself")
    for given, content in files.items():
        (folder / given).write_bytes(content)
    assert separate(tmp_path, name) == 0


def test_a_file_without_published_digest_is_held_against_that_of_the_first_fetch(server, monkeypatch, tmp_path, capsys):
    model = published.small_asteroid()
    torch.save(model.serialize(), tmp_path / "pytorch_model.bin")
    name, content = "convtasnet-libri2mix-noisy16k", (tmp_path / "pytorch_model.bin").read_bytes()
    serve(server, monkeypatch, {"pytorch_model.bin": content}, name)
    assert load_pretrained(name).sample_rate == model.sample_rate and license_of(name) == "CC BY-SA 4.0"
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    folder = tmp_path / "cache/sepkit/models" / name
    words = f"no digest is published; its own, {digest}, is noted in {folder / 'digests.json'}"
    assert words in capsys.readouterr().err
    (folder / "pytorch_model.bin").write_bytes(b"rotten")
    load_pretrained(name)
    assert (folder / "pytorch_model.bin").read_bytes() == content and "noted" not in capsys.readouterr().err
    (folder / "pytorch_model.bin").write_bytes(b"rotten")
    server.put("pytorch_model.bin", b"another")
    assert f"expected {digest.removeprefix('sha256:')}" in complaint(lambda: load_pretrained(name))


@pytest.mark.parametrize("name", ["sr-corrnet-2to5", "tiger"])
def test_models_that_are_folders_are_fetched_whole(name, server, monkeypatch, tmp_path):
    torch.save(published.sr_corrnet_weights(5, True), tmp_path / "model.pt")
    (tmp_path / "config.yaml").write_text(json.dumps(published.sr_corrnet_description(5, True)))
    save_file(published.tiger_weights(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(published.tiger_arguments()))
    serve(server, monkeypatch, {file.name: (tmp_path / file.name).read_bytes() for file in PUBLIC[name].files}, name)
    model = load_pretrained(name)
    assert (model.hypotheses, model.sample_rate) == {"tiger": (2, 16000)}.get(name, (5, 8000))
    assert model.sample_rate == PUBLIC[name].sample_rate


def test_names_of_asteroids_readme_and_addresses_are_fetched(server, monkeypatch, tmp_path):
    hub_utils = published.peer("asteroid.utils.hub_utils")
    known = {name: url for name, url in hub_utils.MODELS_URLS_HASHTABLE.items() if public.zenodo_address(name)}
    assert {name: public.zenodo_address(name) for name in known} == known
    # Masks and music: classes that sepkit does not have.
    others = hub_utils.MODELS_URLS_HASHTABLE.keys() - known
    assert {name.split("/")[1].split("_")[0] for name in others} == {"DeMask", "XUMX", "XUMXL"}
    torch.save(published.small_asteroid().serialize(), tmp_path / "model.pth")
    server.put("model.pth?download=1", (tmp_path / "model.pth").read_bytes())
    address = f"{server.url}/model.pth?download=1"
    assert load_pretrained(f"asteroid:{address}").hypotheses == 2
    monkeypatch.setattr("sepkit.models.published.pretrained.zenodo_address", lambda _: address)
    for name in ("mpariente/ConvTasNet_WHAM!_sepclean", "mpariente/DPRNNTasNet(ks=16)_WHAM!_sepclean"):
        assert load_pretrained(f"asteroid:{name}").sample_rate == 8000
    assert len(server.files["model.pth?download=1"].seen) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sepformer-wham16k", r"\(did you mean sepformer-whamr16k\?\); `sepkit models` and `sepkit models --public`"),
        ("hf:alibabasglab/MossFormer2_SS_16K", "MossFormer2 is a model of ClearVoice, which sepkit does not read"),
        ("pyannote/speech-separation-ami-1.0", "pyannote's separation is a gated pipeline around WavLM"),
        ("asteroid:JusperLee/SPMamba", "SPMamba needs CUDA kernels"),
        ("espnet/yoshiki_wsj0_2mix_spatialized", "of ESPnet's models sepkit reads TF-Locoformer alone"),
        ("JusperLee/Dolphin", "Dolphin separates by video too"),
        ("wesep", "WeSep extracts one enrolled speaker"),
    ],
)
def test_public_models_that_are_not_read_are_told_in_one_line(name, words):
    assert re.search(words, complaint(lambda: load_pretrained(name)))


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("hyperparams.yaml", "is named speechbrain:{}, expected a folder with"),
        ("last_best_checkpoint", "ClearVoice's (MossFormer2), which sepkit does not read, expected"),
        ("pytorch_model.bin", "is named asteroid:{}/pytorch_model.bin, expected"),
        ("model.pt", "for SR-CorrNet is named sr-corrnet:{}, expected"),
        ("config.json", "for TIGER is named tiger:{}, expected"),
    ],
)
def test_folders_of_other_toolkits_are_told_how_they_are_named(file, words, tmp_path):
    (tmp_path / file).touch()
    (tmp_path / "encoder.ckpt").touch()
    assert words.format(tmp_path) in complaint(lambda: load_pretrained(tmp_path))
