"""What Lanecheck needs to know of a kernel: the :class:`Subject` protocol.

A subject describes its inputs as data (:class:`Tensor`), so that the harness owns every byte around
them: values, strides, offsets, guards and poison. A compiled subject has a build recipe and launches
out of a library; a callable one (a torch function, say) has none and works on the arrays directly.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.util
import math
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from lanecheck.build import Recipe, digests, tree
from lanecheck.errors import BadInput, LanecheckError
from lanecheck.order import Order
from lanecheck.tensorcore import TensorCore

Bits = npt.NDArray[Any]
Params = Mapping[str, int | str]
T = TypeVar("T")

#: Bytes from which on a buffer is address space more than memory.
SPARSE = 2**28

_ITEM: Mapping[str, np.dtype[Any]] = {
    "bf16": np.dtype(np.uint16),
    "fp32": np.dtype(np.uint32),
    "byte": np.dtype(np.uint8),
}


class Draw(Protocol):
    """A source of choices: a seeded generator, or hypothesis."""

    def integer(self, low: int, high: int) -> int:
        """An integer in low…high, both included."""

    def choice(self, options: Sequence[T]) -> T:
        """One of ``options``; simpler ones come first."""


@dataclass(frozen=True)
class Tensor:
    """One operand of a launch.

    Attributes:
        name: what messages call it.
        shape: logical shape; two-dimensional ones may have a row stride.
        dtype: ``bf16`` and ``fp32`` are held as bits (uint16, uint32); ``byte`` is scratch.
        role: ``source`` is a value that the launch never sees: the subject derives a ``packed``
            input from it in :meth:`Subject.derive`.
        row_stride: elements between rows, when larger than a row.
        offset: elements between an aligned base and the first element.
        align: bytes the base is aligned to.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Literal["bf16", "fp32", "byte"]
    role: Literal["input", "source", "packed", "output", "workspace"]
    row_stride: int | None = None
    offset: int = 0
    align: int = 16

    @property
    def item(self) -> np.dtype[Any]:
        return _ITEM[self.dtype]

    @property
    def stride(self) -> int:
        return self.row_stride if self.row_stride is not None else math.prod(self.shape[1:])

    @property
    def span(self) -> int:
        """Elements from the aligned base to one past the last element."""
        if 0 in self.shape:
            return self.offset
        rows = self.shape[0] if self.shape else 1
        return self.offset + (rows - 1) * self.stride + math.prod(self.shape[1:])

    def view(self, memory: npt.NDArray[np.uint8]) -> Bits:
        """This tensor's elements inside ``memory``, whose first byte is the aligned base."""
        flat = memory[: self.span * self.item.itemsize].view(self.item)[self.offset :]
        width = math.prod(self.shape[1:])
        strides = (self.stride * self.item.itemsize, self.item.itemsize)
        rows = self.shape[0] if self.shape else 1
        grid = np.lib.stride_tricks.as_strided(flat, (rows, width), strides)
        return grid if len(self.shape) == 2 else grid.reshape(self.shape)

    def windows(self, memory: npt.NDArray[np.uint8]) -> list[Bits]:
        """All elements inside ``memory``, gaps included; of a tensor whose rows lie gigabytes apart, its
        rows and what follows each within 64 elements."""
        flat = memory[: self.span * self.item.itemsize].view(self.item)
        if flat.nbytes < SPARSE or len(self.shape) != 2:
            return [flat]
        rows, width = self.shape
        reach = min(width + 64, self.stride)
        strides = (self.stride * self.item.itemsize, self.item.itemsize)
        first = np.lib.stride_tricks.as_strided(flat[self.offset :], (rows - 1, reach), strides)
        return [flat[: self.offset], first, flat[-width:]]


@dataclass(frozen=True)
class Buffer:
    """Where a tensor lies during a launch: its address, and on the host its elements."""

    address: int
    elements: Bits | None = None


@dataclass(frozen=True)
class Product:
    """A matrix product inside a launch: ``output[m, n] = Σ_k x[m, k] · w[n, k] + bias[n]``.

    Attributes:
        output, x, w, bias: names of tensors; there may be no bias.
        plain: the output is this sum, rounded once. Otherwise an epilogue makes more of it.
    """

    output: str
    x: str
    w: str
    bias: str | None = None
    plain: bool = True


