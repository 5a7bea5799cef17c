"""The archives that may be downloaded: publishers, sizes, digests, and the folders they unpack to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Archive:
    """One file to fetch and unpack. `folder` is what unpacking makes in the cache; if it exists, nothing is left to
    do. Sizes `about_bytes` and `unpacked_bytes` are rough; `digest` is "md5:..." or "sha256:..." as published.

    Args:
        about_bytes: rough size, where none is published.
        members: the folder within the archive that becomes `folder`, possibly a pattern; "": `folder` itself, and the
            files beside it go beside it.
    """

    part: str
    file: str
    url: str
    folder: str
    size_bytes: int | None = None
    about_bytes: int = 0
    unpacked_bytes: int = 0
    digest: str | None = None
    members: str = ""
    names: frozenset[str] = frozenset()

    @property
    def bytes_to_fetch(self) -> int:
        """Its size, exact or rough."""
        return self.size_bytes or self.about_bytes


@dataclass(frozen=True)
class Download:
    """The archives of one name; `default` are the parts that are fetched unless others are asked for (empty: all)."""

    archives: tuple[Archive, ...]
    license: str
    default: tuple[str, ...] = ()


def _librispeech(part: str, size_bytes: int, md5: str) -> Archive:
    file = f"{part}.tar.gz"
    url = f"https://www.openslr.org/resources/12/{file}"
    # gzip does not make FLAC smaller.
    return Archive(part, file, url, f"LibriSpeech/{part}", size_bytes, 0, size_bytes, f"md5:{md5}")


def _tables(repository: str, commit: str, size: int, license: str) -> Download:
    """Return the folder `metadata` of a commit on GitHub, whose archives of one commit may differ in their bytes."""
    name = repository.rpartition("/")[2]
    url = f"https://github.com/{repository}/archive/{commit}.tar.gz"
    archive = Archive("metadata", f"{name}.tar.gz", url, f"{name}/metadata", None, size, 4 * size, None, "*/metadata")
    return Download((archive,), license)


WEB_RUNTIME = "onnxruntime-web-1.30.0"
"""Folder of the program that computes ONNX graphs in browsers; see `sepkit web`."""

WEB_RUNTIME_FILES = frozenset({"ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"})
"""What a page needs of it: WebAssembly on the processor, without WebGPU."""

BACKGROUND_NOISE_FILES = frozenset(
    f"{name}.wav"
    for name in ("doing_the_dishes", "dude_miaowing", "exercise_bike", "pink_noise", "running_tap", "white_noise")
)
"""The noise of Speech Commands, whose other files are words."""

DOWNLOADS: dict[str, Download] = {
    "librispeech": Download(
        (
            _librispeech("dev-clean", 337_926_286, "42e2234ba48799c1f50f24a7926300a1"),
            _librispeech("dev-other", 314_305_928, "c8d0bcc9cca99d4f8b62fcc847357931"),
            _librispeech("test-clean", 346_663_984, "32fa31d27d2e1cad72775fee3f4849a9"),
            _librispeech("test-other", 328_757_843, "fb5a50374b501bb3bac4815ee91d3135"),
            _librispeech("train-clean-100", 6_387_309_499, "2a93770f6d5c6c964bc36631d331a522"),
            _librispeech("train-clean-360", 23_049_477_885, "c0e676e450a7ff2f54aeade5171606fa"),
            _librispeech("train-other-500", 30_593_501_606, "d1a0fd59409feb2c614ce4d30c387708"),
        ),
        "CC BY 4.0",
        ("train-clean-100", "dev-clean", "test-clean"),
    ),
    "speechocean762": Download(
        (
            Archive(
                "speechocean762",
                "speechocean762.tar.gz",
                "https://www.openslr.org/resources/101/speechocean762.tar.gz",
                "speechocean762",
                about_bytes=520_000_000,
                unpacked_bytes=620_000_000,
            ),
        ),
        "CC BY 4.0",
    ),
    "esc-10": Download(
        (
            # The last commit that holds the clips; ESC-50 has them as WAV, under other names.
            Archive(
                "esc-10",
                "ESC-10.tar.gz",
                "https://github.com/karolpiczak/ESC-10/archive/553c8f1743b9dba6b282e1323c3ca8fa76923448.tar.gz",
                "ESC-10",
                about_bytes=42_000_000,
                unpacked_bytes=42_000_000,
                members="ESC-10-*",
            ),
        ),
        "CC BY 3.0, some clips CC0",
    ),
    "speech-commands-noise": Download(
        (
            Archive(
                "speech-commands-noise",
                "speech_commands_v0.02.tar.gz",
                "https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
                "speech_commands/_background_noise_",
                about_bytes=2_430_000_000,
                unpacked_bytes=12_000_000,
                digest="sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
                members="_background_noise_",
                names=BACKGROUND_NOISE_FILES,
            ),
        ),
        "CC BY 4.0",
    ),
    "wham-noise": Download(
        (
            Archive(
                "wham-noise",
                "wham_noise.zip",
                "https://my-bucket-a8b4b49c25c811ee9a7e8bba05fa24c7.s3.amazonaws.com/wham_noise.zip",
                "wham_noise",
                about_bytes=17_700_000_000,
                unpacked_bytes=19_000_000_000,
            ),
        ),
        "CC BY-NC 4.0: not for commercial use",
    ),
    "vctk": Download(
        (
            Archive(
                "vctk",
                "VCTK-Corpus.zip",
                "https://datashare.ed.ac.uk/bitstream/handle/10283/2651/VCTK-Corpus.zip",
                "VCTK-Corpus",
                about_bytes=11_000_000_000,
                unpacked_bytes=15_500_000_000,
            ),
        ),
        "ODC-By 1.0",
    ),
    "librimix-metadata": _tables("JorisCos/LibriMix", "b898ca375c03e4039cdb3dbe3dd485aad58ec7d1", 20_000_000, "MIT"),
    "vctk-2mix-metadata": _tables(
        "JorisCos/VCTK-2Mix", "33279c5bbf05a56a44dffedaa6aba720126c9d84", 3_000_000, "see the repository"
    ),
    "wsj0-mix-lists": _tables("mpariente/pywsj0-mix", "6ca4c926057aa461866a5593413adeb4218b82c5", 5_000_000, "MIT"),
    "onnxruntime-web": Download(
        (
            Archive(
                "onnxruntime-web",
                "onnxruntime-web-1.30.0.tgz",
                "https://registry.npmjs.org/onnxruntime-web/-/onnxruntime-web-1.30.0.tgz",
                WEB_RUNTIME,
                size_bytes=33_106_585,
                unpacked_bytes=14_314_404,
                digest="sha256:d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71",
                members="package/dist",
                names=WEB_RUNTIME_FILES,
            ),
        ),
        "MIT",
    ),
}
