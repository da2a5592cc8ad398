"""The automatic optimizer: how many compute groups, which step size, which momentum; see ``tuner.py``."""

from omnizen.plan.tuner.actions import Action, Done, Point, Probe, Result, Train
from omnizen.plan.tuner.book import Note, Trial
from omnizen.plan.tuner.carry import Carrier
from omnizen.plan.tuner.settings import Settings
from omnizen.plan.tuner.tuner import Tuner

__all__ = ["Action", "Carrier", "Done", "Note", "Point", "Probe", "Result", "Settings", "Train", "Trial", "Tuner"]
