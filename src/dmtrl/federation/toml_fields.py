"""Fields of a TOML file, checked one by one. Every error names the line."""

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


class TomlFields:
    """Reads fields of tables. `where`: the name of the file; `text`: its content."""

    def __init__(self, where: str, text: str):
        self._where, self._lines = where, _lines_of(text)

    def known(self, at: At, table: Any, known: Sequence[str]) -> None:
        if not isinstance(table, dict):
            self.fail(f"{at[-1]} must be a table such as [{at[-1]}]", at[:-1], at[-1])
        for key in table:
            if key not in known:
                close = nearest(key, known)
                hint = f"did you mean {close!r}?" if close else f"the keys here are {', '.join(known)}"
                self.fail(f"unknown key {key!r}; {hint}", at, key)

    def text(self, at: At, table: Mapping[str, Any], key: str, default: str | None = None) -> str:
        value = table.get(key, default)
        if value is None:
            self.fail(f"{key} is missing", at)
        if not isinstance(value, str):
            self.fail(f"{key} must be text in quotes, got {value!r}", at, key)
        return str(value)

    def texts(
        self, at: At, table: Mapping[str, Any], key: str, default: tuple[str, ...] | None = None
    ) -> tuple[str, ...]:
        value = table.get(key, default)
        if value is None:
            self.fail(f"{key} is missing", at)
        if not isinstance(value, list | tuple) or not all(isinstance(part, str) and part for part in value):
            self.fail(f'{key} must be a list of texts such as ["0", "1"], got {value!r}', at, key)
        if len(set(value)) < len(value):
            self.fail(f"{key} holds a value twice", at, key)
        return tuple(value)

    def choice(
        self,
        at: At,
        table: Mapping[str, Any],
        key: str,
        choices: Sequence[str],
        default: str | None = None,
    ) -> str:
        value = self.text(at, table, key, default)
        if value not in choices:
            self.fail(f"{key} must be {' or '.join(map(repr, choices))}, got {value!r}", at, key)
        return value

    def whole(self, at: At, table: Mapping[str, Any], key: str, default: int, least: int) -> int:
        value = table.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.fail(f"{key} must be an integer of at least {least}, got {value!r}", at, key)
        return int(value)

    def numbers(self, at: At, table: Mapping[str, Any], key: str, above: float) -> tuple[float, ...]:
        """A number, a list of numbers, or "auto", which is empty."""
        value = table.get(key, "auto")
        if value == "auto":
            return ()
        values = value if isinstance(value, list) and value else [value]
        if not all(is_number(number) and above < number < float("inf") for number in values):
            least = "positive numbers" if above == 0 else "numbers of at least 0"
            self.fail(f'{key} must be "auto", or one or several {least}', at, key)
        return tuple(float(number) for number in values)

    def range(self, at: At, table: Mapping[str, Any], kind: str) -> tuple[Any, Any] | None:
        value = table.get("range")
        if value is None:
            return None
        fits = {"number": is_number, "date": lambda part: isinstance(part, date)}.get(kind)
        if fits is None:
            self.fail(f"a {kind} has no range", at, "range")
        if isinstance(value, list):  # the time of day and its zone do not matter
            value = [part.date() if isinstance(part, datetime) else part for part in value]
        if not (isinstance(value, list) and len(value) == 2 and all(map(fits, value)) and value[0] <= value[1]):
            self.fail(f"range must be [lowest, highest], two {kind}s in order", at, "range")
        return value[0], value[1]

    def fail(self, problem: str, at: At, key: str = "") -> NoReturn:
        line = self._lines.get((*at, key)) or self._lines.get((*at, "")) or self._lines.get((*at[:1], "")) or 1
        place = f"[{'.'.join(at)}] " if at else ""
        raise StudyError(f"{place}{problem}", self._where, line)


def parse_toml(source: bytes, where: str) -> tuple[str, dict[str, Any]]:
    """The text and the content of a TOML file; `where` is its name. Raises StudyError with the line."""
    try:
        text = source.decode("utf-8")
    except UnicodeDecodeError:
        raise StudyError("it is not UTF-8 text; save it as UTF-8", where) from None
    try:
        return text, tomllib.loads(text)
    except RecursionError:
        raise StudyError("it has too many brackets inside each other", where) from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"(.*) \(at line (\d+), column \d+\)", str(error))
        line = int(found[2]) if found else len(text.splitlines())
        if re.search(r"overwrite|twice|redefine|[Dd]uplicate", str(error)):
            raise StudyError(_TWICE, where, line) from None
        reason = (found[1] if found else str(error).removesuffix(" (at end of document)")).rstrip(".")
        raise StudyError(f"{_NOT_TOML} (the parser says: {reason})", where, line) from None


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
