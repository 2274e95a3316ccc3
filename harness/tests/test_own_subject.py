"""A subject in a file of its own: found by its path, wherever that is, and its mistakes are one line."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import second_subject

from lanecheck import subject as subject_module
from lanecheck import template
from lanecheck.campaign import Budget, fuzz
from lanecheck.cases import parse
from lanecheck.errors import BadInput
from lanecheck.executor import LocalExecutor
from lanecheck.subject import load, sources
from lanecheck.trial import Target

SUBJECT = "from second_subject import SUBJECT\n"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch, tmp_path):
    """Each test has a folder, and imports anew."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        del sys.modules[name]


def written(place: str, text: str = SUBJECT) -> Path:
    path = Path(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path.resolve()


# Where it lies --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place", ["mine.py", "sub/mine.py", "my-kernel.v2.py", "a b/c:d.py", "json.py"]
)
def test_a_file_is_loaded_by_its_path_from_here_or_from_the_root(place):
    path = written(place)
    assert load(f"{place}:SUBJECT") is load(f"{path}:SUBJECT") is second_subject.SUBJECT


def test_files_of_the_same_name_are_two_subjects():
    for folder in "ab":
        written(
            f"{folder}/mine.py",
            f"{SUBJECT}class It(type(SUBJECT)):\n  name = {folder!r}\nIT = It()",
        )
    assert [load(f"{folder}/mine.py:IT").name for folder in "ab"] == ["a", "b"]


def test_a_file_finds_what_lies_beside_it():
    written("sub/beside.py")
    written("sub/mine.py", "from beside import SUBJECT\n")
    assert load("sub/mine.py:SUBJECT") is second_subject.SUBJECT


def test_a_worker_process_loads_the_same_file():
    written("sub/my-kernel.py")
    target = Target("sub/my-kernel.py:SUBJECT")
    result = fuzz(target, Budget(6), 0, LocalExecutor(1))
    assert (result.cases, result.failures) == (6, [])


def test_its_sources_are_its_file():
    written("sub/other.py")
    path = written("sub/mine.py")
    reference = "sub/mine.py:SUBJECT"
    before = sources(reference, load(reference))
    assert [*before] == ["mine.py"]
    path.write_text(f"{SUBJECT}# more\n")
    assert sources(reference, load(reference)) != before


def test_its_sources_are_also_what_it_imports_from_below_its_folder():
    written("elsewhere.py", "")
    written("sub/unused.py", "")
    beside = [
        written(f"sub/{name}", "") for name in ("beside.py", "inner/__init__.py", "inner/deep.py")
    ]
    elsewhere = "import sys\nsys.path.append('.')\nimport elsewhere\n"
    written("sub/mine.py", f"import beside, inner.deep\n{elsewhere}{SUBJECT}")
    reference = "sub/mine.py:SUBJECT"
    before = sources(reference, load(reference))
    assert [*before] == ["beside.py", "inner/__init__.py", "inner/deep.py", "mine.py"]
    for path in beside:
        path.write_text("# more\n")
        after = sources(reference, load(reference))
        assert {name for name in after if after[name] != before[name]} == {
            path.relative_to(path.cwd() / "sub").as_posix()
        }
        before = after


def test_so_are_those_of_a_module_s_only_file(monkeypatch):
    written("beside.py", "")
    written("mine.py", f"import beside\n{SUBJECT}")
    monkeypatch.syspath_prepend(os.getcwd())
    assert [*sources("mine:SUBJECT", load("mine:SUBJECT"))] == ["beside.py", "mine.py"]


def test_a_file_that_is_imported_through_links_is_one_of_its_sources(tmp_path, monkeypatch):
    """Through one to its folder, as where TMPDIR is one, and one to itself."""
    written("real/mine.py", f"import beside\n{SUBJECT}")
    Path("real/beside.py").symlink_to(written("shared/beside.py", ""))
    Path("link").symlink_to("real")
    monkeypatch.syspath_prepend(str(tmp_path / "link"))
    reference = "link/mine.py:SUBJECT"
    assert [*sources(reference, load(reference))] == ["beside.py", "mine.py"]


def test_what_is_installed_below_its_folder_is_none_of_its_sources(tmp_path, monkeypatch):
    """Nor is Lanecheck, or what comes with Python."""
    for place in ("env/lib/python3/site-packages/a_package.py", "env/lib/python3/a_standard.py"):
        path = written(place, "")
        monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    monkeypatch.setattr(subject_module, "__file__", str(written("harness/lanecheck/subject.py")))
    monkeypatch.syspath_prepend(str(written("harness/lanecheck/a_checker.py", "").parent))
    written("mine.py", f"import a_package, a_standard, a_checker\n{SUBJECT}")
    assert [*sources("mine.py:SUBJECT", load("mine.py:SUBJECT"))] == ["mine.py"]


