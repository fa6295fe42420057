"""What Snakemake prints while it runs this workflow: progress, finished evaluations and failed jobs.

By default Snakemake prints several lines for every job. `Console` replaces its output on the terminal with one line per
finished evaluation and the state of the run: a live line on a terminal, now and then a line elsewhere. The full output
stays in `.snakemake/log`, the output of every job in `results/logs`. `--verbose`, `--printshellcmds`, `--quiet` and dry
runs keep Snakemake's own output.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, TextIO

from dibs.errors import DibsError
from dibs.files import read_table
from dibs.stages import ratios_of

SHOWN = ("Nothing to be done", "Report created", "Unlock", "Terminating", "Will exit after")
"""Beginnings of messages that are shown although they are no warnings."""
HIDDEN = ("Exiting because a job execution failed", "RuleException:\nCalledProcessError")
"""Beginnings of messages that repeat what has been said."""
TAIL = 15  # lines of a failed job's log that are shown
EVERY = 30.0  # seconds between two lines of progress if the output is not a terminal
ALL_EVALUATIONS = 100  # if there are more, their lines would bury everything else: only progress is shown
NOUNS = {"evaluation_list": "list", "study_list": "list"}
TARGETS = {
    *("all", "demo", "tables", "figures", "ablations", "sweeps"),
    *("evaluations", "requirements", "teachers", "datasets"),
}
"""Rules without a job of their own."""


class StartedJob:
    """A job that has been started."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.rule: str = record["rule_name"]
        self.title: str = record["rule_msg"] or self.rule
        self.outputs: list[str] = list(record["output"])
        self.logs: list[str] = list(record["log"])
        self.started = time.monotonic()


class RunProgress:
    """How many jobs of which rule are done, and how long the others will take."""

    def __init__(self, planned: Mapping[str, int]) -> None:
        self.planned = {rule: n for rule, n in planned.items() if rule not in TARGETS}
        self.done: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.started = time.monotonic()

    def finish(self, rule: str, seconds: float) -> None:
        """Count a finished job."""
        if rule in self.planned:
            self.done[rule] += 1
            self.seconds[rule] += seconds

    @property
    def total(self) -> int:
        """Number of jobs."""
        return sum(self.planned.values())

    def left(self, elapsed: float) -> float:
        """Return the seconds that are left: as many jobs at once as so far, each as long as others of its rule."""
        spent = sum(self.seconds.values())
        if not spent:
            return math.nan
        mean = spent / sum(self.done.values())
        ahead = 0.0
        for rule, planned in self.planned.items():
            done = self.done[rule]
            ahead += (planned - done) * (self.seconds[rule] / done if done else mean)
        return ahead / max(spent / max(elapsed, 1e-9), 1.0)

    def __str__(self) -> str:
        elapsed = time.monotonic() - self.started
        left = self.left(elapsed)
        parts = [f"{plural(r)} {self.done[r]}/{n}" for r, n in self.planned.items() if self.done[r] < n]
        rest = f", about {clock(left)} left" if math.isfinite(left) and parts else ""
        return f"{sum(self.done.values())} of {self.total} jobs in {clock(elapsed)}{rest}" + (
            f" ({', '.join(parts)})" if parts else ""
        )


