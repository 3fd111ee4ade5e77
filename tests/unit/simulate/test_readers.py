"""Traces: the documented format, published tables by their columns, and sentences about what is wrong."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from dlspawner.simulate.readers import read, rows_of
from dlspawner.simulate.trace import InvalidTrace, anonymous, team_numbers

OWN = "submit,duration,gpus,type,team,user,preemptible,priority,pods,activity\n"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
SESSIONS = "session,start_minute,stop_minute,gpus\n"
TRAININGS = "session,start_minute,duration_minutes,gpus,mean_gpu_utilization_percent,vram_gb\n"
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
)
HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"

# The texts of files, and of each job: submit, seconds, GPUs, team, preemptible.
READ: dict[str, tuple[list[str], list[tuple[float, float, int, str, bool]]]] = {
    "the documented format, with few columns": (
        ["submit,duration,gpus\n20,60,2\n5,1.5,0\n"],
        [(0, 1.5, 0, "default", False), (15, 60, 2, "default", False)],
    ),
    "dates, pods, and an empty last line": (
        [
            f"{OWN}2026-03-01 14:00:10,60,16,a100,vision,ann,true,prod,8+8,\n"
            "2026-03-01T14:00:00Z,9,1,,nlp,,,,,\n,,,,,,,,,\n"
        ],
        [(0, 9, 1, "nlp", False), (10, 60, 16, "vision", True)],
    ),
    "two months": (
        ["submit,duration,gpus\n2026-03-01,9,1\n", "submit,duration,gpus\n2026-03-02,9,2\n"],
        [(0, 9, 1, "default", False), (86400, 9, 2, "default", False)],
    ),
    "Philly": (
        [PHILLY + "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n2017-10-09 06:01:55,60.0,8,480.0,6214e9\n"],
        [(0, 60, 8, "6214e9", False), (3600, 66, 1, "11cb48", False)],
    ),
    "interactive sessions with their trainings": (
        [
            TRAININGS + "s1,12,3,0,,0.0\n",
            SESSIONS + "s1,10,20,4\n",
            SESSIONS + "s2,11,12,1\n",
            TRAININGS + "s2,11,1,1,,\n",
        ],
        [(0, 600, 4, "sessions", False), (60, 60, 1, "sessions", False)],
    ),
    "openb, where a pod never ran": (
        [OPENB + "p0,12,16,1,500,V100M32,BE,Succeeded,100,400,160\np1,12,16,2,1000,,LS,Pending,90,,\n"],
        [(0, 240, 1, "BE", True)],
    ),
    "Helios": (
        [HELIOS + "7,u1,vcA,2,8,1,COMPLETED,2020-04-01 00:00:10,2020-04-01 00:00:20,2020-04-01 00:01:20,60,10\n"],
        [(0, 60, 2, "vcA", False)],
    ),
}


def files(folder: Path, texts: list[str]) -> list[Path]:
    made = [folder / f"trace{number}.csv" for number in range(len(texts))]
    for file, text in zip(made, texts, strict=True):
        file.write_text(text, encoding="utf-8")
    return made


@pytest.mark.parametrize(("texts", "expected"), READ.values(), ids=READ)
def test_trace_is_read(tmp_path: Path, texts: list[str], expected: list[tuple[float, float, int, str, bool]]) -> None:
    trace = read(files(tmp_path, texts))
    assert [(one.submit, one.seconds, one.gpus, one.team, one.preemptible) for one in trace.jobs] == expected


def test_activity_of_a_session_is_relative_to_its_start(tmp_path: Path) -> None:
    trace = read(files(tmp_path, [SESSIONS + "s1,10,20,4\n", TRAININGS + "s1,18,9,4,45,1\ns1,12,3,0,,0.0\n"]))
    assert trace.jobs[0].activity == ((120, 300, 0), (480, 600, 4))


def test_written_trace_is_read_again(tmp_path: Path) -> None:
    text = OWN + "0,90,16,a100,vision,ann,true,prod,8+8,0-30 60-90x8\n7,5,0,,nlp,,false,,,none\n"
    trace = read(files(tmp_path, [text]))
    with (tmp_path / "again.csv").open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, OWN.strip().split(","))
        writer.writeheader()
        writer.writerows(rows_of(trace))
    assert read([tmp_path / "again.csv"]) == trace


def test_anonymous_trace_has_numbers_instead_of_names(tmp_path: Path) -> None:
    text = "submit,duration,gpus,team,user\n0,1,1,vision,ann\n1,1,1,nlp,bob\n2,1,1,nlp,ann\n3,1,1,,\n"
    trace = read(files(tmp_path, [text]))
    trace = anonymous(trace, team_numbers(trace))
    told = [(one.team, one.user) for one in trace.jobs]
    assert told == [("team-1", "u1"), ("team-2", "u2"), ("team-2", "u1"), ("default", "")]


WRONG: dict[str, tuple[list[str], str]] = {
    "no known columns": (["a,b\n1,2\n"], "trace0.csv, row 1: these columns are of no known trace: a, b."),
    "an empty file": ([""], "trace0.csv, row 1: the file is empty"),
    "no job": (["submit,duration,gpus\n"], "trace0.csv: there is no job in it."),
    "a duration below zero": (
        ["submit,duration,gpus\n0,1,1\n1,-5,1\n"],
        "row 3: “duration” must be a number of 0 to 1e+09, not “-5”.",
    ),
    "no number": ([PHILLY + "2017-10-09 07:01:55,long,1,66,a\n"], "row 2: “duration” must be a number"),
    "a part of a GPU": (["submit,duration,gpus\n0,1,0.5\n"], "row 2: “gpus” must be a whole number of GPUs"),
    "a value too many": (
        ["submit,duration,gpus\n0,1,1,5\n"],
        "row 2: there are more values than the first row has names.",
    ),
    "no time": (["submit,duration,gpus\nsoon,1,1\n"], "row 2: “submit” must be a number of seconds, or a time such as"),
    "times of two kinds": (
        ["submit,duration,gpus\n5,1,1\n2026-01-01,1,1\n"],
        "row 3: “submit” must be of the same kind",
    ),
    "times in nanoseconds": (
        ["submit,duration,gpus\n0,1,1\n1600000000000000000,1,1\n"],
        "row 3: “submit” must be in seconds: “1600000000000000000” is more than 30 years from the first one.",
    ),
    "sessions alone": ([SESSIONS + "s1,1,2,1\n"], "these are sessions; name the file of their trainings too"),
    "pods of other GPUs": (
        ["submit,duration,gpus,pods\n0,1,4,8+8\n"],
        "row 2: “pods” must be the GPUs of each pod, 4 together",
    ),
    "activity that ends before it begins": (["submit,duration,gpus,activity\n0,9,1,5-2\n"], "row 2: “5-2” is no span"),
    "trainings alone": ([TRAININGS + "s1,1,1,1,,\n"], "these are trainings; name the file of their sessions too"),
    "trainings of an unknown session": (
        [SESSIONS + "s1,1,2,1\n", TRAININGS + "s9,1,1,1,,\n"],
        "trace1.csv, row 2: there is no session “s9”",
    ),
}


@pytest.mark.parametrize(("texts", "sentence"), WRONG.values(), ids=WRONG)
def test_wrong_trace_is_one_sentence_with_file_and_row(tmp_path: Path, texts: list[str], sentence: str) -> None:
    with pytest.raises(InvalidTrace) as found:
        read(files(tmp_path, texts))
    assert sentence in str(found.value)
    assert "\n" not in str(found.value)
