"""Formats by their first bytes, as their specifications have them, and frames of MPEG audio by hand."""

import pytest

from sepkit.data.headers import container_of, frame_bytes, goes_on

REST = bytes(16)


BEGINS = {
    "FLAC": [b"fLaC"], "Ogg": [b"OggS"], "MP3": [b"ID3"], "AIFF": [b"FORM"], "AU": [b".snd", b"dns."], "CAF": [b"caff"],
    "W64": [b"riff"], "RIFX": [b"RIFX"], "NIST sphere": [b"NIST_1A"], "VOC": [b"Creative Voice"], "WavPack": [b"wvpk"],
    "TTA": [b"TTA1"], "Monkey's Audio": [b"MAC "], "AMR": [b"#!AMR"], "AC-3": [b"\x0bw"], "FLV": [b"FLV\1"],
    "gzip": [b"\x1f\x8b\x08"], "zip": [b"PK\3\4"], "MPEG": [b"\0\0\1\xba"], "DTS": [b"\x7f\xfe\x80\1"],
    "": [b"RIFF"], "WMA": [b"0&\xb2u\x8ef\xcf\x11"], "Matroska or WebM": [b"\x1aE\xdf\xa3"],
    "MP4 or M4A": [b"\0\0\0 " + box for box in (b"ftyp", b"moov", b"mdat", b"wide")],
}  # fmt: skip


@pytest.mark.parametrize(("begin", "name"), [(begin, name) for name, known in BEGINS.items() for begin in known])
def test_a_format_begins_with_its_own_bytes(begin: bytes, name: str) -> None:
    assert container_of(begin + REST) == name
    assert container_of(b"\2" + begin + REST) == container_of(begin[:-1] + REST) == ""


@pytest.mark.parametrize(
    ("head", "size"),
    [
        # MPEG-1: 144 times the bits a second, by Hz, and a byte if it is padded.
        ("fffb9000", 144 * 128_000 // 44_100),
        ("fffb9200", 144 * 128_000 // 44_100 + 1),
        ("fffae800", 144 * 320_000 // 32_000),
        # MPEG-2 and 2.5, at a half and a quarter of the rates: 72 times.
        ("fff38000", 72 * 64_000 // 22_050),
        ("ffe3e800", 72 * 160_000 // 8_000),
        # AAC has 13 bits: 0x3 << 11 | 0xff << 3 | 0x7.
        ("fff150ffffff", 0x1FFF),
        ("fff15080ffe0", 0xFF << 3 | 7),
    ],
)
def test_frames_are_as_long_as_the_specifications_say(head: str, size: int) -> None:
    frame = bytes.fromhex(head).ljust(6, b"\0")
    assert frame_bytes(frame) == size + 2
    if size < 8000:
        following = frame.ljust(size, b"\0") + frame[:2]
        assert container_of(following) == "MP3 or AAC"
        assert container_of(following[:-1] + b"\0") == container_of(following[:-1]) == ""


def test_every_bit_rate() -> None:
    """Octaves of four steps in MPEG-1; steps of 8 up to 64, and of 16 after it, in MPEG-2."""
    for k in range(14):
        frames = [frame_bytes(bytes([0xFF, version, k + 1 << 4 | 4, 0, 0, 0])) for version in (0xFB, 0xF3)]
        kbits = 8 * 2 ** (k // 4) * (4 + k % 4), 8 * (k + 1) if k < 8 else 16 * (k - 3)
        assert frames == [144 * kbits[0] // 48 + 2, 72 * kbits[1] // 24 + 2]


# No synchronization, layer II, a reserved version, free and forbidden bit rates, a reserved rate, and too few bytes.
NO_FRAMES = "fefb90000000 ffdb90000000 fffd90000000 ffeb90000000 fffb00000000 fffbf0000000 fffb9c000000 fffb900000"


@pytest.mark.parametrize("head", NO_FRAMES.split())
def test_what_is_no_frame(head: str) -> None:
    assert frame_bytes(bytes.fromhex(head)) == 0


@pytest.mark.parametrize(
    ("begin", "more"),
    [("id3 ", False), ("LI~T", False), ("data", True), ("L\x1fST", True), ("LIS\x7f", True), ("\0\0\0\0", True)],
)
def test_what_follows_a_wav_is_sound_unless_it_is_padding_or_a_chunk(begin: str, more: bool) -> None:
    tail = begin.encode() + b"\1" * 8189
    assert goes_on(tail) == more
    assert not goes_on(tail[:-1]) and not goes_on(bytes(8193)) and not goes_on(b"")
    assert goes_on(b"\0" + WAV) and goes_on(b"LIST" + WAV)


WAV = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0"
