"""Hosts with shaped links and limited processors on one Linux box."""

from omnizen.lab.config import LabConfig
from omnizen.lab.local import run_local
from omnizen.lab.namespaces import available
from omnizen.lab.rates import Link, load_rates, parse_rate
from omnizen.lab.result import LabResult
from omnizen.lab.run import Lab, run_lab
from omnizen.lab.state import clean

__all__ = [
    "Lab",
    "LabConfig",
    "LabResult",
    "Link",
    "available",
    "clean",
    "load_rates",
    "parse_rate",
    "run_lab",
    "run_local",
]
