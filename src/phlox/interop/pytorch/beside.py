"""Runs a PyTorch module of the same structure as a model, and records the outputs of its layers by our paths."""

# This file does not import PyTorch; it only calls methods of the objects that it gets.

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np

from phlox.backend import Float, load_backend
from phlox.backend.contract.backend import engine_of
from phlox.debug.recordings import Host, Recorded, Recording
from phlox.debug.running import LossOf, is_in_training, loss_of
from phlox.errors import ModuleError, PhloxError
from phlox.interop.pytorch import from_state_dict, to_state_dict
from phlox.interop.pytorch.layers import module_paths
from phlox.module import Module
from phlox.module.calls import with_function_layers
from phlox.record import TensorEntry
from phlox.record.names import nearest
from phlox.tensor import Tensor, tensor
from phlox.transform.tree import AnyTensor, map_leaves, map_parts

_LABEL = "PyTorch module"


def recorded_in_torch(
    model: Module,
    module: Any,
    args: Any,
    kwargs: Any,
    names: Mapping[str, str],
    *,
    loss: LossOf | None,
    gradients: bool,
    copied: bool,
) -> Recording:
    """Run, and differentiate, a copy of a PyTorch module on the same inputs, and record its layers."""
    torch: Any = sys.modules["torch"]
    model = with_function_layers(model)
    paths = counterparts(model, module, names)
    twin = copy.deepcopy(module).train(is_in_training(model))
    if copied:
        _load(twin, model, names)
    recording = Recording(_LABEL)
    like = next(iter(twin.parameters()), None)
    backend: Any = load_backend("torch")()
    args, kwargs = map_leaves(lambda x: _native(torch, x, like), (args, kwargs), (Tensor, np.ndarray))
    handles = [
        twin.get_submodule(torch_path).register_forward_hook(_hook(recording, our_path, gradients))
        for our_path, torch_path in paths.items()
    ]
    try:
        with torch.set_grad_enabled(gradients):
            outputs = _result(twin(*args, **kwargs))
            if gradients:
                _differentiate(torch, backend, outputs, loss, recording)
    finally:
        for handle in handles:
            handle.remove()
    if gradients:
        _add_parameters(recording, model, twin, names)
    return recording


def counterparts(model: Module, module: Any, names: Mapping[str, str]) -> dict[str, str]:
    """The path of each of our modules -> the path of its PyTorch counterpart, if it has one.

    Raises `ModuleError` for a path in `names` that does not exist.
    """
    torch_paths = {path for path, _ in module.named_modules()}
    our_paths = module_paths(model)
    for our_path, torch_path in names.items():
        for path, paths, whose in ((our_path, our_paths, "the model"), (torch_path, torch_paths, "the PyTorch module")):
            if path not in paths:
                near = nearest(path, [name for name in paths if name])
                meant = f"; did you mean {near!r}?" if near else ""
                raise ModuleError(f"compare: names: {whose} has no layer {path!r}{meant}")
    torch_path_of: dict[str, str] = {}
    for our_path, torch_path in our_paths.items():
        path = _renamed(our_path, torch_path, our_paths, names)
        if path in torch_paths:
            torch_path_of[our_path] = path
    return torch_path_of


def _renamed(our_path: str, torch_path: str, our_paths: Mapping[str, str], names: Mapping[str, str]) -> str:
    """The PyTorch path of one of our modules: the innermost enclosing module in `names` decides."""
    best = max((name for name in names if our_path == name or our_path.startswith(f"{name}.")), key=len, default=None)
    if best is None:
        return torch_path
    below = torch_path[len(our_paths[best]) :].lstrip(".")
    return ".".join(part for part in (names[best], below) if part)


def _hook(recording: Recording, path: str, gradients: bool) -> Any:
    def hook(module: Any, inputs: Any, output: Any) -> None:
        leaves = [x for x in _leaves(_result(output)) if x.is_floating_point()]
        entry = recording.add(path, type(module).__name__, [_host(x) for x in leaves])
        if gradients:
            for position, x in enumerate(leaves):
                if x.requires_grad:
                    x.register_hook(_gradient_hook(recording, entry, position))

    return hook


def _gradient_hook(recording: Recording, entry: Recorded, position: int) -> Any:
    def hook(gradient: Any) -> None:
        recording.add_gradient(entry, position, _host(gradient))

    return hook


def _result(value: Any) -> Any:
    """The main output of a model of `transformers`, without the cache and the other fields of its `ModelOutput`."""
    fields = cast("Mapping[str, Any]", value)
    if not isinstance(fields, Mapping) or not hasattr(fields, "to_tuple"):  # pyright: ignore[reportUnnecessaryIsInstance]
        return value
    return next((fields[name] for name in ("logits", "last_hidden_state") if name in fields), fields)


def _leaves(value: Any) -> Iterable[Any]:
    """The PyTorch tensors in a result, in order."""
    if hasattr(value, "register_hook"):
        yield value
    elif isinstance(value, Mapping):
        for part in cast("Mapping[Any, Any]", value).values():
            yield from _leaves(part)
    elif isinstance(value, (list, tuple)):
        for part in cast("list[Any]", value):
            yield from _leaves(part)


def _host(x: Any) -> Host:
    x = x.detach().cpu()
    return (x if x.numel() == 0 or x.element_size() > 2 or not x.is_floating_point() else x.float()).numpy().copy()


