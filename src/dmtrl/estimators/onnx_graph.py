"""The model of one task as an ONNX graph in double precision (`dmtrl[onnx]`).

A model of `dmtrl fit` has one input per column, as a table with one column: numbers (NaN if missing), texts ("" if
missing). A date has an input per feature, such as "sold days" and "sold Mon", because ONNX has no calendar. Another
model has the input X. Outputs: `score`, `prediction`, and `probability` for logistic loss.
"""

from importlib.metadata import version
from itertools import count
from typing import Any

import numpy as np

from dmtrl.estimators.classes import resolve_multi_class
from dmtrl.estimators.export import Formula, Term, formulas
from dmtrl.estimators.feature_maps import RFF
from dmtrl.losses import get_loss
from dmtrl.tables.preparation import Preparation

OPSET, ML_OPSET, IR_VERSION = 17, 3, 8  # of 2022: runtimes of later years read them


def onnx_bytes(model: Any, task: int) -> bytes:
    """The graph of one task, given by its number, as the content of an .onnx file."""
    graph = _Graph()
    helper = graph.onnx.helper
    prepared = isinstance(getattr(model, "preparation_", None), Preparation) and model.feature_map_ is None
    score = _column_scores(graph, list(formulas(model, [task]))) if prepared else _row_scores(graph, model, task)
    _outputs(graph, model, score)
    made = helper.make_model(
        helper.make_graph(graph.nodes, "dmtrl", graph.inputs, graph.outputs, graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)],
        ir_version=IR_VERSION,
        producer_name="dmtrl",
        producer_version=version("dmtrl"),
    )
    helper.set_model_props(made, {"task": str(model.tasks_[task]), "loss": get_loss(model.loss).name})
    graph.onnx.checker.check_model(made, full_check=True)
    return bytes(made.SerializeToString())


class _Graph:
    """Collects the parts of a graph. Methods return names of values."""

    def __init__(self) -> None:
        try:
            import onnx
        except ImportError as error:
            raise ImportError('export to ONNX needs onnx: pip install "dmtrl[onnx]".') from error
        self.onnx: Any = onnx
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.constants: list[Any] = []
        self._numbers = count()

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        name = name or f"_{next(self._numbers)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, value: Any) -> str:
        array, name = np.asarray(value), f"_{next(self._numbers)}"
        array = array.astype(object) if array.dtype.kind == "U" else array
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def input(self, name: str, width: int, is_text: bool = False) -> str:
        kind = self.onnx.TensorProto.STRING if is_text else self.onnx.TensorProto.DOUBLE
        if all(known.name != name for known in self.inputs):
            self.inputs.append(self.onnx.helper.make_tensor_value_info(name, kind, ["rows", width]))
        return name

    def output(self, name: str, kind: Any, width: int) -> None:
        self.outputs.append(self.onnx.helper.make_tensor_value_info(name, kind, ["rows", width]))


def _row_scores(graph: _Graph, model: Any, task: int) -> str:
    """The scores (rows, 1 or k) from the input X."""
    coef, intercept = model.coef_[task].astype(float), np.asarray(model.score_intercepts()[task], dtype=float)
    rows = graph.input("X", model.n_features_in_)
    if isinstance(model.feature_map_, RFF):
        rows = _fourier_features(graph, rows, model.feature_map_)
    elif model.feature_map_ is not None:
        name = type(model.feature_map_).__name__
        raise ValueError(f"the feature map {name} cannot be exported to ONNX; only RFF can; save the model instead")
    weights = np.atleast_2d(coef).T
    return graph.op("Add", graph.op("MatMul", rows, graph.constant(weights)), graph.constant(intercept.reshape(1, -1)))


def _fourier_features(graph: _Graph, rows: str, feature_map: RFF) -> str:
    """cos x = sin(x + pi / 2): runtimes have the sine in double precision, but not all have the cosine."""
    angle, pairs = feature_map.directions_, feature_map.n_components // 2
    turned = np.hstack([angle[:, :pairs], angle[:, :pairs], angle[:, pairs:]])
    shift = np.full(turned.shape[1], np.pi / 2)
    shift[pairs : 2 * pairs] = 0.0
    shift[2 * pairs :] += feature_map.phase_
    sine = graph.op("Sin", graph.op("Add", graph.op("MatMul", rows, graph.constant(turned)), graph.constant(shift)))
    mapped = graph.op("Mul", sine, graph.constant((2 / feature_map.n_components) ** 0.5))
    if not feature_map.linear:
        return mapped
    return graph.op("Concat", graph.op("Mul", rows, graph.constant(feature_map.scale_)), mapped, axis=1)


