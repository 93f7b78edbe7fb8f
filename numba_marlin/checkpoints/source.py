"""A checkpoint's files as Hugging Face lays them out, opened and checked: the tensors, the file
that holds each, and the configuration.

A directory holds ``*.safetensors`` and, if there are several, one ``*.safetensors.index.json``
whose weight_map gives the file of each tensor. Names in it must be those of files in the directory
itself; anything with a path raises CheckpointError and is not opened. (A file of weights may be a
link; of the small files see ``companions``.) Index and files must name the same tensors, each once.
``config.json`` with quantization_config, or ``quantize_config.json``, say how the weights were
quantised; beside a single file they are read too. What a file says in its own metadata, as those
that this package writes do, counts more.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from numba_marlin.checkpoints import skipped
from numba_marlin.checkpoints.companions import open_regular
from numba_marlin.checkpoints.configuration import stated_format, stated_quantization
from numba_marlin.checkpoints.errors import CheckpointError
from numba_marlin.checkpoints.safetensors_file import Entry, SafetensorsFile, parse_json

JSON_LIMIT = 64_000_000
CONFIG = "config.json"
INDEX = ".safetensors.index.json"


class Source:
    """path; files: name -> SafetensorsFile; entries: tensor -> Entry; config: contents of
    config.json; quantization: the first quantisation settings that are found, of a single file in
    the file, of a directory in its configuration. Both are empty where there are none."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        if not self.path.exists():
            raise CheckpointError(f"{self.path}: no such file or directory")
        self.directory = self.path if self.path.is_dir() else self.path.parent
        if self.path.is_dir():
            names, weight_map = _shards(self.path)
        else:
            if not self.path.is_file():
                raise CheckpointError(f"{self.path}: must be a regular file or a directory")
            names, weight_map = [self.path.name], None
        self.files = {name: SafetensorsFile(self.directory / name) for name in names}
        self._home: dict[str, SafetensorsFile] = {}
        for file in self.files.values():
            for tensor in file.entries:
                if tensor in self._home:
                    raise CheckpointError(
                        f"{file.path}: tensor {tensor!r} is in {self._home[tensor].path.name} too,"
                        " must be in one file"
                    )
                self._home[tensor] = file
        self.entries: dict[str, Entry] = {
            name: file.entries[name] for name, file in self._home.items()
        }
        if weight_map is not None:
            _check_map(self.path, weight_map, self._home)
        self.config = _json_of(self.directory / CONFIG)
        self.beside = _beside(self.directory, self.config)
        self._own = {name: _own(file) for name, file in self.files.items()}
        statements = [*self._own.values(), *self.beside.values()]
        if self.path.is_dir():
            statements = [*self.beside.values(), *self._own.values()]
        self.quantization = next((each for each in statements if each), {})

    def format_of(self, file: SafetensorsFile) -> str | None:
        """The format that a file says it is of, in its own metadata; else the one that its
        directory says; None if nobody says one that this package knows."""
        own = stated_format(self._own[file.path.name])
        return own or next(iter(_formats(self.beside).values()), None)

    def contradictions(self) -> list[str]:
        """What files and configurations say differently, one sentence each; the first that a
        sentence names is believed."""
        found = []
        for name, said in [*self._own.items(), *list(self.beside.items())[:1]]:
            form = stated_format(said)
            for other, theirs in _formats(self.beside).items():
                if form is not None and theirs != form:
                    found.append(f"{name} says that it holds {form!r}, {other} says {theirs!r}")
        return found

    @property
    def excepted(self) -> list[str]:
        """The modules that any of the configurations excepts (``skipped.said``)."""
        each = [*self.beside.values(), *self._own.values()]
        return list(dict.fromkeys(name for said in each for name in skipped.said(said)))

    def array(self, name: str) -> np.ndarray:
        return self._home[name].array(name)

    def file_of(self, name: str) -> SafetensorsFile:
        return self._home[name]


def _own(file: SafetensorsFile) -> dict:
    """The quantisation settings in a file's metadata; {} if there are none."""
    text = file.metadata.get("quantization_config")
    if text is None:
        return {}
    value = parse_json(text.encode(), f"{file.path}: quantization_config")
    return value if isinstance(value, dict) else {}


def _beside(directory: Path, config: dict) -> dict[str, dict]:
    """Name of a configuration -> the quantisation settings in it; only those that have any."""
    said = {
        CONFIG: stated_quantization(config),
        "quantize_config.json": _json_of(directory / "quantize_config.json"),
    }
    return {name: each for name, each in said.items() if each}


def _formats(said: dict[str, dict]) -> dict[str, str]:
    """Name -> the format that is stated there, where one is."""
    forms = {name: stated_format(each) for name, each in said.items()}
    return {name: form for name, form in forms.items() if form is not None}


def check_neighbours(target: Path, form: str) -> None:
    """CheckpointError if a configuration beside the file ``target`` says that what lies there is
    of another format than ``form``: programs that read it would misread the file."""
    for name, other in _formats(_beside(target.parent, _json_of(target.parent / CONFIG))).items():
        if other != form:
            raise CheckpointError(
                f"{target}: {target.parent / name} says that the files beside it are of format"
                f" {other!r}, this one would be {form!r} and be misread: choose another directory"
            )


def _json_of(path: Path) -> dict:
    """The object in a JSON file; {} if the file does not exist."""
    if not os.path.lexists(path):
        return {}
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > JSON_LIMIT:
            raise CheckpointError(f"{path}: {size} bytes, must be at most {JSON_LIMIT}")
        text = file.read(size)
    value = parse_json(text, str(path))
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold an object")
    return value


def _shards(directory: Path) -> tuple[list[str], dict | None]:
    """(names of the files, weight_map of the index or None)"""
    indexes = sorted(path.name for path in directory.glob("*" + INDEX))
    if len(indexes) > 1:
        raise CheckpointError(
            f"{directory}: holds {len(indexes)} indexes ({', '.join(indexes[:4])}), must hold one"
        )
    if not indexes:
        names = sorted(path.name for path in directory.glob("*.safetensors"))
        if not names:
            others = sorted(
                path.name
                for path in directory.iterdir()
                if path.suffix in (".bin", ".pt", ".pth", ".gguf")
            )
            hint = (
                f" ({', '.join(others[:3])} are not loaded: a pickle can run code)"
                if others
                else ""
            )
            raise CheckpointError(f"{directory}: holds no .safetensors file{hint}")
        return names, None
    where = directory / indexes[0]
    weight_map = _json_of(where).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{where}: weight_map must be an object, tensor -> file")
    names = []
    for tensor, name in weight_map.items():
        if (
            not isinstance(name, str)
            or name != Path(name).name
            or "\\" in name
            or "\0" in name
            or not name.endswith(".safetensors")
        ):
            raise CheckpointError(
                f"{where}: tensor {tensor!r} is said to be in {name!r}, must be the name of a"
                " .safetensors file in the directory"
            )
        if name not in names:
            names.append(name)
    for name in names:
        if not (directory / name).is_file():
            raise CheckpointError(f"{where}: file {name!r} is missing from the directory")
    return sorted(names), weight_map


def _check_map(directory: Path, weight_map: dict, home: dict[str, SafetensorsFile]) -> None:
    for tensor, name in weight_map.items():
        if tensor not in home or home[tensor].path.name != name:
            raise CheckpointError(
                f"{directory}: the index says that tensor {tensor!r} is in {name!r}, where it"
                " is not"
            )
    for tensor, file in home.items():
        if tensor not in weight_map:
            raise CheckpointError(f"{file.path}: tensor {tensor!r} is not in the index")
