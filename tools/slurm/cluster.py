"""Start and stop a Slurm on this machine: one controller, and a daemon for each simulated node.

    python -m tools.slurm.cluster <folder> --nodes 2     # prints the line that makes sbatch use it; Ctrl-C ends it

Needs root and Debian's packages slurm-wlm and munge.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "munge", "sbatch", "scontrol")
"""What must be installed."""

_PORT = 16900
"""The controller's; the nodes' follow it."""

_PATIENCE = 30
"""Seconds for the nodes to come up."""


def missing() -> list[str]:
    """What a cluster needs and is not here."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    return absent if os.geteuid() == 0 else [*absent, "the rights of root"]


@contextmanager
def cluster(folder: Path, nodes: int) -> Iterator[Path]:
    """A running Slurm; its configuration, to be named by ``SLURM_CONF``.

    Args:
        folder: Where its state and logs go.
        nodes: Number of simulated nodes, ``n1``, ``n2`` and so on, each with all processors of this machine.

    Raises:
        TimeoutError: If the nodes do not come up; their logs are in the folder.
    """
    _start_munge()
    (folder / "state").mkdir(parents=True)
    config = folder / "slurm.conf"
    host, cores = socket.gethostname().partition(".")[0], os.cpu_count() or 1
    names = [f"n{number}" for number in range(1, nodes + 1)]
    lines = [
        "ClusterName=here",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={_PORT}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool.%n",
        f"SlurmctldPidFile={folder}/controller.pid",
        f"SlurmdPidFile={folder}/%n.pid",
        f"SlurmctldLogFile={folder}/controller.log",
        f"SlurmdLogFile={folder}/%n.log",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "ReturnToService=2",
        "JobRequeue=1",
        "KillWait=5",
        *(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={_PORT + place} CPUs={cores} RealMemory=8000"
            for place, name in enumerate(names, 1)
        ),
        "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
    ]
    config.write_text("\n".join(lines) + "\n")
    environment = {**os.environ, "SLURM_CONF": str(config)}
    daemons = [subprocess.Popen(["slurmctld", "-D", "-f", str(config)], env=environment, stderr=subprocess.DEVNULL)]
    try:
        for name in names:
            (folder / f"spool.{name}").mkdir()
            command = ["slurmd", "-D", "-N", name, "-f", str(config)]
            daemons.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
        _wait_for_nodes(environment, nodes)
        yield config
    finally:
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in daemons:
            daemon.wait()


def _start_munge() -> None:
    # A daemon that was killed leaves its socket behind.
    if subprocess.run(["munge", "--no-input"], capture_output=True, check=False).returncode == 0:
        return
    for path in (Path("/run/munge"), Path("/var/log/munge"), Path("/var/lib/munge")):
        path.mkdir(exist_ok=True)
        shutil.chown(path, "munge", "munge")
    subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", f"{shutil.which('munged')} --force"], check=True)


def _wait_for_nodes(environment: dict[str, str], nodes: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        command = ["sinfo", "--noheader", "--Node", "--states=idle", "--format=%n"]
        idle = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout.split()
        if len(idle) == nodes:
            return
        time.sleep(0.5)
    raise TimeoutError(f"{nodes} nodes did not come up within {_PATIENCE} seconds; see the logs beside slurm.conf.")


def main() -> None:
    """Run a cluster until it is interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=1)
    options = parser.parse_args()
    if absent := missing():
        raise SystemExit(f"Missing here: {', '.join(absent)}.")
    with cluster(options.folder.resolve(), options.nodes) as config:
        print(f"export SLURM_CONF={config}", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
