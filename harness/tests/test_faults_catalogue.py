"""The fault catalogue: strict about what a fault says, and about where it applies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lanecheck.errors import BadInput
from lanecheck.faults import catalogue
from lanecheck.faults.catalogue import Fault

# Beyond ASCII, because edits count characters and files count bytes.
SOURCE = """\
// Σ over k · a comment with × and …
int sum(const int* a, int n) {
  int total = 0;
  for (int i = 0; i < n; ++i) total = add(total, a[i]);
  barrier();
  return add(total, n);
}
"""

GOOD: dict[str, Any] = {
    "id": "swap-operands",
    "title": "the operands exchanged",
    "models": "a slip of the hand",
    "report": "https://example.org/issues/1",
    "kind": "operand",
    "file": "sum.cu",
    "rewrites": [{"rule": {"pattern": "add(total, a[$I])"}, "fix": "add(a[$I], total)"}],
    "variants": ["plain"],
    "caught_by": ["integers"],
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "sum.cu").write_text(SOURCE, encoding="utf-8")
    return tmp_path


def fault(*rewrites: dict[str, Any]) -> Fault:
    return Fault.model_validate(GOOD | {"rewrites": list(rewrites)})


def rewrite(pattern: str, fix: str, **more: Any) -> dict[str, Any]:
    return {"rule": {"pattern": pattern}, "fix": fix, **more}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in GOOD.items() if name != key}


def written(folder: Path, data: object, name: str = "swap-operands.yaml") -> Path:
    (folder / name).write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return folder


# Reading


def test_a_fault_is_read_as_it_is_written(tmp_path: Path):
    (read,) = catalogue.load(written(tmp_path, GOOD))
    assert read.id == "swap-operands"
    assert read.rewrites[0].count == 1
    assert catalogue.find(tmp_path, "swap-operands") == read


@pytest.mark.parametrize("expect", ["reordered", "pass"])
def test_a_control_names_what_is_expected_of_it_and_no_oracle(tmp_path: Path, expect: str):
    (control,) = catalogue.load(written(tmp_path, without("caught_by") | {"expect": expect}))
    assert control.control
    assert (control.expect, control.caught_by) == (expect, [])
    assert not Fault.model_validate(GOOD).control


def test_faults_are_in_the_order_of_their_names(tmp_path: Path):
    for name in ("c", "a", "b"):
        written(tmp_path, GOOD | {"id": name}, f"{name}.yaml")
    assert [read.id for read in catalogue.load(tmp_path)] == ["a", "b", "c"]


MISTAKES = {
    "unknown key": (GOOD | {"titel": "x"}, "titel: Extra inputs are not permitted"),
    "unknown key in a rewrite": (
        GOOD | {"rewrites": [rewrite("a", "b", cuont=2)]},
        "rewrites.0.cuont: Extra inputs are not permitted",
    ),
    "missing key": (without("report"), "report: Field required"),
    "no rewrite": (GOOD | {"rewrites": []}, "rewrites: List should have at least 1 item"),
    "rewrite of nothing": (
        GOOD | {"rewrites": [rewrite("a", "b", count=0)]},
        "rewrites.0.count: Input should be greater than or equal to 1",
    ),
    "no oracle": (
        GOOD | {"caught_by": []},
        "the file: caught_by names who notices a fault, and nobody for a control",
    ),
    "missing oracles": (without("caught_by"), "caught_by names who notices a fault"),
    "a control that is caught": (GOOD | {"expect": "pass"}, "and nobody for a control"),
    "unknown expectation": (
        GOOD | {"expect": "flagged"},
        "expect: Input should be 'killed', 'reordered' or 'pass'",
    ),
    "no cases": (GOOD | {"effort": 0}, "effort: Input should be greater than or equal to 1"),
    "unknown oracle": (
        GOOD | {"caught_by": ["integers", "luck"]},
        "unknown oracle 'luck'; known: execution, poison, integers, bits",
    ),
    "unknown variant": (GOOD | {"variants": ["tsan"]}, "variants.0: Input should be 'plain'"),
    "id of another file": (
        GOOD | {"id": "swap"},
        "its id is 'swap'; name the file after it",
    ),
    "id with a space": (GOOD | {"id": "swap operands"}, "id: String should match pattern"),
    "not a mapping": ("- 1\n", "the file: Input should be a valid dictionary"),
    "empty": ("", "the file: Input should be a valid dictionary"),
    "not YAML": ("id: [", "not YAML: "),
}


@pytest.mark.parametrize(("data", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_fault_is_one_line_that_names_the_file(
    tmp_path: Path, data: object, message: str
):
    with pytest.raises(BadInput) as caught:
        catalogue.load(written(tmp_path, data))
    assert str(caught.value).startswith("swap-operands.yaml: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_catalogue_is_a_mistake(tmp_path: Path):
    with pytest.raises(BadInput, match="no faults in .*: expected one YAML file each"):
        catalogue.load(tmp_path)


def test_a_fault_that_does_not_exist_is_told_those_that_do(tmp_path: Path):
    with pytest.raises(BadInput, match="no fault 'swap'; known: swap-operands"):
        catalogue.find(written(tmp_path, GOOD), "swap")


# Injecting


def test_injection_changes_what_the_rule_matches_and_nothing_else(root: Path):
    overlay = fault(*GOOD["rewrites"]).inject(root)
    assert overlay == {"sum.cu": SOURCE.replace("add(total, a[i])", "add(a[i], total)")}
    assert (root / "sum.cu").read_text(encoding="utf-8") == SOURCE


def test_rewrites_are_all_found_in_the_healthy_source(root: Path):
    there, back = rewrite("total = $X", "total += $X"), rewrite("return $X;", "return -$X;")
    expected = SOURCE.replace("total = add", "total += add").replace("return add", "return -add")
    assert fault(there, back).inject(root) == {"sum.cu": expected}
    assert fault(back, there).inject(root) == {"sum.cu": expected}


def test_two_rewrites_can_exchange_two_places(root: Path):
    one, other = "add(total, a[i])", "add(total, n)"
    overlay = fault(rewrite(one, other), rewrite(other, one)).inject(root)
    swapped = SOURCE.replace(one, "#").replace(other, one).replace("#", other)
    assert overlay == {"sum.cu": swapped}


def test_a_rule_may_match_as_many_places_as_it_says(root: Path):
    overlay = fault(rewrite("add(total, $X)", "sub($X)", count=2)).inject(root)
    assert overlay["sum.cu"].count("sub(") == 2


@pytest.mark.parametrize(
    ("pattern", "fix", "changed"),
    [
        ("add($A, a[$I])", "add(a[$I], $A)", "add(a[i], total)"),
        ("add($X1, $X2)", "sub($X2, $X1, $X1)", "sub(a[i], total, total)"),
        ("add($_FIRST, a[i])", "add($_FIRST, b[i])", None),
        ("add(total, a[i])", "add(total, a[i + 1])", "add(total, a[i + 1])"),
    ],
)
def test_metavariables_stand_for_what_they_matched(
    root: Path, pattern: str, fix: str, changed: str | None
):
    found = fault({"rule": {"pattern": pattern, "inside": {"kind": "for_statement", "stopBy": "end"}},
                   "fix": fix})  # fmt: skip
    if changed is None:  # a leading underscore matches without capturing
        with pytest.raises(BadInput, match=r"captures no \$_FIRST"):
            found.inject(root)
    else:
        assert found.inject(root)["sum.cu"] == SOURCE.replace("add(total, a[i])", changed)


def test_what_is_written_is_indented_like_what_it_replaces(root: Path):
    overlay = fault(rewrite("barrier();", "barrier();\nif (n) {\n  barrier();\n}")).inject(root)
    lines = "  barrier();\n  if (n) {\n    barrier();\n  }\n"
    assert overlay["sum.cu"] == SOURCE.replace("  barrier();\n", lines)


STALE = {
    "matches nothing": (
        [rewrite("multiply($A, $B)", "0")],
        "its rule {'pattern': 'multiply($A, $B)'} matches 0 places in sum.cu, not 1",
    ),
    "matches twice": ([rewrite("add(total, $X)", "$X")], "matches 2 places in sum.cu, not 1"),
    "matches once": ([rewrite("barrier();", ";", count=2)], "matches 1 places in sum.cu, not 2"),
    "same place": (
        [rewrite("add(total, n)", "n"), rewrite("return $X;", "return;")],
        "two of its rewrites change the same place in sum.cu",
    ),
    "no change": ([rewrite("barrier();", "barrier();")], "it leaves sum.cu as it is"),
}


@pytest.mark.parametrize(("rewrites", "message"), STALE.values(), ids=STALE)
def test_a_fault_that_no_longer_applies_is_an_error(
    root: Path, rewrites: list[dict[str, Any]], message: str
):
    with pytest.raises(BadInput) as caught:
        fault(*rewrites).inject(root)
    assert str(caught.value).startswith("fault swap-operands no longer applies: ")
    assert message in str(caught.value)
    assert str(caught.value).endswith("; bring the fault up to date")


def test_a_fault_in_a_file_that_is_gone_names_it(tmp_path: Path):
    with pytest.raises(BadInput, match="swap-operands no longer applies: there is no sum.cu in"):
        fault(*GOOD["rewrites"]).inject(tmp_path)


@pytest.mark.parametrize("rule", [{"patern": "a"}, {"kind": "no_such_kind"}, {"regex": "("}, {}])
def test_a_rule_that_is_none_is_one_line(root: Path, rule: dict[str, str]):
    with pytest.raises(BadInput, match=r"^fault swap-operands: .* is no rule: \S") as caught:
        fault({"rule": rule, "fix": ""}).inject(root)
    assert "\n" not in str(caught.value)
    assert "backtrace" not in str(caught.value)
