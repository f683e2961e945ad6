"""Keeping a model: one file without code, and the certificate made again from data.

Room: beside the estimators. A model file is a zip without compression: first `dmtrl-model.json` (format, version, class,
parameters, fitted values; dtype, shape and checksum of every array), then one .npy file per array, so that `numpy.load`
opens it too. The zip's closing comment is the SHA-256 of all that stands before it: no cut and no changed byte goes unseen.
These two places, and the words `format` and `dmtrl` in the first, stay in every later format. `_CODECS` lists what may be in
a file; nothing in it is ever run or unpickled.
"""

import copy
import hashlib
import importlib
import inspect
import io
import json
import math
import os
import secrets
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from dmtrl.blocks import ArraySource, as_rows
from dmtrl.certificate import Certificate
from dmtrl.coordinator import Coordinator, Outcome, RoundRecord
from dmtrl.covariance import TaskCovariance
from dmtrl.data import TaskData
from dmtrl.engines.local import LocalEngine
from dmtrl.losses import BUILTIN, CustomLoss, Loss, get_loss
from dmtrl.relationship import Fixed, FreeIntercept, Learned, get_relationship
from dmtrl.settings import Settings

FORMAT = 1
MODELS = ("MTRLRegressor", "MTRLClassifier", "MTRLRegressorCV", "MTRLClassifierCV")
_INSIDE = (*MODELS, "RFF")  # what may stand inside a model
_LEFT_BEHIND = {"callbacks", "engine", "cv", "scoring"}  # objects that only fit needs: the default takes their place
_ROUTING = "_metadata_request"  # scikit-learn's, kept on the instance but no part of the model
_HEADER, _MAGIC, _DIGEST = "dmtrl-model.json", "dmtrl model", 64
_AGAIN = "copy the file again, or save the model again"
_Path = str | os.PathLike[str]
_Arrays = dict[str, np.ndarray]


class Savable:
    """Gives an estimator `save`."""

    def save(self, path: _Path) -> None:
        """Write the fitted model to a file that `dmtrl.load` reads; nothing half written is ever left behind."""
        save(self, path)


def save(model: Any, path: _Path) -> None:
    """Write a fitted model to one file. In the end the whole file is there, or what was there before.

    Callbacks and an engine object are left behind. Of a custom loss, which is code, its name is kept: the loaded model
    predicts, and can be fitted again once `model.set_params(loss=...)` has given the loss back.
    """
    name = type(model).__name__
    if name not in MODELS or type(model) is not _class(name):
        raise ValueError(f"save keeps {', '.join(MODELS)}; {type(model).__module__}.{name} is not one of them")
    try:
        check_is_fitted(model)
    except NotFittedError:
        raise NotFittedError(f"this {name} is not fitted yet, so there is nothing to keep; call fit first") from None
    arrays: _Arrays = {}
    header = {
        "magic": _MAGIC,
        "format": FORMAT,
        "dmtrl": importlib.import_module("dmtrl").__version__,
        "model": _encode(model, name, arrays),
        "arrays": {key: _describe(array) for key, array in arrays.items()},
    }
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the name of a file to save the model in")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot save {path}: there is no folder {target.parent}; make it first")
    temporary = target.with_name(f".dmtrl-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb+") as file:
            _write(file, header, arrays)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except OSError as error:
        what = f"the model could not be saved ({error.strerror}); nothing was changed"
        raise OSError(error.errno, what, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
    if hasattr(os, "O_DIRECTORY"):  # the new name has to reach the disk too
        folder = os.open(target.parent, os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)


def load(path: _Path) -> Any:
    """The model that `save` wrote: the same bits in every fitted array. Nothing in the file is run."""
    file = Path(path)
    if file.is_dir():
        raise IsADirectoryError(f"{path} is a folder; load takes the file of a model")
    if not file.exists():
        raise FileNotFoundError(f"there is no file {path}")
    data = file.read_bytes()
    _check_whole(data, path)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            header = json.loads(archive.read(_HEADER))
            if header["format"] <= FORMAT and header["magic"] == _MAGIC:
                return _decode(header["model"], _read_arrays(archive, header["arrays"]))
            writer, number = header["dmtrl"], header["format"]
    except Exception as error:  # whatever a strange file does to a parser, the caller sees one kind of refusal
        raise ValueError(f"{path} cannot be read as a dmtrl model: {error}") from error
    raise ValueError(
        f"{path} was written by dmtrl {writer} with format {number}; this dmtrl reads up to {FORMAT}; "
        "upgrade with pip install -U dmtrl"
    )


def _write(file: Any, header: dict[str, Any], arrays: _Arrays) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(_HEADER), json.dumps(header, allow_nan=False))
        for key, array in arrays.items():  # ZipInfo's fixed date: the same model gives the same bytes
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
        archive.comment = b"0" * _DIGEST
    file.seek(-_DIGEST, os.SEEK_END)
    file.truncate()
    file.seek(0)
    file.write(hashlib.file_digest(file, "sha256").hexdigest().encode())


