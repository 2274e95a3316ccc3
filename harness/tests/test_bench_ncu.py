"""Nsight Compute beside the benchmark, where no GPU is: its output is read, its part played by a script."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import test_bench
import test_bench_doubts
import test_cli
from pydantic import ValidationError
from test_bench import SIZE, passed
from test_bench_doubts import L2, PARAMS, OnDevice

from lanecheck import cli
from lanecheck.bench import launches, ncu, timing
from lanecheck.bench.asking import Asking
from lanecheck.bench.cuda_rig import CudaRig
from lanecheck.bench.log import LOG, RowEntry, headed
from lanecheck.bench.model import BenchRecord, Measurement, Row
from lanecheck.bench.ncu import Counted, Ncu, read
from lanecheck.bench.profiled import Profiled
from lanecheck.bench.rig import COLD_SINGLE
from lanecheck.bench.spread import Spread
from lanecheck.bench.table import render_profiled
from lanecheck.cli import benching
from lanecheck.errors import CannotRun
from lanecheck.gpu import Gpu, reserved, unit
from lanecheck.subject import Bits, Buffer, Params, Tensor

checkout = test_cli.checkout
device = test_bench_doubts.device

H200 = [Gpu("NVIDIA H200", "9.0", "GPU-1"), Gpu("NVIDIA H200", "9.0", "GPU-2")]
HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)


def kernel(number: int, *values: str, units: Sequence[str] = ("byte", "byte", "ns")) -> str:
    """ncu's lines of one kernel."""
    return "\n".join(
        f'"{number}","517","python3.12","127.0.0.1","void packed_gemv::gemv_kernel<1, 1, 1>(Params)",'
        f'"1","13","(256, 1, 1)","(1792, 1, 1)","0","9.0","Command line profiler metrics",'
        f'"{name}","{unit}","{value}"'
        for name, unit, value in zip(ncu.METRICS, units, values)
    )


def graph(number: int, *values: str) -> str:
    """ncu's lines of one graph."""
    named = kernel(number, *values)
    return named.replace("void packed_gemv::gemv_kernel<1, 1, 1>(Params)", "graph").replace(
        "(1792, 1, 1)", "(256, 1, 1)"
    )


def output(*kernels: str, said: str = "drawing\nlanecheck: done 1") -> str:
    """What ncu and the process it watches write to one stream."""
    return "\n".join(
        [
            "==PROF== Connected to process 517 (/usr/bin/python3.12)",
            '==PROF== Profiling "gemv_kernel" - 0: 0%....50%....100% - 1 pass',
            *said.splitlines(),
            "==PROF== Disconnected from process 517",
            *([HEADER, *kernels] if kernels else ["==WARNING== No kernels were profiled."]),
            "",
        ]
    )


# Reading --------------------------------------------------------------------------------------


def test_the_table_is_found_behind_other_output_and_its_thousands_are_read() -> None:
    text = output(
        kernel(0, "234,909,184", "50,176", "56,928"), kernel(1, "234,913,280", "0", "54,560")
    )
    assert read(text, 2) == [
        Counted(results=1, read=234_909_184, written=50_176, us=pytest.approx(56.928)),
        Counted(results=1, read=234_913_280, written=0, us=pytest.approx(54.56)),
    ]


def test_the_kernels_of_a_launch_are_added_up() -> None:
    text = output(*(kernel(i, "1,000", "10", "2,000") for i in range(6)))
    assert read(text, 2) == [Counted(results=3, read=3000, written=30, us=pytest.approx(6.0))] * 2


def test_what_a_graph_reads_is_shared_out_to_its_launches() -> None:
    graphs = [
        graph(0, "2,503,746,304", "760", "1,100,080"),
        graph(1, "2,503,746,380", "76", "5,300,000"),
    ]
    assert read(output(*graphs, said="lanecheck: done 76"), 2) == [
        Counted(results=1, read=32_944_030, written=10, us=pytest.approx(1100.08 / 76)),
        Counted(results=1, read=32_944_031, written=1, us=pytest.approx(5300 / 76)),
    ]


