import re
import unicodedata
from pathlib import Path

import pytest

from sepkit.inference import separate_files
from sepkit.inference.batch.inputs import find_recordings, name_outputs, rttm_ids
from tests.inference.folders import files_of, record


@pytest.mark.parametrize(
    ("recordings", "expected"),
    [
        ({"/d/x.wav": "x.wav"}, ["x"]),
        ({"/d/x.y.wav": "x.y.wav"}, ["x.y"]),
        ({"/d/x.wav": "x.wav", "/d/x.flac": "x.flac"}, ["x_wav", "x_flac"]),
        ({"/d/a/x.wav": "x.wav", "/d/b/x.wav": "x.wav", "/d/b/y.wav": "y.wav"}, ["a/x", "b/x", "y"]),
        ({"/d/a/x.wav": "x.wav", "/d/b/x.wav": "x.wav", "/d/b/x.flac": "x.flac"}, ["a/x", "b/x_wav", "b/x_flac"]),
        ({}, []),
    ],
)
def test_names_of_outputs(recordings, expected):
    names = name_outputs({Path(path): Path(relative) for path, relative in recordings.items()})
    assert [str(name) for name in names.values()] == expected


def named(names, **options):
    return name_outputs({Path("/d", name): Path(name) for name in names}, **options).values()


ALIKE = [("Talk.wav", "talk.wav"), ("caf\u00e9.wav", "cafe\u0301.wav"), ("STRASSE.wav", "stra\u00dfe.wav")]


@pytest.mark.parametrize("names", [*ALIKE, ("a/x.wav", "A/X.wav", "a_x.wav")])
def test_names_differ_where_case_and_unicode_form_do_not_count(names):
    found = [str(name) for name in named(names)]
    folded = {unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold()) for name in found}
    assert len(folded) == len(names), found
    assert sorted(map(str, named(names[::-1]))) == sorted(found), "whatever the order"


@pytest.mark.parametrize(
    "names", [("a b.wav", "a_b.wav"), ("A/x.wav", "B/x.wav"), ("x.wav", "x.flac"), ("A b/x.wav", "A_b/x.wav")]
)
def test_ids_in_rttm_differ(names):
    ids = rttm_ids(named(names, rttm=True))
    assert len({unicodedata.normalize("NFD", name.casefold()) for name in ids.values()}) == len(names)
    assert not any(name.split() != [name] for name in ids.values()), "fields of RTTM hold no spaces"
    assert list(rttm_ids([Path("deep/my talk")]).values()) == ["my_talk"]


@pytest.mark.parametrize("names", [("x.a.wav", "x.a.flac", "x_a.wav"), ("x.wav", "x.flac", "x_wav.wav")])
def test_names_that_cannot_be_told_apart(names):
    assert len(set(named(names))) == 3


def test_outputs_inside_the_input_folder_are_not_separated_again(tmp_path, separator):
    record(tmp_path / "x.wav")
    record(tmp_path / ".hidden.wav")
    for _ in range(2):
        separate_files([tmp_path], separator, tmp_path / "out")
    assert files_of(tmp_path / "out") == ["x.json", "x_s1.wav", "x_s2.wav"]
    assert [path.name for path in find_recordings([tmp_path], tmp_path / "out")] == ["x.wav"]
    # A link to a recording that is not there (git-annex) is reported, not left out.
    (tmp_path / "y.wav").symlink_to(tmp_path / "absent")
    report = separate_files([tmp_path], separator, tmp_path / "out")
    assert report.already_done == 1 and [Path(path).name for path in report.failed] == ["y.wav"]
    (tmp_path / "y.wav").unlink()
    # A folder above the input contains other files, too.
    assert [path.name for path in find_recordings([tmp_path], tmp_path.parent)][-1] == "x.wav"


def test_names_leave_room_for_their_endings():
    # 255 bytes are the most that file systems take; the first name has room for "_s10.flac", the others have none.
    recordings = {Path(f"/in/{name}.wav"): Path(f"{name}.wav") for name in ("a" * 240, "ä" * 125, "b" * 251)}
    names = [name.name for name in name_outputs(recordings).values()]
    assert names[0] == "a" * 240
    assert [re.fullmatch(r"(.+)_[0-9a-f]{8}", name)[1] for name in names[1:]] == ["ä" * 100, "b" * 200]
