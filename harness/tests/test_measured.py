"""What real comparisons show of the gate: how it is judged, kept, said and published."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from test_reports import report

from lanecheck import gpu
from lanecheck.bench.machine import Environment
from lanecheck.bench.paired.gate import VERDICTS, Verdict, differences
from lanecheck.bench.paired.measured import PowerRecord
from lanecheck.bench.paired.pairing import SIDES, compared, concluded, schedule
from lanecheck.bench.paired.power import SLOW_DOWNS, simulate
from lanecheck.bench.paired.rates import Published, Rate, Simulated
from lanecheck.bench.paired.record import (
    ArmRecord,
    Code,
    Header,
    PairingRecord,
    ProcessRecord,
    ShownRecord,
)
from lanecheck.bench.paired.table import hardest, noises, reality, simulation
from lanecheck.cli import comparing
from lanecheck.errors import BadInput
from lanecheck.reports import model, store

PAIRS = 12
KERNEL = Path(__file__).parents[2] / "kernel"

ENVIRONMENT = Environment(
    gpu="NVIDIA H200",
    capability="9.0",
    sms=132,
    l2_bytes=60 * 2**20,
    memory_bytes=141 * 10**9,
    memory_clock_mhz=3201,
    driver="580.65",
    torch="2.10.0",
    cuda="13.0",
)

# Real comparisons -----------------------------------------------------------------------------

SUBJECT = "kernel:SUBJECT"
DAY = datetime(2026, 11, 20, tzinfo=timezone.utc)


def code(text: str = "same") -> Code:
    return Code(gpu=text, library=None, files={})


def identical(
    seed: int = 0,
    ran: int | None = None,
    bias: float = 0.0,
    again: float = 0.0,
    refusal: str | None = None,
    created: datetime | None = DAY,
    draw: int = 0,
    **changes: Any,
) -> PairingRecord:
    """A comparison of identical code: two configs, the second with three times the noise.

    Args:
        ran: processes that ran, all if None.
        bias: what head's folder adds to its times. again: what that of base's second checkout does.
        draw: what else the noise is drawn from than the seed.
        changes: fields of the header; or commit, of both arms.
    """
    configs: dict[str, dict[str, int | str]] = {"M=1": {"m": 1}, "M=8": {"m": 8}}
    commit = changes.pop("commit", "c" * 40)
    arm = ArmRecord(given="HEAD", commit=commit, code=code(), configs=configs)
    fields = {
        "subject": SUBJECT,
        "benchmark": "b",
        "device": "cuda",
        "arch": "sm_90a",
        "machine": "NVIDIA H200",
        "unit": "u0",
        "seed": seed,
        "pairs": PAIRS,
        "rounds": 10,
        "base": arm,
        "head": arm,
    }
    header = Header(**{**fields, **changes})
    generator = np.random.default_rng(seed + draw)
    processes = []
    for turn in schedule(header.pairs, header.seed)[:ran]:
        level = 10 * (1 + {"base": 0.0, "head": bias, "again": again}[turn.arm])
        medians = {
            name: float(level * np.exp(generator.normal(0, deviation)))
            for name, deviation in zip(header.base.configs, (0.002, 0.006))
        }
        processes.append(
            ProcessRecord(
                pair=turn.pair,
                kind=turn.kind,
                side=turn.side,
                medians_us=medians,
                telemetry=None,
                seconds=1.0,
            )
        )
    shown = [ShownRecord(arm=side, config=name, output="o") for side in SIDES for name in configs]
    return PairingRecord.of(header, [*shown, *processes], refusal, created)


def measured(*records: PairingRecord, pairs: int = PAIRS, runs: int = 400) -> PowerRecord:
    return PowerRecord.of(
        [(f"{i}.json", each) for i, each in enumerate(records)], pairs, runs, seed=0
    )


def test_real_comparisons_are_counted_as_they_came_out() -> None:
    cut = identical(2, ran=20, refusal="process 21, of base, was lost 4 times: hang")
    found = measured(identical(0), identical(1, bias=0.05, unit="u1"), cut)
    assert [each.verdict for each in found.recordings] == [
        Verdict.AMBIGUOUS,
        Verdict.SLOW,
        Verdict.INSUFFICIENT,
    ]
    assert found.alarmed is not None and (found.alarmed.count, found.alarmed.runs) == (1, 2)
    assert found.processes == 48 + 48 + 20
    assert found.recordings[2].cause == "process 21, of base, was lost 4 times: hang"
    assert reality(found) == (
        "of 2 real comparisons of identical code 1 alarmed (1.3% to 98.7%, 1 more INSUFFICIENT) on 2 GPUs: "
        "1 SLOW, 1 INSUFFICIENT, 1 AMBIGUOUS, 1 of them cut; of their 4 verdicts on one config 2 SLOW, "
        "1 AMBIGUOUS, 1 SAME"
    )


def test_where_no_comparison_came_to_a_verdict_there_is_no_rate() -> None:
    found = measured(*(identical(seed, ran=40, refusal="lost") for seed in range(2)))
    assert found.alarmed is None
    assert reality(found).startswith(
        "no real comparison of identical code came to a verdict, 2 INSUFFICIENT on 1 GPU: "
        "2 INSUFFICIENT, 2 of them cut"
    )
    assert "no real comparison" in published(found).sentence


def published(found: PowerRecord, **changes: Any) -> Published:
    """Reported ten days after the recordings, beside a comparison with these fields."""
    return found.published(DAY + timedelta(10), identical(5, **changes).header)


def test_a_bias_of_place_is_hidden_by_the_coin_and_shown_by_place_and_by_reality() -> None:
    """Six recordings whose head is 5 % slow only by its place: each of them alarms."""
    found = measured(*(identical(seed, bias=0.05) for seed in range(6)))
    assert found.alarmed is not None and found.alarmed.share == 1
    assert found.false_alarms.share < 0.01
    assert found.by_place is not None and found.by_place.verdicts[Verdict.SLOW].share > 0.97
    said = published(found).sentence
    assert said.startswith("of 6 real comparisons of identical code 6 alarmed (54% to 100%); simul")
    assert "by a coin: false alarms 0% (≤ 0.92% of 400 runs), 98.8% with both as recorded; " in said
    assert (
        "with base and head as recorded: 98.8%, no more evidence than 6 comparisons"
        in simulation(found)
    )


def test_a_bias_that_a_second_checkout_of_base_has_too_ends_each_comparison() -> None:
    found = measured(*(identical(seed, bias=0.05, again=0.05) for seed in range(6)))
    assert found.alarmed is None and found.undecided == 6
    assert found.by_place is not None
    assert found.by_place.verdicts[Verdict.INSUFFICIENT].share > 0.97


def test_a_real_comparison_of_identical_code_that_was_fast_alarmed_as_well() -> None:
    found = measured(identical(0), identical(1, bias=-0.05, unit="u1"))
    assert found.recordings[1].verdict is Verdict.FAST
    assert found.alarmed is not None and found.alarmed.count == 1


def test_the_config_that_is_missed_most_often_is_the_hardest() -> None:
    one = Rate.of(0, 40)
    verdicts = {verdict: one for verdict in VERDICTS} | {
        Verdict.SLOW: Rate.of(25, 40),
        Verdict.SAME: Rate.of(15, 40),
    }
    found = {"M=1": Rate.of(10, 20), "M=8": Rate.of(15, 20)}
    missed = {"M=1": 10, "M=8": 5}
    simulated = Simulated(slow_down=0.01, verdicts=verdicts, found=found, missed=missed)
    assert simulated.hardest == ("M=1", 0.5)
    fewer = {verdict: rate for verdict, rate in verdicts.items() if verdict is not Verdict.FAST}
    with pytest.raises(ValidationError, match="not one verdict a run"):
        Simulated(slow_down=0.01, verdicts=fewer, found=found, missed=missed)


def test_by_place_takes_whole_pairs_alone_and_says_nothing_where_they_are_too_few() -> None:
    cut = measured(identical(0, ran=45, refusal="lost"), identical(1))
    whole = [cut.recordings[0].differences(kind).shape[1] for kind in ("change", "control")]
    assert sum(whole) == 22 and cut.by_place is not None
    turns = schedule(40, 5)[:66]
    changes = sum(turn.kind == "change" for turn in turns) // 2
    few = measured(identical(5, ran=66, pairs=40, refusal="lost"), pairs=16)
    assert min(changes, 33 - changes) < 16 and few.by_place is None
    assert "too few pairs to simulate base and head as recorded" in simulation(few)
    assert "as recorded" not in published(few).sentence


def test_the_differences_are_those_that_the_gate_judged() -> None:
    record = identical(3, bias=0.03)
    (recording,) = measured(record, identical(4)).recordings[:1]
    for kind in ("change", "control"):
        taken = {
            side: [p for p in record.processes if (p.kind, p.side) == (kind, side)]
            for side in SIDES
        }
        base, head = ([p.medians_us["M=8"] for p in taken[side]] for side in SIDES)
        assert tuple(recording.differences(kind)[1]) == differences(base, head)


def test_the_rates_are_at_the_pairs_that_are_asked_for_whatever_the_recordings_have() -> None:
    found = measured(identical(0, pairs=9), identical(1, pairs=30), pairs=14)
    assert (found.pairs, [each.pairs for each in found.recordings]) == (14, [9, 30])
    assert found.simulated == simulate([r.medians_us for r in found.recordings], 14, 400, seed=0)
    assert [each.slow_down for each in found.simulated] == [*SLOW_DOWNS]


def test_noise_is_by_config_and_by_gpu() -> None:
    found = measured(identical(0, pairs=100), identical(1, unit="u1"))
    assert found.quiet_to_noisy == ["M=1", "M=8"]
    assert found.noise["M=1"] == pytest.approx(0.002 * 2**0.5, rel=0.2)
    assert found.noise["M=8"] == pytest.approx(0.006 * 2**0.5, rel=0.2)
    assert "by GPU, median of the configs: 0." in noises(found)
    assert "by GPU" not in noises(measured(identical(0), identical(1)))


def slower(record: PairingRecord) -> PairingRecord:
    arm = record.header.head.model_copy(update={"code": code("other")})
    header = record.header.model_copy(update={"head": arm})
    return PairingRecord.of(header, [*record.shown, *record.processes], record.refusal)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (
            slower(identical(1, bias=0.02)),
            "two versions of the code, which differ in the GPU's mach",
        ),
        (identical(1, ran=0), "has no times: same machine code and same host code"),
        (identical(1, machine="NVIDIA H100"), "is of another machine than 0.json"),
        (identical(1, environment=ENVIRONMENT), "is of another environment than 0.json"),
        (identical(1, benchmark="other"), "is of another benchmark than 0.json"),
        (identical(1, subject="a:B", rounds=5), "is of another subject, rounds than 0.json"),
        (identical(1, arch="sm_80", device="host"), "is of another device, arch than 0.json"),
        (identical(0), "0.json and 1.json hold the same processes"),
        (identical(0, ran=7, refusal="lost"), "0.json and 1.json hold the same processes"),
        (
            identical(0, draw=100),
            r"0.json and 1.json are of one GPU and of one seed, 0: .* with another --seed\)",
        ),
        (
            identical(1, refusal="the GPU's usual state"),
            "1.json has every process, and yet no verdi",
        ),
    ],
)
def test_what_does_not_belong_to_the_first_comparison_is_refused(
    second: PairingRecord, reason: str
) -> None:
    with pytest.raises(BadInput, match=reason):
        measured(identical(0), second)


def test_one_seed_on_two_gpus_is_two_draws() -> None:
    assert measured(identical(0), identical(0, draw=100, unit="u1")).processes == 96


def test_recordings_under_two_drivers_are_refused_and_the_driver_is_named() -> None:
    later = ENVIRONMENT.model_copy(update={"driver": "581.1"})
    first, second = (
        identical(seed, environment=each) for seed, each in enumerate((ENVIRONMENT, later))
    )
    with pytest.raises(BadInput, match="1.json is of another driver than 0.json"):
        measured(first, second)
    found = measured(first, identical(1, environment=ENVIRONMENT))
    assert published(found, environment=ENVIRONMENT).otherwise == ()
    assert published(found, environment=later).otherwise == ("driver",)
    assert published(measured(identical(0), identical(1)), environment=later).otherwise == (
        "environment",
    )


def test_other_parameters_and_other_configs_are_refused() -> None:
    header = identical(1).header
    other = header.head.model_copy(update={"configs": {"M=1": {"m": 1}, "M=8": {"m": 9}}})
    with pytest.raises(BadInput, match="which differ in their parameters"):
        measured(identical(0), identical(1, head=other))
    with pytest.raises(BadInput, match="is of another configs than 0.json"):
        measured(identical(0), identical(1, base=other, head=other))


def test_a_record_is_read_as_it_was_written_and_its_counts_agree() -> None:
    found = measured(identical(0), identical(1))
    text = found.model_dump_json()
    assert PowerRecord.model_validate_json(text) == found
    plain = json.loads(text)
    rate = plain["simulated"][0]["verdicts"]["SLOW"]
    for change in (
        {"more": 1},
        {"recordings": plain["recordings"][1:]},
        {"recordings": []},
        {"configs": {"M=1": {"m": 1}}},
        {"false_alarms": {**plain["false_alarms"], "count": 400, "high": 1}},
        {"alarmed": {**plain["alarmed"], "low": 0.5}},
        {"alarmed": None},
        {"recordings": [{**plain["recordings"][0], "benchmark": "c"}, plain["recordings"][1]]},
        {"simulated": [{**plain["simulated"][0], "verdicts": {"SLOW": rate}}]},
        {"simulated": []},
        {"noise": {**plain["noise"], "M=1": 0.0}},
    ):
        with pytest.raises(ValidationError):
            PowerRecord.model_validate_json(json.dumps({**plain, **change}))


def _all_slow(recording: dict[str, Any]) -> None:
    recording["verdict"] = "SLOW"
    recording["verdicts"] = dict.fromkeys(recording["verdicts"], "SLOW")


def _all_one(recording: dict[str, Any]) -> None:
    recording["medians_us"] = {name: [1.0] * 48 for name in recording["medians_us"]}


def _cut(recording: dict[str, Any]) -> None:
    recording.update(verdict="INSUFFICIENT", verdicts={})


def _fewer(recording: dict[str, Any]) -> None:
    recording["medians_us"] = {name: all[:20] for name, all in recording["medians_us"].items()}


def _ragged(recording: dict[str, Any]) -> None:
    recording["medians_us"]["M=8"].pop()


def _more(recording: dict[str, Any]) -> None:
    recording["medians_us"] = {name: [*all, 1.0] for name, all in recording["medians_us"].items()}


@pytest.mark.parametrize("forge", [_all_slow, _all_one, _cut, _fewer, _ragged, _more])
def test_no_recording_has_verdicts_that_its_medians_do_not_give(forge) -> None:
    plain = json.loads(measured(identical(0), identical(1)).model_dump_json())
    forge(plain["recordings"][1])
    with pytest.raises(ValidationError, match="the medians give another|not one median of every"):
        PowerRecord.model_validate_json(json.dumps(plain))


def test_what_was_judged_at_other_levels_is_not_judged_again() -> None:
    plain = json.loads(measured(identical(0), identical(1)).model_dump_json())
    _all_slow(plain["recordings"][0])
    plain["margin"], plain["alarmed"] = 0.001, Rate.of(1, 2).model_dump()
    assert PowerRecord.model_validate_json(json.dumps(plain)).verdicts[Verdict.SLOW] == 1


def test_the_recordings_suffice_to_judge_again() -> None:
    found = measured(identical(0), identical(1, bias=0.05))
    for each in found.recordings:
        medians = [dict(zip(each.medians_us, row)) for row in zip(*each.medians_us.values())]
        verdict, cause = concluded(compared(schedule(each.pairs, each.seed), medians))
        assert (verdict, cause) == (each.verdict, each.cause)


# Said and published ---------------------------------------------------------------------------


@pytest.fixture
def lanecheck(lanecheck, monkeypatch, tmp_path):
    """The command line, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lanecheck


