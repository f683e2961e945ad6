"""Keeping a model: one file without code, and the certificate made again from data.

Room: beside the estimators. A model file is a zip without compression: first `dmtrl-model.json` (format, version,
class, parameters, fitted values; dtype, shape and checksum of each array), then an .npy file per array, so `numpy.load`
opens it too. The zip's closing comment is the SHA-256 of all that stands before it: no cut and no changed byte goes
unseen. These two places, and `format` and `dmtrl` in the first, stay in every later format. `_CODECS` lists what may be
in a file; nothing in it is ever run or unpickled.
"""

import copy
import hashlib
import importlib
import inspect
import io
import json
import math
import os
import zipfile
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from dmtrl.data.blocks import as_rows
from dmtrl.data.task_data import TaskData
from dmtrl.estimators.inputs import lookup
from dmtrl.estimators.problem import Coordinates, Problem
from dmtrl.exceptions import NotAModelError
from dmtrl.losses import BUILTIN, CustomLoss, Loss
from dmtrl.relationship import Fixed, Learned
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.solver import cross_validation as validation
from dmtrl.solver.api import solve_problem
from dmtrl.solver.certificate import Certificate
from dmtrl.solver.outcome import DualPoint, Outcome, RoundRecord, StartPoint
from dmtrl.solver.settings import Settings
from dmtrl.storage import whole_file
from dmtrl.tables.preparation import Block, Category, Date, Dropped, Number, Preparation

FORMAT = 1
MODELS = ("MTRLRegressor", "MTRLClassifier", "MTRLRegressorCV", "MTRLClassifierCV")
# objects that only fit needs: the default takes their place, and routing goes back to that of the class
_LEFT_BEHIND = {"callbacks", "engine", "random_state", "cv", "scoring", "_metadata_request"}
_RECORDS: tuple[Any, ...] = (
    Certificate, TaskCovariance, DualPoint, RoundRecord, Outcome, Coordinates, validation.Path,
    Preparation, Number, Category, Date, Block, Dropped,
)  # fmt: skip
_HEADER, _DIGEST = "dmtrl-model.json", 64
_AGAIN = "copy the file again, or save the model again"
_Path = str | os.PathLike[str]
_Arrays = dict[str, np.ndarray]


class Savable:
    def save(self, path: _Path) -> None:
        """Write the fitted model to a file that `dmtrl.load` reads; nothing half written is ever left behind."""
        save(self, path)


def save(model: Any, path: _Path) -> None:
    """Write a fitted model to one file. In the end the whole file is there, or what was there before.

    Callbacks, an engine object and a RandomState are left behind. Of a custom loss, which is code, the name is kept:
    the loaded model predicts, and can be fitted again once `set_params(loss=...)` has given the loss back.
    """
    name = type(model).__name__
    if name not in MODELS or type(model) is not _class(name):
        raise ValueError(f"save keeps {', '.join(MODELS)}; {type(model).__module__}.{name} is not one of them")
    if "certificate_" not in vars(model):
        raise NotFittedError(f"this {name} is not fitted yet, so there is nothing to keep; call fit first")
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
    try:
        with whole_file(target) as file:
            _write(file, header, arrays)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: not saved, and nothing was changed", str(path)) from error


def load(path: _Path) -> Any:
    """The model that `save` wrote: the same bits in every fitted array. Nothing in the file is run."""
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder; load takes the file of a model")
    _check_whole(data := Path(path).read_bytes(), path)
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
    file.truncate(file.seek(0, os.SEEK_END) - _DIGEST)
    file.seek(0)
    file.write(hashlib.file_digest(file, "sha256").hexdigest().encode())


def _check_whole(data: bytes, path: _Path) -> None:
    """Refuse what is not ours, is cut or is damaged; afterwards every byte is as it was written."""
    if not data:
        raise ValueError(f"{path} is empty; {_AGAIN}")
    first = data[30 : 30 + len(_HEADER)]  # the name of a zip's first entry
    if not (b"PK\x03\x04".startswith(data[:4]) and _HEADER.encode().startswith(first)):
        raise NotAModelError(path)
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
    """What may be made, by way of the package because the estimators import this file; an RFF stands inside a model."""
    return getattr(importlib.import_module("dmtrl"), name, None) if name in (*MODELS, "RFF") else None


def _take_model(model: Any) -> list[Any]:
    parameters = model.get_params(deep=False)
    for name, p in inspect.signature(type(model)).parameters.items():
        if name in _LEFT_BEHIND and not isinstance(parameters[name], str | int | np.integer):
            parameters[name] = p.default
    fitted = {name: value for name, value in vars(model).items() if name not in {*parameters, *_LEFT_BEHIND}}
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


