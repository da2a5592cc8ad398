"""Becomes a host's command: dies with the lab, enters the host's control group, then runs the command.

Run as a file of its own, ``python -I -S launch.py LAB_PID CGROUP_PROCS|- COMMAND...``, as it must be quick and
may not run in the lab's process, whose threads forbid work between fork and exec.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Prepare this process, then replace it by the command."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback when the lab is stopped now
    lab_pid, procs, *command = sys.argv[1:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(lab_pid):  # the lab ended before the line above
        sys.exit(1)
    if procs != "-":
        with open(procs, "w") as file:  # noqa: PTH123  (pathlib takes longer to import than all the rest)
            file.write(str(os.getpid()))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
