"""matrix.yaml: what it expands to, and that every mistake is one line with a place."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from lanecheck import matrix_file
from lanecheck.errors import BadInput
from lanecheck.matrix import Cell, Matrix, duration, loads

REPOSITORY = Path(__file__).parents[2]
TODAY = date(2026, 11, 30)

SMALL = """\
schema: 1
subject: small:SUBJECT
archs:
  sm_80:
    gencode: ["arch=compute_80,code=sm_80"]
    loads_on: ["8.0", "8.9"]
    min_ctk: "11.0"
    role: native
  sm_90a:
    gencode: ["arch=compute_90a,code=sm_90a"]
    loads_on: ["9.0"]
    min_ctk: "12.0"
    role: native
devices:
  host: {mma: ["8.0"], runner: [ubuntu], pool: 1}
  a100: {cc: "8.0", runner: [gpu-a100], pool: 1, datasheet_gbps: 2039}
  h100: {cc: "9.0", runner: [gpu-h100], pool: 0, datasheet_gbps: 3350}
jobs:
  build: {column: built, budget: 5m}
  silicon: {column: on silicon, gpu: true, budget: 10m}
tiers:
  pull_request:
    rows:
      - {jobs: [build], archs: all, devices: [host]}
      - {jobs: [silicon], archs: [sm_80], devices: all}
  nightly:
    rows:
      - {jobs: all, archs: all, devices: all}
  release:
    rows:
      - {jobs: all, archs: all, devices: all}