FAILURES = {
    "which is no whole number each": output(*(kernel(i, "1", "1", "1") for i in range(3))),
    "ncu measured no kernel, although all were launched": output(),
    "ncu left out a metric": output(kernel(0, "1", "1", "1"), kernel(1, "1", "1")),
    "ncu has no dram__bytes_write.sum of this GPU: it says 'n/a'": output(
        kernel(0, "1", "n/a", "1")
    ),
    "ncu says dram__bytes_read.sum in 'Mbyte', although asked for base units": output(
        kernel(0, "234.91", "1", "1", units=("Mbyte", "byte", "ns"))
    ),
    "run as root, or have the nvidia driver loaded with NVreg_Restrict": output(
        said="==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
        "Performance Counters on the target device 0."
    ),
    "ncu does not work on this machine: Failed to initialize the profiler: LibraryNotLoaded": output(
        said="==ERROR== Failed to initialize the profiler: LibraryNotLoaded\nRuntimeError: CUDA error"
    ),
    "what ncu watched did not launch: gemv m=1: invalid argument": output(
        said="lanecheck: failed gemv m=1: invalid argument\n"
        "==ERROR== The application returned an error code (1)."
    ),
    "what ncu watched did not launch: torch.OutOfMemoryError: CUDA": output(
        kernel(0, "1", "1", "1"),
        said="Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA",
    ),
    "what ncu watched did not launch: it says nothing": "",
}


@pytest.mark.parametrize("reason", FAILURES)
def test_whatever_ncu_does_not_count_is_one_line_that_says_why(reason: str) -> None:
    with pytest.raises(CannotRun) as raised:
        read(FAILURES[reason], 2)
    assert reason in str(raised.value) and "\n" not in str(raised.value)


# Rows -----------------------------------------------------------------------------------------


def row(params: Params, size: int = SIZE, **more: Any) -> Row:
    """A row of 11 µs; each of the traffic's bytes counts."""
    timing = test_bench.timed([passed()], size=size, **more).timing
    return Row.of(dict(params), test_bench.traffic(size), [passed()], timing)


def test_the_rows_that_move_most_are_measured_of_as_many_matrices_as_there_are() -> None:
    sizes = {
        (1, 64): 50,
        (8, 64): 60,
        (1, 96): 40,
        (8, 96): 45,
        (1, 16): 10,
        (8, 16): 11,
        (1, 8): 9,
    }
    rows = {at: row({"m": at[0], "n": at[1], "k": 32}, size) for at, size in sizes.items()}
    assert ncu.chosen([*rows.values()]) == [rows[8, 64], rows[8, 96], rows[8, 16]]
    assert ncu.chosen([rows[1, 64], rows[8, 64]]) == [rows[8, 64], rows[1, 64]]
    void = row({"m": 9, "n": 9, "k": 9}, 99, subject=(7.0, 7.7, 8.4))  # faster than memory
    assert void.void and ncu.chosen([void, test_bench.row_without_timing()]) == []


def profiled(
    of: Row,
    read: int = SIZE,
    written: int = 0,
    us: float = 11.0,
    chain: int = SIZE,
    outputs: int = 0,
) -> Profiled:
    alone, replay = Counted(1, read, written, us), Counted(1, chain, 0, 99.0)
    return ncu.summed(Ncu(Path("ncu"), "1.2"), of, outputs, [alone] * 3, [replay] * 2)


def test_the_first_launch_alone_does_not_count_but_every_replay_of_the_chain_does() -> None:
    alone = [Counted(2, 9_000, 9_000, 99.0), *(Counted(2, n, 10 * n, n) for n in range(1, 6))]
    chain = [Counted(1, n, 0, 99.0) for n in (30, 10, 20)]
    assert ncu.summed(Ncu(Path("ncu"), "1.2"), row({"m": 1}), 40, alone, chain) == Profiled(
        params={"m": 1},
        method="Nsight Compute 1.2: each kernel alone, caches flushed; the chain's graph, caches kept; "
        "clocks not locked",
        kernels=2,
        read_bytes=3,
        written_bytes=30,
        samples_us=(1.0, 2.0, 3.0, 4.0, 5.0),
        time_us=Spread(median=3.0, q1=2.0, q3=4.0),
        chain_read_bytes=20,
        output_bytes=40,
    )


OUTPUTS = {"read": int(SIZE * 0.92), "outputs": int(SIZE * 0.08)}


