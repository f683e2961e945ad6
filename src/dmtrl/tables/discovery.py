"""Which files are meant, of which format, and what their names say about their rows.

Room: tables. A folder stands for the data files in it; `key=value` in a path is a column (Hive's way of partitioning).
A file is looked at before it is believed: its first bytes must be those of the format that its name promises.
"""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

# how a name ends -> the format
FORMATS = {
    ".csv": "csv",
    ".csv.gz": "csv",
    ".tsv": "csv",
    ".tsv.gz": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".svm": "libsvm",
    ".libsvm": "libsvm",
    ".svmlight": "libsvm",
    ".npz": "npz",
}
_MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow", b"FEA1": "feather1", b"PK\x03\x04": "zip", b"\x1f\x8b": "gzip"}
_IN_WORDS = {
    "csv": "a CSV file",
    "parquet": "a Parquet file",
    "arrow": "an Arrow file",
    "libsvm": "a libsvm file",
    "npz": "a numpy archive",
    "zip": "a zip archive",
    "gzip": "a gzip file",
    "feather1": "a Feather file of version 1",
    "model": "a dmtrl model",
    "binary": "a binary file",
}
_A_MODEL = "is a dmtrl model, not data; give data files (a model and then data: dmtrl predict, dmtrl report)"
_NOTHING = "__HIVE_DEFAULT_PARTITION__"  # Hive's word for a key without a value


@dataclass(frozen=True)
class Part:
    """One file. `constants` are columns that its path gives to all of its rows; `stem` is its name without endings."""

    path: Path
    format: str
    stem: str
    constants: dict[str, str | None] = field(default_factory=dict)


def find_parts(paths: Sequence[str | Path]) -> list[Part]:
    """The data files meant by files and folders, in the order given; those of a folder in the order of their names."""
    parts: list[Part] = []
    for path in map(Path, paths):
        if path.is_dir():
            found = [_part(file) for file in _files_in(path)]
            if not found:
                raise FileNotFoundError(f"there is no data file in the folder {path}; dmtrl reads {readable()}")
            parts += found
        elif not path.exists():
            raise FileNotFoundError(f"there is no file {path}")
        else:
            parts.append(_part(path))
    formats = sorted({part.format for part in parts})
    if len(formats) > 1:
        raise ValueError(f"the files are of several formats ({', '.join(formats)}); give files of one format")
    for part in parts:
        _look_at(part)
    return parts


def readable() -> str:
    """The endings that are read, in words."""
    return ", ".join(FORMATS)


def _files_in(folder: Path) -> list[Path]:
    """Data files below a folder. What starts with a dot or an underscore is somebody's bookkeeping."""
    return sorted(
        file
        for file in folder.rglob("*")
        if _ending(file) and file.is_file() and not any(p[0] in "._" for p in file.relative_to(folder).parts)
    )


def _ending(path: Path) -> str | None:
    name = path.name.lower()
    return max((ending for ending in FORMATS if name.endswith(ending)), key=len, default=None)


def _part(path: Path) -> Part:
    ending = _ending(path)
    if ending is None:
        kind = _looks_like(path)
        if kind == "model":
            raise ValueError(f"{path} {_A_MODEL}")
        raise ValueError(f"{path} has no ending that says how to read it; dmtrl reads {readable()}")
    keys = (name.split("=", 1) for name in path.parts[:-1] if "=" in name)
    constants = {unquote(key): None if value == _NOTHING else unquote(value) for key, value in keys}
    return Part(path, FORMATS[ending], path.name[: -len(ending)], constants)


def _looks_like(path: Path) -> str:
    """What the first bytes say: a format, "text", "utf-16", "binary" or "empty"."""
    with open(path, "rb") as file:
        head = file.read(4096)
    if not head:
        return "empty"
    kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
    if kind == "zip" and b"dmtrl-model.json" in head[:64]:
        return "model"
    if kind is None and _is_utf16(head):
        return "utf-16"
    return kind or ("binary" if b"\0" in head else "text")


def is_model(path: Path) -> bool:
    """Whether a file begins as a saved model does; one that is cut short may still do."""
    return path.is_file() and _looks_like(path) == "model"


def _is_utf16(head: bytes) -> bool:
    """By its mark; without one by the zeros that plain letters have as their other half."""
    return head[:2] in (b"\xff\xfe", b"\xfe\xff") or (
        len(head) > 3 and (b"\0" in head) and any(set(head[i::2]) == {0} and 0 not in head[1 - i :: 2] for i in (0, 1))
    )


def _look_at(part: Part) -> None:
    """Refuse a file that is not what its name says."""
    kind = _looks_like(part.path)
    if kind == "empty":
        raise ValueError(f"{part.path} is empty")
    if kind == "model":
        raise ValueError(f"{part.path} {_A_MODEL}")
    if kind == "utf-16":
        raise ValueError(f"{part.path} is text in UTF-16, as some programs write it; save it as UTF-8")
    compressed = part.path.name.lower().endswith(".gz")
    expected = {"csv": "gzip" if compressed else "text", "libsvm": "text", "npz": "zip"}.get(part.format, part.format)
    if kind == expected or (part.format == "npz" and zipfile.is_zipfile(part.path)):
        return
    if part.format in ("parquet", "arrow") and kind in ("binary", "text"):
        raise ValueError(f"{part.path} is not {_IN_WORDS[part.format]}, or its beginning is lost; write it again")
    named = "compressed CSV" if compressed else _IN_WORDS[part.format]
    raise ValueError(
        f"{part.path} is named as {named} but is {_IN_WORDS.get(kind, 'plain text')}; give it its own ending"
    )
