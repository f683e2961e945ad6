"""Model files: save and load a fitted model without code, and recompute its certificate from data.

A model file is an uncompressed zip archive. The first entry is `dmtrl-model.json` (format, version, class, parameters,
fitted values, and the dtype, shape and checksum of each array). An .npy entry per array follows, so `numpy.load` can
open the file too. The archive comment is the SHA-256 of everything before it. Later formats keep these two places and
the fields `format` and `dmtrl`. `_CODECS` lists the types that a file may hold; nothing in a file is executed.
"""

import hashlib
import importlib
import inspect
import io
import json
import math
import os
import zipfile
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from dmtrl.data.blocks import as_rows
from dmtrl.data.coordinates import Coordinates
from dmtrl.engines import choose_engine
from dmtrl.estimators.held_out import Metrics
from dmtrl.estimators.inputs import lookup
from dmtrl.estimators.intervals import FoldModels
from dmtrl.estimators.problem import task_data
from dmtrl.exceptions import NotAModelError
from dmtrl.losses import BUILTIN, CustomLoss, Loss
from dmtrl.relationship import Fixed, Learned, TaskCovariance
from dmtrl.solver.api import solve
from dmtrl.solver.certificate import Certificate
from dmtrl.solver.cv_results import CvResults
from dmtrl.solver.execution import Execution
from dmtrl.solver.outcome import DualPoint, Outcome, RoundRecord, StartPoint
from dmtrl.solver.settings import Settings
from dmtrl.solver.shared_fit import SharedFit
from dmtrl.storage import whole_file
from dmtrl.tables.preparation import Block, Category, Date, Dropped, Number, Preparation, Words

if TYPE_CHECKING:
    from dmtrl.estimators.base import MTRLBase

FORMAT = 6
MODELS = ("MTRLRegressor", "MTRLClassifier", "MTRLRegressorCV", "MTRLClassifierCV")
# only needed by fit: objects are replaced by the default of the parameter
_NOT_SAVED = {"callbacks", "engine", "random_state", "cv", "scoring", "_metadata_request"}
_PREPARATION = (Preparation, Number, Category, Date, Words, Block, Dropped)
_VALIDATION = (CvResults, Metrics, FoldModels)
_SOLUTION = (Certificate, TaskCovariance, DualPoint, RoundRecord, SharedFit, Outcome)
_RECORDS = (*_SOLUTION, Coordinates, *_VALIDATION, *_PREPARATION)
_HEADER, _DIGEST = "dmtrl-model.json", 64
_MAX_NPY_HEADER = 1 << 16
_AGAIN = "copy the file again, or save the model again"
FilePath = str | os.PathLike[str]
_Arrays = dict[str, np.ndarray]


def save(model: Any, path: FilePath) -> None:
    """Write a fitted model to a file; see `MTRLBase.save`. On an error an existing file is unchanged."""
    name = type(model).__name__
    if name not in MODELS or type(model) is not _class(name):
        raise ValueError(f"save supports {', '.join(MODELS)}, got {type(model).__module__}.{name}")
    check_is_fitted(model)
    arrays: _Arrays = {}
    header = {
        "format": FORMAT,
        "dmtrl": importlib.import_module("dmtrl").__version__,
        "model": [_encode(part, name, arrays) for part in _split_model(model)],
        "arrays": {key: _describe(array) for key, array in arrays.items()},
    }
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a directory; pass the path of a file")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot save {path}: the directory {target.parent} does not exist; create it first")
    try:
        with whole_file(target) as file:
            _write(file, header, arrays)
    except OSError as error:
        problem = (error.strerror or str(error)).removesuffix("; nothing was written")
        raise OSError(
            error.errno, f"{problem}: the model was not saved, and existing files are unchanged", str(path)
        ) from error


def load(path: FilePath) -> Any:
    """Load a model from a file that its `save` method wrote.

    Parameters
    ----------
    path : str or path
        The model file.

    Returns
    -------
    MTRLRegressor, MTRLClassifier, MTRLRegressorCV or MTRLClassifierCV
        The fitted model, with bitwise equal arrays. No code of the file is executed.
    """
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a directory; pass the path of a model file")
    _check_whole(data := Path(path).read_bytes(), path)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _check_sizes(archive, len(data))
            header = json.loads(archive.read(_HEADER))
            writer, number = header["dmtrl"], int(header["format"])
            if number == FORMAT:
                return _make_model(*_decode(header["model"], _read_arrays(archive, header["arrays"])))
    except Exception as error:  # a corrupt file can make a parser raise anything
        raise ValueError(f"{path} cannot be read as a dmtrl model: {error}") from error
    advice = "install a newer dmtrl" if number > FORMAT else "fit and save the model again"
    raise ValueError(
        f"{path} was written by dmtrl {writer} with format {number}, but this dmtrl reads format {FORMAT}; {advice}"
    )


