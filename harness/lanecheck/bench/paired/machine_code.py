"""What the host executes of a library, as a digest that comments, line numbers and folders leave alone."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path

from lanecheck.errors import CannotRun

SECTIONS = (".init", ".text", ".fini", ".rodata", ".init_array", ".data", ".data.rel.ro", ".tdata")
"""Code and data. Not the GPU's code (``.nv_fatbin``), of which the SASS has a digest of its own; nor
debug information, symbols and the build's id, which are not executed."""

# Of ELF64. The file's header: where those of its sections are, their size and number, whose has the names.
_HEADER = struct.Struct("<40xQ10xHHH")
_SECTION = struct.Struct("<IIQQQQ")  # name, type, flags, address, offset, size


def digest(library: Path) -> str:
    """SHA-256 of the contents of :data:`SECTIONS`.

    Raises:
        CannotRun: if the library is not a little-endian ELF file of 64 bits.
    """
    image = library.read_bytes()
    if image[:6] != b"\x7fELF\x02\x01":
        raise CannotRun(f"{library} is not a little-endian ELF file of 64 bits")
    total = hashlib.sha256()
    for name, content in _sections(image):
        if name in SECTIONS:
            total.update(f"{name} {len(content)}\n".encode() + content)
    return total.hexdigest()


def _sections(image: bytes) -> Iterator[tuple[str, bytes]]:
    start, size, count, names_at = _HEADER.unpack_from(image)
    headers = [_SECTION.unpack_from(image, start + size * index) for index in range(count)]
    names = headers[names_at][4]
    for name, _, _, _, offset, length in headers:
        first = names + name
        yield image[first : image.index(b"\0", first)].decode(), image[offset : offset + length]
