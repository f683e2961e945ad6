"""Keeping a model: one file without code, and the certificate made again from data.

Room: beside the estimators. A model file is a zip without compression: first `dmtrl-model.json` (format, version,
class, parameters, fitted values; dtype, shape and checksum of each array), then an .npy file per array: `numpy.load` opens it
too. The zip's closing comment is the SHA-256 of all that stands before it, so no cut and no changed byte goes unseen.
These two places, and `format` and `dmtrl` in the first, stay in every later format. `_CODECS` lists what may be in a
file; nothing in it is ever run or unpickled.
"""

import contextlib
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
from dataclasses import fields
from datetime import date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from dmtrl.blocks import ArraySource, as_rows
from dmtrl.certificate import Certificate
from dmtrl.coordinator import Coordinator, DualPoint, Outcome, RoundRecord
from dmtrl.covariance import TaskCovariance
from dmtrl.data import TaskData
from dmtrl.engines.local import LocalEngine
from dmtrl.losses import BUILTIN, CustomLoss, Loss, get_loss
from dmtrl.relationship import Fixed, FreeIntercept, Learned, get_relationship
from dmtrl.settings import Settings

FORMAT = 1
MODELS = ("MTRLRegressor", "MTRLClassifier", "MTRLRegressorCV", "MTRLClassifierCV")
_INSIDE = (*MODELS, "RFF")  # what may stand inside a model
_LEFT_BEHIND = {"callbacks", "engine", "random_state", "cv", "scoring"}  # objects that only fit needs: back to default
_ROUTING = "_metadata_request"  # scikit-learn's, kept on the instance but no part of the model
_HEADER, _DIGEST = "dmtrl-model.json", 64
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

    Callbacks, an engine object and a RandomState are left behind. Of a custom loss, which is code, the name is kept: the
    loaded model predicts, and can be fitted again once `set_params(loss=...)` has given the loss back.
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
        "format": FORMAT,
        "dmtrl": importlib.import_module("dmtrl").__version__,
        "model": [_encode(part, name, arrays) for part in _take_model(model)],
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
    with contextlib.suppress(
        OSError, AttributeError
    ):  # the new name should reach the disk too, where a folder can be synced
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
            writer, number = header["dmtrl"], header["format"]
            if number <= FORMAT:
                return _make_model(*_decode(header["model"], _read_arrays(archive, header["arrays"])))
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
        arrays[key] = np.lib.format.read_array(io.BytesIO(archive.read(f"{key}.npy")), allow_pickle=False)
        if _describe(arrays[key]) != description:
            raise ValueError(f"its array {key!r} is not the one that was written")
    return arrays


def _class(name: str) -> Any:
    """By way of the package, because the estimators import this file."""
    return getattr(importlib.import_module("dmtrl"), name, None) if name in _INSIDE else None


def _take_model(model: Any) -> list[Any]:
    parameters = model.get_params(deep=False)
    for name, p in inspect.signature(type(model)).parameters.items():
        if name in _LEFT_BEHIND and not isinstance(parameters[name], str | int):
            parameters[name] = p.default
    fitted = {name: value for name, value in vars(model).items() if name not in parameters and name != _ROUTING}
    return [type(model).__name__, parameters, fitted]


def _make_model(name: str, parameters: dict[str, Any], fitted: dict[str, Any]) -> Any:
    if _class(name) is None:
        raise ValueError(f"it holds a {name!r}, which this dmtrl does not know; upgrade with pip install -U dmtrl")
    model = _class(name)(**parameters)
    for key, value in fitted.items():
        if key.startswith("__") or callable(getattr(type(model), key, None)):
            raise ValueError(f"it sets {key!r}, which is not a fitted value")
        setattr(model, key, value)
    return model


def _make_objects(shape: list[int], values: list[Any]) -> np.ndarray:
    objects = np.empty(len(values), dtype=object)
    objects[:] = values
    return objects.reshape(shape)


def _make_sparse(kind: str, is_array: bool, shape: list[int], *parts: np.ndarray) -> Any:
    return (sparse.csr_array if is_array else sparse.csr_matrix)(parts, shape=tuple(shape)).asformat(kind)