def _write(file: Any, header: dict[str, Any], arrays: _Arrays) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(_HEADER), json.dumps(header, allow_nan=False))
        for key, array in arrays.items():  # ZipInfo has a fixed date: the same model gives the same bytes
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
        archive.comment = b"0" * _DIGEST
    file.truncate(file.seek(0, os.SEEK_END) - _DIGEST)
    file.seek(0)
    file.write(hashlib.file_digest(file, "sha256").hexdigest().encode())


def _check_whole(data: bytes, path: FilePath) -> None:
    """Raise ValueError unless the bytes are exactly those of a complete model file."""
    if not data:
        raise ValueError(f"{path} is empty; {_AGAIN}")
    first = data[30 : 30 + len(_HEADER)]  # the name of the first entry of a zip archive
    if not (b"PK\x03\x04".startswith(data[:4]) and _HEADER.encode().startswith(first)):
        raise NotAModelError(str(path))
    if data[-_DIGEST - 22 : -_DIGEST - 18] != b"PK\x05\x06":
        raise ValueError(f"{path} is cut short or damaged: the end of the file is missing; {_AGAIN}")
    if hashlib.sha256(data[:-_DIGEST]).hexdigest().encode() != data[-_DIGEST:]:
        raise ValueError(f"{path} is damaged: its checksum does not match its contents; {_AGAIN}")


def _check_sizes(archive: zipfile.ZipFile, size: int) -> None:
    """Raise ValueError if an entry is compressed, or if the entries claim more bytes than the file has."""
    for entry in archive.infolist():
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ValueError(f"its entry {entry.filename!r} is compressed, which no entry of a model is")
    total = sum(entry.file_size for entry in archive.infolist())
    if total > size:
        raise ValueError(f"its entries claim {total:,} bytes, but the file has {size:,}")


def _describe(array: np.ndarray) -> list[Any]:
    return [array.dtype.str, list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]


def _read_arrays(archive: zipfile.ZipFile, layout: dict[str, Any]) -> _Arrays:
    """The arrays of a file. Sizes are checked first, so that no array is larger than its description says."""
    arrays = {}
    for key, description in layout.items():
        entry, (dtype, shape, _) = archive.getinfo(f"{key}.npy"), description
        size = np.dtype(dtype).itemsize * math.prod(shape)
        if not 0 <= entry.file_size - size <= _MAX_NPY_HEADER:
            raise ValueError(f"its array {key!r} has {entry.file_size:,} bytes, but its description says {size:,}")
        arrays[key] = np.lib.format.read_array(io.BytesIO(archive.read(f"{key}.npy")), allow_pickle=False)
        if _describe(arrays[key]) != description:
            raise ValueError(f"its array {key!r} does not match its description")
    return arrays


def _class(name: str) -> Any:
    """A class that a file may hold. Looked up in the package because the estimators import this module."""
    return getattr(importlib.import_module("dmtrl"), name, None) if name in (*MODELS, "RFF", "Splines") else None


def _split_model(model: Any) -> list[Any]:
    parameters = model.get_params(deep=False)
    for name, p in inspect.signature(type(model)).parameters.items():
        if name in _NOT_SAVED and not isinstance(parameters[name], str | int | np.integer):
            parameters[name] = p.default
    fitted = {name: value for name, value in vars(model).items() if name not in {*parameters, *_NOT_SAVED}}
    return [type(model).__name__, parameters, fitted]


def _make_model(name: str, parameters: dict[str, Any], fitted: dict[str, Any]) -> Any:
    if _class(name) is None:
        raise ValueError(f"unknown class {name!r}; install a newer dmtrl")
    model = _class(name)(**parameters)
    for key, value in fitted.items():
        if key.startswith("__") or callable(getattr(type(model), key, None)):
            raise ValueError(f"{key!r} is not a fitted attribute")
        setattr(model, key, value)
    return model


def _loss_not_saved(*args: float) -> Any:
    raise ValueError("a model file does not hold the code of a custom loss; call set_params(loss=...) before fit")


# tag: (type, function from a value to a list of simpler values, function back)
_CODECS: dict[str, tuple[Any, Any, Any]] = {
    "tuple": (tuple, list, lambda *parts: parts),
    "dict": (dict, None, lambda *items: dict(items)),
    "float": (float, lambda value: [repr(value)], float),  # NaN and infinities, which JSON lacks
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
        lambda name, *facts: CustomLoss(
            name, _loss_not_saved, _loss_not_saved, _loss_not_saved, _loss_not_saved, *facts
        ),
    ),
    "learned": (Learned, lambda value: [value.tau, value.kappa], Learned),
    "fixed": (Fixed, lambda value: [value.covariance, value.tau, value.name, value.kappa], Fixed),
    "model": (None, _split_model, _make_model),
    **{k.__name__: (k, lambda value: [dict(vars(value))], lambda parts, k=k: k(**parts)) for k in _RECORDS},
}