@pytest.mark.parametrize(
    ("root", "found"),
    [("csrc", ["beside.py", "mine.py"]), (".", ["beside.py", "csrc/flags.py", "mine.py"])],
)
def test_what_its_library_is_compiled_from_is_none_unless_the_subject_lies_there(root, found):
    for place in ("beside.py", "csrc/flags.py"):
        written(place, "")
    written("mine.py", f"import beside, csrc.flags\n{SUBJECT}")
    load("mine.py:SUBJECT")
    compiled: Any = SimpleNamespace(recipe=SimpleNamespace(root=Path(root)))
    assert [*sources("mine.py:SUBJECT", compiled)] == found


def test_a_package_that_its_library_is_compiled_from_is_its_sources(monkeypatch):
    for name in ("__init__.py", "subject.py", "kernel.cu"):
        written(f"a_package/{name}")
    monkeypatch.syspath_prepend(os.getcwd())
    load("a_package.subject:SUBJECT")
    compiled: Any = SimpleNamespace(recipe=SimpleNamespace(root=Path("a_package")))
    found = sources("a_package.subject:SUBJECT", compiled)
    assert [*found] == ["__init__.py", "kernel.cu", "subject.py"]


# Mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("mine.py:", "is not of the form module:ATTRIBUTE or FILE.py:ATTRIBUTE"),
        ("my-kernel:SUBJECT", "is not of the form module:ATTRIBUTE or FILE.py:ATTRIBUTE"),
        ("none.py:SUBJECT", "there is no file none.py"),
        ("mine.py:NONE", "module 'mine.py' has no 'NONE'"),
        (
            "mine.py:os",
            "'mine.py:os' is a module, not an object whose class inherits from lanecheck.sub",
        ),
        ("mine.py:Matmul", "'mine.py:Matmul' is a class, not an object whose class inherits from"),
        (
            "json:loads",
            "'json:loads' is a function, not an object whose class inherits from lanecheck",
        ),
    ],
)
def test_what_is_no_subject_is_one_line(reference, message):
    written("mine.py", "import os\nfrom second_subject import Matmul\n")
    with pytest.raises(BadInput, match=message) as caught:
        load(reference)
    assert "\n" not in str(caught.value)


RAISING = {
    "def f(:\n": "mine.py:1: invalid syntax",
    "\nimport no_such_thing\n": "mine.py:2: ModuleNotFoundError: No module named 'no_such_thing'",
    "from os import nothing\n": "mine.py:1: ImportError: cannot import name 'nothing' from 'os'",
    "x = 1\nraise ValueError('one\\n  two')\n": "mine.py:2: ValueError: one two",
    "import json\njson.loads('')\n": "mine.py:2: JSONDecodeError: Expecting value",
    "import sys\nsys.exit('no GPU')\n": "mine.py:2: SystemExit: no GPU",
    "from lanecheck.errors import BadInput\nraise BadInput('set HOME')\n": "set HOME",
}


@pytest.mark.parametrize("reference", ["mine.py:SUBJECT", "mine:SUBJECT"])
@pytest.mark.parametrize("text", RAISING)
def test_an_error_in_its_import_is_one_line_with_its_place(text, reference):
    written("mine.py", text)
    sys.path.insert(0, os.getcwd())
    for _ in range(2):  # the second time, too
        with pytest.raises(BadInput, match=re.escape(RAISING[text])) as caught:
            load(reference)
        assert "\n" not in str(caught.value)


def test_a_module_that_is_not_installed_is_named():
    with pytest.raises(BadInput, match="No module named 'none'; install the package that holds it"):
        load("none:SUBJECT")


# The template ---------------------------------------------------------------------------------

LINE = "my_kernel m=2 n=3 k=4 out=fp32 regime=small side=upper seed=0"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("m=2", "m=-1"), ("n=3", "n=0"), ("k=4", "k=-4"), ("out=fp32", "out=fp64")],
)
def test_the_template_refuses_axes_outside_its_domain(right, wrong):
    assert parse(LINE, template.SUBJECT).line == LINE
    with pytest.raises(BadInput, match=wrong):
        parse(LINE.replace(right, wrong), template.SUBJECT)
