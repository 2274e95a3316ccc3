"""What the command line's options choose: a device, the build for it, and nothing that would then not run."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from test_reports import campaign

from lanecheck import cases, cli, gpu, matrix_file, trace
from lanecheck.cli import options, order
from lanecheck.errors import BadInput, CannotRun
from lanecheck.gpu import Gpu
from lanecheck.matrix import Matrix
from lanecheck.subject import load
from lanecheck.trial import Target

REPOSITORY = Path(__file__).parents[2]
COMMANDS = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
KERNEL = pytest.mark.skipif(
    not (REPOSITORY / "kernel").is_dir(), reason="the harness alone is checked out"
)
OURS, CALLABLE = "packed_gemv.subject:SUBJECT", "second_subject:SUBJECT"
CASE = (
    "packed_gemv m=1 n=16 k=32 nw=1 u=1 s=1 dual=0 fused=0 bias=0 out=fp32 xpad=0 xoff=0 ypad=0 "
    "regime=small side=upper seed=0"
)
ARGUMENTS = {"replay": [CASE], "tree": [CASE], "compare": ["HEAD", "."]}

pytestmark = KERNEL


@pytest.fixture
def loaded() -> Matrix:
    return matrix_file.load(REPOSITORY / "matrix.yaml")


@pytest.fixture
def unbuilt(monkeypatch):
    """Nothing is compiled: a build is named after what it was made for."""
    for name in ("build_host", "build_device"):
        monkeypatch.setattr(
            options, name, lambda recipe, made, *rest: SimpleNamespace(path=Path(f"{made}.so"))
        )


def having(monkeypatch: pytest.MonkeyPatch, *capabilities: str) -> None:
    """A machine with these GPUs."""
    here = [Gpu(f"GPU of {cc}", cc, f"GPU-{i}") for i, cc in enumerate(capabilities)]
    monkeypatch.setattr(gpu, "detect", lambda: here)


def named(option: str) -> list[str]:
    """The commands that take it."""
    return [
        name
        for name, command in COMMANDS.items()
        if option in [each.name for each in command.params]
    ]


# The device -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", named("device"))
def test_an_unknown_device_is_refused(name, lanecheck, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    code, said, complaint = lanecheck(name, *ARGUMENTS.get(name, []), "--device", "tpu")
    assert (code, said) == (2, "")
    assert complaint.startswith("lanecheck: --device is host")
    assert complaint.endswith("not 'tpu'\n")


# The build ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("here", "arch"),
    [
        (["8.0"], "sm_80"),
        (["8.6"], "sm_86"),
        (["8.9"], "sm_89"),
        (["9.0"], "sm_90a"),
        (["10.3"], "sm_100f"),
        (["8.0", "9.0"], "sm_90a"),
        (["7.5", "9.0"], "sm_90a"),
    ],
)
def test_the_newest_gpu_that_any_arch_is_for_runs_the_build_made_for_it(
    here, arch, loaded, unbuilt, monkeypatch
):
    having(monkeypatch, *here)
    target = options.read_target(loaded, OURS, "plain", "cuda")
    place = next(i for i, cc in enumerate(here) if cc in loaded.archs[arch].loads_on)
    assert target == Target(
        OURS, "cuda", (here[place],), Path(f"{loaded.archs[arch]}.so"), arch, (f"GPU-{place}",)
    )


def test_an_arch_that_is_named_is_the_one(loaded, unbuilt, monkeypatch):
    having(monkeypatch, "9.0")
    assert options.read_target(loaded, OURS, "plain", "cuda", "ptx_80").variant == "ptx_80"
    with pytest.raises(
        CannotRun, match=r"no GPU on this machine loads sm_80; .*; --arch sm_90a for"
    ):
        options.read_target(loaded, OURS, "plain", "cuda", "sm_80")


@pytest.mark.parametrize("here", [[], ["7.5"]])
def test_without_a_gpu_that_loads_anything_there_is_a_host(here, loaded, monkeypatch):
    having(monkeypatch, *here)
    with pytest.raises(CannotRun, match="loads an arch of matrix.yaml; use --device host"):
        options.read_target(loaded, OURS, "plain", "cuda")


def test_no_command_has_an_arch_of_its_own():
    for name in named("arch"):
        (arch,) = (each for each in COMMANDS[name].params if each.name == "arch")
        assert arch.default is None, name


def test_the_host_computes_with_the_matrix_s_arithmetics(loaded, unbuilt):
    target = options.read_target(loaded, OURS, "hooks")
    assert (target.capabilities, target.variant) == (loaded.devices["host"].mma, "hooks")


def test_a_gpu_needs_a_matrix_that_names_archs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="--device cuda needs a matrix.yaml"):
        options.read_target(options.read_matrix(None, OURS), OURS, "plain", "cuda")


# What would not run ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fuzz", "replay", "tree", "landmarks", "sanitize"])
def test_a_fault_that_only_a_gpu_runs_is_refused_on_the_host(name, lanecheck, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(gpu, "detect", list)
    words = (*ARGUMENTS.get(name, []), "--fault", "asm-operand-twice")
    assert lanecheck(name, *words) == (
        2,
        "",
        "lanecheck: fault asm-operand-twice is in code that host execution replaces: only a GPU runs it, "
        "with --device cuda\n",
    )


def test_a_gpu_runs_a_fault_in_the_ptx(loaded, unbuilt, monkeypatch):
    having(monkeypatch, "9.0")
    target = options.read_target(loaded, OURS, "plain", "cuda", fault="asm-operand-twice")
    assert target.device == "cuda"


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("--fault", "nonexistent"), "--fault nonexistent"),
        (("--device", "cuda"), "--device cuda"),
        (("--arch", "whatever"), "--arch whatever"),
        (("--variant", "bogus"), "--variant bogus"),
        (("--device", "cuda", "--arch", "whatever", "--fault", "x", "--variant", "y"), "--fault x"),
    ],
)
@pytest.mark.parametrize("name", ["fuzz", "replay"])
def test_a_callable_refuses_what_chooses_a_build(name, words, option, lanecheck):
    line = "matmul m=1 n=1 k=2 out=fp32 xoff=0 ypad=0 regime=small side=upper seed=0"
    words = (*([line] if name == "replay" else []), "--subject", CALLABLE, *words)
    code, said, complaint = lanecheck(name, *words)
    assert (code, said) == (2, "")
    assert complaint.startswith(
        f"lanecheck: {option} is for a compiled subject: 'matmul' is a call"
    )


def test_a_host_build_is_refused_on_a_gpu(loaded, monkeypatch):
    having(monkeypatch, "9.0")
    with pytest.raises(BadInput, match="--variant asan is a host build"):
        options.read_target(loaded, OURS, "asan", "cuda")


# The GPU of this process ----------------------------------------------------------------------


def test_this_process_sees_the_first_gpu_of_a_target_alone(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-all")
    gpu.choose(())
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-all"
    gpu.choose(("GPU-1", "GPU-0"))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1"


def test_what_runs_without_workers_runs_on_the_targets_gpu(lanecheck, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    chosen: list[tuple[str, ...]] = []
    target = Target(OURS, "cuda", ("9.0",), Path("none.so"), "sm_90a", ("GPU-1",))
    monkeypatch.setattr(order, "read_target", lambda *given: target)
    for module in (order, trace):
        monkeypatch.setattr(module, "choose", chosen.append)
        monkeypatch.setattr(module, "observe", lambda *given: iter(()))
    assert lanecheck("tree", CASE)[0] == 0
    assert list(trace.trace(cases.parse(CASE, load(OURS)), target)) == []
    assert chosen == [("GPU-1",)] * 2


# How a command ends ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted({*named("record")} & {*named("subject")}))
def test_only_the_kernel_of_the_matrix_is_recorded(name, lanecheck, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    code, said, complaint = lanecheck(name, "--subject", CALLABLE, "--record")
    assert (code, said) == (2, "")
    assert complaint == "lanecheck: --record is for the kernel of matrix.yaml, without a fault\n"


@pytest.mark.parametrize("name", sorted({*named("record")} & {*named("subject")}))
def test_an_installed_copy_is_not_recorded_as_the_checkouts_own(name, lanecheck, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(options, "elsewhere", lambda root, recipe: True)
    code, said, complaint = lanecheck(name, "--record")
    assert (code, said) == (2, "") and "pip install -e the checkout's own" in complaint


def test_failures_end_with_1_and_a_campaign_that_showed_nothing_with_3():
    nothing = campaign()  # only execution judged its cases
    good = nothing.model_copy(update={"judged": {"integers": 1000}})
    for records, wrong, code in (
        ([good], False, 0),
        ([good], True, 1),
        ([nothing, campaign("small m=1")], False, 1),
    ):
        with pytest.raises(typer.Exit) as ended:
            options.exit_by(records, wrong)
        assert ended.value.exit_code == code
    with pytest.raises(CannotRun, match="no case's numbers were judged: nothing is shown"):
        options.exit_by([good, nothing])
