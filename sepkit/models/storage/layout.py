"""The size of a described model, before memory is allocated for it.

A model is laid out on torch's meta device, where tensors have shapes and no values, and its shapes are compared with
the header of its weights. A description of a few bytes therefore never takes more memory than the file beside it.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode

from sepkit.errors import UserError, one_line
from sepkit.files import file_bytes
from sepkit.limits import GRAPH_BYTES, MODEL_PARAMETERS, MODEL_PARTS, MODEL_PARTS_PER_TENSOR
from sepkit.models.storage.folders import GRAPH
from sepkit.models.storage.onnx_reader import read_onnx

M = TypeVar("M", bound=nn.Module)

# What constructors and torch raise on sizes that no layer can have.
_IMPOSSIBLE = (
    RuntimeError, ValueError, TypeError, ArithmeticError, AssertionError, IndexError, KeyError, MemoryError,
    AttributeError,
)  # fmt: skip

_DRAWS = {
    Tensor.normal_, Tensor.uniform_, Tensor.random_, Tensor.bernoulli_, Tensor.exponential_, Tensor.log_normal_,
    nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_,
}  # fmt: skip


def build_on_meta(
    make: Callable[[], M], where: str, tensors: int, own_code: bool = False, remedy: str = "get the model again"
) -> M | None:
    """Return the model that `make` makes, on the meta device: with shapes and without values.

    Args:
        tensors: Number of tensors in the file of weights.
        own_code: whether classes of the user's own take part, which may need values while they are made; None is
            returned for those.
        remedy: Remedy for a model that cannot be built.
    """
    try:
        with _counted(where, tensors, remedy), torch.random.fork_rng(devices=[]), torch.device("meta"), _NoDraws():
            return make()
    except UserError as error:
        raise UserError(str(error) if str(error).startswith(where) else f"{where}: {error}") from error
    except _IMPOSSIBLE as error:
        if own_code:
            return None
        reason = f"{type(error).__name__}: {one_line(str(error).partition('Exception raised from')[0])[:300]}"
        raise UserError(f"{where}: no model can be made of it ({reason}); {remedy}") from error


class _NoDraws(TorchFunctionMode):
    """Leaves out draws of initial values: without memory there is nothing to fill.

    torch would import its compiler for some of them, which takes a second and 100 MB.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS and (filled := args[0] if args else kwargs["tensor"]).is_meta:
            return filled
        return func(*args, **kwargs)


@contextmanager
def _counted(where: str, tensors: int, remedy: str) -> Iterator[None]:
    """Inside the block, a model that grows beyond the limits, or far beyond its weights, is stopped where it does."""
    most_parts = MODEL_PARTS + MODEL_PARTS_PER_TENSOR * tensors
    parameters, parts, thread = 0, 0, threading.get_ident()

    def add_tensor(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        nonlocal parameters
        add_part(module, name, None)
        parameters += tensor.numel() if isinstance(tensor, Tensor) and threading.get_ident() == thread else 0
        if parameters > MODEL_PARAMETERS:
            raise UserError(f"{where}: describes more than {MODEL_PARAMETERS:,} parameters; {remedy}")

    def add_part(module: nn.Module, name: str, part: nn.Module | None) -> None:
        nonlocal parts
        parts += threading.get_ident() == thread
        if parts > most_parts:
            raise UserError(f"{where}: describes more than {most_parts:,} layers and weights; {remedy}")

    with ExitStack() as stack:
        stack.callback(hooks.register_module_parameter_registration_hook(add_tensor).remove)
        stack.callback(hooks.register_module_buffer_registration_hook(add_tensor).remove)
        stack.callback(hooks.register_module_module_registration_hook(add_part).remove)
        yield


def shapes_in_file(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file of weights on the meta device; of safetensors only the header is read."""
    if path.name == GRAPH:
        return {name: torch.empty(tensor.shape, device="meta") for name, tensor in tensors_in_graph(path).items()}
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
            return {name: torch.empty(part.get_shape(), device="meta") for name, part in slices.items()}
    except (OSError, SafetensorError, RuntimeError) as error:
        raise damaged(path, error) from error


def tensors_in_graph(path: Path) -> dict[str, Tensor]:
    """Return the initializers of a graph by name, the weights of its model among them."""
    try:
        tensors = read_onnx(file_bytes(path, GRAPH_BYTES)).tensors
        return {name: torch.from_numpy(values.copy()) for name, values in tensors.items()}
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> UserError:
    """Return the error to raise about weights that cannot be read."""
    return UserError(f"{path}: damaged or another kind of file ({one_line(str(error))}); get the checkpoint again")


def check_finite_weights(path: Path, tensors: Mapping[str, Any]) -> None:
    """Raise UserError if a weight is NaN or infinite: the model is broken, not the recordings.

    Args:
        path: File of the weights, for the message.
        tensors: Weights by name.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise UserError(f"{path}: {name} contains values that are not finite numbers; get the model again")
