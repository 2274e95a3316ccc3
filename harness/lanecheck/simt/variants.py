"""How to compile a kernel and the runtime, and how to link them, in each variant."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

INCLUDE = Path(__file__).parent / "include"
RUNTIME = Path(__file__).parent / "runtime.cpp"

# No contraction: the bits are those of separate operations. No merged call sites: two mma of a
# divergent branch must stay two. Sections: see shared.ld. Unique symbols would be shared by all
# libraries of a process.
_KERNEL = (
    "-x", "c++", "-std=c++17", "-O1", "-g1", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing",
    "-fno-gnu-unique", "-fno-tree-tail-merge", "-fno-crossjumping", "-fdata-sections",
    "-fvisibility-inlines-hidden", "-Wno-unknown-pragmas",
)  # fmt: skip
_RUNTIME = (
    "-std=c++17", "-O3", "-g1", "-fPIC", "-ffp-contract=off", "-fno-gnu-unique",
    "-fvisibility=hidden", "-fvisibility-inlines-hidden",
    f"-I{INCLUDE}",
)  # fmt: skip
_LINK = ("-shared", "-Wl,-Bsymbolic", f"-Wl,-T,{INCLUDE.parent / 'shared.ld'}")
_SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")

# What only g++ takes, and what clang++ says instead: it neither merges tails that contain calls to
# another file at -O1 nor makes unique symbols.
_CLANG: Mapping[str, tuple[str, ...]] = {
    "-fno-gnu-unique": (),
    "-fno-tree-tail-merge": (),
    "-fno-crossjumping": (),
    "-fsanitize-sections=simt_shared": (),
    "--param=tsan-distinguish-volatile=1": ("-mllvm", "-tsan-distinguish-volatile=1"),
}


@dataclass(frozen=True)
class HostVariant:
    """Flags for `g++`, or once :meth:`adapted` for the compiler that is there.

    `preload` and `env` are for the process that loads the library.
    """

    name: str
    compile_flags: tuple[str, ...] = _KERNEL
    runtime_flags: tuple[str, ...] = _RUNTIME
    link_flags: tuple[str, ...] = _LINK
    preload: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def adapted(self, compiler: str) -> HostVariant:
        """The same variant as this compiler spells it: `g++` or `clang++`, by its file's name."""
        if "clang" not in Path(compiler).name:
            return self

        def spelled(flags: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(word for flag in flags for word in _CLANG.get(flag, (flag,)))

        shared = ("-shared-libasan",) if self.preload else ()
        return replace(
            self,
            compile_flags=spelled(self.compile_flags),
            runtime_flags=spelled(self.runtime_flags),
            link_flags=(*spelled(self.link_flags), *shared),
            preload=self.preload and f"libclang_rt.asan-{platform.machine()}.so",
        )

    def environment(self, compiler: str = "g++") -> dict[str, str]:
        """This process's environment, completed for a child that loads such a library."""
        environment = os.environ | dict(self.env)
        if preload := self.adapted(compiler).preload:
            command = [compiler, f"-print-file-name={preload}"]
            library = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            before = environment.get("LD_PRELOAD")
            environment["LD_PRELOAD"] = f"{library.strip()}:{before}" if before else library.strip()
        return environment


VARIANTS: Mapping[str, HostVariant] = MappingProxyType(
    {
        "plain": HostVariant("plain"),
        # Compiled for ThreadSanitizer, linked without it: runtime.cpp has the functions it calls.
        "hooks": HostVariant(
            "hooks",
            compile_flags=(*_KERNEL, "-fsanitize=thread", "--param=tsan-distinguish-volatile=1"),
            runtime_flags=(*_RUNTIME, "-DSIMT_RACES"),
        ),
        "asan": HostVariant(
            "asan",
            compile_flags=(
                *_KERNEL, *_SANITIZERS, "-fsanitize-sections=simt_shared",
                "-fno-omit-frame-pointer",
            ),
            runtime_flags=(*_RUNTIME, *_SANITIZERS, "-fno-omit-frame-pointer", "-O1"),
            link_flags=(*_LINK, *_SANITIZERS),
            preload="libasan.so",
            env=MappingProxyType(
                {
                    "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0",
                    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
                }
            ),
        ),
    }
)  # fmt: skip
