"""How work reports what it does: to a terminal, to lines of text, to TensorBoard.

What takes long is given a `Reporter` and calls it now and then. A `Display` shows what several of them report.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, Self, TextIO

from dibs.errors import DibsError


class Reporter(Protocol):
    """Called while something is made."""

    def __call__(
        self,
        message: str,
        done: float | None = None,
        step: float | None = None,
        values: Mapping[str, float] | None = None,
    ) -> None:
        """Report a line of text; optionally the share of the work that is done, and numbers to plot over `step`."""


class Display:
    """Shows what is being made; this one shows nothing.

    `what` names a piece of work, such as `seed 0, teacher 5`.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def expect(self, count: int) -> None:
        """Learn how many pieces of work there will be."""

    def begin(self, what: str) -> None:
        """Show that a piece of work has begun."""

    def report(self, what: str, message: str, done: float | None = None) -> None:
        """Show how far a piece of work is."""

    def finish(self, what: str, result: str) -> None:
        """Show how a piece of work has ended."""

    def fail(self, what: str, message: str) -> None:
        """Show that a piece of work has failed."""


class Lines(Display):
    """Lines of text: results as they come, and reports at most every few seconds."""

    def __init__(self, file: TextIO | None = None, every: float = 5.0) -> None:
        self.file, self.every = file, every
        self._last: dict[str, float] = {}

    def begin(self, what: str) -> None:
        self._last[what] = time.monotonic()

    def report(self, what: str, message: str, done: float | None = None) -> None:
        now = time.monotonic()
        if now - self._last.setdefault(what, now) >= self.every:
            self._last[what] = now
            self._print(f"{what}: {message}" + ("" if done is None else f" ({done:.0%})"))

    def finish(self, what: str, result: str) -> None:
        self._print(f"{what}: {result}")

    def fail(self, what: str, message: str) -> None:
        self._print(f"{what}: FAILED: {message}")

    def _print(self, line: str) -> None:
        print(line, file=self.file or sys.stderr, flush=True)


class Live(Display):
    """A live display for terminals: one line for everything, one for each piece of work that is under way."""

    def __init__(self, file: TextIO | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        text = TextColumn("{task.fields[message]}", markup=False)
        left = TimeRemainingColumn(compact=True, elapsed_when_finished=True)
        name = TextColumn("{task.description}", markup=False)
        self.console = Console(file=file or sys.stderr)
        columns = [name, BarColumn(20), TimeElapsedColumn(), TextColumn("left", style="dim"), left, text]
        self.bars = Progress(*columns, console=self.console, transient=True, speed_estimate_period=120.0)
        self._all: Any = None
        self._count = self._finished = 0
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()
        for task in self.bars.task_ids:
            self.bars.remove_task(task)
        self._tasks, self._all = {}, None

    def expect(self, count: int) -> None:
        self._count, self._finished = count, 0
        self._all = self.bars.add_task("all", total=float(count), message=f"0 of {count} jobs")

    def begin(self, what: str) -> None:
        self._tasks[what] = self.bars.add_task(what, total=None, message="")

    def report(self, what: str, message: str, done: float | None = None) -> None:
        if what not in self._tasks:
            self.begin(what)
        known = {} if done is None else {"total": 1.0, "completed": done}
        self.bars.update(self._tasks[what], message=message, **known)  # type: ignore[arg-type]
        self._sum_up()

    def finish(self, what: str, result: str) -> None:
        self._end(what, f"{what}: {result}", "")

    def fail(self, what: str, message: str) -> None:
        self._end(what, f"{what}: FAILED: {message}", "bold red")

    def _end(self, what: str, line: str, style: str) -> None:
        if what in self._tasks:
            self.bars.remove_task(self._tasks.pop(what))
        self.console.print(line, style=style, markup=False, highlight=False)
        self._finished += 1
        self._sum_up()

    def _sum_up(self) -> None:
        if self._all is not None:
            under_way = sum(t.completed for t in self.bars.tasks if t.id in self._tasks.values() and t.total)
            message = f"{self._finished} of {self._count} jobs"
            self.bars.update(self._all, completed=self._finished + under_way, message=message)


def display(show: bool = True) -> Display:
    """Return the display that suits standard error: live on a terminal, otherwise lines."""
    if not show:
        return Display()
    return Live() if sys.stderr.isatty() else Lines()


def write_to(log: Path) -> None:
    """Send standard output and error to a file, also those of libraries that do not write through Python."""
    log.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


# --- TensorBoard -----------------------------------------------------------------------------------------


def check_tensorboard() -> None:
    """Raise an error if TensorBoard's event files cannot be written here."""
    if importlib.util.find_spec("tensorboard") is None:
        raise DibsError("TensorBoard is not installed, which event files need: pip install 'dibs[tensorboard]'")


@contextmanager
def tensorboard(folder: Path | None, report: Reporter) -> Iterator[Reporter]:
    """Yield a `Reporter` that also writes its numbers as event files into a folder; None: nowhere."""
    if folder is None:
        yield report
        return
    check_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))

    def both(
        message: str,
        done: float | None = None,
        step: float | None = None,
        values: Mapping[str, float] | None = None,
    ) -> None:
        for name, value in (values or {}).items():
            writer.add_scalar(name, value, None if step is None else int(step))
        report(message, done, step, values)

    try:
        yield both
    finally:
        writer.close()
