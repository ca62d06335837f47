"""`get_task_logger`, as Celery has it."""

from __future__ import annotations

import logging


def get_task_logger(name: str) -> logging.Logger:
    """The logger of this name. `commandbus worker --log-format json` adds the ids of the command."""
    return logging.getLogger(name)
