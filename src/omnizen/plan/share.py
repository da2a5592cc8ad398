"""One plan for all ranks: rank 0 makes it, everyone reads the same text."""

from __future__ import annotations

from omnizen.errors import UserError
from omnizen.measure.texts import gather_texts
from omnizen.plan.plan import Plan
from omnizen.protocols import Comm


def share_plan(plan: Plan | None, comm: Comm) -> Plan:
    """Give rank 0's plan to every rank (collective).

    Args:
        plan: rank 0's plan; what other ranks pass is not looked at.

    Raises:
        UserError: on every rank, when rank 0 has none.
    """
    text = gather_texts(comm, plan.to_toml() if plan is not None and comm.rank == 0 else "")[0]
    if not text:
        raise UserError("rank 0 has no plan to share")
    return Plan.from_toml(text, source="the plan of rank 0")