def _gone(*args: float) -> Any:
    raise ValueError("a model file holds no code: give the loaded model its loss back with set_params(loss=...)")


# tag: the type, the value as a list of simpler values, and the value made again from them
_CODECS: dict[str, tuple[Any, Any, Any]] = {
    "tuple": (tuple, list, lambda *parts: parts),
    "dict": (dict, None, lambda *items: dict(items)),
    "float": (float, lambda value: [repr(value)], float),  # only what JSON has no number for
    "date": (date, lambda value: [value.isoformat()], date.fromisoformat),
    "objects": (
        None,
        lambda array: [array.shape, array.ravel().tolist()],
        lambda shape, values: np.fromiter(values, object).reshape(shape),
    ),
    "sparse": (
        None,
        lambda X: [X.format, isinstance(X, sparse.sparray), X.shape, (C := X.tocsr()).data, C.indices, C.indptr],
        lambda form, new, shape, *csr: (sparse.csr_array if new else sparse.csr_matrix)(csr, shape=shape).asformat(
            form
        ),
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
    **{k.__name__: (k, lambda value: [dict(vars(value))], lambda parts, k=k: k(**parts)) for k in _RECORDS},
}


def _encode(value: Any, where: str, arrays: _Arrays) -> Any:
    """A value as JSON: {tag: parts} for what JSON does not know; arrays are set apart, named after where they stand."""
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    if type(value) is list:
        return [_encode(part, f"{where}.{i}", arrays) for i, part in enumerate(value)]
    if type(value) is dict:
        items = [(k if isinstance(k, str) and k.isidentifier() else i, k, v) for i, (k, v) in enumerate(value.items())]
        return {"dict": [[_encode(k, where, arrays), _encode(v, f"{where}.{name}", arrays)] for name, k, v in items]}
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
        raise ValueError(f"{where} is a {kind}, and a model file holds no code, only numbers, text and arrays")
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

    The primal is the objective of the model's own coefficients on this data. The dual is a bound found anew, for every
    loss, by rounds of the solver on it, which takes about as long as a fit; it speaks of this data alone. ValueError if
    the stored certificate disagrees, by a primal that differs by more than 1e-6 of it (1e-4 in float32) or by a dual
    above what is attained: then these are other data (rows, weights, parameters), or the model was changed.
    """
    check_is_fitted(model)
    stored, lam, tau, place = model.certificate_, model.reg_lambda_, model.common_strength_, model._coordinates
    twin = copy.copy(model)  # reading labels sets classes_
    table = twin._read(X, y, tasks, sample_weight, reset=False)
    units, weight = twin._units(table), table.sample_weight
    order = lookup(table.names, model.tasks_)  # a task that was added later stands last in the model
    same = np.array_equal(np.sort(order), np.arange(len(model.tasks_)))
    if not same or not np.array_equal(getattr(twin, "classes_", 0), getattr(model, "classes_", 0)):
        raise ValueError("this data has other tasks or classes than the model; verify needs the data of the fit")
    rows = place.rows(table.X if model.feature_map_ is None else model.feature_map_.transform(table.X), units.rows)
    weight = None if weight is None else weight[units.rows]
    data = TaskData(as_rows(rows), units.y - place.y_centre, weight, units.starts, units.names[units.used])
    coef = model.coef_[order].reshape(len(units.names), -1)[units.used].astype(float)
    W = place.weights(coef, model.intercept_[order].ravel()[units.used])
    common = place.weights(model.common_coef_[None].astype(float), np.array([model.common_intercept_]))[0]
    settings = Settings(tol=model.tol, max_rounds=model.max_rounds, method="splitting")
    spec = model._spec(Problem(data, units, place), settings)
    outcome = solve_problem(spec, lam, tau, start=StartPoint(W, common))
    primal, attained = outcome.history[0].objective, outcome.certificate.primal  # the first round is asked at W itself
    slack = (1e-6 if model.coef_.dtype == np.float64 else 1e-4) * max(abs(primal), abs(stored.primal))
    if not (abs(primal - stored.primal) <= slack and stored.dual <= attained + slack):
        raise ValueError(
            f"on this data the model's objective is {primal:.8g} and {attained:.8g} is attained, its certificate says "
            f"{stored.primal:.8g} and nothing below {stored.dual:.8g}: these are other data, or the model was changed"
        )
    return Certificate(primal, outcome.certificate.dual)
