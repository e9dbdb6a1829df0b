"""Between records and Orbax checkpoints: `save` and `load`.

A checkpoint that `save` writes has two items: `default`, a tree of arrays nested by path, which any user of Orbax
restores, and `phlox`, JSON with what such a tree cannot hold: plain values, names, ids, and tensors without elements.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

from phlox.backend.sharding import Index
from phlox.errors import ExtraNotInstalledError, RecordError
from phlox.module import Module
from phlox.record import LazyTensor, Record, TensorEntry
from phlox.record.dtypes import DTYPES, SHORT_NAMES, Array
from phlox.record.values import from_json, to_json

_ARRAYS, _OURS = "default", "phlox"
_TREE = "_METADATA"
"""The file of Orbax that marks a folder as a tree of arrays."""


def save(state: Record | Module, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write an Orbax checkpoint; with several processes, call it in all: each writes its shards of a sharded module.

    `orbax.checkpoint` restores it as a nested dict of arrays, such as `tree["blocks"]["0"]["weight"]`, and a
    `CheckpointManager` too if `folder` is that of a step.

    Args:
        state: a module, or any record. The tensors of a record go through host memory, so all of them must be in this
            process; those of a module may be in shards over several processes.
        folder: the folder to write; it must not exist, unless `overwrite`.
        overwrite: whether to replace an existing folder.

    Raises ExtraNotInstalledError without Orbax, and RecordError if the folder exists, or for a record that has both
    `a` and `a.b`, which no tree can hold.
    """
    record, leaves = _parts_of(state)
    empty = {path: entry for path, entry in record.tensors.items() if not entry.tensor.size}
    tree: dict[str, Any] = {}
    for path, entry in record.tensors.items():
        if path not in empty:  # Orbax refuses empty arrays
            _put(tree, path, leaves[path] if path in leaves else entry.tensor.read())
    ours = {
        "order": list(record),
        "values": {path: to_json(value) for path, value in record.values.items()},
        "aliases": dict(record.aliases),
        "metadata": dict(record.metadata),
        "ids": {path: entry.id for path, entry in record.tensors.items() if entry.id is not None},
        "empty": {path: [SHORT_NAMES[e.tensor.dtype], list(e.tensor.shape)] for path, e in empty.items()},
    }
    ocp, path = _orbax(), Path(folder).absolute()
    items = {_OURS: ocp.args.JsonSave(ours)}
    if tree:
        items[_ARRAYS] = ocp.args.PyTreeSave(tree)
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            checkpointer.save(path, args=ocp.args.Composite(**items), force=overwrite)
    except Exception as error:
        raise RecordError(f"{path}: Orbax could not save: {error}") from error


def load(folder: str | os.PathLike[str]) -> Record:
    """Load an Orbax checkpoint from a local or mounted file system as a record, lazily.

    The paths are the keys of its tree, joined by dots, so `model.load_record(load(folder))` loads what `save` wrote,
    and `remap=` maps other names. A tensor is read when it is used; a module in shards reads only its own parts.

    Args:
        folder: a checkpoint with one tree of arrays, or the folder of a `CheckpointManager`, whose newest step is read.

    Raises ExtraNotInstalledError without Orbax, and RecordError if there is no checkpoint, or more than one tree.
    """
    ocp, path = _orbax(), Path(folder).absolute()
    checkpoint = _checkpoint_in(path)
    try:
        arrays = _tree_in(checkpoint)
        leaves = {} if arrays is None else dict(_leaves(ocp, arrays))
        ours: Any = None
        if (checkpoint / _OURS / "metadata").exists():
            ours = json.loads((checkpoint / _OURS / "metadata").read_text(encoding="utf-8"))
    except RecordError:
        raise
    except Exception as error:
        raise RecordError(f"{checkpoint}: Orbax could not read it: {error}") from error
    unreadable = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, _Unreadable)}
    entries: dict[str, Any] = {name: leaf for name, leaf in leaves.items() if name not in unreadable}
    if ours is None:
        return Record(entries, unreadable={name: str(why) for name, why in unreadable.items()})
    return _restored(entries, ours, checkpoint)


def _restored(entries: dict[str, Any], ours: Any, checkpoint: Path) -> Record:
    """The record that `save` was given."""
    try:
        entries |= {name: from_json(value) for name, value in ours["values"].items()}
        for name, (dtype, shape) in ours["empty"].items():
            entries[name] = LazyTensor.from_array(np.zeros(shape, DTYPES[dtype]), name)
        entries |= {name: TensorEntry(entries[name], id) for name, id in ours["ids"].items()}
        ordered = {name: entries[name] for name in ours["order"]}
        return Record(ordered, ours["metadata"], aliases=ours["aliases"])
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{checkpoint / _OURS}: it does not fit the arrays beside it: {error}") from error


# --- writing