def _check_whole(data: bytes, path: _Path) -> None:
    """Refuse what is not ours, is cut or is damaged; afterwards every byte is as it was written."""
    if not data:
        raise ValueError(f"{path} is empty; {_AGAIN}")
    first = data[30 : 30 + len(_HEADER)]  # the name of a zip's first entry
    if not (b"PK\x03\x04".startswith(data[:4]) and _HEADER.encode().startswith(first)):
        raise ValueError(f"{path} is not a dmtrl model; load reads what model.save wrote")
    if data[-_DIGEST - 22 : -_DIGEST - 18] != b"PK\x05\x06":
        raise ValueError(f"{path} is cut short or damaged: it does not end as a model does; {_AGAIN}")
    if hashlib.sha256(data[:-_DIGEST]).hexdigest().encode() != data[-_DIGEST:]:
        raise ValueError(f"{path} is damaged: its checksum does not fit its contents; {_AGAIN}")


def _describe(array: np.ndarray) -> list[Any]:
    return [array.dtype.str, list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]


def _read_arrays(archive: zipfile.ZipFile, layout: dict[str, Any]) -> _Arrays:
    arrays = {}
    for key, description in layout.items():
        array = np.lib.format.read_array(io.BytesIO(archive.read(f"{key}.npy")), allow_pickle=False)
        if _describe(array) != description:
            raise ValueError(f"its array {key!r} is not the one that was written")
        arrays[key] = array
    return arrays


def _class(name: str) -> Any:
    """A class of the list by name; by way of the package, because the estimators import this file."""
    return getattr(importlib.import_module("dmtrl"), name, None)


def _take_model(model: Any) -> list[Any]:
    parameters = model.get_params(deep=False)
    for name, p in inspect.signature(type(model)).parameters.items():
        if name in _LEFT_BEHIND and not isinstance(parameters[name], str | int):
            parameters[name] = p.default
    fitted = {name: value for name, value in vars(model).items() if name not in parameters and name != _ROUTING}
    return [type(model).__name__, parameters, fitted]


def _make_model(name: str, parameters: dict[str, Any], fitted: dict[str, Any]) -> Any:
    if name not in _INSIDE or _class(name) is None:
        raise ValueError(f"it holds a {name!r}, which this dmtrl does not know; upgrade with pip install -U dmtrl")
    model = _class(name)(**parameters)
    for key, value in fitted.items():
        if key.startswith("__") or hasattr(type(model), key):
            raise ValueError(f"it sets {key!r}, which is not a fitted value")
        setattr(model, key, value)
    return model


def _make_loss(name: str, param: float) -> Loss:
    return BUILTIN[name](param) if inspect.signature(BUILTIN[name]).parameters else BUILTIN[name]()


def _gone(*args: float) -> Any:
    raise ValueError("a model file holds no code: give the loaded model its loss back with set_params(loss=...)")


def _make_sparse(kind: str, is_array: bool, shape: list[int], *parts: np.ndarray) -> Any:
    return (sparse.csr_array if is_array else sparse.csr_matrix)(parts, shape=tuple(shape)).asformat(kind)


