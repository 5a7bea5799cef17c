"""Models that others have published, by short name: where their files are, and what their authors say of them.

One table for `sepkit models --public`, for `--model NAME` and for the page docs/public-models.md. Addresses that hold a
commit always give the same bytes. Files of a branch can change; without a published digest, the SHA-256 of the first
fetch is noted beside them, and later ones are held against it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sepkit.errors import UserError
from sepkit.files import cache_folder, file_digest, read_json, write_json

DIGESTS = "digests.json"
"""File beside what was fetched without a published digest: name -> "sha256:..." of the first fetch."""


@dataclass(frozen=True)
class PublicFile:
    """A file of a model.

    Args:
        name: in the cache.
        digest: "sha256:...", or "" where nobody has published one.
        size: bytes; None: not published exactly.
    """

    name: str
    url: str
    digest: str = ""
    size: int | None = None


@dataclass(frozen=True)
class PublicModel:
    """A model that others have published.

    Args:
        task: separate 2, separate 2 to 5 (it counts them), enhance (one output: a denoiser).
        corpus: that it was trained on, with the task's name there.
        parameters: of the model that sepkit makes of it; None: its sizes are known from its own files alone.
        giga_multiply_adds_per_second: 1e9 per second of audio, by `facts.multiply_adds`; None: as above, or it depends
            on the recording.
        score: on the test set of its corpus, as published; "": none is known.
        bridge: what reads its files: the word before the colon of a MODEL.
        source: who says what the score is.
        license: of the weights.
        megabytes: of all files together; None: not published.
        given: to the bridge: a file's name, with @RATE where the file does not tell its rate; "": the folder.
    """

    task: str
    corpus: str
    sample_rate: int
    parameters: int | None
    giga_multiply_adds_per_second: float | None
    score: str
    bridge: str
    source: str
    license: str
    megabytes: float | None
    files: tuple[PublicFile, ...]
    given: str = ""

    @property
    def is_pinned(self) -> bool:
        """Whether a digest is known of every file."""
        return all(file.digest for file in self.files)


def _hub(repository: str, revision: str, *names: str) -> tuple[PublicFile, ...]:
    """Return files of a repository on the Hugging Face hub."""
    return tuple(PublicFile(name, f"https://huggingface.co/{repository}/resolve/{revision}/{name}") for name in names)


def _github(repository: str, commit: str, path: str, digest: str, size: int, large: bool = True) -> PublicFile:
    """Return a file of a repository on GitHub; `large`: it is kept by Git LFS."""
    place = f"media.githubusercontent.com/media/{repository}" if large else f"raw.githubusercontent.com/{repository}"
    return PublicFile(Path(path).name, f"https://{place}/{commit}/{path}", f"sha256:{digest}", size)


def _asteroid(
    repository: str, revision: str, *facts: Any, megabytes: float = 20.4, source: str = "its card"
) -> PublicModel:
    file, license = "pytorch_model.bin", "CC BY-SA 4.0"
    files = _hub(repository, revision, file)
    return PublicModel(
        *facts, bridge="asteroid", source=source, license=license, megabytes=megabytes, files=files, given=file
    )


def _speechbrain(name: str, revision: str, *facts: Any) -> PublicModel:
    files = _hub(f"speechbrain/{name}", revision, "hyperparams.yaml", "encoder.ckpt", "masknet.ckpt", "decoder.ckpt")
    return PublicModel(
        *facts, bridge="speechbrain", source="its card", license="Apache-2.0", megabytes=113.0, files=files
    )


def _tf_locoformer(
    recipe: str, weights: tuple[str, int], config: tuple[str, int], source: str, *facts: Any
) -> PublicModel:
    place = ("merlresearch/tf-locoformer", "b76d38baad9428629cb2fbf23a951e4c76290015")
    folder, name = f"egs2/{recipe}_raw", "valid.loss.ave_5best.pth"
    files = (
        _github(*place, f"{folder}/{name}", *weights),
        _github(*place, f"{folder}/config.yaml", *config, large=False),
    )
    size = round(weights[1] / 1e6, 1)
    return PublicModel(
        *facts, bridge="tf-locoformer", source=source, license="Apache-2.0", megabytes=size, files=files, given=name
    )


def _sr_corrnet(name: str, *facts: Any) -> PublicModel:
    files = _hub(f"shinuh/sr-corrnet-ss-1ch-{name}", "main", "model.pt", "config.yaml")
    return PublicModel(
        *facts, bridge="sr-corrnet", source="arXiv 2603.29097", license="MIT", megabytes=None, files=files
    )


_TORCHAUDIO = "conv_tasnet_base_libri2mix.pt"
_SEPREFORMER = ("dmlguq456/SepReformer", "43cbad8482169e52d362293a2240543fc524c4d2", "models/SepReformer_Base_WSJ0")

PUBLIC: dict[str, PublicModel] = {
    "convtasnet-libri2mix-clean8k": _asteroid(
        "JorisCos/ConvTasNet_Libri2Mix_sepclean_8k", "main",
        "separate 2", "Libri2Mix clean", 8000, 5_050_545, 4.98, "SI-SDRi 14.76 dB", source="Zenodo 3873572",
    ),
    "convtasnet-libri2mix-clean16k": _asteroid(
        "JorisCos/ConvTasNet_Libri2Mix_sepclean_16k", "main",
        "separate 2", "Libri2Mix clean", 16000, 5_066_929, 5.00, "SI-SDRi 15.24 dB",
    ),
    "convtasnet-libri2mix-noisy8k": _asteroid(
        "JorisCos/ConvTasNet_Libri2Mix_sepnoisy_8k", "cadd41387de6c6aabb008c98441d8265e6d8716b",
        "separate 2", "Libri2Mix noisy", 8000, 5_050_545, 4.98, "SI-SDRi 12.0 dB", source="its recipe",
    ),
    "convtasnet-libri2mix-noisy16k": _asteroid(
        "JorisCos/ConvTasNet_Libri2Mix_sepnoisy_16k", "de774bb07f49c9e978431b04e5ad8a4d623332d9",
        "separate 2", "Libri2Mix noisy", 16000, 5_066_929, 5.00, "SI-SDRi 12.55 dB",
    ),
    "convtasnet-libri3mix-clean16k": _asteroid(
        "JorisCos/ConvTasNet_Libri3Mix_sepclean_16k", "main",
        "separate 3", "Libri3Mix clean", 16000, 5_132_977, 5.08, "SI-SDRi 12.30 dB",
    ),
    "convtasnet-libri1mix-enhance16k": _asteroid(
        "JorisCos/ConvTasNet_Libri1Mix_enhsingle_16k", "main",
        "enhance", "Libri1Mix single", 16000, 5_000_881, 4.92, "SI-SDRi 11.29 dB", megabytes=20.1,
    ),
    "dprnn-wham-clean8k": _asteroid(
        "mpariente/DPRNNTasNet-ks2_WHAM_sepclean", "9aa268cd5d8bc5f6322aed54295132c366a4f3e5",
        "separate 2", "WHAM clean", 8000, 3_651_073, 58.05, "SI-SDRi 19.32 dB", megabytes=14.7,
    ),
    "convtasnet-libri2mix-torchaudio": PublicModel(
        "separate 2", "Libri2Mix clean", 8000, 5_050_545, 4.98, "", "torchaudio", "", "not stated", 20.0,
        (PublicFile(_TORCHAUDIO, f"https://download.pytorch.org/torchaudio/models/{_TORCHAUDIO}"),),
        f"{_TORCHAUDIO}@8000",
    ),
    "sepformer-wsj02mix": _speechbrain(
        "sepformer-wsj02mix", "22a8e8909d14484a1f41a142c4ffbfc1509a8677",
        "separate 2", "WSJ0-2mix", 8000, 25_679_361, 59.02, "SI-SNRi 22.4 dB",
    ),
    "sepformer-wsj03mix": _speechbrain(
        "sepformer-wsj03mix", "e2cdbfb223898bc8e87d4bcd1747cedc339f1d96",
        "separate 3", "WSJ0-3mix", 8000, 25_745_153, 59.29, "SI-SNRi 19.8 dB",
    ),
    "sepformer-libri2mix": _speechbrain(
        "sepformer-libri2mix", "main",
        "separate 2", "Libri2Mix clean", 8000, 25_679_361, 59.02, "SI-SNRi 20.6 dB",
    ),
    "sepformer-libri3mix": _speechbrain(
        "sepformer-libri3mix", "1f2d824e2333aec9e60d0030fb144885c1afc426",
        "separate 3", "Libri3Mix clean", 8000, 25_745_153, 59.29, "SI-SNRi 19.0 dB",
    ),
    "sepformer-wham": _speechbrain(
        "sepformer-wham", "main", "separate 2", "WHAM noisy", 8000, 25_679_361, 59.02, "SI-SNRi 16.3 dB",
    ),
    "sepformer-whamr": _speechbrain(
        "sepformer-whamr", "229691859eb846212dbc39ffb49e32f2aa73720c",
        "separate 2", "WHAMR reverberant", 8000, 25_679_361, 59.02, "SI-SNRi 13.7 dB",
    ),
    "sepformer-whamr16k": _speechbrain(
        "sepformer-whamr16k", "2961a83bcf97f23ea8df43b2774b6737b343bd38",
        "separate 2", "WHAMR reverberant", 16000, 25_679_361, 115.69, "SI-SNRi 13.5 dB",
    ),
    "sepformer-wham-enhance8k": _speechbrain(
        "sepformer-wham-enhancement", "main", "enhance", "WHAM single", 8000, 25_613_569, 58.76, "SI-SNR 14.35 dB",
    ),
    "sepformer-wham-enhance16k": _speechbrain(
        "sepformer-wham16k-enhancement", "main", "enhance", "WHAM single", 16000, 25_613_569, 115.16, "SI-SNR 13.8 dB",
    ),
    "sepformer-whamr-enhance8k": _speechbrain(
        "sepformer-whamr-enhancement", "main", "enhance", "WHAMR single", 8000, 25_613_569, 58.76, "SI-SNR 10.59 dB",
    ),
    "sepreformer-b-wsj0": PublicModel(
        "separate 2", "WSJ0-2mix", 8000, 14_687_232, 20.88, "SI-SNRi 23.8 dB", "sepreformer", "arXiv 2406.05983",
        "Apache-2.0", 178.1,
        (
            _github(
                *_SEPREFORMER[:2], f"{_SEPREFORMER[2]}/log/scratch_weights/epoch.0180.pth",
                "336d6f40035e00496aacbe42c9ddf263d21b25dcb7941b5b90e245e9145043d2", 178067890,
            ),
            _github(
                *_SEPREFORMER[:2], f"{_SEPREFORMER[2]}/configs.yaml",
                "72ecc53981fd1fab9bd229a835ecd88e19027b5ebb234a530d9d94bf7ca773cf", 5567, large=False,
            ),
        ),
        "epoch.0180.pth",
    ),
    "tf-locoformer-wsj0": _tf_locoformer(
        "wsj0_2mix/enh1/exp/enh_train_enh_tflocoformer",
        ("c536fa8499b28e2cf812b1906d899ae6337665232ca523dbe628682dd7df983c", 59979488),
        ("9d2fc90621a5e4e716878ab46ac2678436bbbb208b53329b521d3f836cef2a96", 4352),
        "its RESULTS.md", "separate 2", "WSJ0-2mix", 8000, 14_975_620, 131.79, "SI-SNR 23.64 dB",
    ),
    "tf-locoformer-libri2mix": _tf_locoformer(
        "librimix/enh1/exp/enh_train_enh_tflocoformer",
        ("9c691cee4bb0d9664a3fac024b031dfdf8ca3e66fc22a66f2f17119767b49129", 59979488),
        ("1ff7337e592350575990c91cdbb68d532a58ccc847e1d27cfd1819c97de77f1f", 4697),
        "arXiv 2408.03440", "separate 2", "Libri2Mix clean", 8000, 14_975_620, 131.79, "SI-SNRi 22.1 dB",
    ),
    "tf-locoformer-whamr": _tf_locoformer(
        "whamr/enh1/exp/enh_train_enh_tflocoformer",
        ("3e14c736d19cd2158e09f0446fe214be4b47e28ed6d6c11d037cf2d4dae82d6a", 59942624),
        ("c34e0d99e9bf554fd6d10801b1cb635f6effc53a32436e2049b0a7dc1b3a6897", 4703),
        "its RESULTS.md", "separate 2", "WHAMR reverberant", 8000, 14_966_404, 266.10, "SI-SNR 12.15 dB",
    ),
    "tf-locoformer-whamr-s": _tf_locoformer(
        "whamr/enh1/exp/enh_train_enh_tflocoformer_small",
        ("4ba8ffd35258687aeb6f4dd0cf30622728d440b2581e35ae6b4e1f8274dc5dd8", 20553016),
        ("91fa06d5a31052f85573321718e7df36969b0ef6d52103a4a0ea7102159c7f63", 4714),
        "its RESULTS.md", "separate 2", "WHAMR reverberant", 8000, 5_125_220, 96.14, "SI-SNR 11.43 dB",
    ),
    "tf-locoformer-dns": _tf_locoformer(
        "dns_ins20/enh1/exp/enh_train_enh_tflocoformer",
        ("6ffa518f2b73bed289e38349366eb777c94b9130acc32bf4c085cb049d9d1666", 59972116),
        ("d1c8e1760fc622b9b3e4254e60724c98278dd05128cc976b396d8ead2429a3e2", 4381),
        "its RESULTS.md", "enhance", "DNS 2020", 16000, 14_973_314, 260.50, "SI-SNR 23.23 dB",
    ),
    "sr-corrnet-wsj0": _sr_corrnet("wsj-fix-2spk", "separate 2", "WSJ0-2mix", 8000, 13_569_287, 192.37, ""),
    "sr-corrnet-l-wsj0": _sr_corrnet(
        "wsj-fix-2spk-l-dm", "separate 2", "WSJ0-2mix", 8000, 36_049_634, 495.96, "SI-SNRi 25.5 dB",
    ),
    "sr-corrnet-2to3": _sr_corrnet(
        "wsj-var-2-3spk", "separate 2 to 3", "WSJ0-2mix to -3mix", 8000, 14_031_496, None, "",
    ),
    "sr-corrnet-2to5": _sr_corrnet(
        "wsj-var-2-5spk", "separate 2 to 5", "WSJ0-2mix to -5mix", 8000, 14_031_752, None, "",
    ),
    "sr-corrnet-whamr": _sr_corrnet(
        "whamr", "separate 2", "WHAMR reverberant", 8000, 14_876_603, 419.90, "",
    ),
    "tiger": PublicModel(
        "separate 2", "EchoSet", 16000, None, None, "", "tiger", "", "Apache-2.0", None,
        _hub("JusperLee/TIGER-speech", "main", "model.safetensors", "config.json"),
    ),
}  # fmt: skip
"""Short name -> model."""

_ZENODO = {
    "mpariente/ConvTasNet_WHAM!_sepclean": 3862942,
    "mpariente/DPRNNTasNet_WHAM!_sepclean": 3873670,
    "mpariente/DPRNNTasNet(ks=16)_WHAM!_sepclean": 3903795,
    "Cosentino/ConvTasNet_LibriMix_sep_clean": 3873572,
    "Cosentino/ConvTasNet_LibriMix_sep_noisy": 3874420,
    "brijmohan/ConvTasNet_Libri1Mix_enhsingle": 3970768,
    "groadabike/ConvTasNet_DAMP-VSEP_enhboth": 3994193,
    "popcornell/DPRNNTasNet_WHAM_enhancesingle": 3998647,
    "tmirzaev-dotcom/ConvTasNet_Libri3Mix_sepnoisy": 4020529,
    "mhu-coder/ConvTasNet_Libri1Mix_enhsingle": 4301955,
}
"""Names that asteroid's README gives to records of Zenodo -> the record. Three more are of classes sepkit lacks."""


