"""Fields of a TOML file, checked one by one, with errors that name the line; and values as TOML."""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, NoReturn

from dmtrl.exceptions import StudyError
from dmtrl.tables.names import nearest

_KEY = re.compile(r"""\s*(?:"([^"]+)"|'([^']+)'|([A-Za-z0-9_-]+))\s*=""")
_TABLE = re.compile(r"\s*\[\s*([^\]]+?)\s*\]")
_NOT_TOML = (
    'this is not TOML, which has lines such as [target], name = "text in quotes", name = 3 and name = ["a", "b"]'
)
_TWICE = "this key or table is defined twice; remove one of them"
At = tuple[str, ...]  # the names of a table, as in its header


class TomlTable:
    """A table of a TOML file, whose fields are checked one by one. Every error names the line.

    where: the name of the file. lines: of its tables and keys, as `_lines_of` finds them. at: the names of the table,
    as in its header.
    """

    def __init__(self, content: dict[str, Any], where: str, lines: Mapping[At, int], at: At = ()):
        self.content, self._where, self._lines, self._at = content, where, lines, at

    def table(self, key: str, known: Sequence[str] = ()) -> "TomlTable":
        """The table `key` in this one, empty if it is missing. known: the allowed keys; empty: any key."""
        at, content = (*self._at, key), self.content.get(key, {})
        if not isinstance(content, dict):
            self.fail(f"{'.'.join(at)} must be a table such as [{'.'.join(at)}]", key)
        found = TomlTable(content, self._where, self._lines, at)
        if known:
            found.require_known(known)
        return found

    def require_known(self, known: Sequence[str]) -> None:
        for key in self.content:
            if key not in known:
                close = nearest(key, known)
                hint = f"did you mean {close!r}?" if close else f"the keys here are {', '.join(known)}"
                self.fail(f"unknown key {key!r}; {hint}", key)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._required(key, default)
        if not isinstance(value, str):
            self.fail(f"{key} must be text in quotes, got {value!r}", key)
        return value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        value = self._required(key, default)
        if not isinstance(value, list | tuple) or not all(isinstance(part, str) and part for part in value):
            self.fail(f'{key} must be a list of texts such as ["0", "1"], got {value!r}', key)
        if len(set(value)) < len(value):
            self.fail(f"{key} holds a value twice", key)
        return tuple(value)

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        value = self.text(key, default)
        if value not in choices:
            self.fail(f"{key} must be {' or '.join(map(repr, choices))}, got {value!r}", key)
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.content.get(key, default)
        if not isinstance(value, bool):
            self.fail(f"{key} must be true or false, got {value!r}", key)
        return value

    def whole(self, key: str, default: int, least: int) -> int:
        value = self.content.get(key, default)
        if type(value) is not int or value < least:
            self.fail(f"{key} must be an integer of at least {least}, got {value!r}", key)
        return value

    def positive(self, key: str, most: float = math.inf, default: float | None = None) -> float:
        value = self._required(key, default)
        if not (is_number(value) and 0 < value <= most):
            limit = f" of at most {most:g}" if most < math.inf else ""
            self.fail(f"{key} must be a positive number{limit}, got {value!r}", key)
        return float(value)

    def numbers(self, key: str, zero: bool) -> tuple[float, ...]:
        """A number, a list of numbers, or "auto", which is empty. zero: whether a number may be 0."""
        value = self.content.get(key, "auto")
        if value == "auto":
            return ()
        values = value if isinstance(value, list) and value else [value]
        if not all(is_number(number) and (0 < number < math.inf or (zero and number == 0)) for number in values):
            least = "numbers of at least 0" if zero else "positive numbers"
            self.fail(f'{key} must be "auto", or one or several {least}', key)
        return tuple(float(number) for number in values)

    def range(self, kind: str) -> tuple[Any, Any] | None:
        value = self.content.get("range")
        if value is None:
            return None
        fits = {"number": is_number, "date": lambda part: isinstance(part, date)}.get(kind)
        if fits is None:
            self.fail(f"a {kind} has no range", "range")
        if isinstance(value, list):  # the time of day and its zone do not matter
            value = [part.date() if isinstance(part, datetime) else part for part in value]
        if not (isinstance(value, list) and len(value) == 2 and all(map(fits, value)) and value[0] <= value[1]):
            self.fail(f"range must be [lowest, highest], two {kind}s in order", "range")
        return value[0], value[1]

    def _required(self, key: str, default: Any) -> Any:
        value = self.content.get(key, default)
        if value is None:
            self.fail(f"{key} is missing")
        return value

    def fail(self, problem: str, key: str = "", at: At | None = None) -> NoReturn:
        """Raise StudyError at a key of this table, or of the table `at`."""
        at, lines = self._at if at is None else at, self._lines
        line = lines.get((*at, key)) or lines.get((*at, "")) or lines.get((*at[:1], "")) or 1
        place = f"[{'.'.join(at)}] " if at else ""
        raise StudyError(f"{place}{problem}", self._where, line)


def parse_toml(source: bytes, where: str) -> TomlTable:
    """The content of a TOML file; `where` is its name. Raises StudyError with the line."""
    try:
        text = source.decode("utf-8")
    except UnicodeDecodeError:
        raise StudyError("it is not UTF-8 text; save it as UTF-8", where) from None
    try:
        return TomlTable(tomllib.loads(text), where, _lines_of(text))
    except RecursionError:
        raise StudyError("it has too many brackets inside each other", where) from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"(.*) \(at line (\d+), column \d+\)", str(error))
        line = int(found[2]) if found else len(text.splitlines())
        if re.search(r"overwrite|twice|redefine|[Dd]uplicate", str(error)):
            raise StudyError(_TWICE, where, line) from None
        reason = (found[1] if found else str(error).removesuffix(" (at end of document)")).rstrip(".")
        raise StudyError(f"{_NOT_TOML} (the parser says: {reason})", where, line) from None


def to_toml(value: Any) -> str:
    """A text, a number, a date or a list of them as TOML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_toml, value))}]"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
    if isinstance(value, int):
        return str(value)
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in escaped) + '"'


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _lines_of(text: str) -> dict[tuple[str, ...], int]:
    """The line of each table, with an empty last name, and of each key."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            parts = re.findall(r'"([^"]+)"|\'([^\']+)\'|([^.\s"\']+)', header[1])
            table = tuple(next(filter(None, part)) for part in parts)
            lines.setdefault((*table, ""), number)
            lines.setdefault((*table[:-1], table[-1]), number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, next(filter(None, key.groups()))), number)
    return lines