def _take_sparse(value: Any) -> list[Any]:
    rows = value.tocsr()
    return [value.format, isinstance(value, sparse.sparray), list(rows.shape), rows.data, rows.indices, rows.indptr]


def _make_objects(shape: list[int], values: list[Any]) -> np.ndarray:
    objects = np.empty(len(values), dtype=object)
    objects[:] = values
    return objects.reshape(shape)


def _make_random(state: dict[str, Any]) -> np.random.RandomState:
    random = np.random.RandomState()
    random.set_state(state)
    return random


def _record(kind: Any) -> tuple[Any, Callable[..., Any], Callable[..., Any]]:
    return kind, lambda value: [{f.name: getattr(value, f.name) for f in fields(value)}], lambda parts: kind(**parts)


# tag: the type, the value as a list of simpler values, and the value made again from them
_CODECS: dict[str, tuple[Any, Callable[..., Any], Callable[..., Any]]] = {
    "tuple": (tuple, list, lambda *parts: parts),
    "dict": (dict, lambda value: [list(item) for item in value.items()], lambda *items: dict(items)),
    "float": (float, lambda value: [repr(value)], float),  # only what JSON has no number for
    "loss": (Loss, lambda loss: [loss.name, loss.param], _make_loss),
    "custom_loss": (
        CustomLoss,
        lambda loss: [loss.name, loss.kind, loss.smoothness, loss.lipschitz],
        lambda name, *facts: CustomLoss(name, _gone, _gone, _gone, _gone, *facts),
    ),
    "learned": (Learned, lambda value: [value.tau], Learned),
    "fixed": (Fixed, lambda value: [value.covariance, value.tau, value.name], Fixed),
    "random_state": (np.random.RandomState, lambda value: [value.get_state(legacy=False)], _make_random),
    "objects": (None, lambda array: [list(array.shape), array.ravel().tolist()], _make_objects),
    "sparse": (None, _take_sparse, _make_sparse),
    "model": (None, _take_model, _make_model),
    **{kind.__name__: _record(kind) for kind in (Certificate, TaskCovariance, RoundRecord, Outcome, Settings)},
}


def _tag(value: Any) -> str | None:
    if type(value).__name__ in _INSIDE and type(value) is _class(type(value).__name__):
        return "model"
    if sparse.issparse(value):
        return "sparse"
    return next((tag for tag, (kind, _, _) in _CODECS.items() if type(value) is kind), None)


def _encode(value: Any, where: str, arrays: _Arrays) -> Any:
    """A value as JSON: {tag: parts} for what JSON does not know; arrays are set apart under the place where they stand."""
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    if type(value) is list:
        return [_encode(part, f"{where}.{i}", arrays) for i, part in enumerate(value)]
    tag = _tag(value)
    if tag is None and hasattr(value, "__array__"):  # a frame too
        array = np.asarray(value)
        if array.dtype.kind in "biufcmMUS":
            arrays[where] = array
            return {"scalar" if isinstance(value, np.generic) else "array": where}
        tag, value = ("objects", array) if array.dtype.kind == "O" else (None, value)
    if tag is None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise ValueError(f"{where} is a {kind}, which a model file cannot hold: it holds numbers, text and arrays, no code")
    if tag in ("model", "dict"):  # named parts, so that arrays and complaints have good names
        parts = _CODECS[tag][1](value)
        items = parts if tag == "dict" else [item for group in parts[1:] for item in group.items()]
        named = [[_encode(k, where, arrays), _encode(v, f"{where}.{k}", arrays)] for k, v in items]
        if tag == "dict":
            return {tag: named}
        split = len(parts[1])
        return {tag: [parts[0], {"dict": named[:split]}, {"dict": named[split:]}]}
    return {tag: _encode(_CODECS[tag][1](value), where, arrays)}


def _decode(tree: Any, arrays: _Arrays) -> Any:
    if isinstance(tree, list):
        return [_decode(part, arrays) for part in tree]
    if not isinstance(tree, dict):
        return tree
    ((tag, parts),) = tree.items()
    if tag in ("array", "scalar"):
        return arrays[parts] if tag == "array" else arrays[parts][()]
    return _CODECS[tag][2](*_decode(parts, arrays))
