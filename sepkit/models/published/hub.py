"""Models on the Hugging Face hub: download into the hub's cache, use of the cache without a network, and upload.

Only files requested by name are downloaded, never a repository's programs.
"""

import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sepkit.errors import UserError

OWN_FILES = ("model.safetensors", "model.onnx", "model.yaml", "quality.yaml", "README.md")
"""Files of a sepkit model on the hub."""

# The hub's names begin and end with a letter or digit, and have no two dashes or dots in a row.
_WORD = r"\w+([.-]\w+)*"
_REPOSITORY = re.compile(rf"{_WORD}/{_WORD}(@\w+([./-]\w+)*)?", re.ASCII)
_FILE = re.compile(r".*\.(bin|ckpt|onnx|pt|pth|safetensors|tar|ya?ml)", re.IGNORECASE)


def is_repository(name: str) -> bool:
    """Return whether a name reads as OWNER/NAME, with or without @REVISION, and not as the path of a file.

    >>> is_repository("somebody/separator@v1.0"), is_repository("folder/model.onnx")
    (True, False)

    Args:
        name: Name of a repository, or a path.
    """
    return _REPOSITORY.fullmatch(name) is not None and _FILE.fullmatch(name) is None


def fetch(repository: str, files: Sequence[str]) -> Path:
    """Download those of the `files` that a repository has, unless they are in the cache; return their folder.

    Without a network (or with HF_HUB_OFFLINE=1) the cache is used.

    Args:
        repository: OWNER/NAME, or OWNER/NAME@REVISION for a branch, tag or commit.
        files: names, or patterns such as *.ckpt.
    """
    if not is_repository(repository):
        raise UserError(f"{repository}: is no repository of the Hugging Face hub, expected OWNER/NAME[@REVISION]")
    import huggingface_hub
    from huggingface_hub import errors

    name, _, revision = repository.partition("@")
    unreachable = (
        "is not in the cache, and the Hugging Face hub cannot be reached; run this once with a network and without "
        "HF_HUB_OFFLINE"
    )
    # The first that fits: a gated repository counts as not found, too.
    reasons = {
        errors.GatedRepoError: "its owner asks for consent; give it on huggingface.co, then run `hf auth login`",
        errors.RevisionNotFoundError: f"the repository has no revision {revision}",
        errors.RepositoryNotFoundError: "no such path here, and no such repository on the Hugging Face hub "
        "(a private one needs `hf auth login`)",
        errors.LocalEntryNotFoundError: unreachable,
        errors.OfflineModeIsEnabled: unreachable,
    }
    options: dict[str, Any] = {"revision": revision or None, "allow_patterns": list(files)}
    try:
        return _noted(repository, huggingface_hub.snapshot_download(name, **options))
    except Exception as error:
        for kind, reason in reasons.items():
            if isinstance(error, kind):
                raise UserError(f"{repository}: {reason}") from error
        # A download that breaks off; which exceptions that makes depends on the library below huggingface_hub.
        try:
            return _noted(repository, huggingface_hub.snapshot_download(name, local_files_only=True, **options))
        except Exception:
            raise UserError(
                f"{repository}: cannot be fetched from the Hugging Face hub ({' '.join(str(error).split())}); try again"
            ) from error


def pinned(model: str) -> str:
    """Return a MODEL argument with the commit that was fetched for it: `hf:OWNER/NAME@COMMIT`; any other as it is.

    Args:
        model: MODEL argument.
    """
    kind, separator, repository = model.partition(":")
    commit = _commits.get(repository) if separator else None
    return model if commit is None else f"{kind}:{repository.partition('@')[0]}@{commit}"


_commits: dict[str, str] = {}


def _noted(repository: str, folder: str) -> Path:
    """Store and return which commit of a repository a folder of the cache contains."""
    commit = Path(folder).name
    if re.fullmatch(r"[0-9a-f]{40}", commit) and _commits.get(repository) != commit:
        _commits[repository] = commit
        if not repository.endswith(f"@{commit}"):
            print(f"{repository}: commit {commit}; {repository.partition('@')[0]}@{commit} names it", file=sys.stderr)
    return Path(folder)


def upload(folder: Path, card: str, repository: str, private: bool = False) -> str:
    """Upload the model in `folder` with its card; return the address of the repository.

    Args:
        folder: Folder of the model; only its `OWN_FILES` are uploaded.
        repository: OWNER/NAME; created if it does not exist.
        private: only its owner sees a repository that is created.
    """
    if not is_repository(repository) or "@" in repository:
        raise UserError(f"--repo {repository}: expected OWNER/NAME")
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    with tempfile.TemporaryDirectory() as temporary:
        for name in OWN_FILES:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, Path(temporary) / name)
        (Path(temporary) / "README.md").write_text(card, encoding="utf-8")
        try:
            address = huggingface_hub.create_repo(repository, private=private, exist_ok=True)
            huggingface_hub.upload_folder(
                repo_id=repository, folder_path=temporary, commit_message="Model and card, uploaded by sepkit"
            )
        except Exception as error:
            # Invalid names are ValueErrors.
            refused = isinstance(error, (HfHubHTTPError, ValueError))
            what, remedy = (
                ("did not take it", "run `hf auth login` with a token that may write")
                if refused
                else ("cannot be reached", "check the network")
            )
            reason = " ".join(str(error).split())
            raise UserError(f"--repo {repository}: the Hugging Face hub {what} ({reason}); {remedy}") from error
    return str(address)
