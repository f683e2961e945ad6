"""Find data files, their formats, and the columns that their paths define.

A folder stands for the data files in it; `key=value` in a path is a column (Hive partitioning). The first bytes of a
file must match the format that its name promises.
"""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

from dmtrl.exceptions import InputError, NotAModelError, Setting

_EXTENSIONS = {
    "csv": (".csv", ".csv.gz", ".tsv", ".tsv.gz"),
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".feather", ".ipc"),
    "libsvm": (".svm", ".libsvm", ".svmlight"),
    "npz": (".npz",),
}
FORMATS = {extension: format for format, extensions in _EXTENSIONS.items() for extension in extensions}
_MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow", b"FEA1": "feather1", b"PK\x03\x04": "zip", b"\x1f\x8b": "gzip"}
_DESCRIPTIONS = {
    "csv": "a CSV file",
    "parquet": "a Parquet file",
    "arrow": "an Arrow file",
    "libsvm": "a libsvm file",
    "npz": "a numpy archive",
    "zip": "a zip archive",
    "gzip": "a gzip file",
    "feather1": "a Feather file of version 1",
    "binary": "a binary file",
}
_IS_MODEL = "is a dmtrl model, not data; pass data files"
UTF8 = "utf-8-sig"  # with or without a byte order mark
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"  # how Hive writes a key without a value


@dataclass(frozen=True)
class DataFile:
    """One file. `stem` is its name without the extension; `constants` are columns that its path defines.

    encoding: of its text, as Python names it.
    """

    path: Path
    format: str
    stem: str
    constants: dict[str, str | None] = field(default_factory=dict)
    encoding: str = UTF8


def find_files(paths: Sequence[str | Path], encoding: str | None = None) -> list[DataFile]:
    """The data files among files and folders, in the given order; those of a folder are sorted by name.

    encoding: of CSV files; None: UTF-8.
    """
    if encoding is not None:
        _check_encoding(encoding)
    files: list[DataFile] = []
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"there is no file {path}; check its name and folder")
        found = _files_in(path) if path.is_dir() else [path]
        if not found:
            raise FileNotFoundError(f"there is no data file in the folder {path}; supported: {', '.join(FORMATS)}")
        files += map(_data_file, found)
    formats = sorted({file.format for file in files})
    if len(formats) > 1:
        raise ValueError(f"the files have several formats ({', '.join(formats)}); pass files of one format")
    if encoding is not None:
        if formats != ["csv"]:
            raise ValueError(f"an encoding is for CSV files, but {files[0].path} is {_DESCRIPTIONS[files[0].format]}")
        files = [replace(file, encoding=encoding) for file in files]
    for file in files:
        _check_content(file)
    return files


def _check_encoding(name: str) -> None:
    try:
        "a".encode(name)
    except (LookupError, UnicodeError, ValueError):
        known = "utf-8, latin-1, cp1252 (Windows), utf-16"
        raise ValueError(f"there is no text encoding {name!r}; well-known ones are {known}") from None


def _files_in(folder: Path) -> list[Path]:
    """Data files below a folder, without those that start with a dot or an underscore, such as _SUCCESS."""
    return sorted(
        file
        for file in folder.rglob("*")
        if _extension(file) and file.is_file() and not any(p[0] in "._" for p in file.relative_to(folder).parts)
    )


def _extension(path: Path) -> str | None:
    name = path.name.lower()
    return max((extension for extension in FORMATS if name.endswith(extension)), key=len, default=None)


def _data_file(path: Path) -> DataFile:
    extension = _extension(path)
    if extension is None:
        if _detect(path) == "model":
            raise ValueError(f"{path} {_IS_MODEL}")
        raise ValueError(f"{path} has an unsupported extension; supported: {', '.join(FORMATS)}")
    keys = (name.split("=", 1) for name in path.parts[:-1] if "=" in name)
    constants = {unquote(key): None if value == _HIVE_NULL else unquote(value) for key, value in keys}
    return DataFile(path, FORMATS[extension], path.name[: -len(extension)], constants)


def _detect(path: Path) -> str:
    """What the first bytes look like: a format, "text", "utf-16", "binary" or "empty"."""
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


def check_model(path: Path) -> None:
    """Raise FileNotFoundError or NotAModelError unless a file starts like a saved model. It may still be truncated."""
    if not path.exists():
        raise FileNotFoundError(f"there is no model file {path}; 'dmtrl fit' writes one")
    if not path.is_file() or _detect(path) not in ("model", "empty"):  # load says what is wrong with an empty file
        raise NotAModelError(str(path))


def _is_utf16(head: bytes) -> bool:
    """Recognized by its byte order mark, or by the zero bytes that ASCII letters have in UTF-16."""
    return head[:2] in (b"\xff\xfe", b"\xfe\xff") or (
        len(head) > 3 and (b"\0" in head) and any(set(head[i::2]) == {0} and 0 not in head[1 - i :: 2] for i in (0, 1))
    )


def _check_content(file: DataFile) -> None:
    """Raise ValueError if a file is not what its name says."""
    kind = _detect(file.path)
    if kind == "empty":
        raise ValueError(f"{file.path} is empty")
    if kind == "model":
        raise ValueError(f"{file.path} {_IS_MODEL}")
    if file.encoding != UTF8 and kind in ("utf-16", "binary"):
        return  # the reader reports what is wrong
    if kind == "utf-16":
        raise InputError(f"{file.path} is UTF-16 text; save it as UTF-8, or pass ", Setting("encoding", "utf-16"))
    compressed = file.path.name.lower().endswith(".gz")
    expected = {"csv": "gzip" if compressed else "text", "libsvm": "text", "npz": "zip"}.get(file.format, file.format)
    if kind == expected or (file.format == "npz" and zipfile.is_zipfile(file.path)):
        return
    if file.format in ("parquet", "arrow") and kind in ("binary", "text"):
        raise ValueError(f"{file.path} is not {_DESCRIPTIONS[file.format]}, or is damaged; recreate it")
    named = "a compressed CSV file" if compressed else _DESCRIPTIONS[file.format]
    raise ValueError(
        f"{file.path} has the extension of {named} but is {_DESCRIPTIONS.get(kind, 'plain text')}; rename it"
    )