def _parts_of(state: object) -> tuple[Record, dict[str, Any]]:
    """The record, and the engine's arrays of sharded tensors by path, which Orbax writes in shards."""
    if isinstance(state, Module):
        named = {path: param for path, param in state.structure().named() if param.val().device.sharding is not None}
        return state.into_record(), {path: param.leaf for path, param in named.items()}
    if isinstance(state, Record):
        return state, {}
    raise RecordError(f"save: expected a Record or a Module, got {type(state).__name__}")


def _put(tree: dict[str, Any], path: str, array: Any) -> None:
    folder, _, remaining = path.partition(".")
    below = tree.setdefault(folder, {}) if remaining else tree
    if not isinstance(below, dict) or (not remaining and folder in tree):
        raise RecordError(f"{folder}: a tree of Orbax cannot hold both a tensor of this name and others below it")
    if remaining:
        _put(cast("dict[str, Any]", below), remaining, array)
    else:
        tree[folder] = array


# --- reading


class _Unreadable(str):
    """Why a leaf cannot be in a record."""

    __slots__ = ()


def _checkpoint_in(path: Path) -> Path:
    """The folder itself, or the newest step in it."""
    if not path.is_dir():
        raise RecordError(f"{path}: there is no such folder")
    if _is_checkpoint(path):
        return path
    steps = [entry for entry in path.iterdir() if entry.name.isdecimal() and _is_checkpoint(entry)]
    if not steps:
        raise RecordError(f"{path}: it is not a complete Orbax checkpoint, and contains none")
    return max(steps, key=lambda entry: int(entry.name))


def _is_checkpoint(path: Path) -> bool:
    return path.is_dir() and ((path / _TREE).exists() or (path / "_CHECKPOINT_METADATA").exists())


def _tree_in(checkpoint: Path) -> Path | None:
    if (checkpoint / _TREE).exists():
        return checkpoint
    items = sorted(entry for entry in checkpoint.iterdir() if entry.is_dir() and (entry / _TREE).exists())
    if len(items) > 1:
        names = ", ".join([entry.name for entry in items])
        raise RecordError(f"{checkpoint}: which of the items {names} is meant? Give its folder")
    return items[0] if items else None


def _leaves(ocp: Any, folder: Path) -> Iterator[tuple[str, Any]]:
    """The leaves of a tree by path: lazy tensors, and plain values."""
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.metadata(folder).item_metadata
        texts: Any = None
        for keys, leaf in _walk(tree.tree, ()):
            path = ".".join(keys)
            kind = type(leaf).__name__
            if leaf is None:
                yield path, None
            elif kind == "StringMetadata":
                texts = checkpointer.restore(folder) if texts is None else texts
                yield path, _at(texts, keys)
            elif getattr(leaf, "shape", None) is None or np.dtype(leaf.dtype) not in SHORT_NAMES:
                yield path, _Unreadable(f"a record cannot hold a leaf of Orbax of {getattr(leaf, 'dtype', kind)}")
            else:
                source = _Stored(folder, leaf.name, bool(tree.use_zarr3), path)
                if kind == "ScalarMetadata":
                    yield path, source(()).item()
                else:
                    dtype, whole = np.dtype(leaf.dtype), tuple([slice(None)] * len(leaf.shape))
                    yield path, LazyTensor(tuple(leaf.shape), dtype, dtype, partial(source, whole), path, part=source)


def _walk(tree: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(tree, dict):
        for key, value in cast("dict[Any, Any]", tree).items():
            yield from _walk(value, (*keys, str(key)))
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(cast("list[Any]", tree)):
            yield from _walk(value, (*keys, str(index)))
    else:
        yield keys, tree


def _at(tree: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        tree = tree[key] if hasattr(tree, "keys") else tree[int(key)]
    return tree


class _Stored:
    """Reads parts of an array from the chunks of a checkpoint that hold them."""

    def __init__(self, folder: Path, name: str, is_zarr3: bool, path: str) -> None:
        base = f"file://{folder}/"
        store = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
        if not (folder / "manifest.ocdbt").exists():
            store = {"driver": "file", "path": f"{folder}/{name}/"}
        self._spec = {"driver": "zarr3" if is_zarr3 else "zarr", "kvstore": store}
        self._where = f"{folder}: {path}"

    def __call__(self, index: Index) -> Array:
        try:
            opened: Any = _tensorstore().open(self._spec, open=True, read=True).result()
            return np.asarray(opened[index].read().result())
        except Exception as error:
            raise RecordError(f"{self._where}: {error}") from error


@cache
def _orbax() -> Any:
    return _imported("orbax.checkpoint")


@cache
def _tensorstore() -> Any:
    return _imported("tensorstore")


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ExtraNotInstalledError(f"Orbax checkpoints need Orbax: pip install orbax-checkpoint ({error})") from None