def _record(kind: Any) -> tuple[Any, Any, Any]:
    return kind, lambda value: [{f.name: getattr(value, f.name) for f in fields(value)}], lambda parts: kind(**parts)


def _gone(*args: float) -> Any:
    raise ValueError("a model file holds no code: give the loaded model its loss back with set_params(loss=...)")


# tag: the type, the value as a list of simpler values, and the value made again from them
_CODECS: dict[str, tuple[Any, Any, Any]] = {
    "tuple": (tuple, list, lambda *parts: parts),
    "dict": (dict, None, lambda *items: dict(items)),
    "float": (float, lambda value: [repr(value)], float),  # only what JSON has no number for
    "date": (date, lambda value: [value.isoformat()], date.fromisoformat),
    "datetime": (datetime, lambda value: [value.isoformat()], datetime.fromisoformat),
    "objects": (None, lambda array: [list(array.shape), array.ravel().tolist()], _make_objects),
    "sparse": (
        None,
        lambda X: [X.format, isinstance(X, sparse.sparray), list(X.shape), (C := X.tocsr()).data, C.indices, C.indptr],
        _make_sparse,
    ),
    "loss": (
        Loss,
        lambda loss: [loss.name, *([loss.param] if inspect.signature(BUILTIN[loss.name]).parameters else [])],
        lambda name, *param: BUILTIN[name](*param),
    ),
    "custom_loss": (
        CustomLoss,
        lambda loss: [loss.name, loss.kind, loss.smoothness, loss.lipschitz],
        lambda name, *facts: CustomLoss(name, _gone, _gone, _gone, _gone, *facts),
    ),
    "learned": (Learned, lambda value: [value.tau], Learned),
    "fixed": (Fixed, lambda value: [value.covariance, value.tau, value.name], Fixed),
    "model": (None, _take_model, _make_model),
    **{
        kind.__name__: _record(kind)
        for kind in (Certificate, TaskCovariance, DualPoint, RoundRecord, Outcome, Settings)
    },
}


def _encode(value: Any, where: str, arrays: _Arrays) -> Any:
    """A value as JSON: {tag: parts} for what JSON does not know; arrays are set apart, named after where they stand."""
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    if type(value) is list:
        return [_encode(part, f"{where}.{i}", arrays) for i, part in enumerate(value)]
    if type(value) is dict:
        names = [k if isinstance(k, str) and k.isidentifier() else i for i, k in enumerate(value)]
        items = zip(names, value.items(), strict=True)
        return {"dict": [[_encode(k, where, arrays), _encode(v, f"{where}.{name}", arrays)] for name, (k, v) in items]}
    tag = next((tag for tag, (kind, _, _) in _CODECS.items() if type(value) is kind), None)
    if type(value) is _class(type(value).__name__):
        tag = "model"
    elif sparse.issparse(value):
        tag = "sparse"
    elif tag is None and hasattr(value, "__array__"):  # a frame too
        array = np.asarray(value)
        if array.dtype.kind in "biufcmMUS":
            while where in arrays:
                where += "_"
            arrays[where] = array
            return {"scalar" if isinstance(value, np.generic) else "array": where}
        tag, value = ("objects", array) if array.dtype.kind == "O" else (None, value)
    if tag is None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise ValueError(
            f"{where} is a {kind}, and a model file holds no code: only numbers, text, arrays and dmtrl's own"
        )
    parts = _CODECS[tag][1](value)
    return {tag: [_encode(p, where if type(p) is dict else f"{where}.{i}", arrays) for i, p in enumerate(parts)]}


def _decode(tree: Any, arrays: _Arrays) -> Any:
    if isinstance(tree, list):
        return [_decode(part, arrays) for part in tree]
    if not isinstance(tree, dict):
        return tree
    ((tag, parts),) = tree.items()
    if tag in ("array", "scalar"):
        return arrays[parts] if tag == "array" else arrays[parts][()]
    return _CODECS[tag][2](*_decode(parts, arrays))