def written(folder: Path, *records: PairingRecord) -> list[Path]:
    files = [folder / f"{i}.json" for i in range(len(records))]
    for file, each in zip(files, records):
        file.write_text(each.model_dump_json())
    return files


def test_power_says_what_was_real_what_was_simulated_and_the_noise(lanecheck, tmp_path):
    files = written(tmp_path, identical(0), identical(1, unit="u1"))
    code, said, complaint = lanecheck("power", *files, "--runs", 500, "--json", "out.json")
    assert (code, complaint) == (0, "")
    assert re.search(r"none +│ +0% \(0% to 0.7\d%\) │ ", said)
    assert re.search(r"\n│ 1% +│ +[\d.]+% \(.*│ +[\d.]+%, M=8 +│\n", said)
    assert re.search(r"\n│ 5% +│ +[\d.]+% \(.*│ none is missed +│\n", said)  # only controls alarm
    assert (
        "of 2 real comparisons of identical code 0 alarmed (≤ 84%) on 2 GPUs: 2 AMBIGUOUS" in said
    )
    assert "500 simulated runs of 12 pairs, drawn from 96 recorded processes, with base and" in said
    assert re.search(r"none, as recorded +│", said)
    assert re.search(r"smallest, median and largest: 0.\d\d% at M=1, .* at M=8; by GPU", said)
    found = PowerRecord.model_validate_json(Path("out.json").read_bytes())
    assert lanecheck("power", *files, "--runs", 500, "--json", "again.json")[1] == said
    assert PowerRecord.model_validate_json(Path("again.json").read_bytes()) == found
    assert "host execution" not in said


