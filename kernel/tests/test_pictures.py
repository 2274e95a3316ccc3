"""The pictures: drawn from the layout itself, the same as those in LAYOUT.md, well-formed and readable."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from packed_gemv import fragments as f
from packed_gemv.labs import draw_walk, lanes, pictures
from packed_gemv.labs.configs import Walk
from packed_gemv.labs.svg import COLOURS
from packed_gemv.layout import pack

COMMITTED = Path(__file__).parent.parent / "pictures"
SVG = "{http://www.w3.org/2000/svg}"


def drawn(name: str) -> ElementTree.Element:
    return ElementTree.fromstring(pictures.PICTURES[name]())


def texts(name: str) -> list[str]:
    return [each.text or "" for each in drawn(name).iter(f"{SVG}text")]


# --- the numbers


@pytest.mark.parametrize("step", [0, 1])
def test_where_a_lanes_values_come_from_is_what_pack_put_there(step: int) -> None:
    rows, k = lanes.a_places("packed", step)
    assert np.array_equal(rows * lanes.K + k, lanes.positions()[0, 0, step])


@pytest.mark.parametrize("labelling", lanes.LABELLINGS)
def test_either_labelling_gives_a_and_b_the_same_k(labelling: str) -> None:
    for step in (0, 1):
        for places, slots in ((lanes.a_places, f.A_SLOT), (lanes.b_places, f.B_SLOT)):
            assert np.array_equal(places(labelling, step)[1], lanes.slot_k(labelling, step)[slots])
    both = np.concatenate([lanes.slot_k(labelling, step) for step in (0, 1)])
    assert sorted(both.tolist()) == list(range(f.K_BLOCK))


def test_four_pieces_from_two_rows_or_one_of_sixteen_bytes() -> None:
    for step in (0, 1):
        rows, k = lanes.a_places("natural", step)
        for lane in range(f.LANES):
            apart = lanes.pieces(lanes.row_major_bytes(rows, k)[lane])
            assert [length for _, length in apart] == [4, 4, 4, 4]
            assert len({start // (lanes.BF16 * lanes.K) for start, _ in apart}) == 2
        offsets = lanes.packed_bytes(0, step)
        assert offsets.tolist() == list(range(512 * step, 512 * step + 512, lanes.UNIT))


def test_what_the_loads_cost() -> None:
    for step in (0, 1):
        for load in lanes.row_major_loads(step):
            assert (load.wanted, load.sectors, load.moved, load.rows) == (128, 8, 256, 8)
        load = lanes.packed_load(step)
        assert (load.wanted, load.sectors, load.moved) == (512, 16, 512)


def test_a_k_block_is_64_units() -> None:
    assert (lanes.packed_bytes(1, 0) - lanes.packed_bytes(0, 0)).tolist() == [64 * 16] * f.LANES


@pytest.mark.parametrize(("n", "k"), [(16, 32), (64, 512), (32, 96)])
def test_the_axes_find_every_element(n: int, k: int) -> None:
    axes = lanes.axes(n, k)
    sizes = [axis.size for axis in axes]
    index = np.indices(sizes)
    row = sum(axis.row * index[i] for i, axis in enumerate(axes) if axis.size > 1)
    column = sum(axis.k * index[i] for i, axis in enumerate(axes) if axis.size > 1)
    byte = sum(axis.stride * index[i] for i, axis in enumerate(axes))
    flat = pack(np.arange(n * k).reshape(n, k)).ravel()
    assert np.array_equal(flat[byte // lanes.BF16], row * k + column)


def test_the_formulas_of_the_layout() -> None:
    assert lanes.index_formula("row") == "row = 16·RB + 8·h + g"
    assert lanes.index_formula("k") == "k = 32·KB + 8·t + 4·step + 2·j + e"


# --- the files


@pytest.mark.skipif(not COMMITTED.exists(), reason="not a checkout")
def test_the_committed_pictures_are_these() -> None:
    assert {path.name for path in COMMITTED.iterdir()} == set(pictures.PICTURES)
    for name, draw in pictures.PICTURES.items():
        assert (COMMITTED / name).read_text(encoding="utf-8") == draw(), (
            f"draw {name} again: python -m packed_gemv.labs.pictures kernel/pictures"
        )


def test_the_command_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pictures.main([str(tmp_path / "new")]) == 0
    assert {path.name for path in (tmp_path / "new").iterdir()} == set(pictures.PICTURES)
    assert f"{len(pictures.PICTURES)} pictures" in capsys.readouterr().out
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as stopped:
        pictures.main([str(tmp_path / "file")])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_can_be_read_aloud_and_stays_inside_its_frame(name: str) -> None:
    root = drawn(name)
    assert root.get("role") == "img" and root.get("aria-label")
    assert root.find(f"{SVG}title") is not None and root.find(f"{SVG}desc") is not None
    width, height = int(root.get("width", "")), int(root.get("height", ""))
    assert root.get("viewBox") == f"0 0 {width} {height}"
    smallest = 11 if any("small" in (e.get("class") or "").split() for e in root.iter()) else 12
    assert smallest * min(1, 700 / width) > 10.5  # in a column of 700 pixels
    for each in root.iter(f"{SVG}rect"):
        x, y, w, h = (float(each.get(side, "")) for side in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height
    for each in root.iter(f"{SVG}text"):
        kind = (each.get("class") or "").split()
        wide = len(each.text or "") * (7.3 if {"code", "bold", "head"} & set(kind) else 6.7)
        x = float(each.get("x", "")) - wide * (0.5 if "mid" in kind else "end" in kind)
        assert x >= -2 and x + wide <= width + 12, each.text
        assert 10 <= float(each.get("y", "")) <= height - 3


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_it_has_a_light_and_a_dark_scheme_and_needs_nothing_else(name: str) -> None:
    text = pictures.PICTURES[name]()
    assert "@media(prefers-color-scheme:dark)" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in text and "<image" not in text
    style = re.search("<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    used = {one for of in re.findall('class="([^"]+)"', text) for one in of.split()}
    assert all(f".{one}" in style[1] for one in used)


def contrast(one: str, other: str) -> float:
    """WCAG's ratio."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_text_stands_out(scheme: int) -> None:
    page = ("#ffffff", "#0d1117")[scheme]
    for ground in ("t0", "t1", "t2", "t3", "panel"):
        assert contrast(COLOURS["ink"][scheme], COLOURS[ground][scheme]) >= 7
    for ink in ("ink", "soft", "bad"):
        assert contrast(COLOURS[ink][scheme], page) >= 4.5
    assert contrast(COLOURS["soft"][scheme], COLOURS["panel"][scheme]) >= 4.5


