#!/usr/bin/env python3
"""A real SLURM cluster on this machine, for tests: two nodes, loopback only, no accounting, all in one folder.

    python tests/slurm/cluster.py              start one, print how to use it, stop it on Ctrl-C
    python tests/slurm/cluster.py --check      only see whether one can be had, after installing what is missing

It needs Debian's packages (`PACKAGES`), neither systemd nor root. Where they are missing, DIBS_SLURM_INSTALL=1 lets
it get them with apt-get, as root. Several clusters can run beside each other: each has its own folder, ports and key.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("munge", "slurmctld", "slurmd", "slurm-client")
PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
SEARCH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
NODES = ("n1", "n2")
INSTALL = "DIBS_SLURM_INSTALL"
"""Environment variable that allows `install` to call apt-get."""

# What is not obvious: MinJobAge keeps finished jobs visible to squeue, which is how Snakemake learns of them;
# NoInAddrAny and NoCtldInAddrAny bind the daemons to the addresses named here, which are loopback; config_overrides
# lets two nodes claim two cores each wherever they run.
#
# The timeouts are long: on a machine that stands still for ten seconds, SLURM's own let nodes die (SlurmdTimeout),
# jobs get lost as they begin (BatchStartTimeout), job steps fail that ask for their place (MessageTimeout) and nodes
# retire that clean up slowly (UnkillableStepTimeout). A test that needs a node to die sooner sets `quick_death`.
#
# Memory is limited by SLURM itself, which looks every second what the processes of a job step have and kills those
# that have more than they asked for (OverMemoryKill). Clusters rather leave that to the kernel (task/cgroup), but a
# test cannot count on it: it needs root, and with cgroups of version 2 systemd as well.
CONFIG = """\
ClusterName=dibs
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=100000,batch_sched_delay=0
ReturnToService=2
MinJobAge=3600
KillWait=2
SlurmdTimeout={silence}
BatchStartTimeout=300
MessageTimeout=100
TCPTimeout=30
UnkillableStepTimeout=600
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=8000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=8000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE
"""


SILENCE = 300
"""Seconds that a node may be silent before it counts as dead."""
QUICK_SILENCE = 10
COMMAND_LIMIT = 300
"""Seconds that one of SLURM's commands may take: longer than its own MessageTimeout."""


class ClusterError(RuntimeError):
    """SLURM cannot be had, or does not start."""


def missing() -> list[str]:
    """Programs of SLURM that are not on this machine."""
    return [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]