def test_rates_of_host_execution_say_nothing_of_a_gpu(lanecheck, tmp_path):
    host = {"device": "host", "arch": "plain", "unit": "", "machine": "a cpu"}
    files = written(tmp_path, identical(0, **host), identical(1, **host))
    code, said, _ = lanecheck("power", *files, "--runs", 300)
    assert code == 0
    assert "this exercises the gate, and says nothing of a GPU" in said
    assert "of 2 real comparisons of identical code 0 alarmed (≤ 84%): 2 AMBIGUOUS; " in said


@pytest.mark.skipif(not KERNEL.is_dir(), reason="the harness alone is checked out")
def test_what_is_recorded_is_found_by_history_site_and_compare(lanecheck, tmp_path, monkeypatch):
    (tmp_path / "matrix.yaml").write_text((KERNEL.parent / "matrix.yaml").read_text())
    kernel = {"subject": "packed_gemv.subject:SUBJECT"}
    files = written(tmp_path, identical(0, **kernel), identical(1, **kernel))
    monkeypatch.setattr(gpu, "detect", lambda: [gpu.Gpu("NVIDIA L4", "8.9", "GPU-1")])
    code, said, complaint = lanecheck("power", *files, "--runs", 300, "--record")
    assert (code, complaint) == (0, "")
    assert "report: reports/runs/host/" in said  # no GPU took part, whatever is here
    (stored,) = store.recorded(tmp_path)
    machine = model.read(stored).power.machine  # whose processes these are
    assert model.read(stored).power == measured(
        identical(0, **kernel), identical(1, **kernel), runs=300
    )
    assert re.search(rf"{machine}.*300 simulated comparisons", lanecheck("history")[1])
    assert lanecheck("site")[0] == 0
    assert (
        "of 2 real comparisons of identical code 0 alarmed (≤ 84%) on 1 GPU: 2 AMBIGUOUS"
        in Path(".lanecheck/site/index.html").read_text()
    )
    published = comparing._published(tmp_path, identical(5, **kernel).header)
    assert published is not None and published.false_alarms.runs == 300

    other = written(tmp_path, identical(0), identical(1))
    code, _, complaint = lanecheck("power", *other, "--record")
    assert code == 2 and "--record is for the kernel of matrix.yaml" in complaint

    folders = written(tmp_path, identical(0, **kernel), identical(1, **kernel, commit=None))
    code, _, complaint = lanecheck("power", *folders, "--record")
    assert code == 2 and complaint.count("\n") == 1
    assert "1.json is of a folder, HEAD, which no commit names: record what lanecheck" in complaint
    assert lanecheck("power", *folders, "--runs", 300)[0] == 0