def verify(model: Any, X: Any, y: Any = None, tasks: Any = None, sample_weight: Any = None) -> Certificate:
    """The model's certificate made again from the data of its fit, without believing anything that is stored.

    The primal is the objective of the model's own coefficients on this data; the dual is a bound found anew by rounds of
    the solver on it, for every loss, which takes about as long as a fit. Both speak of this data alone. ValueError if the
    stored certificate disagrees, by a primal that differs by more than 1e-6 of it (1e-4 in float32) or by a dual above
    what can be attained: then these are other data (rows, weights, parameters), or the model was changed.
    """
    check_is_fitted(model)
    model = getattr(model, "best_estimator_", model)
    stored, lam = model.certificate_, float(getattr(model, "reg_lambda_", model.reg_lambda))
    data, relation, W, common = _problem(model, lam, X, y, tasks, sample_weight)
    start: Any = SimpleNamespace(W=W, common=common)  # all that a start is asked for
    settings = Settings(tol=model.tol, max_rounds=model.max_rounds, method="splitting")
    with LocalEngine([ArraySource(blocks) for blocks in data.partition(1)], get_loss(model.loss), 1) as engine:
        outcome = Coordinator(engine, data.m, relation, lam, settings).run(start=start)
    primal, attained = outcome.history[0].objective, outcome.certificate.primal  # the first round is asked at W itself
    slack = (1e-6 if model.coef_.dtype == np.float64 else 1e-4) * max(abs(primal), abs(stored.primal))
    if not abs(primal - stored.primal) <= slack:
        raise ValueError(
            f"on this data the model's objective is {primal:.8g}, its certificate says {stored.primal:.8g}; "
            "it was fitted on other data (rows, weights or parameters), or changed afterwards"
        )
    if not stored.dual <= attained + slack:
        raise ValueError(
            f"the certificate says that nothing is below {stored.dual:.8g}, but {attained:.8g} is attained on this data; "
            "it belongs to other data, or was changed afterwards"
        )
    return Certificate(primal, outcome.certificate.dual)


def _problem(model: Any, lam: float, X: Any, y: Any, tasks: Any, sample_weight: Any) -> tuple[TaskData, Any, Any, Any]:
    """The problem `fit` posed, and the model's W and common part in its coordinates: centred, the intercept last."""
    from dmtrl.estimators import INTERCEPT_RIDGE, SHIFTED, _restrict, _with_constant

    twin = copy.copy(model)  # reading labels sets classes_
    table = twin._read(X, y, tasks, sample_weight, reset=False)
    if not np.array_equal(table.names, model.tasks_):
        raise ValueError("this data has other tasks than the model; verify needs the data of the fit")
    units = twin._units(table)
    if not np.array_equal(getattr(twin, "classes_", 0), getattr(model, "classes_", 0)):
        raise ValueError("this data has other classes than the model; verify needs the data of the fit")
    rows = as_rows(table.X if model.feature_map_ is None else model.feature_map_.transform(table.X))
    weight, free, d = table.sample_weight, model.fit_intercept is True, rows.shape[1]
    dense = free and not sparse.issparse(rows)
    x_centre = np.average(rows, axis=0, weights=weight) if dense else np.zeros(d, dtype=rows.dtype)
    weight = None if weight is None else weight[units.rows]
    y_centre = float(np.average(units.y, weights=weight)) if free and get_loss(model.loss).name in SHIFTED else 0.0
    rows = (rows - x_centre if x_centre.any() else rows)[units.rows]
    W, common = model.coef_.reshape(-1, d)[units.used].astype(float), model.common_coef_.astype(float)
    if model.fit_intercept:
        rows = _with_constant(rows)
        W = np.column_stack([W, model.intercept_.ravel()[units.used] - y_centre + W @ x_centre])
        common = np.append(common, 0.0 if free else model.common_intercept_)
    data = TaskData(as_rows(rows), units.y - y_centre, weight, units.starts, units.names[units.used])
    relation = get_relationship(_restrict(model.relationship, units), data.m, model._tau_used)
    sigma, related = relation.start(data.m).plus_common(relation.tau), W[:, :d] if free else W
    if not relation.learned and sigma.floor == 0:  # float32 has rounded the coefficients out of the range of Sigma
        related[:] = sigma.basis @ (sigma.basis.T @ related)
    return data, FreeIntercept(relation, INTERCEPT_RIDGE / lam) if free else relation, W, common
