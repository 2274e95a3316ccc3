"""The page: its numbers are the layout's, it needs no network, and in a browser it lights a lane."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packed_gemv import fragments as f
from packed_gemv.labs import lanes, page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def embedded() -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.html())
    assert found is not None
    return json.loads(found[1])


def test_its_numbers_are_the_fragment_tables() -> None:
    data = embedded()
    assert data["unit"] == 16
    for lane, one in enumerate(data["lanes"]):
        assert 4 * one["g"] + one["t"] == lane
        assert one["C"] == np.stack([f.D_ROW[lane], f.D_COLUMN[lane]], axis=1).tolist()
        for step in (0, 1):
            for name, real in (("natural", 16 * step + np.arange(16)), ("packed", f.real_k(step))):
                a, b = np.array(one["A"][name][step]), np.array(one["B"][name][step])
                assert a[:, 0].tolist() == f.A_ROW[lane, ::2].tolist()
                assert a[:, 1].tolist() == real[f.A_SLOT[lane, ::2]].tolist()
                assert b[:, 0].tolist() == f.B_COLUMN[lane, ::2].tolist()
                assert b[:, 1].tolist() == real[f.B_SLOT[lane, ::2]].tolist()
                for table in (a, b):
                    assert np.array_equal(table[:, 2], 2 * (512 * table[:, 0] + table[:, 1]))


def test_the_packed_bytes_hold_the_registers() -> None:
    flat = lanes.positions().ravel()
    for one in embedded()["lanes"]:
        for step in (0, 1):
            first = one["unit"][step] // 2
            places = [(r, k + e) for r, k, _ in one["A"]["packed"][step] for e in (0, 1)]
            assert [divmod(int(p), 512) for p in flat[first : first + 8]] == places


def test_four_pieces_naturally_and_two_relabelled() -> None:
    for one in embedded()["lanes"]:
        for step in (0, 1):
            assert [n for _, n in one["apart"]["natural"][step]] == [4, 4, 4, 4]
            assert [n for _, n in one["apart"]["packed"][step]] == [8, 8]


def test_the_file_stands_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "lanes.html"
    assert page.main([str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert not re.search(r"https?:|\bsrc=|@import|url\(|{{", text)
    assert text.startswith("<!doctype html>") and "prefers-color-scheme: dark" in text
    assert "lanes.html" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        page.main([str(tmp_path)])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


# --- in a browser


def browse(tmp_path: Path, fragment: str, script: str = "") -> str:
    """The page's own account of itself once ``script`` ran on it."""
    file = tmp_path / "lanes.html"
    told = """
    const lit = (id) => [...document.querySelectorAll(`#${id} .lit`)].map((c) => c.textContent);
    document.title = JSON.stringify({
      A: lit("A"), B: lit("B"), C: lit("C"), W: lit("W"), P: lit("P"), X: lit("X"),
      who: document.getElementById("who").textContent, hash: location.hash,
      loads: document.getElementById("loads").textContent,
      renamed: document.getElementById("renamed").textContent,
      focus: document.activeElement.value ?? null,
    });"""
    file.write_text(page.html() + f"<script>{{{script}\n{told}}}</script>", encoding="utf-8")
    done = subprocess.run(
        [
            *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *(f"--user-data-dir={tmp_path / 'profile'}", f"{file.as_uri()}#{fragment}"),
        ],
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=True,
    )
    found = re.search("<title>(.*?)</title>", done.stdout)
    assert found is not None
    return json.loads(html.unescape(found[1]))


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
PRESS = """
const press = (key) => document.getElementById("picker").dispatchEvent(
  new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
"""


@needs_browser
def test_a_lane_is_lit_wherever_it_holds_something(tmp_path: Path) -> None:
    seen = browse(tmp_path, "lane=13&k=packed")
    assert seen["A"] == ["13 A0", "13 A2", "13 A1", "13 A3"]
    assert seen["B"] == ["13 B0", "13 B1"]
    assert seen["C"] == ["13 C0", "13 C1", "13 C2", "13 C3"]
    assert seen["W"] == ["A0", "A2", "A1", "A3"]
    assert seen["P"] == ["A0", "A1", "A2", "A3"] and seen["X"] == ["B0", "B1"]
    assert seen["who"] == "Lane 13 = 4·3 + 1: g = 3, t = 1"
    assert "one 16-byte load from packed W (208–223)" in seen["loads"]
    assert seen["renamed"] == ", k relabelled"


@needs_browser
def test_counted_naturally_there_are_four_loads_and_nothing_packed(tmp_path: Path) -> None:
    seen = browse(tmp_path, "lane=22&step=1&k=natural")
    assert "4 pieces of 4 bytes in row-major W (5160, 5176, 13352, 13368)" in seen["loads"]
    assert sorted(seen["W"]) == ["A0", "A1", "A2", "A3"] and seen["P"] == []
    assert seen["renamed"] == ""


@needs_browser
def test_it_opens_as_the_chapter_begins(tmp_path: Path) -> None:
    assert browse(tmp_path, "")["hash"] == "#lane=13&step=0&k=natural"


@needs_browser
def test_keys_move_through_the_lanes(tmp_path: Path) -> None:
    script = PRESS + 'press("ArrowDown"); press("ArrowRight"); press("ArrowUp"); press("ArrowUp");'
    seen = browse(tmp_path, "lane=13&k=packed", script)
    assert seen["who"].startswith("Lane 10 ") and seen["focus"] == "10"
    assert seen["hash"] == "#lane=10&step=0&k=packed"
    assert browse(tmp_path, "lane=13", PRESS + 'press("End")')["who"].startswith("Lane 31 ")


@needs_browser
def test_pointing_shows_a_lane_and_leaving_shows_the_chosen_one_again(tmp_path: Path) -> None:
    over = """
    const over = (element) => element.dispatchEvent(
      new PointerEvent("pointerover", {bubbles: true, pointerType: "mouse"}));
    over(document.querySelector('#C [data-lane="5"]'));"""
    seen = browse(tmp_path, "lane=13", over)
    assert seen["who"].startswith("Lane 5 ") and seen["hash"].startswith("#lane=13")
    assert browse(tmp_path, "lane=13", over + "over(document.body);")["A"][0] == "13 A0"
    clicked = "document.querySelector('#W [data-lane=\"31\"]').click();"
    assert browse(tmp_path, "lane=13", clicked)["hash"].startswith("#lane=31")


@needs_browser
def test_a_wrong_address_falls_back(tmp_path: Path) -> None:
    assert browse(tmp_path, "lane=99&step=7&k=what")["hash"] == "#lane=13&step=0&k=natural"