@pytest.mark.skipif(not KERNEL.is_dir(), reason="the harness alone is checked out")
def test_what_was_recorded_before_is_still_read_and_said():
    """Of one GPU and one seed twice, without dates, commits, environment and misses."""
    name = "reports/runs/host/2026/20261201T020655Z-f66d9c075818.json"
    report = model.read(KERNEL.parent / name)
    assert report.power is not None and report.power.verdicts == {Verdict.SAME: 2}
    assert all(hardest(each) == "" for each in report.power.simulated)
    said = report.power.published(report.created, identical(5).header)
    assert "processes on NVIDIA H200 (1 GPU) with base" in said.sentence
    assert "; 1.9% INSUFFICIENT; " in said.sentence
    assert "(2026-12-01, no commit, 12 pairs, with other" in said.sentence


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "cannot read 1.json: No such file"),
        ("{", "1.json is not what compare --json writes: all of it: Invalid JSON"),
        ('{"format": 2}', "1.json is not what compare --json writes: format: "),
    ],
)
def test_a_file_that_is_no_comparison_is_one_line(text, reason, lanecheck, tmp_path):
    written(tmp_path, identical(0))
    if text is not None:
        Path("1.json").write_text(text)
    code, said, complaint = lanecheck("power", "0.json", "1.json")
    assert (code, said) == (2, "")
    assert reason in complaint and complaint.count("\n") == 1


