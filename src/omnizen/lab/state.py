"""Which labs exist: a small file each, so that what a killed lab left can be found and removed."""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from omnizen.errors import OmnizenError, UserError
from omnizen.lab.namespaces import kill_all
from omnizen.lab.network import destroy
from omnizen.lab.quota import Quotas, find_parent

RUN_DIR = Path("/run/omnizen-lab")
PREFIX = "omnizen-"


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None when it is not there (or a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True, slots=True)
class LabFile:
    """The file of one lab: its name, and the process that owns it with that process's start time."""

    path: Path

    @classmethod
    def create(cls, run_dir: Path = RUN_DIR) -> LabFile:
        """Claim a name that no other lab has, for this process, before anything is made."""
        try:
            run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"the lab keeps its state in {run_dir}, which cannot be made: {error}") from error
        text = json.dumps({"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())})
        draft = run_dir / f".{os.getpid()}-{secrets.token_hex(4)}"
        try:
            draft.write_text(text)
            for _ in range(100):
                path = run_dir / f"{PREFIX}{os.getpid()}-{secrets.token_hex(2)}.json"
                try:
                    path.hardlink_to(draft)  # appears whole or not at all
                except FileExistsError:
                    continue
                return cls(path)
        except OSError as error:
            raise UserError(f"the lab keeps its state in {run_dir}: {error.strerror}") from error
        finally:
            draft.unlink(missing_ok=True)
        raise OmnizenError(f"no free lab name was found in {run_dir}")

    @property
    def name(self) -> str:
        """The lab's name, with which the names of its namespaces begin."""
        return self.path.stem

    def alive(self) -> bool:
        """Tell whether the owner still runs; another process with the same id is not the owner.

        Of a damaged file only the name tells the owner, and a process with that id counts as it.
        """
        pid = int(self.name.split("-")[1])
        found = start_ticks(pid)
        try:
            began = json.loads(self.path.read_bytes())["start_ticks"]
        except (ValueError, TypeError, KeyError):
            return found is not None
        return found is not None and found == began

    def remove(self) -> int:
        """Remove the lab's processes, namespaces, control groups and this file; return the processes killed."""
        killed = destroy(self.name)
        found = find_parent(Path("/proc/self/mounts").read_text())
        if found:
            quotas = Quotas(self.name, *found)
            killed += kill_all(quotas.pids)  # none, unless someone else deleted their namespace
            quotas.remove()
        self.path.unlink(missing_ok=True)
        return killed


def clean(run_dir: Path = RUN_DIR) -> list[str]:
    """Remove what labs left whose process is dead; return their names. Running labs are not touched."""
    removed: list[str] = []
    if not run_dir.is_dir():
        return removed
    if not os.access(run_dir, os.R_OK | os.W_OK | os.X_OK):
        raise UserError(f"{run_dir} belongs to another user; run this as root")
    for draft in run_dir.iterdir():
        owner = re.fullmatch(r"\.([0-9]+)-[0-9a-f]{8}", draft.name)
        if owner and start_ticks(int(owner[1])) is None:
            draft.unlink(missing_ok=True)
    for path in sorted(run_dir.glob(f"{PREFIX}*.json")):
        lab = LabFile(path)
        if not (path.is_file() and re.fullmatch(PREFIX + "[0-9]+-[0-9a-f]{4}", lab.name)):
            continue  # not a lab's
        try:
            alive = lab.alive()
        except FileNotFoundError:  # it ended by itself meanwhile
            continue
        if not alive:
            lab.remove()
            removed.append(lab.name)
    return removed