def _encode(value: Any, where: str, arrays: _Arrays) -> Any:
    """Convert a value to JSON, with {tag: parts} for other types. Arrays go to `arrays`, named after their position."""
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
    elif tag is None and hasattr(value, "__array__"):  # arrays and data frames
        array = np.asarray(value)
        if array.dtype.kind in "biufcmMUS":
            while where in arrays:
                where += "_"
            arrays[where] = array
            return {"scalar" if isinstance(value, np.generic) else "array": where}
        tag, value = ("objects", array) if array.dtype.kind == "O" else (None, value)
    if tag is None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise ValueError(f"cannot save: {where} is a {kind}, and a model file holds only numbers, text and arrays")
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


def verify(model: "MTRLBase", X: Any, y: Any = None, tasks: Any = None, sample_weight: Any = None) -> Certificate:
    """Recompute the certificate of a model from the data of its fit.

    The primal is the objective of the model's coefficients on the data. The dual is a new lower bound from rounds of
    the solver, which take about as long as a fit. Nothing stored in the model is trusted, but for the shared part: with
    one, the certificate is of the deviations, given the shared part that the model holds.

    Parameters
    ----------
    model : MTRLRegressor, MTRLClassifier, MTRLRegressorCV or MTRLClassifierCV
        A fitted model.
    X : array-like, sparse matrix or data frame of shape (n, d), or a list or dict of (X_i, y_i)
        The data of the fit.
    y, tasks, sample_weight : array-like of shape (n,), default=None
        Labels, task labels and weights of the rows, in any form that `fit` accepts.

    Returns
    -------
    Certificate
        The recomputed certificate.

    Raises
    ------
    ValueError
        If the stored certificate does not hold: the objective of the model is above its primal by more than 1e-6 (1e-4
        in float32) of its size, or its dual is above an objective that can be reached. Then the data differ from the
        data of the fit, or the model was changed.
    """
    check_is_fitted(model)
    stored, coordinates = model.certificate_, model.coordinates_
    rows = model.read_rows(X, y, tasks, sample_weight)
    shared = model._outcome.shared
    arranged, found = model.arrange(rows, ordinary=shared is not None)
    order = lookup(rows.names, model.tasks_)  # a task that was added later is the last one in the model
    same = np.array_equal(np.sort(order), np.arange(len(model.tasks_)))
    if not same or (found.classes is not None and not np.array_equal(found.classes, model.classes_)):
        raise ValueError("the data have other tasks or classes than the model; verify needs the data of the fit")
    mapped = as_rows(rows.X if model.feature_map_ is None else model.feature_map_.transform(rows.X))
    problem = model.describe(task_data(mapped, arranged, coordinates), coordinates, found)
    W = model.weights_of(coordinates, found, order)
    common = coordinates.weights(model.common_coef_[None].astype(float), np.asarray([model.common_intercept_]))[0]
    if shared is not None:
        shared = shared.only(order)
        common = common - shared.row
        if np.isinf(model.reg_lambda_):
            k = len(shared.intercept)
            size = np.abs(model.coef_).max(initial=0.0) * (1e-9 if model.coef_.dtype == np.float64 else 1e-4)
            if np.abs(W[:, :-k]).max(initial=0.0) > size:
                raise ValueError("the coefficients of a model without deviations differ between tasks: it was changed")
    problem = replace(
        problem,
        shared=shared,
        strengths=model.strengths_,
        start=StartPoint(W, common),
        task_weight=model.task_weights_[order][found.used],
    )
    settings = Settings(tol=model.tol, max_rounds=model.max_rounds, method="splitting")
    engine = choose_engine(model.engine, model.n_jobs)
    outcome = solve(problem, Execution(engine, settings, keep_all_tasks=True, warn=False))
    primal, attained = outcome.history[0].objective, outcome.certificate.primal  # the first round evaluates W itself
    slack = (1e-6 if model.coef_.dtype == np.float64 else 1e-4) * max(abs(primal), abs(stored.primal))
    # the stored primal may be above the objective: with a common part the penalty was bounded by an iteration
    if not (primal <= stored.primal + slack and stored.dual <= attained + slack):
        raise ValueError(
            f"the stored certificate is wrong for this data: the objective of the model is {primal:.8g} (stored "
            f"{stored.primal:.8g}), and {attained:.8g} can be reached (stored lower bound {stored.dual:.8g}); "
            "the data differ from the data of the fit, or the model was changed"
        )
    return Certificate(primal, outcome.certificate.dual)