def test_the_newest_rates_of_the_machine_and_subject_are_published(tmp_path):
    found = measured(identical(0), identical(1))
    header = identical(5).header
    assert comparing._published(tmp_path, header) is None
    newer = measured(identical(2), identical(3, pairs=24))
    for day, rates in ((1, found), (2, newer), (3, None)):
        store.save(report(day=day, power=rates), tmp_path, record=True)
    published = comparing._published(tmp_path, header)
    assert published is not None and published.processes == 48 + 96
    for changes in ({"machine": "NVIDIA H100"}, {"subject": "other:SUBJECT"}):
        assert comparing._published(tmp_path, identical(5, **changes).header) is None


def test_the_sentence_beside_a_verdict_holds_the_rates_and_what_is_otherwise():
    found = measured(identical(0), identical(1, unit="u1"))
    assert re.fullmatch(
        r"of 2 real comparisons of identical code 0 alarmed \(≤ 84%\); simulated, from 96 recorded "
        r"processes on NVIDIA H200 \(2 GPUs\) with base and head dealt by a coin: false alarms 0% \(≤ "
        r"0\.92% of 400 runs\), [\d.]+% with both as recorded; [\d.]+% INSUFFICIENT; a slow-down of one "
        r"config found: of 1% in \d+%, of 2% in [\d.]+%, of 5% in [\d.]+% \(2026-11-20, cccccccccccc, 12 "
        r"pairs\)",
        published(found).sentence,
    )
    other = published(found, pairs=20, rounds=3, arch="sm_80")
    assert other.sentence.endswith("12 pairs, with other arch, pairs, rounds than here)")
    assert other.otherwise == ("arch", "pairs", "rounds")
    assert published(found, benchmark="other").otherwise == ("benchmark",)