class Console(logging.Handler):
    """Prints the records of Snakemake's logger."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(logging.INFO)
        self.name = "DibsConsole"
        self._stream, self._live = stream, stream.isatty()
        self._jobs: dict[int, StartedJob] = {}
        self._progress = RunProgress({})
        self._printed = 0.0
        self._status = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Print what a record says, if anything."""
        try:
            self._show(record)
        except Exception:
            self.handleError(record)

    def _show(self, record: logging.LogRecord) -> None:
        event, values = str(getattr(record, "event", "") or ""), vars(record)
        if event == "run_info":
            self._progress = RunProgress({k: n for k, n in values["stats"].items() if k != "total"})
            self._printed = time.monotonic()
            counts = [f"{n} {noun(rule) if n == 1 else plural(rule)}" for rule, n in self._progress.planned.items()]
            self._line(f"{self._progress.total} job{'s' * (self._progress.total != 1)}: {', '.join(counts)}")
        elif event == "job_info":
            self._jobs[values["jobid"]] = StartedJob(values)
        elif event == "job_finished":
            self._finished(values["job_id"])
        elif event in ("job_error", "group_error"):
            self._failure(record)
        elif event == "error" or (not event and record.levelno >= logging.WARNING):
            text = record.getMessage()
            if not text.startswith(HIDDEN):
                self._line(text)
        elif not event and record.getMessage().startswith(SHOWN):
            self._line(record.getMessage())

    def _finished(self, jobid: int) -> None:
        job = self._jobs.pop(jobid, None)
        if job is None or job.rule in TARGETS:
            return
        self._progress.finish(job.rule, time.monotonic() - job.started)
        if job.rule == "evaluation" and self._progress.planned.get("evaluation", 0) <= ALL_EVALUATIONS:
            self._line(evaluation_line(job.outputs[0]))
        if self._live:
            self._status = str(self._progress)
            self._draw()
        elif time.monotonic() - self._printed >= EVERY:
            self._printed = time.monotonic()
            self._line(str(self._progress))

    def _failure(self, record: logging.LogRecord) -> None:
        """Name a failed job, its outputs and its log, and show the log's end."""
        values = vars(record)
        infos = values["job_error_info"] if hasattr(record, "job_error_info") else [values]
        if "groupid" in values:
            self._line(f"Error in group {values['groupid']}")
        for info in infos:
            job = self._jobs.get(info["jobid"])
            title = job.title if job is not None else info["rule_name"]
            self._line(f"Error in rule {info['rule_name']}: {title}")
            for output in list(info["output"])[:1]:
                self._line(f"  output: {output}")
            for log in [*info["log"], *values.get("aux_logs", ())]:
                self._line(f"  log: {log}")
                for line in tail(log):
                    self._line(f"    {line}")

    # --- the terminal --------------------------------------------------------------------------------

    def _line(self, text: str) -> None:
        clear = "\r\x1b[2K" if self._live and self._status else ""
        self._stream.write(f"{clear}{text}\n")
        self._draw()
        self._stream.flush()

    def _draw(self) -> None:
        if self._live and self._status:
            self._stream.write(f"\r\x1b[2K{self._status[: get_terminal_size().columns - 1]}")
            self._stream.flush()

    def close(self) -> None:
        """Print the last state of the run."""
        if self._progress.done and (self._status or not self._live):
            self._status = ""
            self._stream.write(("\r\x1b[2K" if self._live else "") + f"{self._progress}\n")
            self._stream.flush()
        self._progress = RunProgress({})
        super().close()


def evaluation_line(file: str) -> str:
    """Return method, benchmark, split, seed and ratios of an evaluation."""
    try:
        table, about = read_table(Path(file))
    except DibsError as error:
        return str(error)
    ratios = ratios_of(table)
    names = {"training": "training_ratio", "unseen": "zero_shot_ratio", "beyond": "beyond_ratio", "far": "far_ratio"}
    shown = [f"{name} {ratios[key]:.2f}" for name, key in names.items() if math.isfinite(ratios.get(key, math.nan))]
    return "  {method:<12} {benchmark:<24} {split:<8} seed {seed}:  ".format(**about) + "  ".join(shown)


def tail(log: str) -> list[str]:
    """Return the last lines of a log."""
    try:
        return Path(log).read_text(errors="replace").rstrip().splitlines()[-TAIL:]
    except OSError:
        return ["(there is no such file)"]


def noun(rule: str) -> str:
    """Return what a job of a rule makes."""
    return NOUNS.get(rule, rule)


def plural(rule: str) -> str:
    """Return what jobs of a rule make."""
    return "studies" if noun(rule) == "study" else f"{noun(rule)}s"


def clock(seconds: float) -> str:
    """Return seconds as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def install(logger: logging.Logger) -> None:
    """Replace Snakemake's output on the terminal."""
    for handler in list(logger.handlers):
        if handler.name == "DefaultStreamHandler":
            logger.removeHandler(handler)
            logger.addHandler(Console(getattr(handler, "stream", sys.stderr)))
