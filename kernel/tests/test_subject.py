"""The kernel's own source, executed on the CPU, against its specification."""

from __future__ import annotations

import ctypes
import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, target

lanecheck = pytest.importorskip("lanecheck")

from lanecheck import build, landmarks, oracles, simt  # noqa: E402
from lanecheck.build import build_host  # noqa: E402
from lanecheck.cases import Case, parse, strategy  # noqa: E402
from lanecheck.cases import case as draw_case  # noqa: E402
from lanecheck.errors import BadInput  # noqa: E402
from lanecheck.oracles import integers  # noqa: E402
from lanecheck.toolchain import Toolchain  # noqa: E402
from lanecheck.trial import Target, draw_inputs, observe  # noqa: E402
from packed_gemv import config  # noqa: E402
from packed_gemv.abi import Args  # noqa: E402
from packed_gemv.subject import SUBJECT  # noqa: E402

REFERENCE = "packed_gemv.subject:SUBJECT"
INVALID = 1  # cudaErrorInvalidValue

KERNELS = [
    (nb, mats, u) for mats in (1, 2) for nb in range(1, 9) for u in config.supported_trips(nb, mats)
]


@pytest.fixture(scope="session")
def library() -> Path:
    return build_host(SUBJECT.recipe, "plain", Toolchain()).path


@pytest.fixture(scope="session")
def host(library: Path) -> Target:
    return Target(REFERENCE, "host", ("8.0", "9.0"), library)


def case(**changed: int | str) -> Case:
    usual = {"m": 5, "n": 21, "k": 96, "nw": 2, "u": 1, "s": 1, "dual": 0, "fused": 0, "bias": 0}
    layout = {"out": "fp32", "xpad": 0, "xoff": 0, "ypad": 0}
    values = {"regime": "normal", "side": "upper", "seed": 11}
    return Case(SUBJECT.name, {**usual, **layout, **values, **changed})


def complaints(one: Case, target: Target) -> list[str]:
    return [
        f"{verdict.oracle} on {capability}: {verdict.evidence}"
        for capability, observation in observe(SUBJECT, one, target)
        for verdict in oracles.judge(observation)
        if verdict.wrong
    ]


@pytest.mark.parametrize("regime", ["small", "wide"])
@pytest.mark.parametrize("k", [262_208, 2**24 - 1], ids=["the longest in use", "the longest exact"])
def test_integers_are_exact_up_to_the_longest_sum(k: int, regime: str, library: Path) -> None:
    one = case(m=1, n=2, k=k, nw=16, u=8, s=3, regime=regime)
    ((_, observation),) = observe(SUBJECT, one, Target(REFERENCE, "host", ("9.0",), library))
    verdict = integers.judge(observation)
    assert verdict is not None
    assert not verdict.wrong, verdict.evidence
    assert verdict.compared == 2


@pytest.mark.parametrize(("nb", "mats", "u"), KERNELS)
def test_every_compiled_kernel_has_the_emulators_bits(nb, mats, u, host) -> None:
    top = config.max_warps(nb, mats)
    for nw, s, k, xoff in ((1, 1, 32 * u, 0), (top, 3, 32 * 9 - 8, 8), (2, 2, 32 * 5 - 3, 1)):
        one = case(m=8 * nb - 3, k=k, nw=min(nw, top), u=u, s=s, dual=mats - 1, xoff=xoff, bias=1)
        assert complaints(one, host) == []


@pytest.mark.parametrize("m", range(1, 65))
def test_every_number_of_tokens(m, host) -> None:
    assert complaints(case(m=m, nw=1, k=64, xpad=8), host) == []


@pytest.mark.parametrize("k", [1, 2, 7, 8, 31, 32, 33, 40, 63, 64, 65, 321])
@pytest.mark.parametrize("n", [1, 15, 16, 17])
def test_any_size_against_inaccessible_pages_on_either_side(n, k, host) -> None:
    for side in ("upper", "lower"):
        assert complaints(case(m=3, n=n, k=k, side=side, regime="small"), host) == []


@pytest.mark.parametrize("xoff", range(9))
@pytest.mark.parametrize("xpad", [0, 1, 8])
def test_the_element_path_has_the_bits_of_the_16_byte_path(xoff, xpad, host) -> None:
    def outputs(one: Case) -> list[np.ndarray]:
        return [observation.outputs["y0"] for _, observation in observe(SUBJECT, one, host)]

    vector, other = case(m=9), case(m=9, xoff=xoff, xpad=xpad)
    for a, b in zip(outputs(vector), outputs(other)):
        np.testing.assert_array_equal(a, b)