def install() -> None:
    """Get what is missing with apt-get; raises where that cannot be."""
    if not missing():
        return
    gone = ", ".join(missing())
    if shutil.which("apt-get") is None:
        raise ClusterError(f"SLURM is missing ({gone}), and there is no apt-get to install it with")
    if os.geteuid() != 0 or os.environ.get(INSTALL) != "1":
        raise ClusterError(
            f"SLURM is missing ({gone}); as root, {INSTALL}=1 lets this script install it, or do it yourself: "
            f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
        )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (("update",), ("install", "--yes", "--no-install-recommends", *PACKAGES)):
        done = subprocess.run(
            ["apt-get", "--quiet", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )
        if done.returncode:
            raise ClusterError(f"apt-get {' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    if missing():
        raise ClusterError(f"apt-get installed {', '.join(PACKAGES)}, but {', '.join(missing())} are still missing")


class Cluster:
    """A running cluster; `environment` makes SLURM's commands, and Snakemake, talk to it."""

    def __init__(self) -> None:
        # Not below a test's own folder: the paths of sockets may not be long.
        self.folder = Path(tempfile.mkdtemp(prefix="dibs-slurm-"))
        self.config = self.folder / "slurm.conf"
        self.ports: list[int] = []
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_", "SNAKEMAKE_"))},
            "SLURM_CONF": str(self.config),
            "PATH": f"{self.folder}/bin:{SEARCH}",
        }

    # --- start and stop ------------------------------------------------------------------------------

    def start(self, tries: int = 3) -> None:
        """Start the daemons and wait until both nodes take jobs."""
        for attempt in range(1, tries + 1):
            try:
                self._configure()
                self._start_munge()
                self._daemon("slurmctld", "slurmctld", "-D", "-i")
                for node in NODES:
                    self.start_node(node)
                self.wait_for_nodes(NODES, "idle")
                return
            except ClusterError:
                # Another program may have taken one of the ports in the meantime.
                self.stop(remove=attempt == tries)
                if attempt == tries:
                    raise

    def stop(self, remove: bool = True) -> None:
        """End the jobs, then the daemons in reverse, then whatever of this cluster is left."""
        ctld = self.daemons.get("slurmctld")
        if ctld is not None and ctld.poll() is None:
            with contextlib.suppress(ClusterError):
                self.run("scancel", "--full", "--user", getpass.getuser())
                self._wait(lambda: not self.run("squeue", "--noheader", "--states=R,CG"), 20, "jobs to end")
        for name in (*reversed(NODES), "slurmctld", "munged"):
            if (daemon := self.daemons.pop(name, None)) is not None:
                _end(daemon)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if remove:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _configure(self) -> None:
        for name in ("munge", "state", "spool", "bin"):
            (self.folder / name).mkdir(exist_ok=True)
        (self.folder / "munge").chmod(0o700)
        self.ports = _free_ports(3)
        self._write_config(SILENCE)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")
        # Snakemake's job steps remove SLURM_CONF before they call srun; a real cluster has its configuration in
        # the place where SLURM looks by itself.
        shim = self.folder / "bin" / "srun"
        shim.write_text(f'#!/bin/sh\nSLURM_CONF="{self.config}" exec "{shutil.which("srun", path=SEARCH)}" "$@"\n')
        shim.chmod(0o755)

    def _write_config(self, silence: int) -> None:
        user, host = getpass.getuser(), socket.gethostname().partition(".")[0]
        text = CONFIG.format(folder=self.folder, user=user, host=host, ports=self.ports, silence=silence)
        self.config.write_text(text)

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        key, ring = folder / "key", folder / "socket"
        key.unlink(missing_ok=True)
        subprocess.run([_program("mungekey"), "--create", f"--keyfile={key}"], check=True, timeout=300)
        files = {"key": key, "socket": ring, "pid": folder / "pid", "log": folder / "log", "seed": folder / "seed"}
        options = ["--foreground", "--force", "--num-threads=2", f"--key-file={files['key']}"]
        options += [f"--socket={files['socket']}", f"--pid-file={files['pid']}", f"--log-file={files['log']}"]
        self._daemon("munged", "munged", *options, f"--seed-file={files['seed']}")
        self._wait(ring.exists, 300, "munged's socket")

    def start_node(self, node: str) -> None:
        """Start a node's slurmd."""
        (self.folder / "spool" / node).mkdir(exist_ok=True)
        self._daemon(node, "slurmd", "-D", "-N", node)

    def _daemon(self, name: str, program: str, *arguments: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self.daemons[name] = subprocess.Popen(
                [_program(program), *arguments],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    # --- use -----------------------------------------------------------------------------------------

    def run(self, *command: str) -> str:
        """Standard output of one of SLURM's commands."""
        try:
            done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=COMMAND_LIMIT)
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"{' '.join(command)}: no answer in {COMMAND_LIMIT} s") from error
        if done.returncode:
            raise ClusterError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def jobs(self) -> list[dict[str, str]]:
        """Jobs that SLURM knows, finished ones too; `comment` has what Snakemake writes there, rule and wildcards."""
        fields = {"id": "%i", "state": "%T", "node": "%N", "comment": "%k", "folder": "%Z", "memory": "%m"}
        fields |= {"cores": "%C", "limit": "%l", "taken": "%M"}
        text = self.run("squeue", "--noheader", "--states=all", f"--format={'|'.join(fields.values())}")
        return [dict(zip(fields, line.split("|"), strict=True)) for line in text.splitlines()]

    def kill_node(self, node: str) -> None:
        """What a power cut does: the node's slurmd and all its jobs' processes are gone at once."""
        daemon = self.daemons.pop(node)
        daemon.kill()
        daemon.wait()
        # Again and again: what is about to be killed may have begun something else.
        while jobs := self.processes(node):
            mine = set(self.processes())
            # First the slurmstepds, the jobs' parents, who would tell the controller how their jobs ended.
            steps = {parent for parent in map(_parent, jobs) if parent in mine} - set(jobs)
            for pid in (*steps, *jobs):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    @contextlib.contextmanager
    def quick_death(self) -> Iterator[None]:
        """While the block runs, a node counts as dead after QUICK_SILENCE, not only after SILENCE."""
        self._write_config(QUICK_SILENCE)
        self.run("scontrol", "reconfigure")
        try:
            yield
        finally:
            self._write_config(SILENCE)
            self.run("scontrol", "reconfigure")

    def processes(self, node: str = "") -> list[int]:
        """Processes of this cluster's daemons and jobs, known by their environment; of one node only its jobs'."""
        mine = f"SLURM_CONF={self.config}".encode()
        wanted = {mine, f"SLURMD_NODENAME={node}".encode()} if node else {mine}
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                        found.append(int(entry.name))
        return found

    def wait_for_nodes(self, nodes: tuple[str, ...], state: str, seconds: float = 300) -> None:
        """Wait until the nodes are in a state (`idle`, `down`, …)."""

        def reached() -> bool:
            try:
                found = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").split("\n")
            except ClusterError:
                return False
            return {f"{node} {state}" for node in nodes} <= {line.strip().rstrip("*") for line in found}

        self._wait(reached, seconds, f"{', '.join(nodes)} to be {state}")

    def _wait(self, condition: object, seconds: float, what: str) -> None:
        assert callable(condition)
        end = time.monotonic() + seconds
        while not condition():
            ended = [name for name, daemon in self.daemons.items() if daemon.poll() is not None]
            if ended or time.monotonic() > end:
                why = f"{', '.join(ended)} ended" if ended else f"waited {seconds:.0f} s"
                raise ClusterError(f"no use waiting for {what}: {why}\n{self._told()}")
            time.sleep(0.1)

    def _told(self) -> str:
        """The last lines of all logs."""
        files = [*self.folder.glob("*.log"), *self.folder.glob("*.out"), self.folder / "munge" / "log"]
        return "\n".join(f"--- {f.name}\n{f.read_text()[-1000:]}" for f in files if f.is_file() and f.stat().st_size)


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster]:
    """A cluster while the block runs."""
    install()
    cluster = Cluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _program(name: str) -> str:
    found = shutil.which(name, path=SEARCH)
    if found is None:
        raise ClusterError(f"{name} is missing")
    return found


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _free_ports(count: int) -> list[int]:
    """Ports that nobody uses, below those that the kernel gives to connections: a node may come back to its own."""
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in random.sample(range(12000, 32000), 1000):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise ClusterError(f"not even {count} free ports were found between 12000 and 32000")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> int:
    """Run a cluster until interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="start none, fail if SLURM cannot be had")
    check = parser.parse_args().check
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        if check:
            install()
            return 0
        with running_cluster() as cluster:
            print(f"export SLURM_CONF={cluster.config} PATH={cluster.folder}/bin:$PATH", flush=True)
            print("# the cluster runs until Ctrl-C", file=sys.stderr, flush=True)
            signal.pause()
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
