"""landmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from lanecheck import landmarks as named
from lanecheck.cli import recording
from lanecheck.cli.checks import DeviceOption, FaultOption
from lanecheck.cli.options import (
    ArchOption,
    JsonOption,
    MatrixOption,
    RecordOption,
    SubjectOption,
    VariantOption,
    WorkersOption,
    check_device,
    exit_by,
    out,
    print_failures,
    print_judged,
    read_matrix,
    read_target,
    refuse_to_record,
)
from lanecheck.errors import BadInput
from lanecheck.executor import LocalExecutor
from lanecheck.reports import model
from lanecheck.reports.model import CampaignRecord
from lanecheck.reports.results import campaign_record
from lanecheck.subject import load
from lanecheck.terminal import Progressing

_CASE_LIMIT = 300.0  # seconds: gigabytes are drawn and packed by one core


def landmarks(
    group: Annotated[Optional[list[str]], typer.Option(help="Only these; repeatable.")] = None,
    variant: VariantOption = "plain",
    device: DeviceOption = "host",
    arch: ArchOption = None,
    fault: FaultOption = None,
    record: RecordOption = False,
    json_file: JsonOption = None,
    workers: WorkersOption = None,
    subject: SubjectOption = None,
    path: MatrixOption = None,
) -> None:
    """Run the cases that a subject names itself.

    Chance would not draw them: tuned configurations with every M, strides past 31 bits; on a GPU also
    every tuned shape, large matrices, and more than 2^31 weights.

    Example: lanecheck landmarks --device cuda --group shapes
    """
    check_device(device)
    if record:
        refuse_to_record(fault, subject, path)
    loaded = read_matrix(path, subject)
    reference = subject or loaded.subject
    known = named.groups(load(reference), device)
    for name in group or ():
        if name not in known:
            raise BadInput(f"no group '{name}' on {device}; known: {', '.join(known)}")
    records: list[CampaignRecord] = []
    with Progressing(out) as listener:
        listener.stage("build")
        target = read_target(loaded, reference, variant, device, arch, fault)
        executor = LocalExecutor(workers, time_limit=_CASE_LIMIT, case_limit=_CASE_LIMIT)
        for name in group or known:
            listener.stage(f"{name}, {target.variant}", len(known[name]))
            result = named.run(
                target,
                known[name],
                executor,
                lambda total: listener.advance(
                    total.cases, f"{total.cases / total.seconds:,.1f}/s"
                ),
            )
            records.append(campaign_record(result, target, 0, name))
            listener.end(records[-1].summary, records[-1].good)
            print_judged(records[-1])
            if json_file and not record:
                _write(records, json_file)  # group by group: they take minutes
    print_failures(records, subject, fault)
    if record:
        recording.save_campaigns(records, loaded, path, json_file, target.gpus)
    exit_by(records)


def _write(records: list[CampaignRecord], path: Path) -> None:
    text = ",\n".join(record.model_dump_json(indent=1) for record in records)
    model.write_text(f"[\n{text}\n]\n", path)


COMMANDS = (landmarks,)
