"""Carrying out what the automatic optimizer asks for, with a user's own model."""

from omnizen.train.tuning.stretch import Stretch, Update, Way
from omnizen.train.tuning.subject_task import SubjectTask
from omnizen.train.tuning.task import Task
from omnizen.train.tuning.trainer import Trainer

__all__ = ["Stretch", "SubjectTask", "Task", "Trainer", "Update", "Way"]