class Subject(Protocol):
    """A kernel under test. Inherit from it: what has a body here need not be written.

    Attributes:
        name: one word, the first of every case line.
        recipe: how to compile it, or None for a callable.
        faults: folder of its fault catalogue, or None.
        instructions: regular expressions, each matched by some SASS instruction of every kernel.
    """

    name: str
    recipe: Recipe | None = None
    faults: Path | None = None
    instructions: Sequence[str] = ()

    def draw(self, draw: Draw) -> dict[str, int | str]:
        """Draw the subject's own axes of a case."""
        ...

    def tensors(self, params: Params) -> list[Tensor]:
        """Every operand of the launch. Raises BadInput for parameters outside the domain."""
        ...

    def terms(self, params: Params) -> int:
        """How many products and addends one output element sums."""
        ...

    def launch(
        self,
        library: ctypes.CDLL | None,
        params: Params,
        buffers: Mapping[str, Buffer],
        stream: int,
    ) -> str | None:
        """Run the kernel once. Returns what went wrong at launch, or None.

        An exception is what went wrong, too: the case fails, and can be replayed. One of any other method is
        a mistake in the description, for which no kernel is to blame: it ends the run.
        """
        ...

    def reference(
        self, params: Params, inputs: Mapping[str, Bits]
    ) -> dict[str, npt.NDArray[np.float64]]:
        """The outputs in float64."""
        ...

    def derive(self, params: Params, inputs: Mapping[str, Bits]) -> dict[str, Bits]:
        """The ``packed`` tensors, computed from the inputs."""
        return {}

    def products(self, params: Params) -> Sequence[Product]:
        """The matrix products that the outputs are made of, if this is such a kernel."""
        return ()

    def predict(
        self, params: Params, inputs: Mapping[str, Bits], core: TensorCore
    ) -> dict[str, Bits] | None:
        """The outputs' bits on a device with this tensor core, or None if the order is not declared."""
        return None

    def order(self, params: Params) -> Order | None:
        """The order in which every product of the launch is summed, if the subject declares it."""
        return None

    def kernel_of(self, params: Params) -> tuple[int | str, ...]:
        """What tells the ways through the compiled code apart: which kernel runs, on which path.

        Checkers too slow for a campaign run a case of every way; see :mod:`lanecheck.covering`.
        """
        return ()

    def exposed(self, params: Params) -> Params | None:
        """The launch whose outputs are the FP32 sums that this one makes its outputs of, bit for bit, if
        it is another. Only asked of a subject that declares its order."""
        return None

    def finish(
        self, params: Params, sums: Mapping[str, npt.NDArray[np.float32]]
    ) -> dict[str, Bits]:
        """The outputs' bits from those sums ``[M, N]``, by the outputs of :meth:`exposed`: rounding and
        epilogue."""
        raise NotImplementedError

    def resized(
        self, params: Params, m: int | None = None, n: int | None = None, k: int | None = None
    ) -> Params | None:
        """The same launch with other sizes, if the subject claims that every element keeps its bits.

        The claim: they follow from the element's own token and row, wherever those stand and whatever
        stands beside them (``m``, ``n``), and zeros after the last k (``k``) change nothing. None
        where it is not made, as it is not by default.
        """
        return None


def title(params: Params) -> str:
    """``M=1 N=6144 K=4096``; every parameter, where these are not the subject's axes."""
    axes = [axis for axis in "mnk" if axis in params]
    return " ".join(f"{axis.upper()}={params[axis]}" for axis in axes) or whole_title(params)


def whole_title(params: Params) -> str:
    """Every parameter, ``M=1 NW=4``."""
    return " ".join(f"{name.upper()}={value}" for name, value in params.items())


def load(reference: str) -> Subject:
    """Import a subject.

    Args:
        reference: ``module:ATTRIBUTE``, or ``FILE.py:ATTRIBUTE`` with a path as seen from the current folder.

    Raises:
        BadInput: if there is no such thing, or it is no subject.
    """
    module, attribute = _place(reference), reference.rpartition(":")[2]
    try:
        found = _module(reference)
    except LanecheckError:
        raise
    except (Exception, SystemExit) as error:
        raise BadInput(f"cannot import subject '{reference}': {_said(error)}") from error
    if not hasattr(found, attribute):
        raise BadInput(f"module '{module}' has no '{attribute}'")
    subject: Subject = getattr(found, attribute)
    if Subject not in type(subject).__mro__:
        kind = "class" if isinstance(subject, type) else type(subject).__name__
        raise BadInput(
            f"'{reference}' is a {kind}, not an object whose class inherits from "
            "lanecheck.subject.Subject: see what lanecheck init writes"
        )
    return subject