def test_the_sentence_names_the_days_and_commits_of_the_recordings_and_not_of_their_report():
    later = identical(1, created=DAY + timedelta(2), commit="d" * 40)
    found = measured(identical(0), later)
    assert "(2026-11-20 to 2026-11-22, cccccccccccc, dddddddddddd, 12 " in published(found).sentence
    assert [each.created for each in found.recordings] == [DAY, DAY + timedelta(2)]
    old = measured(*(identical(seed, created=None, commit=None) for seed in range(2)))
    assert "(2026-11-30, no commit, 12 pairs)" in published(old).sentence


def test_how_often_the_gate_is_insufficient_is_that_of_the_simulated_runs_of_identical_code():
    found = measured(identical(0), identical(1))
    (same, *_), rate = found.simulated, published(found).insufficient
    assert rate == same.verdicts[Verdict.INSUFFICIENT]
    assert "(1 GPU)" in published(found).sentence
    host = {"device": "host", "arch": "plain", "unit": "", "machine": "a cpu"}
    on_host = measured(identical(0, **host), identical(1, **host))
    assert published(on_host).units is None and "GPU" not in published(on_host).sentence


def test_a_record_of_a_comparison_carries_the_rates_and_can_do_without():
    record = identical(0)
    rates = published(measured(record, identical(1)))
    carrying = record.model_copy(update={"rates": rates})
    assert PairingRecord.model_validate_json(carrying.model_dump_json()) == carrying
    plain = json.loads(record.model_dump_json())
    del plain["rates"]  # as before there were any
    assert PairingRecord.model_validate_json(json.dumps(plain)) == record
    new = json.loads(rates.model_dump_json())
    for name in ("since", "units", "insufficient"):  # as before these were said
        del new[name]
    older = Published.model_validate_json(json.dumps(new))
    assert "from 96 recorded processes on NVIDIA H200 with base" in older.sentence
    assert "INSUFFICIENT" not in older.sentence
