"""A PyTorch module beside a model of the same structure: what its layers give, under the paths of ours."""

# Of PyTorch's objects only methods are used, and PyTorch is not imported here.

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
    """A PyTorch module run, and differentiated, on the same inputs; it stays as it is."""
    torch: Any = sys.modules["torch"]
    model = with_function_layers(model)
    paths = counterparts(model, module, names)
    twin = copy.deepcopy(module).train(is_in_training(model))
    if copied:
        _load(twin, model, names)
    found = Recording(_LABEL)
    like = next(iter(twin.parameters()), None)
    backend: Any = load_backend("torch")()
    args, kwargs = map_leaves(lambda x: _native(torch, x, like), (args, kwargs), (Tensor, np.ndarray))
    handles = [
        twin.get_submodule(theirs).register_forward_hook(_hook(found, ours, gradients))
        for ours, theirs in paths.items()
    ]
    try:
        with torch.set_grad_enabled(gradients):
            outputs = _result(twin(*args, **kwargs))
            if gradients:
                _differentiate(torch, backend, outputs, loss, found)
    finally:
        for handle in handles:
            handle.remove()
    if gradients:
        _take_parameters(found, model, twin, names)
    return found


def counterparts(model: Module, module: Any, names: Mapping[str, str]) -> dict[str, str]:
    """The path of each of our modules -> that of its counterpart, where there is one.

    Raises `ModuleError` for a name that one of them has not.
    """
    there = {path for path, _ in module.named_modules()}
    mine = module_paths(model)
    for ours, theirs in names.items():
        for path, known, whose in ((ours, mine, "the model"), (theirs, there, "the PyTorch module")):
            if path not in known:
                near = nearest(path, [one for one in known if one])
                meant = f"; did you mean {near!r}?" if near else ""
                raise ModuleError(f"compare: names: {whose} has no layer {path!r}{meant}")
    found: dict[str, str] = {}
    for ours, theirs in mine.items():
        path = _renamed(ours, theirs, mine, names)
        if path in there:
            found[ours] = path
    return found


def _renamed(ours: str, theirs: str, mine: Mapping[str, str], names: Mapping[str, str]) -> str:
    """Their path of a module of ours, by the name of the innermost module around it that has one."""
    best = max((one for one in names if ours == one or ours.startswith(f"{one}.")), key=len, default=None)
    if best is None:
        return theirs
    rest = theirs[len(mine[best]) :].lstrip(".")
    return ".".join(part for part in (names[best], rest) if part)


def _hook(found: Recording, path: str, gradients: bool) -> Any:
    def hook(module: Any, inputs: Any, output: Any) -> None:
        leaves = [x for x in _leaves(_result(output)) if x.is_floating_point()]
        one = found.add(path, type(module).__name__, [_host(x) for x in leaves])
        if gradients:
            for place, x in enumerate(leaves):
                if x.requires_grad:
                    x.register_hook(_taker(found, one, place))

    return hook


def _taker(found: Recording, one: Recorded, place: int) -> Any:
    def take(gradient: Any) -> None:
        found.take_gradient(one, place, _host(gradient))

    return take


def _result(value: Any) -> Any:
    """What a model of `transformers` computes, without the cache and what else its `ModelOutput` holds."""
    fields = cast("Mapping[str, Any]", value)
    if not isinstance(fields, Mapping) or not hasattr(fields, "to_tuple"):  # pyright: ignore[reportUnnecessaryIsInstance]
        return value
    return next((fields[name] for name in ("logits", "last_hidden_state") if name in fields), fields)


def _leaves(value: Any) -> Iterable[Any]:
    """The tensors of PyTorch's in a result, in order."""
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
        made = torch.from_numpy(np.array(array, np.float64 if array.dtype == np.float64 else np.float32))
        return made if like is None else made.to(like.device, like.dtype)
    made = torch.from_numpy(np.array(array, np.int64 if array.dtype.kind in "iu" else array.dtype))
    return made if like is None else made.to(like.device)


def _differentiate(torch: Any, backend: Any, outputs: Any, loss: LossOf | None, found: Recording) -> None:
    """From the outputs back, with our loss: its gradient towards them is what PyTorch begins with."""
    device = backend.device()
    taped = device.on(backend.with_autodiff())
    theirs = [x for x in _leaves(outputs) if x.requires_grad]
    ours: list[AnyTensor] = []

    def leaf(x: Any) -> Any:
        if not hasattr(x, "register_hook"):
            return map_parts(lambda part, path: leaf(part), x, "")
        one = _tensor(x, taped)
        if x.requires_grad:
            one = one.require_grad()
            ours.append(one)
        return one

    value = loss_of(leaf(outputs), loss)
    if value is None or not ours:
        return
    if loss is not None:
        found.loss = value.item()
    grads = value.backward()
    pairs = [(x, one.grad(grads)) for x, one in zip(theirs, ours, strict=True)]
    known = [(x, np.array(g.numpy(), np.float32)) for x, g in pairs if g is not None]
    begin = [torch.from_numpy(g).to(x.device, x.dtype) for x, g in known]
    torch.autograd.backward([x for x, _ in known], begin)


def _tensor(x: Any, device: Any) -> AnyTensor:
    made = tensor(_host(x), device=device.on(engine_of(device.backend)))
    return made.to_device(device) if made.kind is Float else made


# --- weights


def _names_of_entries(model: Module, names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Prefixes of names in a state dict of our structure -> those of theirs, the longest first."""
    mine = module_paths(model)
    return sorted(((mine[ours], theirs) for ours, theirs in names.items()), key=lambda pair: -len(pair[0]))


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
    mine: dict[str, Any] = {}
    for path in record:
        entry = record[path]
        if isinstance(entry, TensorEntry):
            array = np.array(entry.tensor.read())
            mine[_with_prefix(path, pairs)] = torch.from_numpy(
                array if array.dtype.name != "bfloat16" else array.astype(np.float32)
            )
    known: dict[str, Any] = twin.state_dict()
    wrong = [f"{path}: not in the model" for path in known if path not in mine]
    wrong += [f"{path}: not in the PyTorch module" for path in mine if path not in known]
    wrong += [
        f"{path}: of shape {tuple(mine[path].shape)} in the model and {tuple(value.shape)} in the PyTorch module"
        for path, value in known.items()
        if path in mine and mine[path].shape != value.shape
    ]
    if wrong:
        shown = "\n  ".join([*wrong[:8], *(["..."] if len(wrong) > 8 else [])])
        raise ModuleError(
            "compare: the weights of the model do not fit the PyTorch module; give names={ours: theirs} where layers "
            f"are called otherwise, or weights='own':\n  {shown}"
        )
    twin.load_state_dict({path: mine[path].to(known[path].dtype) for path in known})


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


def _take_parameters(found: Recording, model: Module, twin: Any, names: Mapping[str, str]) -> None:
    state = {path: param.grad for path, param in twin.named_parameters() if param.grad is not None}
    for path, module in twin.named_modules():
        weight = f"{path}.weight"
        if type(module).__name__ == "Conv1D" and hasattr(module, "nf") and weight in state:
            state[weight] = state[weight].T  # the linear layer of GPT-2 in transformers, whose weight is [in, out]
    record = from_state_dict(_as_ours(model, state, names), model)
    for path, _ in model.named_params():
        if path in record and isinstance(entry := record[path], TensorEntry):
            found.parameters[path] = np.asarray(entry.tensor.read())
