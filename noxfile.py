#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["nox==2026.10.20"]
# ///
"""Sessions: each prepares an environment and calls the `lanecheck` command of the same name.

`nox -s verify` is the main one. Without nox, `python3 noxfile.py -s verify` fetches it first, into
.nox/. On a machine that brings its own packages (a GPU runner without network),
`python3 -m nox --no-venv -s verify` uses those.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
LOCK = ROOT / "harness" / "requirements.lock"
PROJECTS = (ROOT / "harness" / "pyproject.toml", ROOT / "kernel" / "pyproject.toml")


def _fetch_nox() -> None:
    """Install the pinned nox into .nox/bootstrap and run this file with it."""
    home = ROOT / ".nox" / "bootstrap"
    python = home / "bin" / "python"
    pinned = re.search(r'"(nox==[^"]+)"', Path(__file__).read_text())
    assert pinned
    print(f"noxfile: installing {pinned[1]} into .nox/bootstrap", file=sys.stderr)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", pinned[1]]
        subprocess.run([*install, "--disable-pip-version-check"], check=True)
    except subprocess.CalledProcessError:
        sys.exit(
            "noxfile: could not prepare .nox/bootstrap; install python3-venv and check the network, "
            "or install nox yourself and run nox -s verify"
        )
    os.execv(python, [str(python), __file__, *sys.argv[1:]])


try:
    import nox
except ModuleNotFoundError:
    _fetch_nox()

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["verify"]
nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True

MODEL = ("harness", "kernel[torch,model]")
LIGHT = ("harness", "kernel")
ARCHS = re.findall(r"^  (\w+):\s*\n    gencode:", (ROOT / "matrix.yaml").read_text(), re.MULTILINE)


@nox.session
def verify(session: nox.Session) -> None:
    """Everything this machine can show."""
    _prepare(session, *MODEL)
    _lanecheck(session, "verify", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """The test suites of both projects."""
    _prepare(session, "harness[test]", "kernel[torch,model]")
    session.run(
        "python", "-m", "pytest", *(session.posargs or ("-n", "auto")), env=_sources(session)
    )


@nox.session
@nox.parametrize("arch", ARCHS)
def build(session: nox.Session, arch: str) -> None:
    """Compile and inspect one arch of matrix.yaml."""
    _prepare(session, *LIGHT)
    _lanecheck(session, "build", "--arch", arch)
    _lanecheck(session, "inspect", "--arch", arch)


@nox.session
def inspect(session: nox.Session) -> None:
    """Read every binary."""
    _prepare(session, *LIGHT)
    _lanecheck(session, "inspect", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Fuzz the shipping source on the CPU, or with `-- --device cuda` on a GPU."""
    _prepare(session, *LIGHT)
    _lanecheck(session, "fuzz", *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """Inject every fault of the catalogue."""
    _prepare(session, *LIGHT)
    _lanecheck(session, "faults", *session.posargs)


@nox.session
def sanitize(session: nox.Session) -> None:
    """The sanitizers: ASan, UBSan and happens-before on the host, compute-sanitizer on a GPU."""
    _prepare(session, *LIGHT)
    _lanecheck(session, "sanitize", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Bandwidth against the measured ceiling and the peers; needs a GPU."""
    _prepare(session, "harness[gpu,peers]", "kernel[torch]")
    _lanecheck(session, "bench", *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """Show one fault; swap-x-halves unless another is named."""
    _prepare(session, *LIGHT)
    _lanecheck(session, "demo", *(session.posargs or ("swap-x-halves",)))


@nox.session
def site(session: nox.Session) -> None:
    """Build the pages into .lanecheck/site."""
    _prepare(session, *LIGHT)
    _lanecheck(session, "site", *session.posargs)


@nox.session
def workflows(session: nox.Session) -> None:
    """Check .github/ offline."""
    _install(session, "check-jsonschema", "zizmor")
    files = sorted(str(path) for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *files)
    session.run("zizmor", "--offline", "--pedantic", ".github")


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, mypy and clang-format."""
    _prepare(session, "harness[test,lint]", "kernel")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy", "harness/lanecheck", "kernel/packed_gemv", "noxfile.py")
    sources = [
        str(path.relative_to(ROOT))
        for project in ("harness", "kernel")
        for suffix in ("h", "cpp", "cu", "cuh")
        for path in sorted((ROOT / project).rglob(f"*.{suffix}"))
    ]
    session.run("clang-format", "--dry-run", "--Werror", *sources)


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Resolve every dependency of both projects again and write harness/requirements.lock."""
    session.install("uv")
    session.run(
        *("uv", "pip", "compile", "--universal", "--python-version", "3.10", "--quiet"),
        *("--no-emit-index-url", "--no-annotate", "--all-extras", "--upgrade"),
        *("--custom-compile-command", "nox -s lock"),
        *map(str, PROJECTS),
        *("--output-file", str(LOCK)),
    )


@nox.session(default=False)
def readme(session: nox.Session) -> None:
    """Run the README's commands and put what they print into its output blocks."""
    _prepare(session, *MODEL)
    environment = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", **_sources(session)}

    def rerun(block: re.Match[str]) -> str:
        words = shlex.split(block[1])
        said = session.run(
            *("python", "-m", *words),
            env=environment,
            silent=True,
            stderr=None,
            success_codes=[0, 1],  # a fault shown is 1
        )
        return f"<!-- output: {block[1]} -->\n```\n{str(said).strip()}\n```"

    path = ROOT / "README.md"
    pattern = r"<!-- output: (.+?) -->\n```\n.*?```"
    path.write_text(re.sub(pattern, rerun, path.read_text(), flags=re.DOTALL))


# What the sessions share --------------------------------------------------------------------------


def _prepare(session: nox.Session, *projects: str) -> None:
    """Install projects of this checkout, in place, with the locked versions of what they need."""
    if _bare(session):
        return
    _install(session, *(word for name in projects for word in ("-e", f"./{name}")))


def _install(session: nox.Session, *what: str) -> None:
    """pip install under the lock, unless this environment already holds exactly this."""
    if _bare(session):
        return
    inputs = [path.read_bytes() for path in (LOCK, *PROJECTS)]
    wanted = hashlib.sha256(b"".join([*inputs, " ".join(what).encode()])).hexdigest()
    stamp = Path(session.virtualenv.location) / "lanecheck-installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    session.install("--disable-pip-version-check", "-c", str(LOCK), *what)
    stamp.write_text(wanted)


def _lanecheck(session: nox.Session, *words: str) -> None:
    session.run("python", "-m", "lanecheck", *words, env=_sources(session))


def _bare(session: nox.Session) -> bool:
    """Whether the machine's own packages are used (--no-venv)."""
    return session.virtualenv.venv_backend == "none"


def _sources(session: nox.Session) -> dict[str, str]:
    if not _bare(session):
        return {}
    folders = [str(ROOT / "harness"), str(ROOT / "kernel"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, folders))}


if __name__ == "__main__":
    nox.main()