# --- what they say


def test_every_cell_of_every_operand_is_named() -> None:
    said = texts("fragments.svg")
    for operand, every in (("A", (1, 2)), ("B", (2, 1)), ("C", (1, 1))):
        lane, register = (t[:: every[0], :: every[1]] for t in lanes.holders(operand))
        names = [f"{a} {operand}{b}" for a, b in zip(lane.ravel(), register.ravel(), strict=True)]
        assert len(set(names)) == len(names)
        assert sorted(s for s in said if re.fullmatch(rf"\d+ {operand}\d", s)) == sorted(names)


def test_the_packed_picture_ends_at_a_lanes_eight_values() -> None:
    said = texts("packed.svg")
    held = [f"W[{r}][{k}]" for r, k in (divmod(p, 512) for p in lanes.positions()[0, 0, 0, 13])]
    assert [s for s in said if s.startswith("W[")] == held
    assert "step: 2, each 512 bytes" in said and "lane 4g + t: 32, each 16 bytes" in said


def test_the_reads_are_compared() -> None:
    said = " ".join(texts("read.svg"))
    assert "512 contiguous bytes" in said
    assert "4 loads; each wants 128 of the 256 bytes in the 8 sectors" in said


def numbers(picture: str) -> list[str]:
    root = ElementTree.fromstring(picture)
    return [e.text or "" for e in root.iter(f"{SVG}text") if (e.text or "").isdecimal()]


@pytest.mark.parametrize(
    ("config", "k"), [(Walk(2, 4, 2), 34 * 32), (Walk(4, 4), 512), (Walk(3, 2), 20 * 32)], ids=str
)
def test_the_walk_names_every_block_once(config: Walk, k: int) -> None:
    picture = draw_walk.walk(config, k)
    assert numbers(picture) == [str(block) for block in range(k // 32)]
    left = sum(len(run) % config.u for run in config.slices(k))
    assert picture.count(">+<") == left


def test_trips_of_three_are_refused_with_the_reason() -> None:
    assert "Refused by require_even" in (drawn("refused.svg").get("aria-label") or "")
    said = " ".join(texts("refused.svg")).replace("\N{NO-BREAK SPACE}", " ")
    assert "6 blocks counted twice, 2 blocks past the end of K" in said
    assert "4 K blocks a warp (K/32 = 16 over S·NW = 4) do not split into trips of U = 3" in said
    assert numbers(pictures.PICTURES["refused.svg"]())[:6] == ["0", "1", "2", "3", "4", "5"]
    with pytest.raises(ValueError, match="nothing to refuse"):
        draw_walk.refused(Walk(4, 4), 512)
