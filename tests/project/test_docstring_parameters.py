"""Every parameter of the public names is documented, with a type, where a user looks for it."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dmtrl

ENTRY = re.compile(r"(?P<names>\*{0,2}\w+(, \*{0,2}\w+)*) : (?P<type>\S.*)")


def public_callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public names that can be called, and the methods of dmtrl that they define or inherit."""
    for name in dmtrl.__all__:
        found = getattr(dmtrl, name)
        if not (isinstance(found, type) and issubclass(found, Exception) and "__init__" not in vars(found)):
            yield name, found
        for member in dir(found) if isinstance(found, type) else ():
            value = getattr(found, member)
            if (
                not member.startswith("_")
                and callable(value)
                and str(getattr(value, "__module__", "")).startswith("dmtrl")
            ):
                yield f"{name}.{member}", value


CALLABLES = dict(public_callables())


def section(doc: str, title: str) -> dict[str, str]:
    """The entries of a numpydoc section, by name, with their types."""
    lines = doc.splitlines()
    headings = [i for i, line in enumerate(lines) if re.fullmatch(r"-{3,}", line)]
    start = next((i + 1 for i in headings if lines[i - 1] == title), len(lines))
    end = next((i - 1 for i in headings if i > start), len(lines))
    entries = {}
    for line in lines[start:end]:
        if line and not line.startswith(" "):
            entry = ENTRY.fullmatch(line)
            assert entry, f"{line!r} in the section {title} is not of the form 'name : type'"
            assert not entry["type"].startswith("as in"), f"{line!r} has no type"
            entries |= {name.lstrip("*"): entry["type"] for name in entry["names"].split(", ")}
    return entries


def parameters(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self", "cls"}


@pytest.mark.parametrize("name", CALLABLES)
def test_every_parameter_is_documented(name: str) -> None:
    function = CALLABLES[name]
    doc = inspect.getdoc(function) or ""
    assert doc, f"{name} has no docstring"
    described = section(doc, "Parameters")
    if isinstance(function, type) and not described:  # a record that users read: its fields are attributes
        described = section(doc, "Attributes")
        assert parameters(function) - {"message"} <= set(described)
    else:
        assert set(described) == parameters(function)


@pytest.mark.parametrize(
    "name", ["MTRLRegressor", "MTRLClassifier", "MTRLRegressorCV", "MTRLClassifierCV", "RFF", "Splines"]
)
def test_every_fitted_attribute_is_documented(name: str) -> None:
    cls = getattr(dmtrl, name)
    X, labels, tasks = np.random.default_rng(0).normal(size=(24, 2)), np.tile([0, 1], 12), np.repeat([0, 1, 2], 8)
    estimator = cls(cv=2, lambdas=[0.1]) if name.endswith("CV") else cls()
    estimator.fit(X) if name in ("RFF", "Splines") else estimator.fit(X, labels, tasks=tasks)
    properties = {key for key in dir(cls) if isinstance(getattr(cls, key), property) and key.endswith("_")}
    fitted = {key for key in vars(estimator) if key.endswith("_") and not key.startswith("_")}
    described = section(inspect.getdoc(cls) or "", "Attributes")
    assert set(described) == fitted | {key for key in properties if not key.startswith("_")} | {"feature_names_in_"}


def test_the_check_finds_a_missing_parameter() -> None:
    def documented_in_part(a: int, b: int) -> None:
        """Example.

        Parameters
        ----------
        a : int
            Documented.
        """

    assert set(section(inspect.getdoc(documented_in_part) or "", "Parameters")) != parameters(documented_in_part)
