"""Jobs that depend on each other, done by a few processes at a time.

A process that dies takes only its job with it. What a job prints goes to a file of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dibs.errors import DibsError
from dibs.progress import Display, Lines, write_to

J = TypeVar("J", contravariant=True)
K = TypeVar("K")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Doer(Protocol[J]):
    """What does jobs; it is sent to other processes."""

    def do(self, job: J, display: Display) -> None:
        """Do a job; report to the display, including when it begins and ends."""

    def name(self, job: J) -> str:
        """Return what displays call a job."""

    def log(self, job: J) -> Path:
        """Return where the output of a job goes."""


def do_all(doer: Doer[K], jobs: Mapping[K, Sequence[K]], cores: int, display: Display) -> dict[K, str]:
    """Do all jobs, each after those it needs, `cores` at a time; return why the others could not be done.

    Jobs that need one that failed are left out. `jobs` has them in the order in which they are preferred.
    """
    waiting, done = dict(jobs), set[K]()
    failed: dict[K, str] = {}
    workers: list[_Worker] = []
    try:
        while True:
            for job, needs in list(waiting.items()):
                missing = [need for need in needs if need in failed]
                if missing:
                    failed[job] = f"needs {doer.name(missing[0])}"
                    del waiting[job]
            for job in [job for job, needs in waiting.items() if done.issuperset(needs)]:
                free = next((w for w in workers if w.job is None), None)
                if free is None and len(workers) < cores:
                    free = _start(doer)
                    workers.append(free)
                if free is None:
                    break
                free.begin(job)
                del waiting[job]
            busy = [worker for worker in workers if worker.job is not None]
            if not busy:
                return failed
            for connection in wait([worker.connection for worker in busy]):
                worker = next(w for w in busy if w.connection is connection)
                job = worker.job
                kind, *rest = worker.receive()
                if kind == "display":
                    getattr(display, rest[0])(*rest[1:])
                    continue
                worker.job = None
                if kind == "done":
                    done.add(job)
                    continue
                if kind == "died":
                    workers.remove(worker)
                failed[job] = f"{rest[0]}; see {doer.log(job)}"
                display.fail(doer.name(job), failed[job])
    finally:
        for worker in workers:
            worker.stop()


# --- the processes ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Worker:
    """Another process."""

    process: Any
    connection: Connection
    job: Any = None

    def begin(self, job: Any) -> None:
        self.job = job
        self.connection.send(job)

    def receive(self) -> tuple[Any, ...]:
        """Return the next message: display, done, failed or died."""
        try:
            message: tuple[Any, ...] = self.connection.recv()
            return message
        except (EOFError, OSError):
            self.process.join(5.0)
            code = self.process.exitcode
            how = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"status {code}"
            return "died", f"its process ended unexpectedly ({how})"

    def stop(self) -> None:
        """End the process; files are written in one step, so none is left half-written.

        A signal that arrives during an import may be lost, so a process that goes on is killed.
        """
        self.connection.close()
        self.process.terminate()
        self.process.join(10.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _start(doer: Doer[Any]) -> _Worker:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(doer, theirs), daemon=True)
    with _calm(), _one_thread():
        process.start()
    theirs.close()
    return _Worker(process, ours)


@contextmanager
def _calm() -> Iterator[None]:
    """Let the processes that are started ignore Ctrl-C: it is this one that ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Give the processes that are started one thread each, so that results do not depend on their number."""
    old = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in old.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _Sent(Display):
    """Sends everything to the main process, and the reports of a job to its output as well."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.lines = connection, Lines()

    def begin(self, what: str) -> None:
        self.lines.begin(what)
        self.connection.send(("display", "begin", what))

    def report(self, what: str, message: str, done: float | None = None) -> None:
        self.lines.report(what, message, done)
        self.connection.send(("display", "report", what, message, done))

    def finish(self, what: str, result: str) -> None:
        self.lines.finish(what, result)
        self.connection.send(("display", "finish", what, result))


def _serve(doer: Doer[Any], connection: Connection) -> None:
    """Do one job after the other, until the main process ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that temporary files are removed
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        write_to(doer.log(job))
        try:
            doer.do(job, _Sent(connection))
        except BrokenPipeError:  # the main process has ended: nobody will ask for the next job
            return
        except DibsError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            connection.send(("failed", str(error).splitlines()[0]))
        except Exception as error:
            traceback.print_exc()
            connection.send(("failed", f"{type(error).__name__}: {error}"))
        else:
            connection.send(("done",))
