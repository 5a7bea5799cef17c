"""Stands in for the espeak-ng program by calling its shared library. It is run as a program and never imported.

It imports nothing of sepkit: only this process loads the library, which is GPL-3.

    python _espeak_process.py LIBRARY DATA_FOLDER --version
    python _espeak_process.py LIBRARY DATA_FOLDER -v VOICE -p PITCH -s WORDS_PER_MINUTE --stdin --stdout
"""

from __future__ import annotations

import ctypes
import struct
import sys

# Names and numbers of espeak-ng's speak_lib.h.
_AUDIO_OUTPUT_SYNCHRONOUS = 2
_CHARS_UTF8 = 1
_RATE, _PITCH = 1, 3
_POSITION_CHARACTER = 1

_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


def main(arguments: list[str]) -> int:
    """Read text from standard input and write it as speech (WAV) to standard output. Return 0, or 1 on failure."""
    library_path, data_folder, *options = arguments
    library = ctypes.CDLL(library_path)
    if options == ["--version"]:
        library.espeak_Info.restype = ctypes.c_char_p
        print(f"eSpeak NG text-to-speech: {library.espeak_Info(None).decode()}  Data at: {data_folder}")
        return 0
    values = dict(zip(options[:6:2], options[1:6:2], strict=True))
    sample_rate = library.espeak_Initialize(_AUDIO_OUTPUT_SYNCHRONOUS, 0, data_folder.encode(), 0)
    if sample_rate <= 0 or library.espeak_SetVoiceByName(values["-v"].encode()) != 0:
        print(f"cannot load the voice {values['-v']} from {data_folder}", file=sys.stderr)
        return 1
    library.espeak_SetParameter(_PITCH, int(values["-p"]), 0)
    library.espeak_SetParameter(_RATE, int(values["-s"]), 0)
    if hasattr(library, "espeak_ng_SetRandSeed"):
        # Otherwise the clock would seed the roughness of voices.
        library.espeak_ng_SetRandSeed(ctypes.c_long(1))
    chunks: list[bytes] = []

    def keep(samples, count, events):  # type: ignore[no-untyped-def]
        if samples and count > 0:
            chunks.append(ctypes.string_at(samples, 2 * count))
        return 0

    callback = _Callback(keep)
    library.espeak_SetSynthCallback(callback)
    text = sys.stdin.buffer.read() + b"\0"
    failed = library.espeak_Synth(text, len(text), 0, _POSITION_CHARACTER, 0, _CHARS_UTF8, None, None)
    failed = library.espeak_Synchronize() or failed
    pcm = b"".join(chunks)
    riff = struct.pack("<4sI4s", b"RIFF", 36 + len(pcm), b"WAVE")
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    sys.stdout.buffer.write(riff + form + struct.pack("<4sI", b"data", len(pcm)) + pcm)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