def fetch_public(name: str) -> str:
    """Return the MODEL, with its bridge and a path in the cache, of a public model; fetch its files once.

    Args:
        name: in `PUBLIC`.
    """
    model = PUBLIC[name]
    size = "size not published" if model.megabytes is None else f"{model.megabytes:g} MB"
    about = f"{size}; the weights are under {model.license}"
    folder = _fetch_files(cache_folder("models") / name, model.files, f"{name}: {about}")
    return f"{model.bridge}:{folder / model.given if model.given else folder}"


def zenodo_address(name: str) -> str | None:
    """Return the address of a model that asteroid's README names; None for other names."""
    record = _ZENODO.get(name)
    return None if record is None else f"https://zenodo.org/record/{record}/files/model.pth?download=1"


def fetch_address(url: str) -> Path:
    """Return the path of a file that is fetched once from an address."""
    path = urlsplit(url).path
    folder = cache_folder("models") / f"address-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    file = PublicFile(Path(path).name or "model", url)
    return _fetch_files(folder, [file], f"{url}: of unknown license") / file.name


def _fetch_files(folder: Path, files: Sequence[PublicFile], about: str) -> Path:
    """Fetch what is missing; `about` is said before anything is fetched."""
    from sepkit.fetching import fetch

    if not all((folder / file.name).is_file() for file in files):
        print(f"{about}; fetched once, to {folder}", file=sys.stderr)
    noted = read_json(folder / DIGESTS, "delete it") if (folder / DIGESTS).is_file() else {}
    for file in files:
        digest = file.digest or noted.get(file.name)
        try:
            path = fetch(file.url, folder / file.name, digest, file.size)
        except UserError as error:
            names = ", ".join(file.name for file in files)
            raise UserError(f"{error}; or put {names} into {folder} yourself") from None
        if not digest:
            noted[file.name] = f"sha256:{file_digest(path)}"
            write_json(folder / DIGESTS, noted)
            print(
                f"{file.name}: no digest is published; its own, {noted[file.name]}, is noted in {folder / DIGESTS}",
                file=sys.stderr,
            )
    return folder
