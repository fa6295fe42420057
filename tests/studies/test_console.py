"""What Snakemake prints while the workflow runs."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from dibs.studies import console
from dibs.studies.console import Console, RunProgress, clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(stream: io.StringIO, *records: dict[str, Any], level: int = logging.INFO) -> str:
    """Return what a console prints of records, and in the end."""
    logger = logging.Logger("test")
    handler = Console(stream)
    logger.addHandler(handler)
    for record in records:
        record = dict(record)
        logger.log(record.pop("level", level), record.pop("msg", ""), extra=record)
    handler.close()
    return stream.getvalue()


def job(jobid: int, rule: str, **more: Any) -> dict[str, Any]:
    files = {"output": [], "log": [], "input": [], **more}
    return {"event": "job_info", "jobid": jobid, "rule_name": rule, "rule_msg": f"{rule} number {jobid}", **files}


def finished(jobid: int) -> dict[str, Any]:
    return {"event": "job_finished", "job_id": jobid}


STATS = {"event": "run_info", "stats": {"all": 1, "teacher": 2, "study_list": 1, "total": 4}}


def test_jobs_are_counted_without_targets():
    text = told(io.StringIO(), STATS, job(1, "teacher"), finished(1), job(2, "teacher"), job(9, "all"), finished(9))
    assert text.splitlines()[0] == "3 jobs: 2 teachers, 1 list"
    assert text.splitlines()[-1].startswith("1 of 3 jobs in 0:00")
    assert "(teachers 1/2, lists 0/1)" in text


def test_targets_are_the_rules_of_the_snakefile():
    """They have no job of their own; the rules that have one are in workflow/rules."""
    snakefile = (Path(__file__).parents[2] / "Snakefile").read_text()
    assert set(re.findall(r"^rule (\w+):", snakefile, re.MULTILINE)) == console.TARGETS


def test_messages_with_long_lists_are_left_out():
    noise = {"msg": "Removing output files of failed job teacher since they might be corrupted:\n" + "path, " * 1000}
    text = told(
        io.StringIO(), noise, {"msg": "Select jobs to execute..."}, {"msg": "Nothing to be done (all present)."}
    )
    assert text == "Nothing to be done (all present).\n"


def test_warnings_and_errors_are_shown():
    event = {"event": "error", "msg": "WorkflowError:\nno such file", "level": logging.ERROR}
    text = told(io.StringIO(), {"msg": "disk is slow", "level": logging.WARNING}, event)
    assert text == "disk is slow\nWorkflowError:\nno such file\n"


def test_a_failed_job_names_its_log_and_shows_its_end(tmp_path: Path):
    log = tmp_path / "teacher.log"
    log.write_text("".join(f"line {n}\n" for n in range(100)))
    error = {"event": "job_error", "rule_name": "teacher", "jobid": 1, "output": ["a", "b"], "log": [str(log)]}
    text = told(io.StringIO(), STATS, job(1, "teacher"), {**error, "level": logging.ERROR})
    assert "Error in rule teacher: teacher number 1\n  output: a\n" in text and f"  log: {log}\n" in text
    assert "line 99" in text and "line 84" not in text
    group = {
        "event": "group_error",
        "groupid": "chain_0",
        "job_error_info": [error],
        "aux_logs": [str(tmp_path / "none.log")],
    }
    text = told(io.StringIO(), STATS, job(1, "teacher"), {**group, "level": logging.ERROR})
    assert "Error in group chain_0\n" in text and "line 99" in text and "none.log\n    (there is no such file)" in text


def test_a_terminal_gets_one_live_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "30")
    text = told(Terminal(), STATS, job(1, "teacher"), finished(1), {"msg": "wait", "level": logging.WARNING})
    assert text.count("\r\x1b[2K1 of 3 jobs") == 3  # when the job ends, after the warning, and at the end
    assert all(len(line) < 30 for line in text.split("\r\x1b[2K")[1:-1])


def test_a_damaged_evaluation_does_not_stop_the_console(tmp_path: Path):
    file = tmp_path / "seed0.parquet"
    file.write_text("no parquet")
    planned = {"event": "run_info", "stats": {"evaluation": 1, "total": 1}}
    text = told(io.StringIO(), planned, job(1, "evaluation", output=[str(file)]), finished(1))
    assert f"{file}: damaged" in text and "1 of 1 jobs" in text


def test_time_left_is_that_of_jobs_of_the_same_rule():
    progress = RunProgress({"teacher": 4, "table": 10, "all": 1})
    assert str(progress).startswith("0 of 14 jobs") and "left" not in str(progress)
    for _ in range(2):
        progress.finish("teacher", 60.0)
    # One job at a time: two teachers of a minute each; tables, of which none is known, are as long as the mean job.
    assert progress.left(120.0) == pytest.approx(2 * 60.0 + 10 * 60.0)
    progress.finish("table", 1.0)
    assert progress.left(121.0) == pytest.approx(2 * 60.0 + 9 * 1.0)
    assert progress.left(60.5) == pytest.approx((2 * 60.0 + 9 * 1.0) / 2)  # two jobs at a time
    progress.finish("all", 100.0)
    assert progress.total == 14 and sum(progress.done.values()) == 3


def test_clock():
    assert [clock(s) for s in (0, 59.6, 3599, 3661)] == ["0:00", "1:00", "59:59", "1:01:01"]


def test_install_replaces_the_terminal_and_keeps_the_file():
    logger, stream = logging.Logger("snakemake"), logging.StreamHandler(io.StringIO())
    stream.name = "DefaultStreamHandler"
    file = logging.NullHandler()
    logger.addHandler(stream)
    logger.addHandler(file)
    console.install(logger)
    assert file in logger.handlers and stream not in logger.handlers
    assert [type(handler) for handler in logger.handlers] == [logging.NullHandler, Console]