def _native(torch: Any, x: Any, like: Any) -> Any:
    array = x.detach().numpy() if isinstance(x, Tensor) else x
    if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
        result = torch.from_numpy(np.array(array, np.float64 if array.dtype == np.float64 else np.float32))
        return result if like is None else result.to(like.device, like.dtype)
    result = torch.from_numpy(np.array(array, np.int64 if array.dtype.kind in "iu" else array.dtype))
    return result if like is None else result.to(like.device)


def _differentiate(torch: Any, backend: Any, outputs: Any, loss: LossOf | None, recording: Recording) -> None:
    """The backward pass: Phlox computes the loss and its gradient at the outputs; from there PyTorch continues."""
    device = backend.device()
    taped = device.on(backend.with_autodiff())
    torch_leaves = [x for x in _leaves(outputs) if x.requires_grad]
    our_leaves: list[AnyTensor] = []

    def leaf(x: Any) -> Any:
        if not hasattr(x, "register_hook"):
            return map_parts(lambda part, path: leaf(part), x, "")
        leaf_tensor = _tensor(x, taped)
        if x.requires_grad:
            leaf_tensor = leaf_tensor.require_grad()
            our_leaves.append(leaf_tensor)
        return leaf_tensor

    value = loss_of(leaf(outputs), loss)
    if value is None or not our_leaves:
        return
    if loss is not None:
        recording.loss = value.item()
    grads = value.backward()
    pairs = [(x, our_leaf.grad(grads)) for x, our_leaf in zip(torch_leaves, our_leaves, strict=True)]
    with_gradient = [(x, np.array(g.numpy(), np.float32)) for x, g in pairs if g is not None]
    begin = [torch.from_numpy(g).to(x.device, x.dtype) for x, g in with_gradient]
    torch.autograd.backward([x for x, _ in with_gradient], begin)


def _tensor(x: Any, device: Any) -> AnyTensor:
    result = tensor(_host(x), device=device.on(engine_of(device.backend)))
    return result.to_device(device) if result.kind is Float else result


# --- weights


def _names_of_entries(model: Module, names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Pairs of prefixes, in a state dict of our structure and in PyTorch's; the longest come first."""
    our_paths = module_paths(model)
    return sorted(((our_paths[path], torch_path) for path, torch_path in names.items()), key=lambda pair: -len(pair[0]))


def _with_prefix(path: str, pairs: Iterable[tuple[str, str]]) -> str:
    for before, after in pairs:
        if path == before or path.startswith(f"{before}."):
            return f"{after}{path[len(before) :]}"
    return path


def _load(twin: Any, model: Module, names: Mapping[str, str]) -> None:
    """Give a PyTorch module the weights of the model."""
    torch: Any = sys.modules["torch"]
    record = to_state_dict(model)
    pairs = _names_of_entries(model, names)
    our_state: dict[str, Any] = {}
    for path in record:
        entry = record[path]
        if isinstance(entry, TensorEntry):
            array = np.array(entry.tensor.read())
            our_state[_with_prefix(path, pairs)] = torch.from_numpy(
                array if array.dtype.name != "bfloat16" else array.astype(np.float32)
            )
    torch_state: dict[str, Any] = twin.state_dict()
    wrong = [f"{path}: not in the model" for path in torch_state if path not in our_state]
    wrong += [f"{path}: not in the PyTorch module" for path in our_state if path not in torch_state]
    wrong += [
        f"{path}: of shape {tuple(our_state[path].shape)} in the model and {tuple(value.shape)} in the PyTorch module"
        for path, value in torch_state.items()
        if path in our_state and our_state[path].shape != value.shape
    ]
    if wrong:
        shown = "\n  ".join([*wrong[:8], *(["..."] if len(wrong) > 8 else [])])
        raise ModuleError(
            "compare: the weights of the model do not fit the PyTorch module; give names={ours: theirs} where layers "
            f"have other names, or weights='own':\n  {shown}"
        )
    twin.load_state_dict({path: our_state[path].to(torch_state[path].dtype) for path in torch_state})


def with_their_weights(model: Module, module: Any, names: Mapping[str, str]) -> Module:
    """A copy of the model with the weights of a PyTorch module."""
    twin = copy.deepcopy(model)
    state = _as_ours(model, module.state_dict(), names)
    try:
        twin.load_record(from_state_dict(state, twin))
    except PhloxError as error:
        raise ModuleError(f"compare: the weights of the PyTorch module do not fit the model: {error}") from error
    return twin


def _as_ours(model: Module, state: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    pairs = [(after, before) for before, after in _names_of_entries(model, names)]
    pairs.sort(key=lambda pair: -len(pair[0]))
    return {_with_prefix(path, pairs): value for path, value in state.items()}


def _add_parameters(recording: Recording, model: Module, twin: Any, names: Mapping[str, str]) -> None:
    state = {path: param.grad for path, param in twin.named_parameters() if param.grad is not None}
    for path, module in twin.named_modules():
        weight = f"{path}.weight"
        if type(module).__name__ == "Conv1D" and hasattr(module, "nf") and weight in state:
            state[weight] = state[weight].T  # the linear layer of GPT-2 in transformers, whose weight is [in, out]
    record = from_state_dict(_as_ours(model, state, names), model)
    for path, _ in model.named_params():
        if path in record and isinstance(entry := record[path], TensorEntry):
            recording.parameters[path] = np.asarray(entry.tensor.read())