def kernel_of(params) -> tuple[int, int, int, bool]:
    """(nb, mats, u, vec) of the kernel that launch.cu chooses."""
    vec = params["k"] % 8 == 0 and params["xoff"] % 8 == 0
    vec = vec and (params["m"] == 1 or (params["k"] + params["xpad"]) % 8 == 0)
    return -(-params["m"] // 8), 1 + params["dual"], params["u"] if vec else 1, vec


@pytest.mark.parametrize(("count", "trips"), [(2000, 1), (10_000, 2)])
def test_a_campaign_runs_the_main_loop_of_every_kernel(count, trips) -> None:
    seen = set()
    for index in range(count):
        p = draw_case(SUBJECT, 0, index).params
        walk = config.Config(p["nw"], p["u"], p["s"], -(-p["m"] // 8), bool(p["dual"]))
        kernel = kernel_of(p)
        if max(map(len, walk.slices(p["k"]))) >= trips * kernel[2]:
            seen.add(kernel)
    expected = {(nb, mats, u, True) for nb, mats, u in KERNELS}
    expected |= {(nb, mats, 1, False) for nb, mats, _ in KERNELS}
    assert len(expected) == 60
    assert seen == expected


@pytest.mark.skipif(not shutil.which("clang++"), reason="no clang++ on PATH")
def test_clang_builds_it_with_the_same_bits(monkeypatch) -> None:
    monkeypatch.setenv("CXX", "clang++")
    library = build_host(SUBJECT.recipe, "plain", Toolchain()).path
    clang = Target(REFERENCE, "host", ("8.0", "9.0"), library)
    for nb, mats, u in KERNELS[::7]:
        assert complaints(case(m=8 * nb, dual=mats - 1, u=u, k=32 * u + 8, s=2), clang) == []


def test_u_changes_no_bit(host) -> None:
    bits = [
        [
            observation.outputs["y0"]
            for _, observation in observe(SUBJECT, case(k=32 * 17, u=u), host)
        ]
        for u in config.TRIPS
    ]
    for other in bits[1:]:
        np.testing.assert_array_equal(bits[0], other)


@pytest.mark.parametrize(("n", "k"), [(8, 4096), (128, 2048)])
def test_a_token_keeps_its_bits_in_any_batch_at_a_batch_invariant_config(n, k, host) -> None:
    whole = draw_inputs(SUBJECT, case(m=64, n=n, k=k))

    def first_token(m: int, walk: config.Config) -> list[list[int]]:
        one = case(m=m, n=n, k=k, nw=walk.nw, u=walk.u, s=walk.s)
        inputs = {**whole, "x": whole["x"][:m]}
        return [seen.outputs["y0"][0].tolist() for _, seen in observe(SUBJECT, one, host, inputs)]

    chosen = config.select(1, n, k, batch_invariant=True)
    alone = first_token(1, chosen)
    for m in (8, 9, 64):
        assert config.for_tokens(chosen, 64).u < chosen.u
        assert first_token(m, config.for_tokens(chosen, m)) == alone
    tuned = [first_token(m, config.select(m, n, k)) for m in (1, 64)]
    assert tuned[0] != tuned[1], "the shape does not show that M could matter"


def test_what_lies_beyond_k_is_not_read_as_a_factor(host) -> None:
    # The gap between the rows of x holds NaN; W's padding is 0, and 0 · NaN would be NaN.
    for _, observation in observe(SUBJECT, case(k=41, xpad=30), host):
        assert np.isfinite(observation.outputs["y0"].view(np.float32)).all()


@given(one=strategy(SUBJECT))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_whole_space_towards_many_slices_and_long_chains(host, one) -> None:
    params = one.params
    target(float(int(params["s"]) * int(params["nw"])), label="slices of K")
    target(float(params["k"]), label="K")
    assert complaints(one, host) == []


def test_what_python_says_is_compiled_is_compiled(library) -> None:
    supported = simt.HostLibrary(library).cdll.packed_gemv_supported
    for nb in range(0, 10):
        for mats in (0, 1, 2, 3):
            for nw in range(0, 18):
                for u in range(0, 10):
                    says = (
                        1 <= nb <= 8
                        and mats in (1, 2)
                        and 1 <= nw <= config.max_warps(nb, mats)
                        and u in config.supported_trips(nb, mats)
                    )
                    assert bool(supported(nb, mats, nw, u)) == says, (nb, mats, nw, u)


@pytest.mark.parametrize(
    "wrong",
    [
        {"m": 0},
        {"m": 65},
        {"n": 0},
        {"k": 0},
        {"k": (1 << 30) + 1},
        {"nw": 0},
        {"nw": 17},
        {"u": 3},
        {"s": 0},
        {"s": 65536},
        {"s": 2, "workspace": None},
        {"ldx": 31, "m": 2},
        {"ldy": 15, "m": 2},
        {"x": None},
        {"y": None},
        {"w": None},
        {"w": 8},
        {"fused": 1},
    ],
    ids=str,
)
def test_a_launch_that_cannot_be_right_is_refused(wrong, library) -> None:
    memory = np.zeros(1 << 16, np.uint8)
    base = memory.ctypes.data + -memory.ctypes.data % 16
    given = {"x": base, "y": base, "w": base, "workspace": base}
    given |= {"m": 1, "n": 16, "k": 32, "ldx": 32, "ldy": 16, "nw": 1, "u": 1, "s": 1, **wrong}
    args = Args(x=given["x"], workspace=given["workspace"], fused=given.get("fused", 0))
    args.y[0] = given["y"]
    args.w[0] = given["w"] if given["w"] != 8 else base + 8
    for name in ("m", "n", "k", "ldx", "ldy", "nw", "u", "s"):
        setattr(args, name, given[name])
    launch = simt.HostLibrary(library).cdll.packed_gemv_launch
    assert launch(ctypes.byref(args), None) == INVALID
    assert not memory.any()


LINE = (
    "packed_gemv m=1 n=16 k=32 nw=1 u=1 s=1 dual=0 fused=0 bias=0 out=fp32 xpad=0 xoff=0 ypad=0 "
    "regime=small side=upper seed=0"
)


def edited(words: str) -> str:
    """The line with these words in place of its own."""
    changed = dict(word.split("=") for word in words.split())
    assert set(changed) <= set(dict(word.split("=") for word in LINE.split()[1:]))
    return " ".join(
        f"{key}={changed.get(key, value)}" if equals else key
        for key, equals, value in (word.partition("=") for word in LINE.split())
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("m=0", "m=0: it is 1 to 64"),
        ("m=65", "m=65: it is 1 to 64"),
        ("n=0", "n=0: it is 1 to 1073741824"),
        ("n=99999999999", "n=99999999999: it is 1 to 1073741824"),
        ("k=-32", "k=-32: it is 1 to 1073741824"),
        ("k=1073741825", "k=1073741825: it is 1 to 1073741824"),
        ("dual=2", "dual=2: it is 0 to 1"),
        ("dual=1 fused=2", "fused=2: it is 0 to 1"),
        ("bias=7", "bias=7: it is 0 to 1"),
        ("bias=-1", "bias=-1: it is 0 to 1"),
        ("fused=1", "fused=1 dual=0: fused takes two weights"),
        ("out=fp16", "out=fp16: it is fp32 or bf16"),
        ("xoff=-1", "xoff=-1: it is 0 to 4096"),
        ("xoff=4097", "xoff=4097: it is 0 to 4096"),
        ("m=8 xpad=-64", "xpad=-64: it is 0 to"),
        ("m=8 ypad=-4", "ypad=-4: it is 0 to"),
        ("m=8 xpad=100000000000000", "xpad=100000000000000: it is 0 to"),
        (
            "m=64 ypad=1000000000",
            "the tensors span 252,000,010,240 bytes, most of them y0; at most",
        ),
        ("n=1073741824", "most of them w0; at most 34,359,738,368 are possible: make n, k, s or a"),
        ("n=1048576 s=65535", "most of them workspace"),
        ("nw=17", "nw=17 is not in 1…16"),
        ("u=3", "u=3 is not compiled"),
        ("s=0", "s is 1 to 65535, not 0"),
        ("m=64 u=8", "u=8 needs too many registers with nb=8"),
    ],
)
def test_a_line_that_no_launch_could_be_right_for_is_bad_input(words: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(edited(words), SUBJECT)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    ["m=64", "dual=1 fused=1 bias=1 out=bf16", "m=64 xpad=24 xoff=4096 ypad=1", "k=16777215"],
)
def test_a_line_at_the_edge_of_the_domain_is_a_case(words: str) -> None:
    assert parse(edited(words), SUBJECT).line == edited(words)


def test_every_case_that_is_drawn_or_named_is_in_the_domain() -> None:
    cases = [draw_case(SUBJECT, 0, index) for index in range(2000)]
    cases += itertools.chain.from_iterable(landmarks.groups(SUBJECT, "cuda").values())
    assert all(parse(one.line, SUBJECT) == one for one in cases)
    timed = [*SUBJECT.bench_params(), *(params for params, _ in SUBJECT.sweep_params())]
    timed += [params for device in ("host", "cuda") for params in SUBJECT.gate_params(device)]
    assert all(map(SUBJECT.tensors, timed))


def test_two_builds_for_a_gpu_are_the_same_bytes(tmp_path: Path) -> None:
    toolchain, sources = Toolchain(), SUBJECT.recipe.root
    built = []
    for name in ("first", "second"):
        out = tmp_path / name / "kernel.so"
        out.parent.mkdir()
        ptx = ("arch=compute_80,code=compute_80",)
        command = SUBJECT.recipe.device(toolchain.nvcc, ptx, sources, out)
        status, said, _ = build.run(command, out.parent, toolchain.compile_environment)
        assert status == 0, said
        built.append(out.read_bytes())
    assert built[0] == built[1]
