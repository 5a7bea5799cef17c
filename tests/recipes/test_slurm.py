"""Clusters: the commands of a Slurm job."""

import os
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def stubs(tmp_path: Path, own_processes: dict[str, str]) -> dict[str, str]:
    """An environment in which srun prints its command line."""
    program = tmp_path / "bin" / "srun"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "srun $*"\n')
    program.chmod(0o755)
    return own_processes | {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{own_processes['PATH']}"}


def call(environment: dict[str, str], *command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, env=environment, cwd=cwd, capture_output=True, text=True)


def test_a_job_trains_on_all_gpus_and_separates_on_one(stubs: dict[str, str], repository: Path, tmp_path: Path) -> None:
    recipe = [repository / "egs" / "librimix" / "run.sh", "--ngpu", "4", "--exp", tmp_path / "exp", "--data", tmp_path]
    job = repository / "egs" / "utils" / "slurm.sbatch"
    environment = stubs | {"SLURM_SUBMIT_DIR": str(tmp_path)}
    lines = []
    for stage in ("2", "4"):
        only = ["--stage", stage, "--stop-stage", stage, "--extra", "--num-nodes 2"]
        done = call(environment, "bash", job, *recipe, *only, cwd=repository)
        assert done.returncode == 0, done.stderr
        lines += done.stdout.splitlines()
    (train,) = [line for line in lines if "sepkit train" in line]
    assert train.startswith("srun --kill-on-bad-exit=1 sepkit train")
    assert "--trainer.accelerator gpu --devices 4" in train and "--num-nodes 2" in train
    (evaluate,) = [line for line in lines if "sepkit evaluate" in line]
    assert evaluate.startswith("srun --nodes=1 --ntasks=1 --gpus=1 sepkit evaluate")


def test_a_job_without_a_command(stubs: dict[str, str], repository: Path, tmp_path: Path) -> None:
    done = call(stubs, "bash", repository / "egs" / "utils" / "slurm.sbatch", cwd=tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


def test_the_job_asks_for_a_process_a_gpu(repository: Path) -> None:
    lines = (repository / "egs" / "utils" / "slurm.sbatch").read_text().splitlines()
    asked = dict(
        line.removeprefix("#SBATCH --").split("=") for line in lines if line.startswith("#SBATCH --") and "=" in line
    )
    assert asked["ntasks-per-node"] == asked["gpus-per-node"]