@pytest.mark.parametrize(
    ("figures", "doubts"),
    [
        ({"read": int(SIZE * 1.01), "written": int(SIZE * 0.009), "us": 11.2}, []),
        ({"read": int(SIZE * 0.981), "us": 10.8}, []),
        ({"written": SIZE // 20}, ["M=1: ncu counts 1.050 of the traffic's bytes"]),
        ({"us": 11.55}, ["M=1: ncu's time is 1.050 of the cold chain's"]),
        (
            {"read": SIZE // 2, "us": 22.0},
            [
                "M=1: ncu counts 0.500 of the traffic's bytes",
                "M=1: ncu's time is 2.000 of the cold chain's",
            ],
        ),
        ({"chain": int(SIZE * 0.95)}, []),
        ({"chain": int(SIZE * 1.5)}, []),
        (
            {"chain": int(SIZE * 0.949)},
            ["M=1: the timed chain is warm: 0.949 of what a launch alone reads comes from DRAM"],
        ),
        # A twelfth of outputs that stay in the L2, as of 64 tokens and a short K.
        (OUTPUTS | {"chain": int(SIZE * 0.9)}, []),
        (
            OUTPUTS | {"chain": int(SIZE * 0.8)},
            ["M=1: the timed chain is warm: 0.870 of what a launch alone reads comes from DRAM"],
        ),
        (OUTPUTS | {"written": SIZE // 5}, ["M=1: ncu counts 1.120 of the traffic's bytes"]),
        (OUTPUTS | {"outputs": 0}, ["M=1: ncu counts 0.920 of the traffic's bytes"]),
        ({"read": 0, "written": SIZE, "chain": 0}, []),
    ],
)
def test_figures_more_than_two_per_cent_apart_disagree_and_a_warm_chain_is_doubted(
    figures: Mapping[str, Any], doubts: list[str]
) -> None:
    of = row({"m": 1})
    (each,) = ncu.agreements(beside(of, profiled(of, **figures)))
    assert each.doubts == doubts


@pytest.mark.parametrize(
    ("us", "agree"), [(10.7, False), (10.8, True), (12.5, True), (14.3, False)]
)
def test_time_lies_between_the_chains_and_that_of_a_launch_alone(us: float, agree: bool) -> None:
    alone = Measurement.of(COLD_SINGLE, [14.0], SIZE)
    of = test_bench.timed([test_bench.passed()], modes=[alone])
    (each,) = ncu.agreements(beside(of, profiled(of, us=us)))
    assert each.time_agrees is agree and bool(each.doubts) is not agree


def beside(of: Row, *found: Profiled) -> BenchRecord:
    return BenchRecord.model_validate(test_bench.record(of).model_dump() | {"profiled": found})


def test_the_record_holds_what_was_measured_of_its_own_timed_rows_alone() -> None:
    of = row({"m": 1})
    whole = beside(of, profiled(of))
    assert BenchRecord.model_validate_json(whole.model_dump_json()) == whole
    before = json.loads(whole.model_dump_json())
    del before["profiled"]
    assert BenchRecord.model_validate_json(json.dumps(before)).profiled == ()
    with pytest.raises(ValidationError, match="no timed row is of {'m': 2}"):
        beside(of, profiled(row({"m": 2})))


def test_a_record_from_before_the_chain_was_measured_says_nothing_of_it() -> None:
    of = row({"m": 1})
    before = json.loads(beside(of, profiled(of, chain=0)).model_dump_json())
    for name in ("chain_read_bytes", "output_bytes"):
        del before["profiled"][0][name]
    record = BenchRecord.model_validate_json(json.dumps(before))
    (each,) = ncu.agreements(record)
    assert each.from_dram is None and each.doubts == []
    assert [*render_profiled(record).columns[-1].cells] == ["–"]


# The watched process --------------------------------------------------------------------------


class Watched(OnDevice):
    """Says what it is asked for, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.outputs: set[int] = set()

    def derive(self, params: Params, inputs: Mapping[str, Bits]) -> dict[str, Bits]:
        self.said.append("pack")
        return super().derive(params, inputs)

    def launch(
        self, library: Any, params: Params, buffers: Mapping[str, Buffer], stream: int
    ) -> str | None:
        self.said.append("launch")
        self.outputs.add(buffers["y"].address)
        return super().launch(library, params, buffers, stream)


@pytest.fixture
def watched(device: Any, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """The subject of a process on the played device, whose profiler it hears start and stop."""
    import torch

    subject = Watched()
    heard = {
        name: lambda name=name: subject.said.append(name)  # type: ignore[misc]
        for name in ("start", "stop")
    }
    monkeypatch.setattr(torch.cuda, "profiler", SimpleNamespace(**heard), raising=False)
    monkeypatch.setattr(launches, "load", lambda reference: subject)
    monkeypatch.setattr(launches, "cuda_torch", lambda: torch)
    described = SimpleNamespace(l2_bytes=L2), "GPU-1"
    monkeypatch.setattr(launches, "described", lambda: described)
    return subject


def asked(chain: bool = False) -> str:
    return launches.Asked(
        subject="a:SUBJECT",
        library=Path("library.so"),
        params=dict(PARAMS),
        seed=3,
        chain=chain,
        repeats=4,
    ).model_dump_json()


def test_only_the_launches_lie_between_the_profilers_start_and_stop(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launches.main([asked()]) == 0
    assert watched.said == ["pack", "start", *["launch"] * 4, "stop"]
    assert len(watched.outputs) == 4
    assert capsys.readouterr().out == "lanecheck: done 1\n"


def test_only_replays_of_the_whole_warmed_up_chain_lie_between_them_if_that_is_asked_for(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replay = timing.CudaGraphChain.enqueue

    def enqueue(chain: timing.CudaGraphChain) -> None:
        watched.said.append("replay")
        replay(chain)

    monkeypatch.setattr(timing.CudaGraphChain, "enqueue", enqueue)
    monkeypatch.setattr(CudaRig, "copies", lambda self, size: 9)
    assert launches.main([asked(chain=True)]) == 0
    made = ["launch"] * (9 + 9 * timing.GRAPH_TURNS)  # to load the kernel, then in the graph
    warmed = ["replay"] * launches.WARM_UP
    assert watched.said == ["pack", *made, *warmed, "start", *["replay"] * 4, "stop"]
    assert len(watched.outputs) == 9
    assert capsys.readouterr().out == f"lanecheck: done {9 * timing.GRAPH_TURNS}\n"


def test_a_launch_that_fails_is_said_in_one_line(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watched, "launch", lambda *given: "invalid argument")
    assert launches.main([asked()]) == 1
    said = capsys.readouterr().out
    assert said.startswith("lanecheck: failed gemv ") and said.endswith(": invalid argument\n")


# The command ----------------------------------------------------------------------------------

SCRIPT = f"""#!{sys.executable}
import json, os, pathlib, subprocess, sys
here = pathlib.Path(__file__).parent
if "--version" in sys.argv:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.1.0 (build 36398880)")
elif (here / "alone").exists():
    with (here / "asked").open("a") as asked:
        asked.write(json.dumps([os.environ["CUDA_VISIBLE_DEVICES"], *sys.argv[1:]]) + "\\n")
    print((here / ("chain" if "--graph-profiling" in sys.argv else "alone")).read_text())
else:
    sys.exit(subprocess.run(sys.argv[sys.argv.index(sys.executable):]).returncode)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ncu on the PATH, which says what is in the file ``alone`` or ``chain`` beside it, and notes what it
    was asked; without these files it runs what it should watch."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ncu").write_text(SCRIPT)
    (folder / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CUDA_HOME", "LANECHECK_NVCC"):
        monkeypatch.delenv(name, raising=False)
    return folder


Bench = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bench(
    lanecheck: Bench, checkout: Path, monkeypatch: pytest.MonkeyPatch, saved: dict[str, Any]
) -> Bench:
    """``lanecheck bench`` on two GPUs that have timed two shapes already."""
    library, log = checkout / "library.so", checkout / "log.jsonl"
    library.write_bytes(b"")
    on_second = {"unit": unit("GPU-2")}
    rows = [
        row({"m": 8, "n": 28672, "k": 4096}).model_copy(update=on_second),
        row({"m": 1, "n": 4096, "k": 4096}, SIZE // 2),
    ]
    usual = OnDevice()
    outputs = Tensor("y", (1, 512), "fp32", "output")  # 2,048 bytes
    monkeypatch.setattr(
        usual, "bench_params", lambda: [each.params for each in rows], raising=False
    )
    monkeypatch.setattr(usual, "tensors", lambda params: [outputs], raising=False)

    def timed(
        reference: str,
        library: Path,
        gpus: Sequence[Gpu],
        shapes: Sequence[tuple[Params, float]],
        *,
        rounds: int,
        seed: int,
        **more: Any,
    ) -> BenchRecord:
        wanted = [params for params, _ in shapes]
        done = test_bench.record(*(row for row in rows if row.params in wanted))
        header = headed(reference, library, gpus[0].name, rounds, seed)
        with LOG.opened(log, header) as journal:
            of_all = {"environment": done.environment, "asked": Asking(float("inf")).names}
            for each in done.rows:
                journal.append(RowEntry(seconds=1.0, row=each, **of_all))
        return done.model_copy(update={"rounds": rounds})

    monkeypatch.setattr(benching.gpu, "detect", lambda: H200)
    monkeypatch.setattr(benching, "load", lambda reference: usual)
    monkeypatch.setattr(ncu, "load", lambda reference: usual)
    monkeypatch.setattr(benching, "built", lambda *given: [(None, SimpleNamespace(path=library))])
    monkeypatch.setattr(benching, "run_bench", timed)
    monkeypatch.setattr(benching.recording, "save", lambda *given, **parts: saved.update(parts))
    monkeypatch.setattr("tempfile.tempdir", str(checkout))
    return lambda *words: lanecheck("bench", "--log", log, *words)


@pytest.fixture
def saved() -> dict[str, Any]:
    """What the command recorded."""
    return {}


def say(program: Path, us: float = 11.1, chain: int = 981) -> None:
    """To be written: ten launches that move SIZE, and five graphs of 20 that read so many thousandths."""
    first = kernel(0, "1", "1", "999,999")
    rest = [kernel(i, f"{SIZE:,}", "2,048", f"{us * 1e3:,.0f}") for i in range(1, ncu.LAUNCHES)]
    (program / "alone").write_text(output(first, *rest))
    graphs = [graph(i, f"{20 * chain * SIZE // 1000:,}", "0", "1") for i in range(ncu.REPLAYS)]
    (program / "chain").write_text(output(*graphs, said="lanecheck: done 20"))


@test_cli.KERNEL
def test_what_ncu_measures_is_printed_and_recorded_and_a_disagreement_fails(
    bench: Bench, program: Path, saved: dict[str, Any], checkout: Path
) -> None:
    say(program)
    code, said, complaint = bench("--ncu")
    assert (code, complaint) == (1, "")  # the second row moves half as much
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert "!! ncu M=1 N=4096 K=4096: ncu counts 2.004 of the traffic's bytes" in lines
    assert (
        "│ 8 │ 28672 │ 4096 │ 1.00 │ 1.0020 │ 11.10 [11.10, 11.10] │ 1.0091 │ – │ 98.1% │" in lines
    )
    assert "2.0041 !!" in said
    assert "Nsight Compute 2025.3.1.0: each kernel alone, caches flushed; the chain's graph" in said
    record, (cell,) = saved["bench"], saved["cells"]
    assert record.valid and [found.params["n"] for found in record.profiled] == [28672, 4096]
    assert cell.status.value == "disproven"
    assert cell.reason == "M=1 N=4096 K=4096: ncu counts 2.004 of the traffic's bytes"
    calls = [*map(json.loads, (program / "asked").read_text().splitlines())]
    # Each where it was timed, if that is here; in both ways.
    assert [call[0] for call in calls] == ["GPU-2", "GPU-2", "GPU-1", "GPU-1"]
    ran = sys.executable, "-m", "lanecheck.bench.launches"
    assert calls[0][1:-1] == [*ncu.OPTIONS, "--cache-control", "all", *ran]
    kept = "--cache-control", "none", "--graph-profiling", "graph"
    assert calls[1][1:-1] == [*ncu.OPTIONS, *kept, *ran]
    alone, chain = (launches.Asked.model_validate_json(call[-1]) for call in calls[:2])
    assert alone.params == {"m": 8, "n": 28672, "k": 4096} and not alone.chain
    assert alone.repeats == ncu.LAUNCHES
    assert alone.library == checkout / "library.so" and alone.seed == 0
    assert chain == alone.model_copy(update={"chain": True, "repeats": ncu.REPLAYS})


@test_cli.KERNEL
def test_figures_that_agree_are_exit_code_0_and_a_warm_chain_is_not(
    bench: Bench, program: Path, saved: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(program)
    monkeypatch.setattr(ncu, "SHAPES", 1)
    code, said, _ = bench("--ncu")
    assert (
        code == 0
        and "1 of 1 shapes: bytes and times agree within 2 %, and the timed chains are cold" in said
    )
    assert saved["cells"][0].status.value == "verified"
    say(program, chain=940)
    code, said, _ = bench("--ncu")
    assert code == 1 and "│        94.0% !! │" in said
    assert saved["cells"][0].reason.endswith(
        "is warm: 0.940 of what a launch alone reads comes from DRAM"
    )
    code, said, _ = bench()
    assert code == 0 and "Nsight" not in said and saved["bench"].profiled == ()


@test_cli.KERNEL
def test_without_ncu_nothing_is_timed(
    bench: Bench, program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(benching, "run_bench", lambda *given, **more: pytest.fail("timed"))
    (program / "ncu").write_text("#!/bin/sh\necho no version")
    code, _, complaint = bench("--ncu")
    assert code == 3 and complaint.endswith("names no version: put another ncu on the PATH\n")
    (program / "ncu").unlink()
    monkeypatch.setattr("lanecheck.toolchain.SYSTEM", tmp_path)
    code, said, complaint = bench("--ncu")
    assert (code, said) == (3, "") and complaint.count("\n") == 1
    assert "no ncu on this machine: install Nsight Compute" in complaint


@test_cli.KERNEL
def test_a_watched_process_that_fails_leaves_the_log_of_the_rows(
    bench: Bench, program: Path, saved: dict[str, Any], checkout: Path
) -> None:
    code, said, complaint = bench("--ncu")  # of which the process really runs, and finds no GPU-2
    assert code == 3 and "alone µs" in said and saved == {}
    assert complaint.startswith(
        "lanecheck: what ncu watched did not launch: timing a GPU needs torch"
    )
    assert complaint.endswith("; the rows are logged: without --ncu they are kept\n")
    assert (checkout / "log.jsonl").exists()


@test_cli.KERNEL
def test_while_ncu_measures_the_gpus_are_still_taken(
    bench: Bench, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def profiled(*given: Any, **more: Any) -> BenchRecord:
        for each in H200:
            with (
                pytest.raises(CannotRun, match="is taken by process .*, lanecheck bench,"),
                reserved(unit(each.uuid), each.name, "compare"),
            ):
                pass
        done: BenchRecord = given[4]
        return done

    monkeypatch.setattr(ncu, "profiled", profiled)
    code, said, _ = bench("--ncu")
    assert code == 0 and "no shape counts" in said
    with reserved(unit("GPU-1"), "H200", "compare"):
        code, _, complaint = bench("--ncu")
    assert code == 3 and "NVIDIA H200 is taken by process" in complaint


def test_an_ncu_that_hangs_is_ended(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program / "ncu").write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)")
    monkeypatch.setattr(ncu, "TIME_LIMIT", 0.2)
    monkeypatch.setattr(ncu, "load", lambda reference: SimpleNamespace(tensors=lambda params: []))
    record = test_bench.record(row({"m": 1}))
    with pytest.raises(CannotRun, match="ncu did not end within 0.2 s"):
        ncu.profiled(
            Ncu(program / "ncu", "1.2"), "a:SUBJECT", program, H200, record, lambda row: None
        )


@test_cli.KERNEL
def test_an_interrupt_of_ncu_leaves_the_log_of_the_rows(
    bench: Bench, program: Path, saved: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ncu, "profiled", interrupted)
    code, _, complaint = bench("--ncu")
    assert code == cli.INTERRUPTED and saved == {}
    assert complaint == (
        "lanecheck: interrupted; the rows are logged: without --ncu they are kept\n"
    )
