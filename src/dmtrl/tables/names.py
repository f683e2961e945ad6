"""Names in error messages: the closest match for a misspelled name, and short lists of names."""

import difflib
from collections.abc import Callable, Iterable, Sequence

from dmtrl.data.labels import plain
from dmtrl.exceptions import InputError, Setting


def nearest(word: str, words: Sequence[str]) -> str | None:
    """The word that was probably meant: the same except for case, or a similar one."""
    folded = {other.casefold(): other for other in words}
    found = difflib.get_close_matches(word.casefold(), list(folded), n=1, cutoff=0.7)
    return folded[found[0]] if found else None


def listed(names: Sequence[object], most: int = 8, write: Callable[[object], str] = str) -> str:
    """The first `most` names, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(write, names[:most])) + more


def quoted(names: Sequence[object], most: int = 5) -> str:
    """Like `listed`, with each name as Python writes it."""
    return listed(names, most, lambda name: repr(plain(name)))


def require_column(name: str, names: Sequence[str]) -> None:
    """Raise ValueError if `name` is not among the columns, with the closest name or the existing ones."""
    if name not in names:
        raise ValueError(f"there is no column {name!r}; {column_hint(name, names)}")


def require_columns(wanted: Iterable[str], names: Sequence[str]) -> None:
    """`require_column` for each of many columns."""
    known = set(names)
    for name in wanted:
        if name not in known:
            require_column(name, names)


def require_one_role(roles: Iterable[tuple[str, str | None]]) -> None:
    """Raise InputError if a column has two roles. roles: (parameter, column) pairs; None is no column."""
    first: dict[str, str] = {}
    for role, column in roles:
        if column is not None and first.setdefault(column, role) != role:
            words = f"column {column!r} is in both "
            raise InputError(words, Setting(first[column]), " and ", Setting(role), "; pass it to one of them")


def column_hint(name: str, names: Sequence[str]) -> str:
    """The closest name to one that does not exist, or the existing ones."""
    close = nearest(name, names)
    return f"did you mean {close!r}?" if close else f"the columns are {listed(names)}"
