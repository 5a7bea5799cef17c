"""Freed memory stays with a process that is the command, and with no other."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from sepkit.cli import _allocator
from sepkit.cli import main as command
from sepkit.cli.main import main

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")

# Counts the page faults of allocating a block of 200 MB for the second time.
FAULTS = """
import resource
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
b"x" * 200_000_000
before = faults()
b"x" * 200_000_000
print(faults() - before)
"""
RAISE = "from sepkit.cli._allocator import raise_thresholds\nprint(raise_thresholds())\n"


def python(script, *arguments, **variables):
    """Return the words that a script prints, run with only the given allocator variables."""
    chosen = (_allocator.VARIABLE, *_allocator._CHOSEN_BY_USER)
    environment = {name: value for name, value in os.environ.items() if name not in chosen} | variables
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_memory_is_used_again_without_asking_the_kernel():
    # 200 MB are 100 huge pages or 49,000 small ones.
    (as_it_comes,) = python(FAULTS)
    raised, faults = python(RAISE + FAULTS)
    assert raised == "True" and int(faults) < 10 < 90 < int(as_it_comes)


@pytest.mark.parametrize("variables", [{"SEPKIT_MALLOC": "default"}, {"MALLOC_MMAP_THRESHOLD_": "1000000"}])
def test_the_user_can_keep_the_allocator_as_it_comes(variables):
    raised, faults = python(RAISE + FAULTS, **variables)
    assert raised == "False" and int(faults) > 90


def test_importing_the_commands_or_calling_them_changes_nothing():
    script = "from sepkit.cli.main import main\nmain(['no such command'])\n"
    (faults,) = python(script + FAULTS)
    assert int(faults) > 90


def test_the_command_raises_thresholds_for_itself_and_its_children():
    script = (
        "import os, sys\nfrom sepkit.cli.main import main\nsys.argv = ['sepkit', 'no such command']\nmain()\n"
        "import subprocess\nsubprocess.run([sys.executable, '-c', sys.orig_argv[-1]])\n"
    )
    own, of_child = python(script + FAULTS, FAULTS)[::-1]
    assert int(own) < 10 and int(of_child) < 10


def test_an_unknown_choice_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("SEPKIT_MALLOC", "jemalloc")
    monkeypatch.setattr(command.sys, "argv", ["sepkit", "models"])
    assert main() == 2
    assert capsys.readouterr().err == ("sepkit models: SEPKIT_MALLOC: found 'jemalloc', expected default or raised\n")


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.delenv("SEPKIT_MALLOC", raising=False)
    monkeypatch.setattr(_allocator, "_is_glibc", lambda: False)
    before = dict(os.environ)
    assert _allocator.raise_thresholds() is False and dict(os.environ) == before