def _column_scores(graph: _Graph, found: list[Formula]) -> str:
    """The scores (rows, 1 or k) from an input per column."""
    score = graph.constant(np.array([[formula.intercept for formula in found]]))
    levels: dict[str, list[int]] = {}
    texts = {term.column for term in found[0].terms if term.kind in ("level", "other")}
    days = {term.column: term.feature for term in found[0].terms if term.kind == "days"}
    for j, term in enumerate(found[0].terms):
        if term.kind in ("word", "bucket"):
            raise ValueError(f"column {term.column!r} is a text, which an ONNX graph cannot read; export .json or .csv")
        if term.column in texts:
            levels.setdefault(term.column, []).append(j)
            continue
        if term.kind in ("number", "days", "missing"):
            given = graph.input(days.get(term.column, term.column), 1)
            is_missing = graph.op("IsNaN", given)
            if term.kind == "missing":
                value = graph.op("Cast", is_missing, to=graph.onnx.TensorProto.DOUBLE)
            else:
                value = graph.op("Where", is_missing, graph.constant(np.float64(term.fill)), given)
        else:
            value = graph.input(term.feature, 1)
        weights = graph.constant(np.array([[formula.terms[j].coefficient for formula in found]]))
        score = graph.op("Add", score, graph.op("MatMul", value, weights))
    for column, numbers in levels.items():
        terms = [[formula.terms[j] for j in numbers] for formula in found]
        score = graph.op("Add", score, _level_scores(graph, column, terms))
    return score


def _level_scores(graph: _Graph, column: str, terms: list[list[Term]]) -> str:
    """Look up the coefficients (rows, 1 or k) of a category; the last line is for all other values."""
    keys = ["" if term.kind == "missing" else str(term.value) for term in terms[0] if term.kind != "other"]
    coefficients = np.zeros((len(keys) + 1, len(terms)))
    for c, of_class in enumerate(terms):
        for i, term in enumerate(of_class):  # "other" is the last term of a column
            coefficients[i, c] = term.coefficient
    number = graph.op(
        "LabelEncoder",
        graph.input(column, 1, is_text=True),
        domain="ai.onnx.ml",
        keys_strings=keys,
        values_int64s=list(range(len(keys))),
        default_int64=len(keys),
    )
    flat = graph.op("Reshape", number, graph.constant(np.array([-1])))
    return graph.op("Gather", graph.constant(coefficients), flat, axis=0)


def _outputs(graph: _Graph, model: Any, score: str) -> None:
    types = graph.onnx.TensorProto
    double, width = types.DOUBLE, int(np.prod(model.intercept_.shape[1:]))
    graph.op("Identity", score, name="score")
    graph.output("score", double, width)
    if not hasattr(model, "classes_"):
        poisson = get_loss(model.loss).name == "poisson"
        graph.op("Exp" if poisson else "Identity", score, name="prediction")
        graph.output("prediction", double, 1)
        return
    classes = model.classes_ if model.classes_.dtype.kind in "biuf" else model.classes_.astype(str)
    if classes.dtype.kind in "iu":
        classes = classes.astype(np.int64)
    if width == 1:
        positive = graph.op("Greater", score, graph.constant(np.float64(0.0)))
        best = graph.op("Cast", positive, to=types.INT64)
    else:
        best = graph.op("ArgMax", score, axis=1, keepdims=1)
    graph.op("Gather", graph.constant(classes), best, axis=0, name="prediction")
    is_text = classes.dtype.kind == "U"
    kind = types.STRING if is_text else graph.onnx.helper.np_dtype_to_tensor_dtype(classes.dtype)
    graph.output("prediction", kind, 1)
    if hasattr(model, "predict_proba"):
        _probabilities(graph, score, width, model)
        graph.output("probability", double, max(width, 2))


def _probabilities(graph: _Graph, score: str, width: int, model: Any) -> None:
    if width == 1:
        negative = graph.op("Sigmoid", graph.op("Neg", score))
        graph.op("Concat", negative, graph.op("Sigmoid", score), axis=1, name="probability")
        return
    log = score
    if resolve_multi_class(model.multi_class, get_loss(model.loss)) == "ovr":
        # log sigmoid = min(s, 0) - log(1 + exp(-|s|)), then shares of the largest: nothing overflows
        zero, one = graph.constant(np.float64(0.0)), graph.constant(np.float64(1.0))
        tail = graph.op("Log", graph.op("Add", one, graph.op("Exp", graph.op("Neg", graph.op("Abs", score)))))
        log = graph.op("Sub", graph.op("Min", score, zero), tail)
    share = graph.op("Exp", graph.op("Sub", log, graph.op("ReduceMax", log, axes=[1], keepdims=1)))
    total = graph.op("ReduceSum", share, graph.constant(np.array([1])), keepdims=1)
    graph.op("Div", share, total, name="probability")