"""


def parse(text: str = SMALL) -> Matrix:
    return matrix_file.parse(text, today=TODAY)


def edited(old: str, new: str) -> str:
    assert SMALL.count(old) >= 1, old
    return SMALL.replace(old, new, 1)


def line_of(text: str, what: str) -> int:
    return text[: text.index(what)].count("\n") + 1


# What it expands to


def test_a_row_keeps_the_pairs_that_can_exist():
    assert parse().cells("pull_request") == [
        Cell("sm_80", "host", "build"),
        Cell("sm_90a", "host", "build"),
        Cell("sm_80", "a100", "silicon"),
    ]


def test_all_means_every_name():
    assert {str(cell) for cell in parse().cells("nightly")} == {
        "sm_80/host/build",
        "sm_90a/host/build",
        "sm_80/a100/silicon",
        "sm_90a/h100/silicon",
    }


def test_github_rows_are_json_with_runner_labels_and_leave_out_devices_without_runners():
    rows = json.loads(json.dumps(parse().github("release")))["include"]
    assert [row["name"] for row in rows] == [
        "sm_80/host/build",
        "sm_90a/host/build",
        "sm_80/a100/silicon",
    ]
    assert rows[-1] == {
        "name": "sm_80/a100/silicon",
        "arch": "sm_80",
        "device": "a100",
        "job": "silicon",
        "gpu": True,
        "cc": "8.0",
        "gencode": ["arch=compute_80,code=sm_80"],
        "runner": ["gpu-a100"],
        "minutes": 10,
    }


def test_github_of_some_jobs():
    rows = parse().github("nightly", jobs=["silicon"])["include"]
    assert [row["name"] for row in rows] == ["sm_80/a100/silicon"]


def test_an_empty_github_matrix_is_an_error():
    text = SMALL.replace("[gpu-a100], pool: 1", "[gpu-a100], pool: 0")
    with pytest.raises(BadInput, match="empty: every device of its cells has pool: 0"):
        parse(text).github("pull_request", jobs=["silicon"])


def test_unknown_tier_and_job():
    with pytest.raises(BadInput, match="unknown tier 'weekly'; known: pull_request, nightly"):
        parse().cells("weekly")
    with pytest.raises(BadInput, match="unknown job 'bench'; known: build, silicon"):
        parse().github("nightly", jobs=["bench"])
    with pytest.raises(BadInput, match="unknown job 'bench'; known: build, silicon"):
        parse().cells("nightly", ["bench"])


def test_cells_of_some_jobs():
    assert parse().cells("pull_request", ["silicon"]) == [Cell("sm_80", "a100", "silicon")]


def test_exclusions_hide_cells_and_keep_their_reason():
    text = SMALL + "exclude:\n  - {devices: [a100], reason: broken fan, expires: 2026-11-30}\n"
    hidden = Cell("sm_80", "a100", "silicon")
    assert hidden not in parse(text).cells("nightly")
    assert parse(text).excluded(hidden) == "excluded until 2026-11-30: broken fan"
    assert parse(text).excluded(Cell("sm_90a", "h100", "silicon")) is None
    assert len(parse(text).cells("nightly")) + 1 == len(parse().cells("nightly"))


def test_an_arch_and_a_gpu_may_lack_a_tensor_core_model():
    text = edited('loads_on: ["8.0", "8.9"]', 'loads_on: ["8.0", "8.7", "8.9"]')
    text = text.replace('{cc: "8.0"', '{cc: "8.7"')
    assert Cell("sm_80", "a100", "silicon") in parse(text).cells("nightly")


# What is refused, and where the message points

MISTAKES = {
    "unknown key": (
        edited("    gencode: [", "    gencod: ["),
        "gencod",
        "unknown key 'gencod' in arch sm_80; known: gencode, loads_on, min_ctk, role",
    ),
    "unknown section": (SMALL + "archz: {}\n", "archz", "unknown key 'archz' in the file; known"),
    "unknown key in a row": (
        edited("{jobs: [build], archs", "{jobs: [build], arch: 1, archs"),
        "arch: 1",
        "unknown key 'arch' in row 1 of tier pull_request; known: jobs, archs, devices",
    ),
    "name is the key": (edited("    role:", "    name: x\n    role:"), "name: x", "its key is its"),
    "missing key": (edited('    min_ctk: "11.0"\n', ""), "sm_80:", "arch sm_80 lacks 'min_ctk'"),
    "misspelt tier": (
        edited("  nightly:", "  weekly:"),
        "  weekly:",
        "unknown key 'weekly' in tiers",
    ),
    "missing budget": (
        edited("built, budget: 5m", "built"),
        "  build: {column",
        "job build lacks 'budget'",
    ),
    "wrong schema": (edited("schema: 1", "schema: 2"), "schema", "schema: Input should be 1"),
    "number for a string": (
        edited('cc: "8.0"', "cc: 8.0"),
        "  a100:",
        'cc of device a100: write 8.0 in quotes: "8.0"',
    ),
    "no duration": (edited("budget: 5m", "budget: 5"), "  build:", "write 90s, 5m or 1h30m"),
    "no gencode": (
        edited("arch=compute_90a,code=sm_90a", "90a"),
        'gencode: ["90a"',
        "gencode of arch sm_90a: String should match pattern",
    ),
    "duplicate key": (
        SMALL.replace("  sm_90a:", "  sm_80:"),
        '  sm_80:\n    gencode: ["arch=compute_90a',
        "key 'sm_80' again; it is already on line 4",
    ),
    "alias": (edited("[ubuntu]", "&r [ubuntu]").replace("[gpu-a100]", "*r"), "*r", "aliases"),
    "broken YAML": (edited("tiers:", "tiers: ["), "    rows:", "not valid YAML"),
    "listed twice": (
        edited("archs: [sm_80]", "archs: [sm_80, sm_80]"),
        "      - {jobs: [silicon]",
        "'sm_80' is listed twice in row 2 of tier pull_request",
    ),
    "all and more": (
        edited("archs: [sm_80]", "archs: [all, sm_80]"),
        "      - {jobs: [silicon]",
        "'all' stands alone in row 2",
    ),
    "unknown arch": (
        edited("archs: [sm_80]", "archs: [sm_75]"),
        "      - {jobs: [silicon]",
        "unknown arch 'sm_75' in row 2 of tier pull_request; known: sm_80, sm_90a",
    ),
    "unknown job": (
        SMALL.replace("silicon", "paint"),
        "  paint:",
        "nothing does job 'paint'; known: build, inspect, fuzz, silicon, bench",
    ),
    "host job on a GPU": (
        edited("{column: built,", "{column: built, gpu: true,"),
        "  build:",
        "job build must have gpu: false",
    ),
    "GPU job on the host": (
        edited("gpu: true, ", ""),
        "  silicon:",
        "job silicon must have gpu: true",
    ),
    "two hosts": (
        edited("  a100:", '  laptop: {mma: ["8.0"], runner: [x], pool: 1}\n  a100:'),
        "  laptop:",
        "device laptop has mma, and the one host is called host",
    ),
    "host of another name": (
        SMALL.replace("host", "cpu"),
        "  cpu:",
        "device cpu has mma, and the one host is called host (and 1 more)",
    ),
    "no host": (
        SMALL.replace('host: {mma: ["8.0"]', 'host: {cc: "8.0", datasheet_gbps: 1'),
        "devices:",
        "no device is the host: add one called host, with mma",
    ),
    "no tensor core model": (
        edited('{mma: ["8.0"]', '{mma: ["8.0", "7.5"]'),
        "  host:",
        "mma of device host: no tensor core model for compute capability '7.5'; known: 8.0, 8.6",
    ),
    "key without a user": (
        edited("{column: built,", "{column: built, exclusive: true,"),
        "  build:",
        "unknown key 'exclusive' in job build; known: column, budget, gpu",
    ),
    "same build": (
        edited("arch=compute_90a,code=sm_90a", "arch=compute_80,code=sm_80").replace(
            '["9.0"]', '["8.0"]'
        ),
        '    gencode: ["arch=compute_80,code=sm_80"]\n    loads_on: ["8.0"]',
        "arch sm_90a has the gencode of sm_80",
    ),
    "empty row": (
        edited("archs: [sm_80], devices: all", "archs: [sm_80], devices: [h100]"),
        "      - {jobs: [silicon]",
        "row 2 of tier pull_request yields no cell",
    ),
    "idle name": (
        edited("archs: [sm_80], devices: all", "archs: [sm_80], devices: [a100, h100]"),
        "      - {jobs: [silicon]",
        "device h100 of row 2 of tier pull_request yields no cell with the others",
    ),
    "repeated cell": (
        edited(
            "  nightly:", "      - {jobs: [build], archs: [sm_80], devices: [host]}\n  nightly:"
        ),
        "      - {jobs: [build], archs: [sm_80]",
        "row 3 of tier pull_request repeats sm_80/host/build of row 1",
    ),
    "not a subset": (
        SMALL.replace("- {jobs: all, archs: all", "- {jobs: all, archs: [sm_80]", 1),
        "  pull_request:",
        "tier pull_request has sm_90a/host/build, which nightly lacks",
    ),
    "expired": (
        SMALL + "exclude:\n  - {devices: [a100], reason: fan, expires: 2026-11-29}\n",
        "  - {devices: [a100]",
        "exclusion expired on 2026-11-29 (fan): remove it",
    ),
    "stale exclusion": (
        SMALL
        + "exclude:\n  - {archs: [sm_90a], devices: [a100], reason: x, expires: 2027-01-01}\n",
        "  - {archs: [sm_90a]",
        "hides no cell",
    ),
    "all excluded": (
        SMALL + "exclude:\n  - {reason: holiday, expires: 2027-01-01}\n",
        "  pull_request:",
        "has no cell left",
    ),
    "no such capability": (
        edited('loads_on: ["9.0"]', 'loads_on: ["9.0", "10.0"]'),
        "sm_90a:",
        "arch sm_90a: code for sm_90a does not load on 10.0",
    ),
    "wrong role": (edited("role: native", "role: family"), "  sm_80:", "role must be native"),
    "neither host nor GPU": (edited('cc: "8.0", ', ""), "  a100:", "give either cc"),
    "GPU without datasheet": (edited(", datasheet_gbps: 2039", ""), "  a100:", "datasheet_gbps"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_with_a_place(name):
    text, place, message = MISTAKES[name]
    with pytest.raises(BadInput) as caught:
        parse(text)
    said = str(caught.value)
    assert "\n" not in said
    assert message in said
    assert said.startswith(f"matrix.yaml:{line_of(text, place)}: "), said
    assert caught.value.exit_code == 2


def test_more_mistakes_are_counted():
    text = SMALL.replace("    gencode:", "    gencod:")
    with pytest.raises(BadInput, match=r"\(and 3 more\)"):
        parse(text)


@pytest.mark.parametrize(
    "text", ["", "7", "[]", "- 1", "\t", "a: b: c", "!!python/none x", "? [a]\n"]
)
def test_anything_else_is_refused_in_one_line(text):
    with pytest.raises(BadInput) as caught:
        parse(text)
    assert str(caught.value).startswith("matrix.yaml:")
    assert "\n" not in str(caught.value)


# Capabilities


@pytest.mark.parametrize(
    ("code", "yes", "no"),
    [
        ("sm_80", ["8.0", "8.6", "8.9"], ["7.5", "9.0"]),
        ("sm_86", ["8.6", "8.9"], ["8.0", "9.0"]),
        ("sm_90a", ["9.0"], ["9.1", "10.0"]),
        ("sm_100f", ["10.0", "10.3"], ["9.0", "11.0", "12.0"]),
        ("sm_120f", ["12.0", "12.1"], ["10.0"]),
        ("compute_80", ["8.0", "9.0", "12.1"], ["7.5"]),
        ("compute_90a", ["9.0"], ["10.0"]),
    ],
)
def test_what_a_code_loads_on(code, yes, no):
    assert all(loads(code, cc) for cc in yes)
    assert not any(loads(code, cc) for cc in no)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("5m", 300), ("1h30m", 5400)])
def test_durations(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5 m", "m", "-5m", "5mm x", 5, None])
def test_no_durations(text):
    with pytest.raises(ValueError, match="not a duration"):
        duration(text)


# The repository's own


def test_the_repository_s_jobs_are_all_that_there_are():
    assert {*matrix_file.load(REPOSITORY / "matrix.yaml", TODAY).jobs} == {*matrix_file.JOBS}


def test_the_repository_has_a_matrix_that_covers_what_it_ships():
    found = matrix_file.find(REPOSITORY / "harness" / "tests")
    assert found == REPOSITORY / "matrix.yaml"
    shipped = matrix_file.load(found, TODAY)
    for tier in ("pull_request", "nightly", "release"):
        cells = shipped.cells(tier)
        for job in ("build", "inspect", "fuzz"):
            assert {c.arch for c in cells if c.job == job} == set(shipped.archs)
    nightly = shipped.cells("nightly")
    assert {c.arch for c in nightly if c.job == "silicon"} == set(shipped.archs)
    assert {c.device for c in nightly if c.job == "bench"} == {
        name for name, device in shipped.devices.items() if device.gpu
    }


def test_no_matrix_to_be_found(tmp_path):
    with pytest.raises(BadInput, match="no matrix.yaml in .* or above: run inside the repository"):
        matrix_file.find(tmp_path)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(BadInput, match="cannot be read"):
        matrix_file.load(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(BadInput, match="not UTF-8"):
        matrix_file.load(tmp_path / "bytes.yaml")
