"""The archives that may be downloaded: publishers, sizes, and the folders they unpack to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Archive:
    """One file to fetch and unpack.

    Args:
        part: its name for users.
        file: its name in the cache and on a mirror.
        url: its publisher's address.
        folder: what unpacking makes, relative to the cache; if it exists, nothing is left to do.
        size_bytes: exact size, where it is published.
        about_bytes: rough size, where none is published.
        unpacked_bytes: rough size.
        checksum: "md5:..." or "sha256:..." as published, or None.
        members: folder within the archive that is unpacked to `folder`; a first component "*" is left out. None: the
            archive's own paths, below the cache.
    """

    part: str
    file: str
    url: str
    folder: str
    size_bytes: int | None = None
    about_bytes: int = 0
    unpacked_bytes: int = 0
    checksum: str | None = None
    members: str | None = None

    @property
    def bytes_to_fetch(self) -> int:
        """Its size, exact or rough."""
        return self.size_bytes or self.about_bytes


@dataclass(frozen=True)
class Download:
    """The archives of one name.

    Args:
        archives: its parts.
        default: parts that are fetched unless others are asked for; empty: all.
        license: in a few words.
    """

    archives: tuple[Archive, ...]
    default: tuple[str, ...] = ()
    license: str = ""


def _librispeech(part: str, size_bytes: int, md5: str) -> Archive:
    return Archive(
        part,
        f"{part}.tar.gz",
        f"https://www.openslr.org/resources/12/{part}.tar.gz",
        f"LibriSpeech/{part}",
        size_bytes,
        # gzip does not make FLAC smaller.
        unpacked_bytes=size_bytes,
        checksum=f"md5:{md5}",
    )


def _tables(repository: str, members: str, about_bytes: int) -> Archive:
    name = repository.rpartition("/")[2]
    return Archive(
        "metadata",
        f"{name}.tar.gz",
        f"https://github.com/{repository}/archive/HEAD.tar.gz",
        f"{name}/{members}",
        about_bytes=about_bytes,
        unpacked_bytes=4 * about_bytes,
        members=f"*/{members}",
    )


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
        ("train-clean-100", "dev-clean", "test-clean"),
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
        license="CC BY-NC 4.0: not for commercial use",
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
        license="ODC-By 1.0",
    ),
    "librimix-metadata": Download((_tables("JorisCos/LibriMix", "metadata", 20_000_000),), license="MIT"),
    "vctk-2mix-metadata": Download(
        (_tables("JorisCos/VCTK-2Mix", "metadata", 3_000_000),), license="see the repository"
    ),
    "wsj0-mix-lists": Download((_tables("mpariente/pywsj0-mix", "metadata", 5_000_000),), license="MIT"),
}
"""Name -> archives."""
