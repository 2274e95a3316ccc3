"""What a library executes, on the host and on the GPU, as digests that comments, line numbers and folders
leave alone; but for code that asks for its own line, as that for host execution does.
"""

from __future__ import annotations

import hashlib
import re
import struct
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from lanecheck.build import run
from lanecheck.errors import CannotRun
from lanecheck.inspect import stable
from lanecheck.toolchain import Toolchain

SECTIONS = (
    *(".init", ".text", ".fini", ".rodata", ".init_array", ".data", ".data.rel.ro", ".tdata"),
    *(".dynsym", ".dynstr", ".rela.plt", ".rela.dyn"),
)
"""Code and data, and which functions they are bound to when loaded. Not the GPU's code (``.nv_fatbin``),
which has a digest of its own; nor debug information and the build's id, which are not executed."""

# Of ELF64. The file's header: where those of its sections are, their size and number, whose has the names.
_HEADER = struct.Struct("<40xQ10xHHH")
_SECTION = struct.Struct("<IIQQQQ")  # name, type, flags, address, offset, size
_NOBITS = 8  # the type of a section that is not in the file
_RELOCATION = struct.Struct("<Q16x")  # what address it sets

_MAGIC = bytes.fromhex("50ed55ba")
_FATBIN = struct.Struct("<6xHQ")  # size of its header, and of what follows it
_NOT_EXECUTED = re.compile(r"(\.nv\.merc)?(\.rela?)?\.(nv_)?debug_|\.note")  # of a cubin


class _Section(NamedTuple):
    name: str
    address: int
    size: int
    content: bytes


def digest(library: Path) -> str:
    """SHA-256 of :data:`SECTIONS`.

    Raises:
        CannotRun: if the library is not a little-endian ELF file of 64 bits.
    """
    found = _of_library(library)
    if {".rela.dyn", ".nvFatBinSegment"} <= found.keys():
        found[".rela.dyn"] = _outside(found[".nvFatBinSegment"], found[".rela.dyn"])
    return _digest(found[name] for name in SECTIONS if name in found)


def gpu_digest(library: Path, toolchain: Toolchain) -> str:
    """SHA-256 of the cubins: of code, constants, and what governs a launch, like bounds and clusters, which
    the instructions need not show.

    PTX counts as it is, since what the driver makes of it is not known: if it was compiled with
    ``-lineinfo``, so do line numbers and folders.

    Raises:
        CannotRun: if the library is not a little-endian ELF file of 64 bits, or cuobjdump cannot read it.
    """
    fatbins = _of_library(library).get(".nv_fatbin")
    found = [_of_fatbin(each, toolchain) for each in _fatbins(fatbins.content if fatbins else b"")]
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()


def _of_library(library: Path) -> dict[str, _Section]:
    image = library.read_bytes()
    if image[:6] != b"\x7fELF\x02\x01":
        raise CannotRun(f"{library} is not a little-endian ELF file of 64 bits")
    return {each.name: each for each in _sections(image)}


def _sections(image: bytes) -> Iterator[_Section]:
    start, size, count, names_at = _HEADER.unpack_from(image)
    headers = [_SECTION.unpack_from(image, start + size * index) for index in range(count)]
    names = headers[names_at][4]
    for name, kind, _, address, offset, length in headers:
        first = names + name
        content = b"" if kind == _NOBITS else image[offset : offset + length]
        yield _Section(image[first : image.index(b"\0", first)].decode(), address, length, content)


def _outside(section: _Section, relocations: _Section) -> _Section:
    """The relocations without those in a section. Where a fat binary lies depends on the debug information in
    those before it."""
    each, inside = _RELOCATION.size, range(section.address, section.address + section.size)
    entries = (
        relocations.content[at : at + each] for at in range(0, len(relocations.content), each)
    )
    kept = (entry for entry in entries if _RELOCATION.unpack(entry)[0] not in inside)
    return relocations._replace(content=b"".join(kept))


def _fatbins(content: bytes) -> Iterator[bytes]:
    """The fat binaries of a library, which has one for each source file. cuobjdump, asked for all of them at
    once, writes one over another that was compiled from a file of the same name."""
    at = content.find(_MAGIC)
    while at >= 0:
        header, size = _FATBIN.unpack_from(content, at)
        end = at + header + size
        yield content[at:end]
        at = content.find(_MAGIC, end)


def _of_fatbin(fatbin: bytes, toolchain: Toolchain) -> str:
    """What it holds: archs and the options for assembling PTX, digests of cubins, and PTX."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "fatbin").write_bytes(fatbin)
        command = [str(toolchain.cuobjdump), "-xelf", "all", "-xptx", "all", "fatbin"]
        status, said, _ = run(command, work, toolchain.environment)
        if status:
            raise CannotRun(f"cuobjdump cannot read a fat binary: {said.strip()}")
        cubins = [file.read_bytes() for file in sorted(work.glob("*.cubin"))]
        ptx = [file.read_text("utf-8") for file in sorted(work.glob("*.ptx"))]
    held = re.findall(r"\.(sm_\w+\.(?:cubin|ptx).*)", said)
    return "\n".join((*held, *map(_of_cubin, cubins), *map(stable, ptx)))


def _of_cubin(cubin: bytes) -> str:
    return _digest(each for each in _sections(cubin) if not _NOT_EXECUTED.match(each.name))


def _digest(sections: Iterable[_Section]) -> str:
    total = hashlib.sha256()
    for each in sections:
        total.update(f"{stable(each.name)} {each.size}\n".encode())
        total.update(stable(each.content.decode("latin-1")).encode("latin-1"))
    return total.hexdigest()