def file_of(reference: str) -> Path | None:
    """The file that a reference of the form ``FILE.py:ATTRIBUTE`` names; None for one of the other form.

    Raises:
        BadInput: if it is of neither.
    """
    place = _place(reference)
    return Path(place).resolve() if place.endswith(".py") else None


def _place(reference: str) -> str:
    if not re.fullmatch(r"(.+\.py|\w+(\.\w+)*):\w+", reference):
        raise BadInput(
            f"subject '{reference}' is not of the form module:ATTRIBUTE or FILE.py:ATTRIBUTE"
        )
    return reference.rpartition(":")[0]


def origin(reference: str) -> Path | None:
    """Of a loaded reference, its file; or that of its top package, ``__init__.py``, if this has one."""
    if file := file_of(reference):
        return file
    top = sys.modules.get(reference.partition(":")[0].partition(".")[0])
    return Path(str(top.__file__)).resolve() if top and top.__file__ else None


def sources(reference: str, subject: Subject) -> dict[str, str]:
    """Digests of the files of a subject's package; or of its module's only one, and of the other modules
    below this one's folder that are loaded by now.

    Without those below the folder that its library is compiled from, unless the subject itself lies there.
    """
    file = origin(reference)
    if file is None:
        return {}
    home = file.parent
    single = file.name != "__init__.py"
    found = digests(home, sorted({Path(file.name), *_loaded(home)})) if single else tree(home)
    compiled = subject.recipe.root.resolve() if subject.recipe else None
    if compiled is None or home.is_relative_to(compiled):
        return found
    return {name: each for name, each in found.items() if compiled not in (home / name).parents}


def _loaded(folder: Path) -> set[Path]:
    """The files of loaded modules that lie below a folder, by whatever links they are reached, relative to
    it; without Lanecheck's own and those of installed packages."""
    named = [getattr(module, "__dict__", {}).get("__file__") for module in [*sys.modules.values()]]
    files = [Path(name).absolute() for name in named if isinstance(name, str)]
    above = {parent for file in files for parent in file.parents}
    homes = [each for each in above if each.resolve() == folder]
    found = {file.relative_to(home) for home in homes for file in files if home in file.parents}
    return {name for name in found if (folder / name).is_file() and not _foreign(folder, name)}


def _foreign(folder: Path, name: Path) -> bool:
    """Whether a file below a folder is Lanecheck's, an installed package's, or of the Python that runs."""
    prefixes = {Path(each).resolve() for each in (sys.prefix, sys.base_prefix)}
    homes = {Path(__file__).parent.resolve(), *(prefixes - {folder, *folder.parents})}
    file = folder / name
    installed = {"site-packages", "dist-packages"} & {*file.parts}
    return bool(installed or homes & {*file.parents})


def _module(reference: str) -> ModuleType:
    """The module that a reference names, imported if it is not yet.

    A file is imported from where it lies, under a name of its own, as another module may have its stem; what
    lies beside it is found by its imports.
    """
    file = file_of(reference)
    folder = str(file.parent) if file else ""  # the current one, whoever started Python
    if folder not in sys.path:
        sys.path.append(folder)
    if file is None:
        return importlib.import_module(reference.partition(":")[0])
    name = f"lanecheck_subject_{hashlib.sha256(str(file).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    if not file.is_file():
        raise BadInput(f"subject '{reference}': there is no file {_place(reference)}")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _said(error: BaseException) -> str:
    """What went wrong in an import, and the line of the first file that was imported."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    message = " ".join(str(error).split())
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename not in _IMPORTING and not frame.filename.startswith("<frozen importlib"):
            return f"{frame.filename}:{frame.lineno}: {type(error).__name__}: {message}"
    missing = isinstance(error, ModuleNotFoundError)
    return f"{message}; install the package that holds it" if missing else message


_IMPORTING = (__file__, importlib.__file__)


def recipe_of(subject: Subject) -> Recipe:
    """How the subject is compiled.

    Raises:
        BadInput: if it is a callable.
    """
    if subject.recipe is None:
        raise BadInput(
            f"subject '{subject.name}' is a callable: there is nothing to build; "
            "run lanecheck fuzz on it, or lanecheck compare --device host"
        )
    return subject.recipe


def faults_of(subject: Subject) -> Path:
    """The subject's fault catalogue.

    Raises:
        BadInput: if it has none.
    """
    if subject.faults is None:
        raise BadInput(f"subject '{subject.name}' has no fault catalogue")
    return subject.faults
